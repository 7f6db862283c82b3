//! Tiny guests that end a run in each possible way.

use super::*;
use crate::boot::elf::tests::kernel;
use crate::boot::params::FIXED_RNG_SEED;
use crate::boot::{BootSource, load};
use crate::layout::EXTENDED_MEMORY;
use crate::memory::{Size, allocate};
use std::fs::File;
use std::io::PipeReader;
use std::os::fd::BorrowedFd;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use iced_x86::code_asm::*;
use vbts_devices::ninep::Access;
use vbts_devices::shared;
use vbts_testkit::Emit;

/// An observer that counts exits, takes its time after each, and offers an input if it has one.
#[derive(Default)]
pub(super) struct TestObserver {
    input: Option<File>,
    exits: u32,
    delay: Duration,
}

impl TestObserver {
    /// An observer that awaits `pipe`.
    pub(super) fn awaiting(pipe: PipeReader) -> Self {
        Self {
            input: Some(OwnedFd::from(pipe).into()),
            ..Self::default()
        }
    }
}

impl RunObserver for TestObserver {
    fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
        self.exits += 1;
        std::thread::sleep(self.delay);
        Ok(())
    }
    fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
        panic!("{event:?}")
    }
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        self.input.iter().map(AsFd::as_fd).collect()
    }
}

/// Assembles the code of a machine.
pub(super) fn assembled(program: impl FnOnce(&mut CodeAssembler) -> Emit) -> Vec<u8> {
    vbts_testkit::assemble(64, EXTENDED_MEMORY, program)
}

/// A machine that executes `code` on virtual time, up to `limit` of the host's time.
pub(super) fn machine(code: &[u8], limit: Option<Duration>) -> Machine {
    let memory = allocate(Size(16 << 20)).unwrap();
    let image = kernel(EXTENDED_MEMORY, code, 0);
    let source = BootSource {
        kernel: &image,
        initrd: None,
        cmdline: "",
        processors: 1,
        level_gsis: &[],
        rng_seed: FIXED_RNG_SEED,
    };
    let state = load(&memory, &source).unwrap();
    let signals = Arc::<vbts_cpu::Signals>::default();
    let alarm = Arc::new(Alarm::new(signals.clone(), limit).unwrap());
    let console = shared(Console::default());
    let serial = Box::new(console.clone());
    let board = Board::new(memory.clone(), vec![signals], true, 0, serial).unwrap();
    let model = vbts_cpu::model(vbts_cpu::MODELS[0]).unwrap();
    Machine::new(model, board, memory, &state, console, alarm, None).unwrap()
}

fn run(program: impl FnOnce(&mut CodeAssembler) -> Emit) -> Result<End, Failure> {
    machine(&assembled(program), None).run(&mut TestObserver::default())
}

