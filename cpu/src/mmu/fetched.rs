//! Translations of instruction fetches: all since the last flush.
//!
//! How often an instruction fetch is translated depends on what is decoded, linked and translated
//! to native code, which no guest may observe. But a guest can observe a translation: it sets the
//! accessed flag, and after a change of the page tables without INVLPG it shows which of the two
//! entries is in use (SDM Vol. 3A 4.10.2.3, 4.10.4). So the translation of a page, once made, stays
//! until it is flushed, whatever other code runs.

use std::collections::BTreeMap;

use crate::mmu::access::Privilege;
use crate::mmu::flushed::Flushed;
use crate::mmu::ram::GuestRam;
use crate::mmu::tlb::Hit;
use crate::mmu::translations::FetchedTranslations;

/// Upper bound on the pages: those of 128 MBytes of code.
const MAX_PAGES: usize = if cfg!(test) { 8 } else { 1 << 15 };

/// The translation of a page.
#[derive(Debug, Clone, Copy)]
struct Page {
    gpa: u64,
    /// Host address minus linear address, modulo 2^64.
    addend: u64,
    /// Whether the translation survives a write to CR3.
    global: bool,
    /// The number of flushes of its kind when it was made.
    flushes: u64,
}

/// The number of flushes of a translation that was flushed.
const STALE: u64 = u64::MAX;

/// The pages from which instructions have been fetched since the last flush.
#[derive(Debug, Default)]
pub(crate) struct FetchedPages {
    /// By [`key`]; those of before a flush, too.
    pages: BTreeMap<u64, Page>,
    /// Numbers of flushes of all pages, and of those that are not global.
    flushes: u64,
    local_flushes: u64,
}

/// Number of the page of `la`, and whether the access is that of CPL 3.
fn key(la: u64, privilege: Privilege) -> u64 {
    la >> 12 << 1 | u64::from(privilege.is_user())
}

impl FetchedPages {
    /// The number of flushes that have flushed such a page.
    fn flushes(&self, global: bool) -> u64 {
        match global {
            true => self.flushes,
            false => self.local_flushes,
        }
    }

    /// The translation of `la`.
    pub(crate) fn find(&self, la: u64, privilege: Privilege) -> Option<Hit> {
        let page = self.pages.get(&key(la, privilege))?;
        (page.flushes == self.flushes(page.global)).then(|| Hit {
            host: page.addend.wrapping_add(la) as *mut u8,
            gpa: page.gpa | la & 0xFFF,
            write_tracked: false,
            global: page.global,
        })
    }

