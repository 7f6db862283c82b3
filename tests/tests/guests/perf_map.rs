//! `--perf-map`: the file from which perf reads the names of native code.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Killed, Machine, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("entries_are_in_executable_memory", entries),
            ("it_needs_native_code", without_native_code),
        ],
    )
}

/// A file that is removed at the end of its test.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = fs::remove_file(&self.0);
    }
}

/// Addresses of the executable memory of a process that belongs to no other file than /dev/zero, as
/// perf sees shared anonymous memory.
fn executable(pid: u32) -> Result<Vec<Range<u64>>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let ranges = maps
        .lines()
        .filter(|line| line.contains(" r-xs "))
        .map(|line| {
            ensure!(line.contains(" /dev/zero"), "perf skips {line}");
            let (start, end) = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'))
                .context("no range")?;
            Ok(u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?)
        });
    ranges.collect()
}

/// An entry: where it is, and its name.
fn entry(line: &str) -> Result<(Range<u64>, &str)> {
    let mut fields = line.splitn(3, ' ');
    let mut next = || fields.next().with_context(|| format!("{line}: too short"));
    let start = u64::from_str_radix(next()?, 16)?;
    let len = u64::from_str_radix(next()?, 16)?;
    ensure!(len > 0, "{line}: empty");
    Ok((start..start + len, next()?))
}

/// Two processors share the file, which says where the code of both is.
fn entries(machine: &Machine) -> Result<()> {
    let options = [
        "trace",
        "--accel",
        "soft",
        "--jit",
        "on",
        "--smp",
        "2",
        "--perf-map",
        "--output",
        "/dev/null",
        "--",
        "/bin/cat",
    ];
    let mut command = machine.command(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut vbts = Killed(command.spawn()?);
    let pid = vbts.0.id();
    let file = Removed(format!("/tmp/perf-{pid}.map").into());
    let mut input = vbts.0.stdin.take().context("no input")?;
    let mut output = BufReader::new(vbts.0.stdout.take().context("no output")?);
    // The guest runs when it has answered.
    input.write_all(b"answer\n")?;
    let mut answer = String::new();
    output.read_line(&mut answer)?;
    ensure!(answer == "answer\n", "{answer:?}");
    let memory = executable(pid)?;
    ensure!(memory.len() == 2, "{memory:?}");
    drop(input);
    let status = machine::wait(&mut vbts.0, Duration::from_secs(60))?;
    ensure!(status == Some(0), "{status:?}");

    let text = fs::read_to_string(&file.0)?;
    ensure!(text.ends_with('\n'), "the last line is not complete");
    let mut all: Vec<_> = text.lines().map(entry).collect::<Result<_>>()?;
    for (range, name) in &all {
        let inside = |memory: &Range<u64>| memory.start <= range.start && range.end <= memory.end;
        ensure!(memory.iter().any(inside), "{range:x?} {name}: {memory:x?}");
    }
    // The code memory of so short a run is not cleared, so no address is used twice.
    all.sort_by_key(|(range, _)| range.start);
    for pair in all.windows(2) {
        ensure!(pair[0].0.end <= pair[1].0.start, "{pair:x?} overlap");
    }
    let count = |part: &str| all.iter().filter(|(_, name)| name.contains(part)).count();
    ensure!(count("vbts:routines") == 2, "{}", count("vbts:routines"));
    let (kernel, user) = (count("guest:0xffffffff8"), count(":cpl3"));
    ensure!(
        kernel > 100 && user > 10,
        "{kernel} of the kernel, {user} of programs"
    );
    Ok(())
}

fn without_native_code(machine: &Machine) -> Result<()> {
    let run = machine
        .run(["trace", "--jit", "off", "--perf-map", "--", "/bin/true"])?
        .expect(125)?;
    let message = "vbts: --perf-map names native code: --jit off makes none\n";
    ensure!(run.stderr == message, "{}", run.stderr);
    Ok(())
}
