//! The software TLB: from a linear page to the host memory behind it.
//!
//! Direct-mapped, one table for each kind of access in each privilege class, so that a hit needs one
//! comparison and no permission test. Only RAM is entered, and only for what the
//! page tables allow at once: a write entry exists only if the dirty flag is already set.

use crate::mem::{Access, Privilege};

const ENTRIES: usize = 512;
/// One more than there are: a power of two is found sooner.
const KINDS: usize = 4;
/// log2 of the size in bytes of the largest page: 4 MBytes, or two of 2 MBytes.
const LARGE_SHIFT: u32 = 22;
const LARGE_SETS: usize = 1024;
/// [`Privilege::UserAligned`] never gets an entry: each of its accesses is checked on the slow path.
const CLASSES: usize = 3;

/// Page-aligned tag of a linear page, with flags in its low bits. No linear page has this tag.
const INVALID: u64 = u64::MAX;
/// Writes to the page must look before they leap ([`crate::cpu::Cpu::is_observed`]).
const OBSERVED: u64 = 1;
/// Mapped with the G flag while CR4.PGE was set: survives a write to CR3.
const GLOBAL_BIT: u64 = 1;

/// What every access looks at.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Linear page address, plus [`OBSERVED`] for a page that the fast path must not hit.
    tag: u64,
    /// Host address minus linear address, modulo 2^64.
    addend: u64,
}

const EMPTY: Entry = Entry {
    tag: INVALID,
    addend: 0,
};

/// A translation found by the slow path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    /// Host address of the byte asked for.
    pub host: *mut u8,
    /// Guest-physical address of the byte asked for.
    pub gpa: u64,
    /// It was found for a write, and the page is observed.
    pub observed: bool,
}

#[derive(Debug)]
pub(crate) struct Tlb {
    entries: Box<[Entry; ENTRIES * KINDS * CLASSES]>,
    /// Guest-physical page address of each, plus [`GLOBAL_BIT`].
    phys: Box<[u64; ENTRIES * KINDS * CLASSES]>,
    /// Which 4-MByte regions may have entries that are parts of a large page, by hash.
    large: [u64; LARGE_SETS / 64],
}

impl Tlb {
    pub fn new() -> Self {
        Self {
            entries: Box::new([EMPTY; ENTRIES * KINDS * CLASSES]),
            phys: Box::new([0; ENTRIES * KINDS * CLASSES]),
            large: [0; LARGE_SETS / 64],
        }
    }

    #[inline(always)]
    fn slot(la: u64, kind: Access, class: Privilege) -> usize {
        let set = (class as usize) * KINDS + kind as usize;
        set * ENTRIES + (la >> 12) as usize % ENTRIES
    }

    /// The host address of `la`, if the fast path may go there: the whole access of `size` bytes lies in one page of
    /// plain RAM.
    #[inline(always)]
    pub fn fast(&self, la: u64, size: usize, kind: Access, class: Privilege) -> Option<*mut u8> {
        let e = &self.entries[Self::slot(la, kind, class)];
        // An access that leaves the page ends in one that has another slot.
        if e.tag == la.wrapping_add(size as u64 - 1) & !0xFFF {
            Some(e.addend.wrapping_add(la) as *mut u8)
        } else {
            None
        }
    }

    /// Like [`Tlb::fast`] for one byte, but also finds pages that are observed, and tells so.
    #[inline]
    pub fn find(&self, la: u64, kind: Access, class: Privilege) -> Option<Hit> {
        let slot = Self::slot(la, kind, class);
        let e = &self.entries[slot];
        (e.tag & !0xFFF == la & !0xFFF && e.tag != INVALID).then(|| Hit {
            host: e.addend.wrapping_add(la) as *mut u8,
            gpa: (self.phys[slot] & !0xFFF) | (la & 0xFFF),
            observed: e.tag & OBSERVED != 0,
        })
    }

    /// Enters a translation.
    pub fn insert(&mut self, la: u64, kind: Access, class: Privilege, hit: Hit, global: bool) {
        let page = la & !0xFFF;
        let slot = Self::slot(la, kind, class);
        self.entries[slot] = Entry {
            tag: page | if hit.observed { OBSERVED } else { 0 },
            addend: (hit.host as u64).wrapping_sub(la),
        };
        self.phys[slot] = (hit.gpa & !0xFFF) | if global { GLOBAL_BIT } else { 0 };
    }

    /// Forgets everything, or everything that is not global.
    pub fn flush(&mut self, keep_global: bool) {
        for (e, phys) in self.entries.iter_mut().zip(self.phys.iter()) {
            if !(keep_global && phys & GLOBAL_BIT != 0) {
                *e = EMPTY;
            }
        }
        if !keep_global {
            self.large.fill(0);
        }
    }

    fn large_bit(la: u64) -> (usize, u64) {
        let set = (la >> LARGE_SHIFT) as usize % LARGE_SETS;
        (set / 64, 1 << (set % 64))
    }

    /// The page of `la`, which has just been entered, is part of a large page.
    pub fn insert_large(&mut self, la: u64) {
        let (word, bit) = Self::large_bit(la);
        self.large[word] |= bit;
    }

    /// Forgets one linear page; if it may be part of a large page, all of that (SDM Vol. 3A 4.10.4.1, INVLPG).
    pub fn flush_page(&mut self, la: u64) {
        let (word, bit) = Self::large_bit(la);
        if self.large[word] & bit != 0 {
            for e in self.entries.iter_mut() {
                if e.tag >> LARGE_SHIFT == la >> LARGE_SHIFT {
                    *e = EMPTY;
                }
            }
            return;
        }
        for kind in [Access::Read, Access::Write, Access::Execute] {
            for class in [Privilege::Supervisor, Privilege::User] {
                let e = &mut self.entries[Self::slot(la, kind, class)];
                if e.tag & !0xFFF == la & !0xFFF {
                    *e = EMPTY;
                }
            }
        }
    }

    /// Whether a guest-physical page is observed: writes to it take the slow path from now on, or need not any more.
    pub fn set_observed(&mut self, gpa: u64, observed: bool) {
        for class in [Privilege::Supervisor, Privilege::User] {
            let first = Self::slot(0, Access::Write, class);
            let set = first..first + ENTRIES;
            let entries = self.entries[set.clone()].iter_mut();
            for (e, phys) in entries.zip(&self.phys[set]) {
                if e.tag != INVALID && phys & !0xFFF == gpa & !0xFFF {
                    e.tag = (e.tag & !OBSERVED) | if observed { OBSERVED } else { 0 };
                }
            }
        }
    }
}
