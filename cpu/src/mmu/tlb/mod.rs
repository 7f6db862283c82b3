//! The software TLB: from linear pages to host memory.
//!
//! It is direct-mapped and has one table for each kind of access in each privilege class, so that a
//! hit needs one comparison and no permission test. Only RAM is entered, and only for accesses that
//! change nothing in the page tables: a write entry exists only if the dirty flag is set.

mod entry;
mod saved;
#[cfg(test)]
mod tests;

use self::entry::{EMPTY, ENTRIES, Entry, GLOBAL_BIT, INVALID, Table, WATCHED, WRITE_TRACKED};
use crate::mmu::access::{Access, Privilege};
use crate::mmu::fetched::FetchedPages;
use crate::mmu::flushed::{Flushed, LARGE_SHIFT};
use crate::mmu::region_filter::RegionFilter;

/// [`Privilege::UserAligned`] never gets an entry: each of its accesses is checked on the slow
/// path.
const CLASSES: usize = 4;

/// A translation found by the slow path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    /// Host address of the byte asked for.
    pub host: *mut u8,
    /// Guest-physical address of the byte asked for.
    pub gpa: u64,
    /// The access is a write, and the page is write-tracked.
    pub write_tracked: bool,
    /// The page survives a write to CR3: mapped with the G flag while CR4.PGE was set.
    pub global: bool,
}

/// Where native code finds the entries.
pub(crate) mod layout {
    use std::mem::{offset_of, size_of};

    use super::Tlb;
    use super::entry::{ENTRIES, Entry, Slot, Table, WATCHED};
    use crate::mmu::access::Access;

    /// Offset in [`Tlb`] of the pointer to the table of the current class. Those of the others
    /// follow, of which that of class 0 is in its place.
    pub(crate) const TABLE: usize = offset_of!(Tlb, tables);
    /// Offset in [`Tlb`] of the current class.
    pub(crate) const CURRENT: usize = offset_of!(Tlb, current);
    /// log2 of the distance between the entries of two indices.
    pub(crate) const SLOT_SHIFT: u32 = size_of::<Slot>().trailing_zeros();
    /// Bits of a page number that select an entry.
    pub(crate) const INDEX_MASK: usize = ENTRIES - 1;
    /// Offset of the host address minus the linear address in an entry. The tag is its first word:
    /// the number of the page, sign-extended.
    pub(crate) const ADDEND: usize = offset_of!(Entry, addend);
    /// Bit of the tag that is inverted for a page with a watchpoint.
    pub(crate) const WATCHED_BIT: u8 = WATCHED.trailing_zeros() as u8;
    const _: () = assert!(offset_of!(Entry, tag) == 0 && size_of::<Slot>() == 1 << SLOT_SHIFT);

