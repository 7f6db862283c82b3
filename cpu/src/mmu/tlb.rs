//! The software TLB: from linear pages to host memory.
//!
//! It is direct-mapped and has one table for each kind of access in each privilege class, so that a
//! hit needs one comparison and no permission test. Only RAM is entered, and only for accesses that
//! change nothing in the page tables: a write entry exists only if the dirty flag is set.

use crate::mmu::access::{Access, Privilege};
use crate::mmu::fetched::FetchedPages;
use crate::mmu::ram::GuestRam;
use crate::mmu::translations::{CLASSES as SAVED_CLASSES, Translation, Translations};

const ENTRIES: usize = 2048;
/// Kinds of access, see [`Access`].
const KINDS: usize = 3;
/// log2 of the size in bytes of the largest page: 4 MBytes, or two of 2 MBytes.
pub(crate) const LARGE_SHIFT: u32 = 22;
/// [`Privilege::UserAligned`] never gets an entry: each of its accesses is checked on the slow
/// path.
const CLASSES: usize = 4;

/// A tag that no linear page has, write-tracked or not: bits 63:51 of a page number are equal.
const INVALID: u64 = 1 << 63;
/// Inverted in the tag of a write-tracked page, so that no page number equals it: a write takes the
/// slow path, which invalidates decoded code and cached DS-area state.
const WRITE_TRACKED: u64 = 1 << 62;
/// Inverted in the tag of a page with a watchpoint of a debugger: all of these accesses take the
/// slow path, which compares them.
const WATCHED: u64 = 1 << 61;
/// See [`Hit::global`].
const GLOBAL_BIT: u64 = 1;

/// The linear pages that are flushed with the one of an address (SDM Vol. 3A 4.10.4.1, INVLPG).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flushed {
    /// Number of the page.
    page: u64,
    /// The page may be part of a large page, all of which is flushed.
    large: bool,
}

impl Flushed {
    /// The pages that are flushed with that of `la`, which is part of a large page if `large`.
    pub(crate) fn with(la: u64, large: bool) -> Self {
        Self {
            page: la >> 12,
            large,
        }
    }

    /// The page, if it is the only one.
    pub(crate) fn only(self) -> Option<u64> {
        (!self.large).then_some(self.page)
    }

    /// Returns whether the page of this number, which can be sign-extended, is flushed.
    pub(crate) fn has(self, page: u64) -> bool {
        let size = if self.large { LARGE_SHIFT } else { 12 };
        (page ^ self.page) << 12 >> size == 0
    }
}

/// The part of a translation that every access compares.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Entry {
    /// Number of the linear page, with [`WRITE_TRACKED`] or [`WATCHED`] for a page that the fast
    /// path must not hit.
    tag: u64,
    /// Host address minus linear address, modulo 2^64.
    addend: u64,
}

const EMPTY: Entry = Entry {
    tag: INVALID,
    addend: 0,
};

impl Entry {
    /// Number of the linear page of an entry that is not empty.
    fn page(&self) -> u64 {
        const FLAGS: u32 = 3;
        (((self.tag << FLAGS) as i64) >> FLAGS) as u64
    }

    /// Sets or clears one of the flags of the tag.
    fn set_flag(&mut self, flag: u64, value: bool) {
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
struct Slot([Entry; KINDS]);

/// The translations of a privilege class.
#[derive(Debug)]
#[repr(C)]
struct Table {
    slots: [Slot; ENTRIES],
    /// Guest-physical page address of each, plus [`GLOBAL_BIT`].
    phys: [[u64; ENTRIES]; KINDS],
    /// Which of the entries may not be empty: a flush visits no others.
    filled: [[u64; ENTRIES / 64]; KINDS],
    /// Whether any of them is.
    is_used: bool,
}

impl Table {
    fn new() -> Self {
        Self {
            slots: [Slot([EMPTY; KINDS]); ENTRIES],
            phys: [[0; ENTRIES]; KINDS],
            filled: [[0; ENTRIES / 64]; KINDS],
            is_used: false,
        }
    }

    /// The indices of the entries for `access` that may not be empty.
    fn filled_slots(&self, access: Access) -> impl Iterator<Item = usize> {
        let words = self.filled[access as usize].iter().zip((0..).step_by(64));
        words.flat_map(|(word, first)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| first + bit)
        })
    }
}

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

const FILTER_BITS: usize = 1024;