fn reason(outcome: Result<End, Failure>) -> String {
    match outcome {
        Err(failure @ Failure::Guest { .. }) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Loops without end.
fn spin(a: &mut CodeAssembler) -> Emit {
    let mut here = a.create_label();
    a.set_label(&mut here)?;
    a.jmp(here)
}

/// Halts with interrupts enabled, again after each interrupt.
fn sleep(a: &mut CodeAssembler) -> Emit {
    let mut halt = a.create_label();
    a.sti()?;
    a.set_label(&mut halt)?;
    a.hlt()?;
    a.jmp(halt)
}

/// Resets the machine with the keyboard controller.
fn reset(a: &mut CodeAssembler) -> Emit {
    a.mov(al, 0xFE)?;
    a.out(0x64, al)?;
    a.hlt()
}

/// Writes `text` to COM1.
fn print(a: &mut CodeAssembler, text: &str) -> Emit {
    a.mov(dx, 0x3F8)?;
    for byte in text.bytes() {
        a.mov(al, u32::from(byte))?;
        a.out(dx, al)?;
    }
    Ok(())
}

#[test]
fn entering_s5_switches_the_machine_off() {
    let end = run(|a| {
        a.mov(dx, 0x600)?;
        a.mov(al, 0x34)?;
        a.out(dx, al)?;
        a.hlt()
    });
    assert_eq!(end.unwrap(), End::Off);
}

#[test]
fn a_write_to_the_exit_port_ends_the_run_with_a_status() {
    let end = run(|a| {
        a.mov(eax, 42)?;
        a.out(0xF4, eax)?;
        spin(a)
    });
    assert_eq!(end.unwrap(), End::Status(42));
}

#[test]
fn on_the_host_s_time_the_guest_prints_nothing_after_the_exit() {
    let code = assembled(|a| {
        a.out(0xF4, eax)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        print(a, "x\n")?;
        a.jmp(again)
    });
    let mut machine = machine(&code, None);
    machine.use_host_clock();
    // The processor has time to go on before the machine's thread sees the end.
    let mut observer = TestObserver {
        delay: Duration::from_millis(20),
        ..TestObserver::default()
    };
    let end = machine.run(&mut observer);
    assert!(matches!(end, Ok(End::Status(_))), "{end:?}");
    assert_eq!(lock(&machine.console).tail(), "");
}

#[test]
fn a_reset_ends_the_run() {
    assert_eq!(run(reset).unwrap(), End::Reset);
}

#[test]
fn a_reset_after_a_panic_is_a_failure() {
    let outcome = run(|a| {
        print(a, "Kernel panic - not syncing: x\n")?;
        reset(a)
    });
    match outcome {
        Err(Failure::Guest { reason, console }) => {
            assert!(reason.contains("panicked"), "{reason}");
            assert_eq!(console, "Kernel panic - not syncing: x\n");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_without_a_reset_is_a_failure() {
    let outcome = run(|a| {
        print(a, "---[ end Kernel panic - not syncing: x ]---\n")?;
        spin(a)
    });
    assert!(reason(outcome).contains("panicked"));
}

#[test]
fn a_triple_fault_is_a_failure() {
    // There is no IDT.
    assert!(reason(run(|a| a.ud2())).contains("triple fault"));
}

#[test]
fn a_halt_without_a_wakeup_source_is_a_failure() {
    let masked = run(|a| {
        a.cli()?;
        a.hlt()
    });
    assert!(reason(masked).contains("halted"));
    assert!(reason(run(sleep)).contains("halted"));
}

#[test]
fn the_time_limit_ends_the_run() {
    let limit = Duration::from_millis(50);
    let outcome = machine(&assembled(spin), Some(limit)).run(&mut TestObserver::default());
    assert!(matches!(outcome, Err(Failure::Timeout { after, .. }) if after == limit));
}

#[test]
fn the_time_limit_ends_a_wait_for_input() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut observer = TestObserver::awaiting(reader);
    let limit = Some(Duration::from_millis(50));
    let outcome = machine(&assembled(sleep), limit).run(&mut observer);
    assert!(
        matches!(outcome, Err(Failure::Timeout { .. })),
        "{outcome:?}"
    );
}

#[test]
fn the_observer_is_called_after_accesses_to_devices() {
    let mut observer = TestObserver::default();
    let code = assembled(|a| {
        print(a, "hello")?;
        reset(a)
    });
    machine(&code, None).run(&mut observer).unwrap();
    assert!(observer.exits >= 1);
}

/// Is set in the process of [`in_a_sandbox`].
const CONFINED: &str = "VBTS_MACHINE_IN_SANDBOX";

#[test]
fn a_machine_in_the_sandbox_can_be_saved_and_run_again() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "machine::tests::in_a_sandbox", "--ignored"])
        .env(CONFINED, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "another test runs this in a separate process, which the sandbox confines"]
fn in_a_sandbox() {
    assert!(std::env::var_os(CONFINED).is_some());
    const TEXT: &str = "hello\n";
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut observer = TestObserver::awaiting(reader);
    let code = assembled(|a| {
        print(a, TEXT)?;
        sleep(a)
    });
    let mut machine = machine(&code, Some(Duration::from_millis(50)));
    machine.sandbox = Some(Sandbox::new(Access::ReadOnly, false));
    let output = |machine: &Machine| lock(&machine.console).tail();

    // One nanosecond is one instruction.
    assert_eq!(machine.run_until(1, &mut observer).unwrap(), None);
    assert_eq!(machine.now(), 1);
    assert!(output(&machine).len() < TEXT.len());
    let state = machine.save().unwrap();
    machine.restore(&state).unwrap();
    // Each further run waits for input until the time limit.
    for _ in 0..2 {
        let outcome = machine.run(&mut observer);
        assert!(
            matches!(outcome, Err(Failure::Timeout { .. })),
            "{outcome:?}"
        );
        assert_eq!(output(&machine), TEXT);
    }
}
