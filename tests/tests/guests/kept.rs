//! What a btrace file has when its run ends early: every branch that the messages count.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Run};
use vbts_trace::{Item, Reader};

pub fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[("tasks_without_a_buffer", tasks_without_a_buffer)],
    )
}

/// Checks that the file has as many branches as its end and the message in `run` say, at least
/// `least`, and that the run ended as `end` says.
fn check(file: &Path, run: &Run, end: &str, least: u64) -> Result<()> {
    let mut reader = Reader::new(BufReader::new(File::open(file)?))?;
    let mut count = 0;
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            count += branches.len() as u64;
        }
    }
    let summary = reader.summary().with_context(|| run.stderr.clone())?;
    ensure!(
        summary.end == end && summary.records == count && count >= least,
        "{count} branches, {summary:?}\n{}",
        run.stderr
    );
    let message = format!("\nvbts: records: {count}, ");
    ensure!(
        format!("\n{}", run.stderr).contains(&message),
        "{}",
        run.stderr
    );
    Ok(())
}

/// The guest's memory is full of processes, so that the kernel has none for the buffers of further
/// ones: those are not traced, and their ends are no matter of the trace.
fn tasks_without_a_buffer(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let script = "for i in {1..60}; do { read x; } < <(sleep 1000) & done; wait -n";
    // The others live when the first process ends, and also when the run waits for them.
    for wait in ["first", "all"] {
        let options = ["--memory", "64M", "--wait", wait];
        let run = machine.trace("btrace", &file, &options, &["/bin/bash", "-c", script])?;
        ensure!(
            run.stderr
                .contains("the guest has too little memory for its trace buffer"),
            "{}",
            run.stderr
        );
        // The shell itself can be the process that the kernel kills for its memory.
        let end = match run.status {
            Some(137) => "signal",
            _ => "exited",
        };
        check(&file, &run, end, 100_000)?;
    }
    Ok(())
}