    /// Enters the translation of `la`. If there are too many, all others are removed. Returns
    /// whether they are.
    pub(crate) fn insert(&mut self, la: u64, privilege: Privilege, hit: Hit) -> bool {
        let page = Page {
            gpa: hit.gpa & !0xFFF,
            addend: (hit.host as u64).wrapping_sub(la),
            global: hit.global,
            flushes: self.flushes(hit.global),
        };
        let key = key(la, privilege);
        let is_full = self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&key);
        if is_full {
            self.pages.clear();
        }
        self.pages.insert(key, page);
        is_full
    }

    /// Flushes all pages, or with `keep_global` those that are not global.
    pub(crate) fn flush(&mut self, keep_global: bool) {
        self.local_flushes += 1;
        self.flushes += u64::from(!keep_global);
    }

    /// Flushes pages.
    pub(crate) fn flush_page(&mut self, flushed: Flushed) {
        match flushed.only() {
            None => self.pages.retain(|key, _| !flushed.has(key >> 1)),
            Some(page) => {
                for privilege in [Privilege::Supervisor, Privilege::User] {
                    self.pages.remove(&key(page << 12, privilege));
                }
            }
        }
    }

    /// The translations as plain data. Those that were flushed count towards the limit, which a
    /// guest can observe.
    pub(super) fn save(&self) -> FetchedTranslations {
        let mut saved = FetchedTranslations::default();
        for (key, page) in &self.pages {
            match page.flushes == self.flushes(page.global) {
                true => saved.add(*key, page.gpa, page.global),
                false => saved.add_stale(*key),
            }
        }
        saved
    }

    /// Replaces the translations by `saved`. Returns whether all of them lead to `ram`, and are not
    /// too many.
    pub(super) fn load(&mut self, saved: &FetchedTranslations, ram: &GuestRam) -> bool {
        self.pages.clear();
        let limit = MAX_PAGES + 1;
        for key in saved.stale(limit) {
            let page = Page {
                gpa: 0,
                addend: 0,
                global: false,
                flushes: STALE,
            };
            self.pages.insert(key, page);
        }
        for (key, gpa, global) in saved.pages().take(limit) {
            let Some(host) = ram.page(gpa) else {
                return false;
            };
            let page = Page {
                gpa,
                addend: (host.as_ptr() as u64).wrapping_sub(key >> 1 << 12),
                global,
                flushes: self.flushes(global),
            };
            self.pages.insert(key, page);
        }
        self.pages.len() <= MAX_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPL0: Privilege = Privilege::Supervisor;

    fn hit(gpa: u64, global: bool) -> Hit {
        Hit {
            host: std::ptr::without_provenance_mut(0x7123),
            gpa,
            write_tracked: false,
            global,
        }
    }

    #[test]
    fn a_page_stays_until_it_is_flushed() {
        let mut pages = FetchedPages::default();
        let la = 0xFFFF_FFFF_8123_4123;
        pages.insert(la, CPL0, hit(0x5123, false));
        pages.insert(0x1000, CPL0, hit(0x6000, true));
        let found = pages.find(la - 3, CPL0).unwrap();
        assert_eq!((found.gpa, found.host.addr()), (0x5120, 0x7120));
        assert!(
            pages.find(la, Privilege::User).is_none() && pages.find(la + 0x1000, CPL0).is_none()
        );
        pages.flush_page(Flushed::with(la ^ 0x1000, false));
        assert!(pages.find(la, CPL0).is_some());
        pages.flush(true);
        assert!(pages.find(la, CPL0).is_none() && pages.find(0x1000, CPL0).is_some());
        pages.insert(la, CPL0, hit(0x7000, false));
        pages.flush_page(Flushed::with(la ^ 0x1000, true));
        assert!(pages.find(la, CPL0).is_none() && pages.find(0x1000, CPL0).is_some());
        pages.flush(false);
        assert!(pages.find(0x1000, CPL0).is_none());
    }

    #[test]
    fn flushed_pages_count_after_a_load() {
        // SAFETY: there is no memory.
        let ram = unsafe { GuestRam::new(&[]) };
        let mut pages = FetchedPages::default();
        for n in 0..MAX_PAGES as u64 {
            pages.insert(n << 12, CPL0, hit(0, false));
        }
        pages.flush(false);
        let saved = pages.save();
        assert_eq!(saved.stale, [(0, MAX_PAGES as u32)]);
        let mut loaded = FetchedPages::default();
        assert!(loaded.load(&saved, &ram));
        assert_eq!(loaded.save(), saved);
        for pages in [&mut pages, &mut loaded] {
            assert!(!pages.insert(0x1000, CPL0, hit(0, false)));
            assert!(pages.insert((MAX_PAGES as u64) << 12, CPL0, hit(0, false)));
        }
        let many = [(0, u32::MAX), (1, u32::MAX)].to_vec();
        let many = FetchedTranslations {
            stale: many,
            ..saved
        };
        assert!(!loaded.load(&many, &ram));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut pages = FetchedPages::default();
        let full = (0..=MAX_PAGES as u64).map(|n| pages.insert(n << 12, CPL0, hit(0, false)));
        assert_eq!(full.filter(|full| *full).count(), 1);
        assert!(pages.find(0, CPL0).is_none());
        assert!(pages.find((MAX_PAGES as u64) << 12, CPL0).is_some());
    }
}
