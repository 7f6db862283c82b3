//! perf: the PMU intel_bts, the event "branches" with a period of 1, counts, and its own tests.

use anyhow::{Context, Result, bail, ensure};
use vbts_tests::branches::{Branch, Symbols, first_difference};
use vbts_tests::machine::Machine;
use vbts_tests::oracle::Trace;

use super::{Guest, address, run, run_programs};
use crate::perf_and_gdb;
use crate::stock_kernel::file;

/// Parses the branches of `perf script -F ip,addr`.
fn parse_script(text: &str) -> Result<Vec<Branch>> {
    text.lines()
        .map(|line| {
            let (from, to) = line
                .split_once("=>")
                .with_context(|| format!("no branch: {line:?}"))?;
            Ok(Branch {
                from: address(from.trim())?,
                to: address(to.trim())?,
            })
        })
        .collect()
}

/// Parses the buffers of branch records in a file of `perf record`
/// (tools/perf/Documentation/perf.data-file-format.txt).
fn parse_buffers(data: &[u8]) -> Result<Vec<Vec<Branch>>> {
    /// PERF_RECORD_AUXTRACE: a header of eight bytes, with type and size, and the size of the data
    /// that follows.
    const AUXTRACE: u64 = 71;
    let number = |at: u64, len: u64| -> Result<u64> {
        let bytes = usize::try_from(at)
            .ok()
            .and_then(|at| data.get(at..at.checked_add(len as usize)?))
            .context("the file is cut off")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | u64::from(*byte)))
    };
    ensure!(data.starts_with(b"PERFILE2"), "no perf.data file");
    // The section `data` of struct perf_header.
    let (mut at, size) = (number(40, 8)?, number(48, 8)?);
    let end = at.saturating_add(size);
    let mut buffers = Vec::new();
    while at < end {
        let (kind, size) = (number(at, 4)?, number(at + 6, 2)?);
        ensure!(size >= 8, "an event of {size} bytes");
        let next = at + size;
        let following = if kind == AUXTRACE {
            number(at + 8, 8)?
        } else {
            0
        };
        at = next.saturating_add(following);
        if kind == AUXTRACE {
            let mut buffer = Vec::new();
            for record in (next..at).step_by(24) {
                let word = |n: u64| number(record + n * 8, 8);
                // The "predicted" flag is clear, as on the Core microarchitecture.
                ensure!(word(2)? & 0x10 == 0, "a predicted branch");
                buffer.push(Branch {
                    from: word(0)?,
                    to: word(1)?,
                });
            }
            buffers.push(buffer);
        }
    }
    Ok(buffers)
}

/// Checks the PMU `intel_bts`: its buffer has the program's branches and the returns from the
/// kernel. `perf script` leaves out empty records and the last record of each buffer, because
/// intel_bts_process_buffer() in perf's util/intel-bts.c continues only while there is more than
/// one record.
pub(super) fn intel_bts(machine: &Machine, guest: Guest) -> Result<()> {
    const COMMANDS: &str = "
        perf record -q -N -B -o data --per-thread -e intel_bts//u -- ./$p >results/$p.output 2>results/$p.errors
        echo $? >results/$p.status
        perf script -i data --itrace=b -F ip,addr >results/$p.script 2>>results/$p.errors
        mv data results/$p.data";
    let directory = tempfile::tempdir()?;
    let before = "perf list >results/list 2>&1";
    let (known, results) = run_programs(machine, guest, directory.path(), before, COMMANDS)?;
    let list = results.read("list")?;
    ensure!(
        list.lines()
            .any(|line| line.trim_start().starts_with("intel_bts//")),
        "perf list does not have intel_bts:\n{list}"
    );
    for known in &known {
        let name = known.name();
        let buffers = parse_buffers(&results.bytes(&format!("{name}.data"))?)?;
        let is_record = |branch: &Branch| (branch.from | branch.to) != 0;
        let mut all = buffers.concat();
        ensure!(
            all.iter().all(|branch| branch.to >> 63 == 0),
            "{name}: there is a branch to the kernel, which BTS_OFF_OS excludes"
        );
        all.retain(|branch| is_record(branch) && branch.is_user());
        known.check_branches(&all, &results)?;

        let shown: Vec<Branch> = buffers
            .iter()
            .flat_map(|buffer| buffer.split_last().map_or(&[][..], |(_, others)| others))
            .copied()
            .filter(is_record)
            .collect();
        let script = parse_script(&results.read(&format!("{name}.script"))?)?;
        if let Some(text) = first_difference(&shown, &script, &Symbols::read(&known.path)?) {
            bail!(
                "{name}: perf script shows branches that differ from those of the buffers: {text}"
            );
        }
    }
    Ok(())
}

