//! 4-level paging (SDM Vol. 3A chapter 4).

mod bench;
mod canonical;
mod faults;
mod process_contexts;
mod rights;
mod translations;

use crate::common::{DATA, Guest};

// Bits of an entry (SDM Vol. 3A tables 4-14 to 4-19).
const P: u64 = 1 << 0;
const W: u64 = 1 << 1;
const U: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const NX: u64 = 1 << 63;
const FULL: u64 = P | W | U;

/// Page-fault error code (SDM Vol. 3A 4.7).
mod error {
    pub const P: u64 = 1;
    pub const W: u64 = 2;
    pub const U: u64 = 4;
    pub const RSVD: u64 = 8;
    pub const I: u64 = 16;
}

/// The page under test: entry 1 of the PML4, 2 of its PDPT, 3 of its page directory, 3 of its page
/// table.
const LA: u64 = 0x80_8060_3000;
/// The tables that only this page uses.
const PDPT: u64 = 0x9_0000;
const PD: u64 = 0x9_1000;
const PT: u64 = 0x9_2000;
/// Where a page of 4 KBytes leads.
const FRAME: u64 = DATA;
/// Where a page of 2 MBytes leads.
const LARGE_FRAME: u64 = 0x20_0000;
/// Offset of the data in the page; at its start is code, UD2.
const OFFSET: u64 = 8;
const OLD: u64 = 0x1122_3344_5566_7788;
const NEW: u64 = 0x0123_4567_89AB_CDEF;

/// The page's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Small,
    Large,
}

impl Size {
    /// How many levels of tables lead to it.
    fn levels(self) -> usize {
        match self {
            Self::Small => 4,
            Self::Large => 3,
        }
    }

    fn frame(self) -> u64 {
        match self {
            Self::Small => FRAME,
            Self::Large => LARGE_FRAME + (LA & 0x1F_F000),
        }
    }
}

/// Maps the page under test, with some flags in its last entry, in a guest of another test.
fn map_page(g: &mut Guest, flags: u64) {
    let pml4 = g.soft.cpu.sys.cr3;
    g.write(pml4 + 8, PDPT | FULL);
    g.write(PDPT + 16, PD | FULL);
    g.write(PD + 24, PT | FULL);
    g.write(PT + 24, FRAME | flags);
    g.soft.cpu.flush_tlb(false);
}
