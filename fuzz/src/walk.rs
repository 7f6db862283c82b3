//! 4-level paging (SDM Vol. 3A 4.5) in its simplest form. The software CPU's own walk must agree
//! with it.

use vbts_cpu::ArchState;
use vbts_cpu::state::efer;
use vbts_testkit::Ram;

const PRESENT: u64 = 1 << 0;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
/// Bits 39:12; the processor models have 40 address bits.
const FRAME: u64 = 0xFF_FFFF_F000;
/// Bits 51:40.
const RESERVED: u64 = 0xF_FF00_0000_0000;

/// Why memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// For data.
    Load,
    /// For an instruction.
    Fetch,
}

/// Translations, each of which leaves the accessed flags that it would set.
#[derive(Debug)]
pub struct Walker<'a> {
    ram: &'a Ram,
    state: &'a ArchState,
    user: bool,
    /// Addresses of the entries used so far.
    accessed: Vec<u64>,
}

impl<'a> Walker<'a> {
    /// Translations in `state`, at CPL 3 if `user`.
    pub fn new(ram: &'a Ram, state: &'a ArchState, user: bool) -> Self {
        Self {
            ram,
            state,
            user,
            accessed: Vec::new(),
        }
    }

    /// The quadword at `gpa`, which is a multiple of 8; `None` if that is not RAM.
    pub fn read(&self, gpa: u64) -> Option<u64> {
        let word = (gpa < self.ram.len() as u64).then(|| self.ram.read_u64(gpa))?;
        Some(if self.accessed.contains(&gpa) {
            word | ACCESSED
        } else {
            word
        })
    }

    /// The guest-physical address of `la`, or `None` for a fault.
    pub fn translate(&mut self, la: u64, purpose: Purpose) -> Option<u64> {
        if la as i64 != (la as i64) << 16 >> 16 {
            return None;
        }
        let no_execute_enabled = self.state.sys.efer & efer::NXE != 0;
        let mut table = self.state.sys.cr3 & FRAME;
        let mut path = Vec::new();
        // PML4, page-directory-pointer table, page directory, page table.
        for shift in [39, 30, 21, 12] {
            let at = table + (la >> shift & 0x1FF) * 8;
            let entry = self.read(at).filter(|e| e & PRESENT != 0)?;
            let large = shift == 21 && entry & LARGE != 0;
            let reserved = entry & RESERVED != 0
                || entry & NO_EXECUTE != 0 && !no_execute_enabled
                || entry & LARGE != 0 && shift >= 30
                || large && entry >> 13 & 0xFF != 0;
            let forbidden = self.user && entry & USER == 0
                || purpose == Purpose::Fetch && entry & NO_EXECUTE != 0;
            path.push((at, forbidden));
            if reserved {
                return None;
            }
            table = entry & FRAME;
            if large || shift == 12 {
                if path.iter().any(|(_, forbidden)| *forbidden) {
                    return None;
                }
                self.accessed.extend(path.iter().map(|(at, _)| at));
                let offset = (1 << shift) - 1;
                return Some(table & !offset | la & offset);
            }
        }
        None
    }
}