/// Checks the event `branches` with a period of 1: the kernel makes a sample of each record between
/// user addresses.
pub(super) fn branches(machine: &Machine, guest: Guest) -> Result<()> {
    // The ring is large enough for all samples: the kernel drops those of 2,560 records at once if
    // they do not fit.
    const COMMANDS: &str = "
        perf record -q -N -B -m 4096 -o data -e branches:u -c 1 -d -- ./$p >results/$p.output 2>results/$p.errors
        echo $? >results/$p.status
        perf script -i data -F ip,addr >results/$p.script 2>>results/$p.errors";
    let directory = tempfile::tempdir()?;
    let (known, results) = run_programs(machine, guest, directory.path(), "", COMMANDS)?;
    for known in &known {
        let script = parse_script(&results.read(&format!("{}.script", known.name()))?)?;
        known.check_branches(&script, &results)?;
    }
    Ok(())
}

/// Checks that the counts of instructions and branches are those of single-stepping.
pub(super) fn stat(machine: &Machine, guest: Guest) -> Result<()> {
    // perf stat reports nothing and exits with 0 if the program ends before perf waits for it: its
    // SIGCHLD handler has then cleared the process ID (skip_signal() in perf's builtin-stat.c).
    // Another attempt has another order.
    const COMMANDS: &str = "
        for again in 1 2 3 4 5; do
            perf stat -x, -o results/$p.stat -e instructions:u,branches:u -- ./$p >results/$p.output 2>results/$p.errors
            status=$?
            [ $status = 0 ] || break
        done
        echo $status >results/$p.status";
    let directory = tempfile::tempdir()?;
    let (known, results) = run_programs(machine, guest, directory.path(), "", COMMANDS)?;
    for known in &known {
        let name = known.name();
        let text = results.read(&format!("{name}.stat"))?;
        // Number, unit, event, time that it counted, share of the time.
        let counts: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split(',').take(5).collect())
            .collect();
        let Trace {
            instructions,
            branch_instructions,
            ..
        } = known.trace;
        let (instructions, branches) = (instructions.to_string(), branch_instructions.to_string());
        let mut rows = [(&instructions, "instructions:u"), (&branches, "branches:u")]
            .into_iter()
            .zip(&counts);
        let equal = rows.all(|((number, event), row)| match row.as_slice() {
            [n, "", e, _, share] => n == number && *e == event && *share == "100.00",
            _ => false,
        });
        ensure!(
            equal && counts.len() == 2,
            "{name}: not {instructions} instructions and {branches} branches:\n{text}"
        );
        println!("{name}: {instructions} instructions, {branches} branches");
    }
    Ok(())
}

/// Runs perf's own tests.
pub(super) fn tests(machine: &Machine, guest: Guest) -> Result<()> {
    file("root")?;
    let directory = tempfile::tempdir()?;
    let commands = format!("(\n{}) >results/tests 2>&1", perf_and_gdb::perf_tests());
    let results = run(machine, guest, directory.path(), &commands, &[])?;
    perf_and_gdb::check_perf_tests(&results.read("tests")?)
}
