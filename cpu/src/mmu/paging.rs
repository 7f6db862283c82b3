//! Paging (SDM Vol. 3A chapter 4): one walk for 32-bit paging, PAE paging and 4-level paging.

use crate::mmu::ram::GuestRam;
use crate::state::{SystemState, cr0, cr4, efer};

use crate::mmu::access::{Access, Privilege};
use crate::model::PHYS_MASK;

const P: u64 = 1 << 0;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const NX: u64 = 1 << 63;

const ADDR: u64 = PHYS_MASK & !0xFFF;
/// Bits MAXPHYADDR to 51 are reserved in every 64-bit entry.
const RSVD_ADDR: u64 = ((1 << 52) - 1) & !PHYS_MASK;

/// Page-fault error code bits (SDM Vol. 3A 4.7).
pub(crate) mod pf {
    pub(crate) const P: u32 = 1 << 0;
    pub(crate) const W: u32 = 1 << 1;
    pub(crate) const U: u32 = 1 << 2;
    pub(crate) const RSVD: u32 = 1 << 3;
    pub(crate) const ID: u32 = 1 << 4;
}

/// A completed walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// Guest-physical address.
    pub gpa: u64,
    /// G flag, with CR4.PGE set.
    pub global: bool,
    /// The page has 2 or 4 MBytes.
    pub large: bool,
}

/// The parameters of a paging mode.
#[derive(Debug)]
struct Structures {
    /// Tables that a walk visits; level 0 is the page table.
    levels: usize,
    /// Bits of the linear address that select an entry of a table.
    index_bits: u32,
    /// Bytes an entry, as a power of two.
    entry_shift: u32,
    /// Bits that are reserved in every entry.
    reserved: u64,
    /// Bits that are reserved in an entry of level 1 that maps a page.
    reserved_large: u64,
}

/// 32-bit paging (4.3), with PSE-36.
const BITS_32: Structures = Structures {
    levels: 2,
    index_bits: 10,
    entry_shift: 2,
    reserved: 0,
    reserved_large: 1 << 21,
};

/// PAE paging (4.4), below the registers that hold the page-directory-pointer table.
const PAE: Structures = Structures {
    levels: 2,
    index_bits: 9,
    entry_shift: 3,
    reserved: RSVD_ADDR | 0x7FF << 52,
    reserved_large: 0x1F_E000,
};

/// 4-level paging (4.5).
const LEVELS_4: Structures = Structures {
    levels: 4,
    index_bits: 9,
    entry_shift: 3,
    reserved: RSVD_ADDR,
    reserved_large: 0x1F_E000,
};

impl Structures {
    /// Bits that are reserved in an entry of `level`. `large`: the entry maps a large page.
    fn reserved_bits(&self, level: usize, large: bool, has_nx: bool) -> u64 {
        let of_large = match level {
            _ if !large => 0,
            0 | 1 => self.reserved_large,
            // PML4E, and PDPTE: the CPU models have no 1-GByte pages.
            _ => PS,
        };
        self.reserved | of_large | if has_nx { 0 } else { NX }
    }
}

/// Whether PAE paging is used, which translates through the four PDPTE registers (SDM Vol. 3A
/// 4.1.1).
pub(crate) fn is_pae(sys: &SystemState) -> bool {
    sys.cr0 & cr0::PG != 0 && sys.cr4 & cr4::PAE != 0 && sys.efer & efer::LMA == 0
}

/// Reads the page-directory-pointer table at `cr3` for the PDPTE registers. Returns `None` if a
/// present entry has a reserved bit set (SDM Vol. 3A 4.4.1).
pub(crate) fn pdptes(ram: &GuestRam, cr3: u64) -> Option<[u64; 4]> {
    const RESERVED: u64 = 0x1E6 | !PHYS_MASK;
    let table = cr3 & 0xFFFF_FFE0;
    let entries = [0, 8, 16, 24].map(|at| ram.read_u64(table + at).unwrap_or(0));
    let good = |e: &u64| e & P == 0 || e & RESERVED == 0;
    entries.iter().all(good).then_some(entries)
}

/// Reads the entry at `at`. An entry outside RAM is not present.
fn read(ram: &GuestRam, at: u64, s: &Structures) -> u64 {
    let word = ram.read_u64(at & !7).unwrap_or(0);
    match s.entry_shift {
        3 => word,
        _ => word >> (8 * (at & 4)) & 0xFFFF_FFFF,
    }
}

/// Sets flags in the entry at `at` if it still is `entry`. Returns `false` if another processor has
/// changed it since it was read (SDM Vol. 3A 4.8, 8.1.2.1).
fn set_flags(ram: &GuestRam, at: u64, entry: u64, flags: u64, s: &Structures) -> bool {
    let new = entry | flags;
    match s.entry_shift {
        3 => ram.replace(at, entry, new),
        _ => ram.replace(at, entry as u32, new as u32),
    }
}

/// The structures of the current paging mode, and the address of the first table for `la`. `None`:
/// the PDPTE register for `la` is not present (SDM Vol. 3A 4.4.1).
fn root(sys: &SystemState, la: u64) -> Option<(&'static Structures, u64)> {
    if sys.efer & efer::LMA != 0 {
        Some((&LEVELS_4, sys.cr3 & ADDR))
    } else if sys.cr4 & cr4::PAE != 0 {
        let pdpte = sys.pdpte[(la >> 30 & 3) as usize];
        (pdpte & P != 0).then_some((&PAE, pdpte & ADDR))
    } else {
        Some((&BITS_32, sys.cr3 & 0xFFFF_F000))
    }
}

