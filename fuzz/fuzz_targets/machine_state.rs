//! Edits of the state of a whole machine, which is restored and runs.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::edit::edit;
use vbts_fuzz::input::Input;
use vbts_fuzz::machine::{MEMORY, Quiet, machine};
use vbts_vmm::machine::MachineState;

/// Virtual time that a machine runs after a restore, in ns. An instruction takes 1 ns.
const RUN: u64 = 20_000;
/// Limit in the time of the host for a guest that does not reach the pause before.
const TIME_LIMIT: Duration = Duration::from_millis(50);

/// The state that is edited, encoded, and the number of bytes before the contents of pages.
static STATE: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
    let mut machine = machine(None);
    let outcome = machine.run_until(RUN, &mut Quiet);
    assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    let bytes = machine.save().and_then(|state| state.encode());
    let bytes = bytes.expect("a machine can be saved");
    // Memory is one range from 0. The first run of pages has its address and length before it.
    let ranges = [1, 0, 0x80, 0x80, 0x80, (MEMORY >> 21) as u8];
    let found = bytes
        .windows(ranges.len())
        .position(|bytes| bytes == ranges);
    let head = found.expect("the ranges of memory") + ranges.len() + 8;
    (bytes, head)
});

fuzz_target!(|data: &[u8]| {
    let (bytes, head) = &*STATE;
    let mut bytes = bytes.clone();
    edit(&mut bytes, *head, &mut Input::new(data));
    let state = match MachineState::decode(&bytes) {
        Ok(state) => state,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut machine = machine(Some(TIME_LIMIT));
    if let Err(error) = machine.restore(&state) {
        return assert!(!error.to_string().is_empty());
    }
    let pause = machine.now().saturating_add(RUN);
    if let Err(error) = machine.run_until(pause, &mut Quiet) {
        assert!(!error.to_string().is_empty());
    }
    // It still has a state.
    let saved = machine.save();
    let saved = saved.and_then(|state| MachineState::decode(&state.encode()?));
    assert!(saved.is_ok(), "{:?}", saved.err());
});
