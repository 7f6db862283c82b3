//! The library, from a process that has threads.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts::{End, Error, Item, Tracer};
use vbts_tests::branches::symbol;
use vbts_tests::machine::{self, Machine, TestModule};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("branches_and_functions_of_a_program", traced),
            ("a_program_is_its_own_vbts", own_program),
            ("a_kernel_that_stops_at_a_function", stops_at),
            ("what_cannot_be_traced_is_an_error", not_traced),
        ],
    )
}

/// A program that exits with `status`.
fn exits(status: u8) -> Tracer {
    Tracer::new("/bin/sh")
        .args(["-c", &format!("exit {status}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
}

fn traced(machine: &Machine) -> Result<()> {
    let trace = exits(3).vbts(machine.binary()).run()?;
    ensure!(trace.end() == End::Exited(3), "{:?}", trace.end());
    let (mut reader, mut branches) = (trace.reader()?, 0);
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches: some, .. } = item {
            branches += some.len() as u64;
        }
    }
    ensure!(branches > 1000 && branches == trace.summary().records);
    let functions = trace.functions(usize::MAX)?;
    ensure!(functions.iter().map(|one| one.branches).sum::<u64>() <= branches);
    ensure!(functions.is_sorted_by_key(|one| u64::MAX - one.instructions));
    let main = functions.iter().find(|one| one.name == "_start");
    ensure!(main.context("no _start")?.total > branches);
    ensure!(trace.functions(2)? == functions[..2]);
    let path = trace.path().to_owned();
    ensure!(path.exists());
    drop(trace);
    ensure!(!path.exists(), "a temporary file is left");
    Ok(())
}

/// The lines of `/proc/self/status` that a sandbox changes.
fn confinement() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let is_it = |line: &&str| {
        ["NoNewPrivs", "Seccomp", "Cap"]
            .iter()
            .any(|it| line.starts_with(it))
    };
    Ok(status.lines().filter(is_it).collect())
}

/// This program calls `vbts::child_main` first.
fn own_program(_: &Machine) -> Result<()> {
    let before = confinement()?;
    let ends = std::thread::scope(|scope| {
        let start = |status| scope.spawn(move || exits(status).run().map(|trace| trace.end()));
        let threads = [4, 5].map(start);
        threads.map(|thread| thread.join())
    });
    for (end, status) in ends.into_iter().zip([4, 5]) {
        let end = end.ok().context("a thread has panicked")??;
        ensure!(end == End::Exited(status), "{end:?}");
    }
    ensure!(
        confinement()? == before,
        "the library has confined its caller"
    );
    Ok(())
}

fn stops_at(machine: &Machine) -> Result<()> {
    let booted = vbts::Machine::new(machine.kernel())
        .vbts(machine.binary())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .record_until("start_kernel");
    let trace = booted.run()?;
    ensure!(trace.end() == End::Stopped, "{:?}", trace.end());
    let (mut reader, mut last) = (trace.reader()?, None);
    while let Some(item) = reader.next_item()? {
        if let Item::Branches { branches, .. } = item {
            last = branches.last().copied().or(last);
        }
    }
    let start = symbol(machine.kernel(), "start_kernel")?;
    ensure!(last.map(|branch| branch.to) == Some(start), "{last:x?}");
    let functions = trace.functions(usize::MAX)?;
    ensure!(functions.iter().all(|one| one.name != "rest_init"));
    Ok(())
}

fn not_traced(machine: &Machine) -> Result<()> {
    let tracer = Tracer::new("/no/such/program").stderr(Stdio::null());
    let error = tracer.vbts(machine.binary()).run().err();
    ensure!(matches!(error, Some(Error::Failed(127))), "{error:?}");
    let error = exits(0).vbts("/no/such/vbts").run().err();
    ensure!(matches!(error, Some(Error::Start(_))), "{error:?}");
    let tracer = exits(0)
        .option("--no-such-option", "1")
        .stderr(Stdio::null());
    let error = tracer.vbts(machine.binary()).run().err();
    ensure!(matches!(error, Some(Error::Failed(125))), "{error:?}");
    Ok(())
}
