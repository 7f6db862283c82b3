use std::os::fd::BorrowedFd;

use iced_x86::code_asm::*;

use super::super::tests::{assembled, machine};
use super::*;
use crate::board::Board;
use crate::machine::{End, RunObserver};
use vbts_host::Event;
use vbts_host::exit::Failure;

/// An observer without input.
struct Quiet;

impl RunObserver for Quiet {
    fn after_exit(&mut self, _: &Board, _: u64) -> Result<(), Failure> {
        Ok(())
    }
    fn event(&mut self, _: &Board, event: Event) -> Result<(), Failure> {
        panic!("{event:?}")
    }
    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Code that prints the alphabet and ends with status 7.
fn alphabet() -> Vec<u8> {
    assembled(|a| {
        let mut letter = a.create_label();
        a.mov(dx, 0x3F8)?;
        a.mov(ecx, 26)?;
        a.mov(al, u32::from(b'a'))?;
        a.set_label(&mut letter)?;
        a.out(dx, al)?;
        a.inc(al)?;
        a.dec(ecx)?;
        a.jnz(letter)?;
        a.mov(eax, 7)?;
        a.out(0xF4, eax)?;
        a.hlt()
    })
}

fn output(machine: &Machine) -> String {
    lock(&machine.console).tail()
}

#[test]
fn a_restored_machine_ends_like_the_saved_one() {
    let mut whole = machine(&alphabet(), None);
    assert_eq!(whole.run(&mut Quiet).unwrap(), End::Status(7));
    assert_eq!(output(&whole), "abcdefghijklmnopqrstuvwxyz\n");

    let mut saved = machine(&alphabet(), None);
    assert_eq!(saved.run_until(whole.now() / 2, &mut Quiet).unwrap(), None);
    assert!(output(&saved).len() < 26 && saved.now() >= whole.now() / 2);
    let bytes = saved.save().unwrap().encode().unwrap();
    let state = MachineState::decode(&bytes).unwrap();
    assert_eq!(state, saved.save().unwrap());
    assert_eq!(state.now(), saved.now());

    // The code comes from the state, too.
    let mut restored = machine(&assembled(|a| a.hlt()), None);
    restored.restore(&state).unwrap();
    assert_eq!(restored.save().unwrap(), state);
    for machine in [&mut saved, &mut restored] {
        assert_eq!(machine.run(&mut Quiet).unwrap(), End::Status(7));
        assert_eq!(output(machine), output(&whole));
        assert_eq!(machine.instructions(), whole.instructions());
        assert_eq!(machine.now(), whole.now());
    }
    assert_eq!(saved.save().unwrap(), restored.save().unwrap());
}

#[test]
fn impossible_states_are_refused() {
    let state = machine(&alphabet(), None).save().unwrap();
    let mut target = machine(&alphabet(), None);
    let changes: [fn(&mut MachineState); 8] = [
        |s| s.model = "other".into(),
        |s| s.processors.clear(),
        |s| s.processors.push(ArchState::default()),
        |s| s.schedule.now = u64::MAX,
        |s| s.processors[0].progress.instructions = u64::MAX,
        |s| s.processors[0].progress.skipped = 1 << 62,
        |s| s.processors[0].progress.skipped = 1,
        |s| s.processors[0].progress.spin.since = 1,
    ];
    for (n, change) in changes.iter().enumerate() {
        let mut changed = state.clone();
        change(&mut changed);
        assert!(target.restore(&changed).is_err(), "{n}");
    }
    target.restore(&state).unwrap();
}

#[test]
fn damaged_bytes_are_refused() {
    let bytes = machine(&alphabet(), None).save().unwrap().encode().unwrap();
    for bad in [
        &bytes[..0],
        &bytes[..bytes.len() - 1],
        &[&bytes[..], &[0]].concat(),
    ] {
        assert!(MachineState::decode(bad).is_err());
    }
}