/// A set of regions of 2^`SHIFT` bytes of linear addresses, by hash. It may contain regions that
/// were not added.
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
    pub(crate) fn add(&mut self, la: u64) {
        let (word, bit) = Self::bit(la);
        self.0[word] |= bit;
    }

    /// Whether the region of `la` may have been added.
    pub(crate) fn may_have(&self, la: u64) -> bool {
        let (word, bit) = Self::bit(la);
        self.0[word] & bit != 0
    }
}

/// Where native code finds the entries.
pub(crate) mod layout {
    use std::mem::{offset_of, size_of};

    use super::{ENTRIES, Entry, Slot, Table, Tlb};
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
    large: Filter<LARGE_SHIFT>,
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
            large: Filter::default(),
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
            self.large = Filter::default();
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

    /// Sets for each linear page, by its first address, whether reads and writes take the slow path
    /// because of a watchpoint.
    pub(crate) fn update_watched(&mut self, is_watched: impl Fn(u64) -> bool) {
        for table in self.used() {
            for entries in table.slots.iter_mut().map(|slot| &mut slot.0) {
                for kind in [Access::Read, Access::Write] {
                    let e = &mut entries[kind as usize];
                    if e.tag != INVALID {
                        e.set_flag(WATCHED, is_watched(e.page() << 12));
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

    /// The translations as plain data.
    pub(crate) fn save(&self) -> Translations {
        let mut data = Vec::new();
        for class in SAVED_CLASSES {
            let table = &self.tables[self.place(class)];
            if !table.is_used {
                continue;
            }
            for access in [Access::Read, Access::Write] {
                for index in table.filled_slots(access) {
                    let entry = &table.slots[index].0[access as usize];
                    if entry.tag != INVALID {
                        let phys = table.phys[access as usize][index];
                        let global = phys & GLOBAL_BIT != 0;
                        let la = entry.page() << 12;
                        data.push(Translation::new(la, phys, global, access, class));
                    }
                }
            }
        }
        Translations {
            data,
            fetched: self.fetched.save(),
            large: self.large.0.to_vec(),
        }
    }

    /// Replaces all translations by `saved`, none of which is watched. Returns whether `saved` can
    /// be the contents of a TLB of a machine with `ram`; otherwise, this one has a part of it.
    pub(crate) fn load(
        &mut self,
        saved: &Translations,
        ram: &GuestRam,
        is_write_tracked: impl Fn(u64) -> bool,
    ) -> bool {
        self.flush(false);
        for translation in &saved.data {
            let (Some(class), Some(host)) = (translation.class(), ram.page(translation.gpa()))
            else {
                return false;
            };
            let (gpa, access) = (translation.gpa(), translation.access());
            let hit = Hit {
                host: host.as_ptr(),
                gpa,
                write_tracked: access == Access::Write && is_write_tracked(gpa),
                global: translation.is_global(),
            };
            self.insert(translation.la, access, class, hit, false);
        }
        let Ok(large) = saved.large.as_slice().try_into() else {
            return false;
        };
        self.large = Filter(large);
        self.fetched.load(&saved.fetched, ram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Privilege = Privilege::Supervisor;

    fn hit(gpa: u64, write_tracked: bool) -> Hit {
        Hit {
            host: std::ptr::without_provenance_mut(0x7000),
            gpa,
            write_tracked,
            global: false,
        }
    }

    #[test]
    fn write_tracked_pages_are_found_and_not_hit() {
        let pages = [0, 0x7FFF_FFFF_F000, !0 << 47, !0xFFF];
        for la in pages {
            let mut tlb = Tlb::new();
            let write = |tlb: &Tlb, la| tlb.fast(la, 1, Access::Write).is_some();
            let found = |tlb: &Tlb, la| {
                let hit = tlb.find(la, Access::Write, CLASS);
                hit.map(|hit| (hit.gpa, hit.write_tracked))
            };
            for other in pages {
                assert!(!write(&tlb, other) && found(&tlb, other).is_none());
            }
            for tracked in [false, true] {
                tlb.insert(la, Access::Write, CLASS, hit(0x5000, tracked), false);
                for at in [tracked, !tracked, tracked] {
                    tlb.set_write_tracked(0x6000, !at);
                    tlb.set_write_tracked(0x5000, at);
                    tlb.update_write_tracked(|gpa| (gpa == 0x5000) == at);
                    assert_eq!(found(&tlb, la + 8), Some((0x5008, at)));
                    assert_eq!(write(&tlb, la), !at);
                    assert!(tlb.fast(la, 1, Access::Read).is_none());
                    // The access ends in another page, and the page is none of another address.
                    assert!(tlb.fast(la + 0xFFF, 2, Access::Write).is_none());
                    assert_eq!(found(&tlb, la ^ 1 << 62), None);
                    assert_eq!(found(&tlb, la ^ 1 << 63), None);
                }
                tlb.flush_page(la ^ 0x1000);
                assert!(found(&tlb, la).is_some());
                tlb.flush_page(la);
                assert_eq!(found(&tlb, la), None);
            }
        }
    }

    #[test]
    fn translations_are_loaded_as_they_were_saved() {
        let mut memory = vec![0u128; 0x8000 / 16];
        let host = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the memory is not accessed meanwhile.
        let ram = unsafe { GuestRam::new(&[(0x10_0000, 0x8000, host)]) };
        let mut tlb = Tlb::new();
        let entries = [
            (0, Access::Read, Privilege::Supervisor, 0x10_0000, false),
            (
                0x7000_0000_0000,
                Access::Write,
                Privilege::User,
                0x10_1000,
                false,
            ),
            (
                !0xFFF,
                Access::Write,
                Privilege::SupervisorPages,
                0x10_2000,
                true,
            ),
            (
                !0xFFF,
                Access::Execute,
                Privilege::Supervisor,
                0x10_3000,
                true,
            ),
            (0x1000, Access::Execute, Privilege::User, 0x10_4000, false),
        ];
        let enter = |tlb: &mut Tlb| {
            for (la, kind, class, gpa, global) in entries {
                let hit = Hit {
                    global,
                    ..hit(gpa, false)
                };
                match kind {
                    Access::Execute => assert!(!tlb.insert_fetched(la, class, hit)),
                    _ => tlb.insert(la, kind, class, hit, false),
                }
            }
        };
        enter(&mut tlb);
        // What was flushed counts, and global translations stay.
        tlb.flush(true);
        let global = tlb.save();
        enter(&mut tlb);
        tlb.insert_large(0x40_0000);
        let all = tlb.save();
        for saved in [&all, &global, &all] {
            let mut loaded = Tlb::new();
            loaded.insert(0x5000, Access::Read, CLASS, hit(0x10_0000, false), false);
            assert!(loaded.load(saved, &ram, |gpa| gpa == 0x10_1000));
            assert_eq!(loaded.save(), *saved);
            assert!(loaded.find(0x5000, Access::Read, CLASS).is_none());
            for (la, kind, class, gpa, is_global) in entries {
                let found = match kind {
                    Access::Execute => loaded.find_fetched(la, class),
                    _ => loaded.find(la, kind, class),
                };
                assert_eq!(found.is_some(), is_global || saved == &all);
                if let Some(hit) = found {
                    assert_eq!((hit.gpa, hit.global), (gpa, is_global));
                    assert_eq!(
                        hit.host.addr(),
                        host.as_ptr().addr() + gpa as usize - 0x10_0000
                    );
                    assert_eq!(hit.write_tracked, gpa == 0x10_1000);
                }
            }
            let mut writable = Vec::new();
            loaded.writable_pages(|gpa| writable.push(gpa));
            let both = [0x10_1000, 0x10_2000];
            assert_eq!(writable, if saved == &all { &both[..] } else { &both[1..] });
        }
        let other = [
            Translation::new(0, 0x20_0000, false, Access::Read, CLASS),
            Translation::new(1 << 50, 0x10_0000, false, Access::Read, CLASS),
            Translation::new(0, 0x10_0000, false, Access::Read, Privilege::UserAligned),
        ];
        for data in other {
            let saved = Translations {
                data: vec![data],
                ..all.clone()
            };
            assert!(!tlb.load(&saved, &ram, |_| false), "{data:?}");
        }
        let large = vec![0];
        assert!(!tlb.load(&Translations { large, ..all }, &ram, |_| false));
    }

    #[test]
    fn a_flush_keeps_global_entries_of_each_kind() {
        let kinds = [Access::Read, Access::Write, Access::Execute];
        let mut tlb = Tlb::new();
        for (n, kind) in (1u64..).zip(kinds) {
            let global = kind == Access::Write;
            let hit = Hit {
                global,
                ..hit(n << 12, false)
            };
            tlb.insert(0x40_0000, kind, CLASS, hit, false);
        }
        let left =
            |tlb: &Tlb| kinds.map(|kind| tlb.find(0x40_0000, kind, CLASS).map(|hit| hit.gpa));
        assert_eq!(left(&tlb), [Some(0x1000), Some(0x2000), Some(0x3000)]);
        tlb.flush(true);
        assert_eq!(left(&tlb), [None, Some(0x2000), None]);
        tlb.insert_large(0x40_0000);
        assert!(tlb.flush_page(0x5F_F000));
        assert_eq!(left(&tlb), [None; 3]);
    }
}
