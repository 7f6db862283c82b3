//! perf with the LBR stack: `-b`, `--call-graph lbr` and the field `brstack`.

use std::fs;

use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use object::{Object, ObjectSegment};
use vbts_tests::branches::Branch;
use vbts_tests::machine::Machine;

use super::{Guest, Known, Results, run_programs};

/// A sample's branches, the oldest first.
type Stack = Vec<Branch>;

/// The most branches of a sample, and whether a model has a filter and a call stack.
fn lbr(model: &str) -> (usize, bool) {
    match model {
        "core2" => (4, false),
        "nehalem" => (16, false),
        "skylake" => (32, true),
        _ => (16, true),
    }
}

/// Checks that the branches of each sample are in the program's trace, one after the other, that
/// those of `--call-graph lbr` are calls that have not returned, and that the stack and the Branch
/// Trace Store exclude each other.
pub(super) fn last_branches(machine: &Machine, guest: Guest) -> Result<()> {
    // The Branch Trace Store is taken while a command of the first `perf record` runs.
    const BEFORE: &str = "
        echo 0 >/proc/sys/kernel/perf_cpu_time_max_percent
        bts='perf record -q -N -B -o inner --per-thread -e intel_bts//u -- /bin/true'
        perf record -q -N -B -o outer -b -e branches:u -c 1009 -- $bts >results/busy 2>&1
        $bts >results/free 2>&1
        echo $? >>results/free";
    const STACKS: &str = "
        perf record -q -N -B -o data -j any,u -e branches:u -c 997 -- ./$p >results/$p.output 2>results/$p.errors
        echo $? >results/$p.status
        perf script -i data -F brstack >results/$p.stacks 2>>results/$p.errors";
    const CALLS: &str = "
        perf record -q -N -B -o data --call-graph lbr -e branches:u -c 997 -- ./$p >/dev/null 2>>results/$p.errors
        perf script -i data -F brstack >results/$p.calls 2>>results/$p.errors";
    let (depth, calls) = lbr(guest.model);
    let directory = tempfile::tempdir()?;
    let commands = if calls {
        format!("{STACKS}{CALLS}")
    } else {
        STACKS.to_owned()
    };
    let (known, results) = run_programs(machine, guest, directory.path(), BEFORE, &commands)?;
    let busy = results.read("busy")?;
    ensure!(busy.to_lowercase().contains("busy"), "not busy: {busy}");
    let free = results.read("free")?;
    ensure!(
        free.trim() == "0",
        "the Branch Trace Store is not free: {free}"
    );

    let (mut deepest, mut samples) = (0, 0);
    let mut nested = 0;
    for known in &known {
        let stacks = stacks(&results, &format!("{}.stacks", known.name()), guest.model)?;
        check_stacks(known, &stacks)?;
        deepest = deepest.max(stacks.iter().map(Vec::len).max().unwrap_or(0));
        samples += stacks.len();
        // What a program has written as it ran cannot be read in its file.
        if calls && known.name() != "self_modifying" {
            let calls = self::stacks(&results, &format!("{}.calls", known.name()), guest.model)?;
            check_calls(known, &calls)?;
            nested = nested.max(calls.iter().map(Vec::len).max().unwrap_or(0));
        }
    }
    println!("{samples} samples, of up to {deepest} branches, {nested} calls");
    ensure!(
        deepest == depth && samples > 100,
        "the stack has {depth} entries"
    );
    ensure!(!calls || nested > 4, "a recursive program has deeper calls");
    Ok(())
}

/// Reads what `perf script -F brstack` has printed: a line for each sample, with the latest branch
/// first, each FROM/TO/FLAGS. Branches from or to the kernel are left out.
fn stacks(results: &Results, name: &str, model: &str) -> Result<Vec<Stack>> {
    let text = results.read(name)?;
    let mut all = Vec::new();
    for line in text.lines() {
        let mut stack = Stack::new();
        for entry in line.split_whitespace() {
            let bad = || format!("{name}: no entry: {entry:?}");
            let mut fields = entry.split('/');
            let mut address = || {
                let digits = fields.next()?.strip_prefix("0x")?;
                u64::from_str_radix(digits, 16).ok()
            };
            let (from, to) = (address().with_context(bad)?, address().with_context(bad)?);
            // A processor without prediction mispredicts nothing. Core 2 does not say, and perf
            // does not ask for a call stack.
            let flag = fields.next().with_context(bad)?;
            let says = model != "core2" && name.ends_with(".stacks");
            ensure!(flag == "P" || !says && flag == "-", "{name}: {entry}");
            let branch = Branch { from, to };
            if branch.is_user() {
                stack.insert(0, branch);
            }
        }
        all.push(stack);
    }
    Ok(all)
}

/// Checks that each stack is a part of the program's trace, and none before the one of the sample
/// before.
fn check_stacks(known: &Known, stacks: &[Stack]) -> Result<()> {
    let trace = &known.trace.branches;
    let mut at = 0;
    for (n, stack) in stacks.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
        let found = trace[at..]
            .windows(stack.len())
            .position(|window| window == stack.as_slice());
        let found = found.with_context(|| {
            format!(
                "{}: sample {n} is not in the trace: {stack:x?}",
                known.name()
            )
        })?;
        at += found;
    }
    Ok(())
}

/// Checks that each stack has the latest of the calls that have not returned at some place of the
/// program's trace, and none before the place of the sample before.
fn check_calls(known: &Known, stacks: &[Stack]) -> Result<()> {
    let code = fs::read(&known.path)?;
    let file = object::File::parse(code.as_slice())?;
    let mut branches = known.trace.branches.iter();
    let mut open = Stack::new();
    for (n, stack) in stacks.iter().enumerate() {
        while !open.ends_with(stack) {
            let branch = branches.next().with_context(|| {
                format!(
                    "{}: sample {n} is at no place of the trace: {stack:x?}",
                    known.name()
                )
            })?;
            let i = instruction(&file, branch.from);
            match i.map(|i| (i.flow_control(), i.next_ip() == branch.to)) {
                Some((FlowControl::Call, true)) => {}
                Some((FlowControl::Call | FlowControl::IndirectCall, _)) => open.push(*branch),
                Some((FlowControl::Return, _)) => {
                    open.pop();
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The instruction at an address of the program, if it is in the file.
fn instruction(file: &object::File, address: u64) -> Option<Instruction> {
    const LONGEST: u64 = 15;
    file.segments().find_map(|segment| {
        let end = segment.address() + segment.size();
        if !(segment.address()..end).contains(&address) {
            return None;
        }
        let len = LONGEST.min(end - address);
        let bytes = segment.data_range(address, len).ok()??;
        let bits = if file.is_64() { 64 } else { 32 };
        Some(Decoder::with_ip(bits, bytes, address, DecoderOptions::NONE).decode())
    })
}
