//! 4-level paging (SDM Vol. 3A 4.5): the page walk.

use crate::ram::GuestRam;
use crate::state::{SystemState, cr0, cr4, efer};

use crate::mem::{Access, Privilege};

const P: u64 = 1 << 0;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const NX: u64 = 1 << 63;

/// Guest-physical address width that the CPU models advertise (CPUID.80000008H:EAX[7:0]).
pub(crate) const PHYS_BITS: u32 = 40;
const ADDR: u64 = ((1 << PHYS_BITS) - 1) & !0xFFF;
/// Bits MAXPHYADDR to 51 are reserved in every entry.
const RSVD_ADDR: u64 = ((1 << 52) - 1) & !((1 << PHYS_BITS) - 1);

/// Page-fault error code bits (SDM Vol. 3A 4.7).
pub(crate) mod pf {
    pub const P: u32 = 1 << 0;
    pub const W: u32 = 1 << 1;
    pub const U: u32 = 1 << 2;
    pub const RSVD: u32 = 1 << 3;
    pub const ID: u32 = 1 << 4;
}

/// A completed walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// Guest-physical address.
    pub gpa: u64,
    /// G flag, with CR4.PGE set.
    pub global: bool,
    /// The page has 2 MBytes.
    pub large: bool,
}

/// Translates canonical linear address `la`, setting accessed and dirty flags; on a page fault, its error code.
pub(crate) fn walk(
    ram: &GuestRam,
    sys: &SystemState,
    la: u64,
    access: Access,
    privilege: Privilege,
) -> Result<Walk, u32> {
    let nxe = sys.efer & efer::NXE != 0;
    let user = privilege != Privilege::Supervisor;
    let code = |rest: u32| {
        rest | if access == Access::Write { pf::W } else { 0 }
            | if user { pf::U } else { 0 }
            // The I/D flag is reported only where execute-disable can fault.
            | if access == Access::Execute && nxe { pf::ID } else { 0 }
    };

    let mut table = sys.cr3 & ADDR;
    let mut rights = RW | US;
    let mut nx = 0;
    // (address of the entry, its value) at each level visited, for the accessed flags.
    let mut path = [(0u64, 0u64); 4];
    let mut level = 3;
    let (entry, page_mask) = loop {
        let at = table | (la >> (12 + 9 * level) & 0x1FF) << 3;
        // Page tables outside RAM read as not present: there is nothing behind them.
        let entry = ram.read_u64(at).unwrap_or(0);
        if entry & P == 0 {
            return Err(code(0));
        }
        let large = entry & PS != 0 && level > 0;
        let reserved = RSVD_ADDR
            | if nxe { 0 } else { NX }
            | match (level, large) {
                // PML4E, and PDPTE: the CPU models have no 1-GByte pages.
                (2.., true) => PS,
                (1, true) => 0x1F_E000,
                _ => 0,
            };
        if entry & reserved != 0 {
            return Err(code(pf::P | pf::RSVD));
        }
        rights &= entry;
        nx |= entry & NX;
        path[level] = (at, entry);
        if large || level == 0 {
            break (entry, (1u64 << (12 + 9 * level)) - 1);
        }
        table = entry & ADDR;
        level -= 1;
    };

    let writable = rights & RW != 0 || (!user && sys.cr0 & cr0::WP == 0);
    let allowed = match access {
        Access::Read => true,
        Access::Write => writable,
        Access::Execute => nx == 0,
    } && (!user || rights & US != 0);
    if !allowed {
        return Err(code(pf::P));
    }

    for (i, &(at, value)) in path.iter().enumerate().skip(level) {
        let want = A | if i == level && access == Access::Write {
            D
        } else {
            0
        };
        if value & want != want {
            // The entry was read from RAM above.
            let _ = ram.write_u64(at, value | want);
        }
    }
    Ok(Walk {
        gpa: (entry & ADDR & !page_mask) | (la & page_mask),
        global: entry & G != 0 && sys.cr4 & cr4::PGE != 0,
        large: level > 0,
    })
}
