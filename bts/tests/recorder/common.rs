//! A recorder with a DS area and a buffer, and the result of each branch.

use vbts_bts::{BtsFields, DropReason, Microarchitecture, Recorder, Stored};

use crate::memory::{Memory, PAGE};

/// Address of the DS management area.
pub const DS: u64 = 0xFFFF_8000_0000_2000;
/// Address of the buffer, two pages after the DS area.
pub const BUF: u64 = 0xFFFF_8000_0000_4000;

/// A threshold that the index never reaches.
pub const NEVER: u64 = u64::MAX;

/// TR and BTS: the buffer is circular.
pub const CIRCULAR: u64 = 0x0C0;
/// TR, BTS and BTINT: an interrupt at the threshold.
pub const INTERRUPT: u64 = 0x1C0;

/// The result of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A record was stored.
    S,
    /// A record was stored, and a performance-monitoring interrupt (PMI) was raised.
    P,
    /// The record was dropped.
    D(DropReason),
}
pub use Got::{D, P, S};

/// Creates a recorder, and memory with `fields` in the DS area at `ds`.
pub fn setup(debugctl: u64, ds: u64, fields: BtsFields) -> (Recorder, Memory) {
    let mut memory = Memory::default();
    memory.map(DS, PAGE, true);
    memory.map(BUF, 2 * PAGE, true);
    memory.set_fields(ds, fields);
    let mut recorder = Recorder::new(Microarchitecture::Core2);
    recorder.set_debugctl(debugctl).unwrap();
    recorder.set_ds_area(ds).unwrap();
    (recorder, memory)
}

/// The fields of a buffer.
pub fn buffer(base: u64, index: u64, max: u64, threshold: u64) -> BtsFields {
    BtsFields {
        base,
        index,
        absolute_maximum: max,
        threshold,
    }
}

/// Source and target of branch number `n`.
pub fn branch(n: usize) -> (u64, u64) {
    (0x40_0000 + n as u64, 0xFFFF_FFFF_8100_0000 + n as u64)
}

/// Takes branch number `n`.
pub fn store(recorder: &mut Recorder, memory: &mut Memory, n: usize) -> Got {
    let (from, to) = branch(n);
    match recorder.area().store(memory, from, to) {
        Ok(Stored::Stored) => S,
        Ok(Stored::StoredAndPmi) => P,
        Err(reason) => D(reason),
    }
}