/// Whether the flags of the entries allow the access (SDM Vol. 3A 4.6.1). `rights`: RW and US are
/// set if all entries have them, NX if one has it.
fn is_allowed(sys: &SystemState, rights: u64, access: Access, privilege: Privilege) -> bool {
    let user = privilege.is_user();
    let by_kind = match access {
        Access::Read => true,
        Access::Write => rights & RW != 0 || (!user && sys.cr0 & cr0::WP == 0),
        Access::Execute => rights & NX == 0,
    };
    let prevented = match access {
        Access::Execute => sys.cr4 & cr4::SMEP != 0,
        Access::Read | Access::Write => privilege == Privilege::SupervisorPages,
    };
    let by_mode = match rights & US {
        0 => !user,
        _ => user || !prevented,
    };
    by_kind && by_mode
}

/// An entry that a walk has visited: its address and its value.
type Visited = (u64, u64);

/// Sets the accessed flags of the entries in `path`, of which the first maps the page, and its
/// dirty flag for a write (SDM Vol. 3A 4.8). Returns `false` if another processor has changed an
/// entry.
fn mark_used(ram: &GuestRam, s: &Structures, path: &[Visited], access: Access) -> bool {
    path.iter().enumerate().all(|(i, &(at, value))| {
        let dirty = i == 0 && access == Access::Write;
        let want = A | if dirty { D } else { 0 };
        value & want == want || set_flags(ram, at, value, want, s)
    })
}

/// Translates the linear address `la` and sets accessed and dirty flags. `la` is canonical, and
/// below 4 GBytes outside IA-32e mode.
///
/// # Errors
/// The error code of the page fault.
pub(crate) fn walk(
    ram: &GuestRam,
    sys: &SystemState,
    la: u64,
    access: Access,
    privilege: Privilege,
) -> Result<Walk, u32> {
    loop {
        let mut is_marked = true;
        let walk = walk_with(ram, sys, la, access, privilege, |structures, path| {
            is_marked = mark_used(ram, structures, path, access);
        })?;
        if is_marked {
            return Ok(walk);
        }
    }
}

/// The guest-physical address of `la`, for a reader that the guest must not observe: no flag is
/// set. `la` is as for [`walk`].
pub(crate) fn peek(ram: &GuestRam, sys: &SystemState, la: u64) -> Option<u64> {
    let walk = walk_with(ram, sys, la, Access::Read, Privilege::Supervisor, |_, _| {});
    walk.ok().map(|walk| walk.gpa)
}

/// The guest-physical address of `la`, if it is in a large page that is marked as written and that
/// `privilege` may write. No flag is set. `la` is as for [`walk`].
pub(crate) fn written_large_page(
    ram: &GuestRam,
    sys: &SystemState,
    la: u64,
    privilege: Privilege,
) -> Option<u64> {
    let mut is_written = false;
    let walk = walk_with(ram, sys, la, Access::Write, privilege, |_, path| {
        is_written = path.first().is_some_and(|(_, entry)| entry & D != 0);
    });
    let walk = walk.ok().filter(|walk| walk.large && is_written)?;
    Some(walk.gpa)
}

/// Translates `la`, and passes the entries of an allowed access to `used`, of which the first maps
/// the page.
#[inline(always)]
fn walk_with(
    ram: &GuestRam,
    sys: &SystemState,
    la: u64,
    access: Access,
    privilege: Privilege,
    used: impl FnOnce(&Structures, &[Visited]),
) -> Result<Walk, u32> {
    if sys.cr0 & cr0::PG == 0 {
        return Ok(Walk {
            gpa: la,
            global: false,
            large: false,
        });
    }
    let has_nx = sys.efer & efer::NXE != 0 && sys.cr4 & cr4::PAE != 0;
    let reports_fetches = has_nx || sys.cr4 & cr4::SMEP != 0;
    let code = |rest: u32| {
        rest | if access == Access::Write { pf::W } else { 0 }
            | if privilege.is_user() { pf::U } else { 0 }
            // The I/D flag is reported only where a fetch can fault in a page that can be read.
            | if access == Access::Execute && reports_fetches { pf::ID } else { 0 }
    };

    let (s, mut table) = root(sys, la).ok_or_else(|| code(0))?;
    let has_large = s.entry_shift == 3 || sys.cr4 & cr4::PSE != 0;
    let mut rights = RW | US;
    let mut nx = 0;
    let mut path: [Visited; 4] = [(0, 0); 4];
    let mut level = s.levels - 1;
    let (entry, large, page_mask) = loop {
        let shift = 12 + s.index_bits * level as u32;
        let at = table | (la >> shift & ((1 << s.index_bits) - 1)) << s.entry_shift;
        let entry = read(ram, at, s);
        if entry & P == 0 {
            return Err(code(0));
        }
        let large = entry & PS != 0 && level > 0 && has_large;
        if entry & s.reserved_bits(level, large, has_nx) != 0 {
            return Err(code(pf::P | pf::RSVD));
        }
        rights &= entry;
        nx |= entry & NX;
        path[level] = (at, entry);
        if large || level == 0 {
            break (entry, large, (1u64 << shift) - 1);
        }
        table = entry & ADDR;
        level -= 1;
    };

    if !is_allowed(sys, rights | nx, access, privilege) {
        return Err(code(pf::P));
    }
    used(s, &path[level..s.levels]);
    // PSE-36: a 4-MByte page has bits 39:32 of its address in bits 20:13 of its entry.
    let high = if large && s.entry_shift == 2 {
        (entry >> 13 & 0xFF) << 32
    } else {
        0
    };
    Ok(Walk {
        gpa: high | (entry & ADDR & !page_mask) | (la & page_mask),
        global: entry & G != 0 && sys.cr4 & cr4::PGE != 0,
        large,
    })
}
