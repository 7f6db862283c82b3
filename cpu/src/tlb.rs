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
/// [`Privilege::UserAligned`] never gets an entry: each of its accesses is checked on the slow path.
const CLASSES: usize = 3;

/// Page-aligned tag of a linear page, with flags in its low bits. No linear page has this tag.
const INVALID: u64 = u64::MAX;
/// Writes to the page must look before they leap ([`crate::cpu::Cpu::is_observed`]).
const OBSERVED: u64 = 1;
/// See [`Hit::global`].
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
    /// The page survives a write to CR3: mapped with the G flag while CR4.PGE was set.
    pub global: bool,
}

const FILTER_BITS: usize = 1024;

/// Regions of 2^`SHIFT` bytes of linear addresses, by hash: it may seem to have one that was not added.
#[derive(Debug)]
pub(crate) struct Filter<const SHIFT: u32>([u64; FILTER_BITS / 64]);

/// A filter of pages.
pub(crate) type PageFilter = Filter<12>;

impl<const SHIFT: u32> Default for Filter<SHIFT> {
    fn default() -> Self {
        Self([0; FILTER_BITS / 64])
    }
}

impl<const SHIFT: u32> Filter<SHIFT> {
    fn bit(la: u64) -> (usize, u64) {
        let n = (la >> SHIFT) as usize % FILTER_BITS;
        (n / 64, 1 << (n % 64))
    }

    /// Adds the region of `la`.
    pub fn add(&mut self, la: u64) {
        let (word, bit) = Self::bit(la);
        self.0[word] |= bit;
    }

    /// Whether the region of `la` may have been added.
    pub fn may_have(&self, la: u64) -> bool {
        let (word, bit) = Self::bit(la);
        self.0[word] & bit != 0
    }
}

#[derive(Debug)]
pub(crate) struct Tlb {
    entries: Box<[Entry; ENTRIES * KINDS * CLASSES]>,
    /// Which of them may not be empty: a flush visits no others.
    filled: [u64; ENTRIES * KINDS * CLASSES / 64],
    /// Guest-physical page address of each, plus [`GLOBAL_BIT`].
    phys: Box<[u64; ENTRIES * KINDS * CLASSES]>,
    /// The regions that may have entries that are parts of a large page.
    large: Filter<LARGE_SHIFT>,
}

impl Tlb {
    pub fn new() -> Self {
        Self {
            entries: Box::new([EMPTY; ENTRIES * KINDS * CLASSES]),
            filled: [0; ENTRIES * KINDS * CLASSES / 64],
            phys: Box::new([0; ENTRIES * KINDS * CLASSES]),
            large: Filter::default(),
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
            global: self.phys[slot] & GLOBAL_BIT != 0,
        })
    }

    /// Enters a translation.
    pub fn insert(&mut self, la: u64, kind: Access, class: Privilege, hit: Hit) {
        let page = la & !0xFFF;
        let slot = Self::slot(la, kind, class);
        self.entries[slot] = Entry {
            tag: page | if hit.observed { OBSERVED } else { 0 },
            addend: (hit.host as u64).wrapping_sub(la),
        };
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.phys[slot] = (hit.gpa & !0xFFF) | if hit.global { GLOBAL_BIT } else { 0 };
    }

    /// Forgets everything, or everything that is not global.
    pub fn flush(&mut self, keep_global: bool) {
        for (i, filled) in self.filled.iter_mut().enumerate() {
            let mut left = *filled;
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                let slot = 64 * i + bit;
                if !(keep_global && self.phys[slot] & GLOBAL_BIT != 0) {
                    self.entries[slot] = EMPTY;
                    *filled &= !(1 << bit);
                }
            }
        }
        if !keep_global {
            self.large = Filter::default();
        }
    }

    /// The page of `la`, which has just been entered, is part of a large page.
    pub fn insert_large(&mut self, la: u64) {
        self.large.add(la);
    }

    /// Forgets one linear page; if it may be part of a large page, all of that (SDM Vol. 3A 4.10.4.1, INVLPG). Tells
    /// whether it may.
    pub fn flush_page(&mut self, la: u64) -> bool {
        if self.large.may_have(la) {
            for e in self.entries.iter_mut() {
                if e.tag >> LARGE_SHIFT == la >> LARGE_SHIFT {
                    *e = EMPTY;
                }
            }
            return true;
        }
        for kind in [Access::Read, Access::Write, Access::Execute] {
            for class in [Privilege::Supervisor, Privilege::User] {
                let e = &mut self.entries[Self::slot(la, kind, class)];
                if e.tag & !0xFFF == la & !0xFFF {
                    *e = EMPTY;
                }
            }
        }
        false
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
