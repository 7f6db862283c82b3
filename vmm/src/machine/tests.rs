//! Tiny guests that end a run in each possible way.

use super::*;
use crate::boot::elf::tests::kernel;
use crate::boot::params::FIXED_RNG_SEED;
use crate::boot::{BootSource, load};
use crate::layout::EXTENDED_MEMORY;
use crate::memory::{Size, allocate};
use std::fs::File;
use std::io::PipeReader;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use vbts_devices::shared;

/// An observer that counts exits, and offers an input if it has one.
#[derive(Default)]
pub(super) struct TestObserver {
    input: Option<File>,
    exits: u32,
}

impl TestObserver {
    /// An observer that awaits `pipe`.
    pub(super) fn awaiting(pipe: PipeReader) -> Self {
        Self {
            input: Some(OwnedFd::from(pipe).into()),
            exits: 0,
        }
    }
}

impl RunObserver for TestObserver {
    fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
        self.exits += 1;
        Ok(())
    }
    fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
        panic!("{event:?}")
    }
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        self.input.iter().map(AsFd::as_fd).collect()
    }
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
    Machine::new(model, board, memory, &state, console, alarm, None)
}

fn run(code: &[u8]) -> Result<End, Failure> {
    machine(code, None).run(&mut TestObserver::default())
}

fn reason(outcome: Result<End, Failure>) -> String {
    match outcome {
        Err(failure @ Failure::Guest { .. }) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn entering_s5_switches_the_machine_off() {
    // mov dx, 0x600; mov al, 0x34; out dx, al; hlt
    let code = [0x66, 0xBA, 0x00, 0x06, 0xB0, 0x34, 0xEE, 0xF4];
    assert_eq!(run(&code).unwrap(), End::Off);
}

/// `mov al, 0xFE; out 0x64, al; hlt`
const RESET: &[u8] = &[0xB0, 0xFE, 0xE6, 0x64, 0xF4];

/// Code that writes `text` to COM1.
fn print(text: &str) -> Vec<u8> {
    // mov dx, 0x3F8
    let mut code = vec![0x66, 0xBA, 0xF8, 0x03];
    // mov al, byte; out dx, al
    text.bytes()
        .for_each(|byte| code.extend([0xB0, byte, 0xEE]));
    code
}

#[test]
fn a_write_to_the_exit_port_ends_the_run_with_a_status() {
    // mov eax, 42; out 0xF4, eax; jmp $
    let code = [0xB8, 42, 0, 0, 0, 0xE7, 0xF4, 0xEB, 0xFE];
    assert_eq!(run(&code).unwrap(), End::Status(42));
}

#[test]
fn a_reset_ends_the_run() {
    assert_eq!(run(RESET).unwrap(), End::Reset);
}

#[test]
fn a_reset_after_a_panic_is_a_failure() {
    let code = [print("Kernel panic - not syncing: x\n"), RESET.into()].concat();
    match run(&code) {
        Err(Failure::Guest { reason, console }) => {
            assert!(reason.contains("panicked"), "{reason}");
            assert_eq!(console, "Kernel panic - not syncing: x\n");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_without_a_reset_is_a_failure() {
    let code = [
        print("---[ end Kernel panic - not syncing: x ]---\n"),
        vec![0xEB, 0xFE],
    ]
    .concat();
    assert!(reason(run(&code)).contains("panicked"));
}

#[test]
fn a_triple_fault_is_a_failure() {
    // ud2, and no IDT
    assert!(reason(run(&[0x0F, 0x0B])).contains("triple fault"));
}

#[test]
fn a_halt_without_a_wakeup_source_is_a_failure() {
    // cli; hlt
    assert!(reason(run(&[0xFA, 0xF4])).contains("halted"));
    // sti; hlt; jmp to the hlt
    assert!(reason(run(&[0xFB, 0xF4, 0xEB, 0xFD])).contains("halted"));
}

#[test]
fn the_time_limit_ends_the_run() {
    let limit = Duration::from_millis(50);
    let outcome = machine(&[0xEB, 0xFE], Some(limit)).run(&mut TestObserver::default());
    assert!(matches!(outcome, Err(Failure::Timeout { after, .. }) if after == limit));
}

#[test]
fn the_time_limit_ends_a_wait_for_input() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut observer = TestObserver::awaiting(reader);
    let limit = Some(Duration::from_millis(50));
    let outcome = machine(&[0xFB, 0xF4, 0xEB, 0xFD], limit).run(&mut observer);
    assert!(
        matches!(outcome, Err(Failure::Timeout { .. })),
        "{outcome:?}"
    );
}

#[test]
fn the_observer_is_called_after_accesses_to_devices() {
    let mut observer = TestObserver::default();
    let code = [print("hello"), RESET.into()].concat();
    machine(&code, None).run(&mut observer).unwrap();
    assert!(observer.exits >= 1);
}
