//! A program that single-steps itself on the host: the branches that it notes must be those of its
//! trace in the guest, between two marks. This is several times faster than single-stepping with
//! ptrace, which switches between two tasks at each instruction.
//!
//! `VBTS_STEPPED_SECONDS` is the time to go on for, `VBTS_STEPPED_SEED` the first seed. Without
//! them, the test makes one short run. A difference is reported with the seed that reproduces it.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use libtest_mimic::Trial;
use object::{Object, ObjectSection, ObjectSymbol};
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::machine::{self, Machine, TestModule, setting};
use vbts_tests::programs;

/// Compiler options. The seed selects one row.
const OPTIONS: [&[&str]; 7] = [
    &["-O0"],
    &["-O1"],
    &["-O2"],
    &["-O3"],
    &["-Os"],
    &["-O2", "-fno-jump-tables"],
    &["-O2", "-mindirect-branch=thunk", "-mfunction-return=thunk"],
];

/// Rounds of the work of a short run, and of one of many.
const SHORT: u32 = 3;
const LONG: u32 = 100;

/// Bits of an entry of the program's table, besides the length of the instruction.
const BRANCH: u8 = 16;
const ALWAYS_TAKEN: u8 = 32;
/// Bytes of code that the table has room for.
const TABLE: usize = 1 << 16;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(module, &[("oracle", oracle)])
}

fn oracle(machine: &Machine) -> Result<()> {
    let time = setting("VBTS_STEPPED_SECONDS")?.map(Duration::from_secs);
    let first: u64 = setting("VBTS_STEPPED_SEED")?.unwrap_or(1);
    let rounds = time.map_or(SHORT, |_| LONG);
    let start = Instant::now();
    let (mut programs, mut records) = (0u64, 0);
    for seed in first.. {
        let compared = compare(machine, seed, rounds);
        records += compared.with_context(|| format!("VBTS_STEPPED_SEED={seed}"))?;
        programs += 1;
        if start.elapsed() >= time.unwrap_or_default() {
            break;
        }
    }
    println!("{programs} programs, {records} records, all equal");
    Ok(())
}

/// Makes the program of a seed, and compares its branches. Returns their number.
fn compare(machine: &Machine, seed: u64, rounds: u32) -> Result<usize> {
    let directory = tempfile::tempdir()?;
    let row = usize::try_from(seed % OPTIONS.len() as u64)?;
    let mut flags = OPTIONS.get(row).context("no such row")?.to_vec();
    let own = [
        format!("-DSEED={seed}ul"),
        format!("-DROUNDS={rounds}"),
        // It prints nothing.
        "-Wno-unused-function".to_owned(),
    ];
    flags.extend(own.iter().map(String::as_str));
    let program = directory.path().join("stepped");
    programs::compile(&programs::source("stepped.c"), &program, &flags)?;
    let (expected, marks) = step(&program, directory.path())?;

    let output = directory.path().join("trace");
    let run = machine
        .trace("raw", &output, &["--buffer", "64K"], &[&program])?
        .expect(0)?;
    ensure!(run.stderr.contains("lost: 0"), "lost: {}", run.stderr);
    let mut got = branches::parse_raw(&std::fs::read(&output)?)?;
    got.retain(Branch::is_user);
    let position = |mark| got.iter().position(|branch| branch.to == mark);
    let begin = position(marks.work).context("the trace does not reach the work")? + 1;
    let end = position(marks.finish).context("the trace does not reach the end")? + 1;
    let got = got.get(begin..end).context("the work ends first")?;
    match branches::first_difference(&expected, got, &Symbols::read(&program)?) {
        Some(text) => bail!("{text}"),
        None => Ok(got.len()),
    }
}

/// Addresses of the functions that mark the branches to compare.
struct Marks {
    work: u64,
    finish: u64,
}

/// Runs the program on the host, where it steps itself. Returns its branches from `work` to
/// `finish`.
fn step(program: &Path, directory: &Path) -> Result<(Vec<Branch>, Marks)> {
    let data = std::fs::read(program)?;
    let object = object::File::parse(&*data)?;
    let address = |name| {
        let symbol = object.symbol_by_name(name);
        symbol.map(|symbol| symbol.address()).context(name)
    };
    let marks = Marks {
        work: address("work")?,
        finish: address("finish")?,
    };
    let text = object.section_by_name(".text").context("no code")?;
    let table = directory.join("table");
    std::fs::write(&table, instructions(text.data()?, text.address())?)?;
    let mut command = Command::new(program);
    command.env_clear().stdin(File::open(&table)?);
    let stdout = machine::finish(command)?.expect(0)?.stdout;
    let (records, rest) = stdout.as_chunks::<8>();
    ensure!(rest.is_empty(), "{} bytes of records", stdout.len());
    let branch = |record: &[u8; 8]| {
        let record = u64::from_le_bytes(*record);
        Branch {
            from: record & u64::from(u32::MAX),
            to: record >> 32,
        }
    };
    Ok((records.iter().map(branch).collect(), marks))
}

/// The program's table: the address of the code, and an entry for each of its bytes.
fn instructions(code: &[u8], address: u64) -> Result<Vec<u8>> {
    ensure!(code.len() <= TABLE, "{} bytes of code", code.len());
    let mut entries = vec![0; TABLE];
    for instruction in &mut Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        let at = usize::try_from(instruction.ip() - address)?;
        if let Some(entry) = entries.get_mut(at) {
            *entry = describe(&instruction)?;
        }
    }
    Ok([&address.to_le_bytes()[..], &entries].concat())
}

/// The entry of an instruction; 0 if the work has no such instruction.
fn describe(instruction: &Instruction) -> Result<u8> {
    let kind = match instruction.flow_control() {
        FlowControl::Next => 0,
        FlowControl::ConditionalBranch => {
            // Whether it is taken would not show.
            ensure!(
                instruction.near_branch_target() != instruction.next_ip(),
                "{:#x}: a conditional branch to the next instruction",
                instruction.ip()
            );
            BRANCH
        }
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::Return
            // SYSCALL is one of the calls, and its other end is in the kernel.
            if !instruction.mnemonic().eq(&iced_x86::Mnemonic::Syscall) =>
        {
            BRANCH | ALWAYS_TAKEN
        }
        _ => return Ok(0),
    };
    Ok(u8::try_from(instruction.len())? | kind)
}
