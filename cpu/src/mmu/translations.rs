//! The contents of a TLB as plain data.
//!
//! A guest can observe which translations a TLB has: a walk of the page tables sets the accessed
//! flag, and after a change of the tables without INVLPG the old translation may still be in use
//! (SDM Vol. 3A 4.10.2.3, 4.10.4). A snapshot therefore has them all. Addresses of the host are not
//! among them: they follow from the guest-physical ones.

use serde::{Deserialize, Serialize};

use crate::mmu::access::{Access, Privilege, canonical};

/// A page is global: see `Hit::global`.
const GLOBAL: u64 = 1 << 0;
/// The access is a write.
const WRITE: u64 = 1 << 1;
/// The first bit of the privilege class.
const CLASS_SHIFT: u32 = 2;
/// All bits below the page of an address.
const FLAGS: u64 = 0xFFF;

/// The classes that have translations of data.
pub(super) const CLASSES: [Privilege; 3] = [
    Privilege::Supervisor,
    Privilege::User,
    Privilege::SupervisorPages,
];

/// The translations of a processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Translations {
    /// Of reads and writes.
    pub(super) data: Vec<Translation>,
    pub(super) fetched: FetchedTranslations,
    /// See `Tlb::large`.
    pub(super) large: Vec<u64>,
}

impl Translations {
    /// Size in bytes, about.
    pub fn size(&self) -> usize {
        let fetched = &self.fetched;
        size_of_val(&*self.data)
            + size_of_val(&*fetched.pages)
            + size_of_val(&*fetched.stale)
            + size_of_val(&*self.large)
    }
}

/// A translation of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Translation {
    /// Linear address of the page.
    pub la: u64,
    /// Guest-physical address of the page, and flags.
    target: u64,
}

impl Translation {
    pub(super) fn new(la: u64, gpa: u64, global: bool, access: Access, class: Privilege) -> Self {
        let flags = [(global, GLOBAL), (access == Access::Write, WRITE)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set);
        let flags: u64 = flags.map(|(_, flag)| flag).sum();
        Self {
            la: la & !FLAGS,
            target: gpa & !FLAGS | flags | (class as u64) << CLASS_SHIFT,
        }
    }

    pub(super) fn gpa(self) -> u64 {
        self.target & !FLAGS
    }

    pub(super) fn is_global(self) -> bool {
        self.target & GLOBAL != 0
    }

    pub(super) fn access(self) -> Access {
        match self.target & WRITE {
            0 => Access::Read,
            _ => Access::Write,
        }
    }

    /// The privilege class, unless no TLB has such a translation.
    pub(super) fn class(self) -> Option<Privilege> {
        let number = (self.target & FLAGS) >> CLASS_SHIFT;
        let class = CLASSES.into_iter().find(|class| *class as u64 == number)?;
        (self.la & FLAGS == 0 && canonical(self.la)).then_some(class)
    }
}

/// The translations of instruction fetches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FetchedTranslations {
    /// As (key, guest-physical address, flags), by key.
    pub pages: Vec<(u64, u64)>,
    /// The keys of pages whose translations were flushed, and that still count: each the first of
    /// a number of keys, and that number. Two such keys differ by 2.
    pub stale: Vec<(u64, u32)>,
}

impl FetchedTranslations {
    pub(super) fn add(&mut self, key: u64, gpa: u64, global: bool) {
        self.pages
            .push((key, gpa | if global { GLOBAL } else { 0 }));
    }

    pub(super) fn add_stale(&mut self, key: u64) {
        match self.stale.last_mut() {
            Some((first, count)) if *first + 2 * u64::from(*count) == key => *count += 1,
            _ => self.stale.push((key, 1)),
        }
    }

    /// The pages, as (key, guest-physical address, whether it is global).
    pub(super) fn pages(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        let pages = self.pages.iter();
        pages.map(|(key, target)| (*key, target & !FLAGS, target & GLOBAL != 0))
    }

    /// The keys of the flushed pages, `limit` of them at most.
    pub(super) fn stale(&self, limit: usize) -> impl Iterator<Item = u64> {
        let keys = |&(first, count): &(u64, u32)| {
            (0..u64::from(count)).map(move |n| first.wrapping_add(2 * n))
        };
        self.stale.iter().flat_map(keys).take(limit)
    }
}
