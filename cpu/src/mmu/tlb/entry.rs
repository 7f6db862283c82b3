//! The tables of the TLB and their entries.

use crate::mmu::access::Access;

pub(super) const ENTRIES: usize = 2048;
/// Kinds of access, see [`Access`].
pub(super) const KINDS: usize = 3;

/// A tag that no linear page has, write-tracked or not: bits 63:51 of a page number are equal.
pub(super) const INVALID: u64 = 1 << 63;
/// Inverted in the tag of a write-tracked page, so that no page number equals it: a write takes the
/// slow path, which invalidates decoded code and cached DS-area state.
pub(super) const WRITE_TRACKED: u64 = 1 << 62;
/// Inverted in the tag of a page with a watchpoint of a debugger: all of these accesses take the
/// slow path, which compares them.
pub(super) const WATCHED: u64 = 1 << 61;
/// See [`Hit::global`](super::Hit::global).
pub(super) const GLOBAL_BIT: u64 = 1;

/// The part of a translation that every access compares.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    /// Number of the linear page, with [`WRITE_TRACKED`] or [`WATCHED`] for a page that the fast
    /// path must not hit.
    pub tag: u64,
    /// Host address minus linear address, modulo 2^64.
    pub addend: u64,
}

pub(super) const EMPTY: Entry = Entry {
    tag: INVALID,
    addend: 0,
};

impl Entry {
    /// Number of the linear page of an entry that is not empty.
    pub(super) fn page(&self) -> u64 {
        const FLAGS: u32 = 3;
        (((self.tag << FLAGS) as i64) >> FLAGS) as u64
    }

    /// Sets or clears one of the flags of the tag.
    pub(super) fn set_flag(&mut self, flag: u64, value: bool) {
        let flag_of_page = self.page() & flag;
        self.tag = self.tag & !flag
            | if value {
                flag_of_page ^ flag
            } else {
                flag_of_page
            };
    }
}

/// The entries of one index, for each kind of access: a cache line. Native code reaches them with
/// short displacements.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Slot(pub [Entry; KINDS]);

/// The translations of a privilege class.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    pub slots: [Slot; ENTRIES],
    /// Guest-physical page address of each, plus [`GLOBAL_BIT`].
    pub phys: [[u64; ENTRIES]; KINDS],
    /// Which of the entries may not be empty: a flush visits no others.
    pub filled: [[u64; ENTRIES / 64]; KINDS],
    /// Whether any of them is.
    pub is_used: bool,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            slots: [Slot([EMPTY; KINDS]); ENTRIES],
            phys: [[0; ENTRIES]; KINDS],
            filled: [[0; ENTRIES / 64]; KINDS],
            is_used: false,
        }
    }

    /// The indices of the entries for `access` that may not be empty.
    pub(super) fn filled_slots(&self, access: Access) -> impl Iterator<Item = usize> {
        let words = self.filled[access as usize].iter().zip((0..).step_by(64));
        words.flat_map(|(word, first)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| first + bit)
        })
    }
}