    /// Offset in a table of the first entry for this kind of access.
    pub(crate) const fn entries(kind: Access) -> usize {
        offset_of!(Table, slots) + kind as usize * size_of::<Entry>()
    }
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Tlb {
    /// All translations of instruction fetches, which the tables replace by others.
    fetched: FetchedPages,
    /// The regions that may have entries that are parts of a large page.
    large: RegionFilter<LARGE_SHIFT>,
    current: Privilege,
    /// The table of the current class is the first, so that the fast path need not select one: it
    /// is swapped with the table of class 0. The last field, close to those of [`Cpu`] that native
    /// code uses.
    ///
    /// [`Cpu`]: crate::processor::cpu::Cpu
    tables: [Box<Table>; CLASSES],
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            tables: std::array::from_fn(|_| Box::new(Table::new())),
            current: Privilege::Supervisor,
            large: RegionFilter::default(),
            fetched: FetchedPages::default(),
        }
    }

    /// Number of the page of `la`, sign-extended: that of a canonical address in the lowest or the
    /// highest 2 GBytes is a short immediate of native code.
    #[inline(always)]
    fn page(la: u64) -> u64 {
        ((la as i64) >> 12) as u64
    }

    #[inline(always)]
    fn index(la: u64) -> usize {
        Self::page(la) as usize % ENTRIES
    }

    /// Selects the class whose translations [`Self::fast`] uses.
    pub(crate) fn select(&mut self, class: Privilege) {
        if self.current != class {
            self.tables.swap(0, self.current as usize);
            self.tables.swap(0, class as usize);
            self.current = class;
        }
    }

    /// The index in `tables` of the table of `class`.
    #[inline(always)]
    fn place(&self, class: Privilege) -> usize {
        match class {
            class if class == self.current => 0,
            Privilege::Supervisor => self.current as usize,
            class => class as usize,
        }
    }

    /// The tables that may have entries.
    fn used(&mut self) -> impl Iterator<Item = &mut Table> {
        let tables = self.tables.iter_mut().map(|table| &mut **table);
        tables.filter(|table| table.is_used)
    }

    /// The host address of `la` for the selected class, if the access of `size` bytes is allowed
    /// and lies in one page of RAM that is not write-tracked.
    #[inline(always)]
    pub(crate) fn fast(&self, la: u64, size: usize, kind: Access) -> Option<*mut u8> {
        Self::look_up(&self.tables[0], la, size, kind)
    }

    /// Like [`Self::fast`], but finds only pages with a watchpoint, which that does not.
    pub(crate) fn find_watched(&self, la: u64, size: usize, kind: Access) -> Option<*mut u8> {
        let e = &self.tables[0].slots[Self::index(la)].0[kind as usize];
        let last = la.wrapping_add(size as u64 - 1);
        (e.tag == Self::page(last) ^ WATCHED).then(|| e.addend.wrapping_add(la) as *mut u8)
    }

    /// [`Self::fast`] for the given class.
    #[inline(always)]
    pub(crate) fn fast_as(
        &self,
        la: u64,
        size: usize,
        kind: Access,
        class: Privilege,
    ) -> Option<*mut u8> {
        Self::look_up(&self.tables[self.place(class)], la, size, kind)
    }

    #[inline(always)]
    fn look_up(table: &Table, la: u64, size: usize, kind: Access) -> Option<*mut u8> {
        let e = &table.slots[Self::index(la)].0[kind as usize];
        // If the access leaves the page, its last byte is in a page that has another slot.
        if e.tag == Self::page(la.wrapping_add(size as u64 - 1)) {
            Some(e.addend.wrapping_add(la) as *mut u8)
        } else {
            None
        }
    }

    /// Like [`Tlb::fast`] for one byte, but also finds write-tracked pages, with
    /// [`Hit::write_tracked`] set.
    #[inline]
    pub(crate) fn find(&self, la: u64, kind: Access, class: Privilege) -> Option<Hit> {
        let table = &self.tables[self.place(class)];
        let e = &table.slots[Self::index(la)].0[kind as usize];
        let phys = table.phys[kind as usize][Self::index(la)];
        let difference = e.tag ^ Self::page(la);
        (difference & !(WRITE_TRACKED | WATCHED) == 0).then(|| Hit {
            host: e.addend.wrapping_add(la) as *mut u8,
            gpa: (phys & !0xFFF) | (la & 0xFFF),
            write_tracked: difference & WRITE_TRACKED != 0,
            global: phys & GLOBAL_BIT != 0,
        })
    }

    /// Like [`Tlb::find`] for an instruction fetch. It finds each page since the last flush.
    pub(crate) fn find_fetched(&mut self, la: u64, class: Privilege) -> Option<Hit> {
        let hit = self.fetched.find(la, class)?;
        self.insert(la, Access::Execute, class, hit, false);
        Some(hit)
    }

    /// Enters the translation of an instruction fetch. If there are too many, all others are
    /// flushed. Returns whether they are: then all cached jump targets become invalid, too.
    pub(crate) fn insert_fetched(&mut self, la: u64, class: Privilege, hit: Hit) -> bool {
        let flushed = self.fetched.insert(la, class, hit);
        if flushed {
            for table in self.used() {
                for slot in &mut table.slots {
                    slot.0[Access::Execute as usize] = EMPTY;
                }
            }
        }
        self.insert(la, Access::Execute, class, hit, false);
        flushed
    }

    /// Enters a translation, of a page with a watchpoint if `is_watched`.
    pub(crate) fn insert(
        &mut self,
        la: u64,
        kind: Access,
        class: Privilege,
        hit: Hit,
        is_watched: bool,
    ) {
        let (kind, index) = (kind as usize, Self::index(la));
        let place = self.place(class);
        let table = &mut self.tables[place];
        let tracked = if hit.write_tracked { WRITE_TRACKED } else { 0 };
        let watched = if is_watched { WATCHED } else { 0 };
        table.slots[index].0[kind] = Entry {
            tag: Self::page(la) ^ tracked ^ watched,
            addend: (hit.host as u64).wrapping_sub(la),
        };
        table.filled[kind][index / 64] |= 1 << (index % 64);
        table.is_used = true;
        table.phys[kind][index] = (hit.gpa & !0xFFF) | if hit.global { GLOBAL_BIT } else { 0 };
    }

    /// Flushes all translations, or with `keep_global` those that are not global.
    pub(crate) fn flush(&mut self, keep_global: bool) {
        self.fetched.flush(keep_global);
        for table in self.used() {
            table.is_used = keep_global;
            for (kind, (phys, filled)) in table.phys.iter().zip(&mut table.filled).enumerate() {
                let slots = table.slots.chunks_mut(64).zip(phys.chunks(64));
                for ((slots, phys), filled) in slots.zip(filled) {
                    let mut left = *filled;
                    while left != 0 {
                        let bit = left.trailing_zeros() as usize;
                        left &= left - 1;
                        if !(keep_global && phys[bit] & GLOBAL_BIT != 0) {
                            slots[bit].0[kind] = EMPTY;
                            *filled &= !(1 << bit);
                        }
                    }
                }
            }
        }
        if !keep_global {
            self.large = RegionFilter::default();
        }
    }

    /// Notes that the page of `la`, which has just been entered, is part of a large page.
    pub(crate) fn insert_large(&mut self, la: u64) {
        self.large.add(la);
    }

    /// Flushes one linear page, or the whole large page that it may be part of. Returns whether it
    /// may be part of one.
    pub(crate) fn flush_page(&mut self, la: u64) -> bool {
        let large = self.large.may_have(la);
        let flushed = Flushed::with(la, large);
        self.fetched.flush_page(flushed);
        for table in self.used() {
            let slots = match large {
                true => &mut table.slots[..],
                false => std::slice::from_mut(&mut table.slots[Self::index(la)]),
            };
            // Page 0 is flushed with empty entries, which stay so.
            for entry in slots.iter_mut().flat_map(|slot| &mut slot.0) {
                if flushed.has(entry.page()) {
                    *entry = EMPTY;
                }
            }
        }
        large
    }

    /// Sets whether writes to a guest-physical page take the slow path.
    pub(crate) fn set_write_tracked(&mut self, gpa: u64, write_tracked: bool) {
        const WRITE: usize = Access::Write as usize;
        for table in self.used() {
            for (slot, phys) in table.slots.iter_mut().zip(&table.phys[WRITE]) {
                let e = &mut slot.0[WRITE];
                if phys & !0xFFF == gpa & !0xFFF && e.tag != INVALID {
                    e.set_flag(WRITE_TRACKED, write_tracked);
                }
            }
        }
    }

    /// Sets for each guest-physical page whether writes to it take the slow path.
    pub(crate) fn update_write_tracked(&mut self, is_write_tracked: impl Fn(u64) -> bool) {
        const WRITE: usize = Access::Write as usize;
        for table in self.used() {
            for (slot, phys) in table.slots.iter_mut().zip(&table.phys[WRITE]) {
                let e = &mut slot.0[WRITE];
                if e.tag != INVALID {
                    e.set_flag(WRITE_TRACKED, is_write_tracked(phys & !0xFFF));
                }
            }
        }
    }

    /// Sets for each linear page, by its first address, whether reads, and whether writes, take the
    /// slow path because of a watchpoint.
    pub(crate) fn update_watched(&mut self, is_watched: impl Fn(u64, Access) -> bool) {
        for table in self.used() {
            for entries in table.slots.iter_mut().map(|slot| &mut slot.0) {
                for kind in [Access::Read, Access::Write] {
                    let e = &mut entries[kind as usize];
                    if e.tag != INVALID {
                        e.set_flag(WATCHED, is_watched(e.page() << 12, kind));
                    }
                }
            }
        }
    }

    /// Calls `f` with the guest-physical address of each page that has an entry for writes.
    pub(crate) fn writable_pages(&self, mut f: impl FnMut(u64)) {
        for table in self.tables.iter().filter(|table| table.is_used) {
            for index in table.filled_slots(Access::Write) {
                if table.slots[index].0[Access::Write as usize].tag != INVALID {
                    f(table.phys[Access::Write as usize][index] & !0xFFF);
                }
            }
        }
    }
}
