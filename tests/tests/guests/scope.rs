//! `vbts trace --scope`: the branches of the program, of the kernel on its behalf, or all of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::branches::{self, Branch, Symbols};
use vbts_tests::control_flow::Code;
use vbts_tests::machine::{self, Machine, Run, TestModule};
use vbts_tests::programs;

mod reports;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("each_branch_leads_to_the_next", consistent),
            ("the_check_finds_missing_branches", check_finds),
            (
                "all_scopes_have_the_same_branches_of_the_program",
                same_program,
            ),
            ("each_scope_has_the_same_system_calls", kernel_alone),
            ("two_runs_are_the_same", deterministic),
            ("a_small_buffer_loses_nothing", small_buffer),
            ("several_processors_lose_nothing", several_processors),
            ("formats_mark_addresses_of_the_kernel", reports::formats),
            (
                "a_kernel_without_symbols_is_reported_once",
                reports::no_symbols,
            ),
            ("scheduling_events_are_recorded_with_the_kernel", sched),
            ("lost_branches_are_reported", reports::lost),
            ("a_buffer_can_be_too_small", reports::too_small),
            ("tasks_that_are_not_traced_are_counted", reports::untraced),
        ],
    )
}

/// 64-bit programs that enter the kernel in every way.
const PROGRAMS: [&str; 4] = ["syscalls.c", "signal.c", "faults.c", "long_calls.c"];

fn build(directory: &Path, source: &str) -> Result<PathBuf> {
    programs::compile(&programs::source(source), &directory.join("program"), &[])
}

/// Traces `program` and returns the trace, which must be complete.
fn raw(machine: &Machine, program: &Path, options: &[&str]) -> Result<Vec<Branch>> {
    let output = program.with_extension("raw");
    let run = machine.trace("raw", &output, options, &[program])?;
    ensure!(
        run.stderr.contains("lost: 0, "),
        "status {:?}: {}",
        run.status,
        run.stderr
    );
    branches::parse_raw(&std::fs::read(&output)?)
}

fn consistent(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for source in PROGRAMS {
        let program = build(directory.path(), source)?;
        let code = Code::read(&program, machine.kernel())?;
        let trace = raw(machine, &program, &["--scope", "all"])?;
        code.check(&trace).context(source)?;
        let kernel = trace.iter().filter(|branch| !branch.is_user()).count();
        ensure!(
            kernel > 1000 && kernel < trace.len(),
            "{source}: {kernel} of {} in the kernel",
            trace.len()
        );
    }
    Ok(())
}

/// The check fails for a trace from which one branch is missing, or in which one has another
/// target.
fn check_finds(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "syscalls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let trace = raw(machine, &program, &["--scope", "all"])?;
    code.check(&trace)?;
    let (mut found, mut tried) = (0, 0);
    for window in trace.windows(3).step_by(trace.len() / 500 + 1) {
        let &[before, this, next] = window else {
            anyhow::bail!("a window of three");
        };
        tried += 1;
        let elsewhere = Branch {
            from: before.from,
            to: this.to,
        };
        // The check cannot see how often a tight loop has run.
        let (missing, wrong) = ([next], [elsewhere, next]);
        let found_in = |rest: &[Branch]| code.check_from(before.to, rest).is_err();
        found += usize::from(found_in(&missing) || found_in(&wrong));
    }
    ensure!(found * 10 > tried * 9, "{found} of {tried} found");
    Ok(())
}

fn is_programs(branch: &&Branch) -> bool {
    branch.is_user()
}

fn same_program(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    for source in PROGRAMS {
        let program = build(directory.path(), source)?;
        let user = raw(machine, &program, &[])?;
        let all = raw(machine, &program, &["--scope", "all"])?;
        let all: Vec<Branch> = all.iter().filter(is_programs).copied().collect();
        let symbols = Symbols::read(&program)?;
        if let Some(difference) = branches::first_difference(&user, &all, &symbols) {
            anyhow::bail!("{source}, --scope user expected, --scope all got: {difference}");
        }
    }
    Ok(())
}

fn deterministic(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    // On KVM time is the host's.
    if machine.accel() != "soft" {
        return Ok(());
    }
    let first = raw(machine, &program, &["--scope", "all"])?;
    let second = raw(machine, &program, &["--scope", "all"])?;
    let symbols = Symbols::read(machine.kernel())?;
    match branches::first_difference(&first, &second, &symbols) {
        Some(difference) => anyhow::bail!(difference),
        None => Ok(()),
    }
}

fn kernel_alone(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "syscalls.c")?;
    let entry = branches::symbol(machine.kernel(), "entry_SYSCALL_64")?;
    let calls = |trace: &[Branch]| trace.iter().filter(|branch| branch.to == entry).count();
    let kernel = raw(machine, &program, &["--scope", "kernel"])?;
    let all = raw(machine, &program, &["--scope", "all"])?;
    ensure!(
        kernel.iter().all(|branch| branch.to >> 63 != 0),
        "a branch of the program is in the kernel's trace"
    );
    ensure!(
        calls(&kernel) == calls(&all) && calls(&all) > 300,
        "{} system calls alone, {} among all",
        calls(&kernel),
        calls(&all)
    );
    let back = all.iter().filter(|b| b.from >> 63 != 0 && b.to >> 63 == 0);
    // The last call does not return. Interrupts and page faults also return to the program.
    let back = back.count();
    ensure!(
        back + 1 >= calls(&all),
        "{back} returns for {} calls",
        calls(&all)
    );
    Ok(())
}

/// Single system calls fill the smallest buffer many times.
fn small_buffer(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let trace = raw(machine, &program, &["--scope", "all", "--buffer", "96K"])?;
    let gaps = code.check(&trace)?;
    ensure!(
        gaps > 20,
        "only {gaps} gaps in {} records: the buffer was never full",
        trace.len()
    );
    let user = raw(machine, &program, &[])?;
    let programs: Vec<Branch> = trace.iter().filter(is_programs).copied().collect();
    ensure!(user == programs, "the program's branches differ");
    Ok(())
}

fn several_processors(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = build(directory.path(), "long_calls.c")?;
    let code = Code::read(&program, machine.kernel())?;
    let options = ["--scope", "all", "--smp", "2", "--buffer", "128K"];
    code.check(&raw(machine, &program, &options)?)?;
    Ok(())
}

/// Traces `program` to a file, and returns the run and the trace.
fn trace(
    machine: &Machine,
    format: &str,
    options: &[&str],
    program: &Path,
) -> Result<(Run, String)> {
    let output = program.with_extension("trace");
    let run = machine
        .trace(format, &output, options, &[program])?
        .expect(0)?;
    Ok((run, std::fs::read_to_string(output)?))
}

fn sched(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("trace");
    let program = ["/bin/sleep", "0.05"];
    for scope in ["kernel", "all"] {
        machine
            .trace("json", &output, &["--scope", scope, "--sched"], &program)?
            .expect(0)?;
        let text = std::fs::read_to_string(&output)?;
        let mut on_processor = false;
        let mut arrivals = 0;
        for line in text.lines() {
            let kind: serde_json::Value = serde_json::from_str(line)?;
            match kind["kind"].as_str() {
                Some("arrive") => {
                    ensure!(!on_processor, "two arrivals");
                    on_processor = true;
                    arrivals += 1;
                }
                Some("depart") => {
                    ensure!(on_processor, "two departures");
                    on_processor = false;
                }
                Some("branch") => ensure!(on_processor, "a branch while off the processor"),
                _ => {}
            }
        }
        ensure!(arrivals >= 2, "--scope {scope}: {arrivals} arrivals");
    }
    Ok(())
}
