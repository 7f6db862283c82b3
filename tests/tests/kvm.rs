//! The conformance checks of the host's KVM, and the choice of the accelerator by their results.

use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use iced_x86::code_asm::eax;
use kvm_ioctls::Kvm;
use serde_json::Value;
use vbts_testkit::assemble;
use vbts_tests::kvm::{self, Needs};
use vbts_tests::machine::Machine;
use vbts_vmm::kvm::check::guest::{Expect, Guest, Mode, Setup};
use vbts_vmm::kvm::check::guests::GUESTS;
use vbts_vmm::kvm::check::scratch::Scratch;
use vbts_vmm::kvm::check::{self, CheckFailure};

fn main() {
    kvm::main(&[
        ("every_check_passes", Needs::Faithful, every_check_passes),
        (
            "an_unexpected_outcome_is_found",
            Needs::Kvm,
            another_outcome,
        ),
        ("an_endless_guest_is_interrupted", Needs::Kvm, endless),
        (
            "checks_do_not_depend_on_their_order",
            Needs::Faithful,
            order,
        ),
        ("single_step_works", Needs::Faithful, single_step),
        ("probe_reports_the_checks", Needs::Kvm, probe),
        ("accel_kvm_is_refused_if_a_check_fails", Needs::Kvm, refused),
        (
            "pass_through_is_refused_where_it_does_not_work",
            Needs::Kvm,
            no_pass_through,
        ),
    ]);
}

fn every_check_passes(kvm: &Kvm) -> Result<()> {
    let report = check::run(kvm);
    for check in &report.checks {
        if let Err(why) = &check.outcome {
            bail!("{}: {why}", check.name);
        }
    }
    ensure!(
        report.checks.len() > GUESTS.len(),
        "no instructions were checked"
    );
    ensure!(report.cpl0.is_some() && report.cpl3.is_some(), "no speed");
    Ok(())
}

/// A guest at CPL 0 that halts after `mov eax, 1`.
const ONE: Guest = Guest {
    name: "one",
    mode: Mode::Kernel,
    setup: Setup::Nothing,
    code: one,
    expect: &[Expect::Halt, Expect::Rax(1)],
};

fn one() -> &'static [u8] {
    static CODE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        assemble(64, 0, |a| {
            a.mov(eax, 1)?;
            a.hlt()
        })
    });
    &CODE
}

/// A jump to itself.
fn spin() -> &'static [u8] {
    static CODE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        assemble(64, 0, |a| {
            let mut here = a.create_label();
            a.set_label(&mut here)?;
            a.jmp(here)
        })
    });
    &CODE
}

fn another_outcome(kvm: &Kvm) -> Result<()> {
    let mut scratch = Scratch::new(kvm, true)?;
    check::run_guest(&mut scratch, &ONE).map_err(|wrong| anyhow::anyhow!("{wrong:?}"))?;
    for (expect, message) in [
        (
            &[Expect::Halt, Expect::Rax(2)][..],
            "RAX is 0x1 instead of 0x2",
        ),
        (
            &[Expect::Out(0x3F8, 1)],
            "HLT instead of OUT of 0x1 to port 0x3f8",
        ),
        (&[Expect::Event(6, None, 3)], "HLT instead of #UD"),
        (
            &[Expect::Halt, Expect::PageBits(0x3_0000, 1 << 5)],
            "accessed",
        ),
    ] {
        let guest = Guest { expect, ..ONE };
        match check::run_guest(&mut scratch, &guest) {
            Err(CheckFailure::Outcome(why)) => ensure!(why.contains(message), "{why}"),
            other => bail!("{other:?} instead of '{message}'"),
        }
    }
    Ok(())
}

fn endless(kvm: &Kvm) -> Result<()> {
    for mode in [Mode::Kernel, Mode::User] {
        let mut scratch = Scratch::new(kvm, true)?;
        let guest = Guest {
            mode,
            code: spin,
            ..ONE
        };
        let outcome = check::run_guest(&mut scratch, &guest);
        ensure!(
            matches!(outcome, Err(CheckFailure::Stuck(_))),
            "{outcome:?}"
        );
    }
    Ok(())
}

/// A guest must not fail because of the state that another one has left.
fn order(kvm: &Kvm) -> Result<()> {
    let mut scratch = Scratch::new(kvm, true)?;
    let fresh = |g: &&Guest| !g.expect.iter().any(|e| matches!(e, Expect::PageBits(..)));
    let guests = || GUESTS.iter().filter(fresh);
    // Forward order first: QEMU's SYSENTER sets both CS.D and CS.L. Its VMRUN refuses this if an
    // exit precedes the first access to the page of the entry point.
    for guest in guests().chain(guests().rev()) {
        check::run_guest(&mut scratch, guest)
            .map_err(|wrong| anyhow::anyhow!("{}: {wrong:?}", guest.name))?;
    }
    Ok(())
}

fn single_step(kvm: &Kvm) -> Result<()> {
    let report = check::run(kvm);
    let steps = report
        .single_step
        .context("single-stepping was not probed")?;
    for (cpl, outcome) in [0, 3].iter().zip(steps) {
        ensure!(outcome.is_ok(), "CPL {cpl}: {outcome:?}");
    }
    Ok(())
}

/// `vbts probe --json`.
fn answer() -> Result<Value> {
    let run = Machine::find()?.run(["probe", "--json"])?.expect(0)?;
    Ok(serde_json::from_slice(&run.stdout)?)
}

fn probe(kvm: &Kvm) -> Result<()> {
    let answer = answer()?;
    let report = check::run(kvm);
    ensure!(answer["kvm"]["present"] == true, "{answer}");
    ensure!(answer["kvm"]["usable"] == report.passed(), "{answer}");
    let checks = answer["kvm"]["checks"].as_array().context("no checks")?;
    ensure!(checks.len() == report.checks.len(), "{answer}");
    for (reported, found) in checks.iter().zip(&report.checks) {
        ensure!(reported["name"] == *found.name, "{reported}");
        ensure!(reported["passed"] == found.outcome.is_ok(), "{reported}");
    }
    if !report.passed() {
        ensure!(answer["auto"]["accel"] == "soft", "{answer}");
    }
    Ok(())
}

fn refused(kvm: &Kvm) -> Result<()> {
    let report = check::run(kvm);
    let run = Machine::find()?.run(["trace", "--accel", "kvm", "--", "/bin/true"])?;
    let Some((name, _)) = report.failure() else {
        ensure!(!run.stderr.contains("wrongly"), "{}", run.stderr);
        return Ok(());
    };
    let run = run.expect(126)?;
    ensure!(run.stderr.contains(name), "no '{name}' in: {}", run.stderr);
    Ok(())
}

fn no_pass_through(_: &Kvm) -> Result<()> {
    let available = answer()?["bts_passthrough"]["available"].clone();
    ensure!(available.is_boolean());
    if available == true {
        return Ok(());
    }
    let machine = Machine::find()?;
    for accel in ["auto", "kvm", "soft"] {
        let run = machine
            .run([
                "trace",
                "--accel",
                accel,
                "--bts",
                "passthrough",
                "--",
                "/bin/true",
            ])?
            .expect(126)?;
        ensure!(run.stderr.lines().count() == 1, "{}", run.stderr);
    }
    Ok(())
}
