//! Records taken branches in the Branch Trace Store, in the LBR stack, and in the log of the VMM.

use std::mem::offset_of;

use vbts_bts::{BranchRecord, BtsFields, DS_INDEX_OFFSET, DsMemory, RECORD_SIZE, Stored, Window};

use crate::insn::{Insn, seg};
use crate::mmu::access::Access;
use crate::mmu::code_map::CodeMap;
use crate::mmu::host_access::{HostAccess, store_record};
use crate::mmu::paging;
use crate::mmu::tlb::Hit;
use crate::processor::branch_log::LogEntry;
use crate::processor::cpu::Cpu;
use crate::processor::last_branches::{BranchClass, BranchSource};
use crate::state::rflags;

impl Cpu {
    /// Records a transfer to RIP that may have changed CS and CPL. The new CPL decides whether it
    /// is recorded (see `Recorder::enabled`).
    #[inline(never)]
    pub(crate) fn record_far(&mut self, from: BranchSource) {
        let to = self.linear_ip(self.rip);
        if self.recording && !self.record_in_window(from.la, to) {
            self.branch_anywhere(from);
        }
    }

    /// Whether taken branches at this CPL are recorded, single-stepped on or logged.
    pub(crate) fn wants_branches(&self) -> bool {
        self.guest_wants_branches() || self.logs_branches() || self.records_last_branches()
    }

    /// Whether the guest has taken branches at this CPL stored or single-stepped on.
    fn guest_wants_branches(&self) -> bool {
        self.recorder.enabled(self.cpl) || self.steps_on_branches()
    }

    /// Whether taken branches at this CPL are logged for the VMM.
    fn logs_branches(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.enabled(self.cpl))
    }

    /// Whether IA32_DEBUGCTL asks for branches to be recorded or for single-stepping on branches.
    pub fn watches_branches(&self) -> bool {
        self.recorder.tracing() || self.recorder.steps_on_branches()
    }

    /// RFLAGS.TF with DEBUGCTL.BTF: trap after branches only (SDM Vol. 3B 17.4.3).
    pub(crate) fn steps_on_branches(&self) -> bool {
        self.eflags & rflags::TF != 0 && self.recorder.steps_on_branches()
    }

    /// Records the near branch `insn` to RIP. `recording` is set.
    #[inline(always)]
    pub(crate) fn record_near(&mut self, insn: &Insn) {
        let from = self.this_rip(insn);
        if !self.record_in_window(from, self.rip) {
            self.record_near_anywhere(from, BranchClass::of(insn));
        }
    }

    /// Records a near branch from offset `from` in the code segment to RIP, as the first of its
    /// window.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_near_anywhere(&mut self, from: u64, class: BranchClass) {
        self.branch_anywhere(self.source(from, class));
    }

    /// Stores a record in the window. Returns whether there was a slot.
    #[inline(always)]
    fn record_in_window(&mut self, from: u64, to: u64) -> bool {
        let w = &mut self.window;
        let Some(la) = w.slots.take() else {
            return false;
        };
        let slot = w.offset.wrapping_add(la) as *mut u8;
        let record = BranchRecord::new(from, to).to_words::<u64>();
        // SAFETY: the window is open: a record at `la` is in the page of writable guest RAM that
        // `offset` leads to, or in the buffer of the log.
        unsafe { store_record(record, slot) };
        // SAFETY: the window is open: `field` is the host address of a word of writable guest RAM,
        // or of the buffer of the log.
        unsafe { w.slots.index().store(w.field as *mut u8) };
        true
    }

    /// Stores a record in the LBR stack, in the log and at the BTS index of the DS area, and opens
    /// the window where there is only one of the last two.
    #[cold]
    #[inline(never)]
    fn branch_anywhere(&mut self, source: BranchSource) {
        let (from, to) = (source.la, self.linear_ip(self.rip));
        let is_used_up = self.window.slots.is_used_up();
        self.window.close();
        let last_branches = self.records_last_branches();
        if last_branches {
            self.record_last_branch(source);
        }
        let logs = self.logs_branches();
        if logs {
            let time = self.now() + u64::from(source.class.ahead());
            if let Some(log) = &mut self.log {
                log.push(LogEntry::Branch { from, to }, time);
            }
        }
        if !self.guest_wants_branches() {
            if !last_branches {
                self.open_log_window();
            }
            return;
        }
        self.branched = true;
        if !self.recorder.enabled(self.cpl) {
            return;
        }
        match self.recorder.area().store(self, from, to) {
            Ok(Stored::Stored) if !logs && !last_branches => self.open_window(is_used_up),
            Ok(Stored::Stored) => {}
            Ok(Stored::StoredAndPmi) => self.performance_interrupt(source.class.ahead()),
            // The processor does not report a record that it drops.
            Err(_) => {}
        }
    }

    /// Whether an instruction pointer is a linear address, so that it can be stored as it is.
    fn code_begins_at_zero(&self) -> bool {
        self.in_64_bit_mode() || self.seg_base(seg::CS) == 0
    }

    /// Opens the window in the log.
    fn open_log_window(&mut self) {
        if self.code_begins_at_zero()
            && let Some(log) = &mut self.log
        {
            let (slots, field) = log.window();
            self.window = MappedWindow {
                slots,
                offset: 0,
                field,
            };
        }
    }

    /// Opens the window at the BTS index. The one before it `was_used_up`, so this one may be, too.
    fn open_window(&mut self, was_used_up: bool) {
        let area = self.recorder.area();
        if !area.has_windows() || self.steps_on_branches() || !self.code_begins_at_zero() {
            return;
        }
        let la = self.recorder.ds_area();
        let Ok(words) = self.read::<u64, 4>(la) else {
            return;
        };
        let slots = area.window(&BtsFields::from_words(words));
        if slots.is_empty() {
            return;
        }
        let index = slots.index();
        let (Some(fields), Some(slot)) = (self.pin(la, BtsFields::SIZE), self.pin(index, 1)) else {
            return;
        };
        let ds_page = fields.gpa & !0xFFF;
        if slot.gpa & !0xFFF == ds_page && slot.gpa < fields.gpa + BtsFields::SIZE as u64 {
            // Records might overwrite the fields.
            return;
        }
        self.track_ds_page(ds_page);
        let large = was_used_up.then(|| self.last_in_large_page(index, &slot, ds_page));
        let last = large
            .flatten()
            .unwrap_or_else(|| self.last_of_window(index, slot.host as u64, ds_page));
        self.window = MappedWindow {
            slots: slots.up_to(last),
            offset: (slot.host as u64).wrapping_sub(index),
            field: fields.host as u64 + DS_INDEX_OFFSET,
        };
    }

    /// The last byte of the pages that can be in a window which begins at `index`, at this host
    /// address: the page of the index, and those that follow it in the host's memory, too. These
    /// have been written before, so that the window sets no dirty flag early.
    fn last_of_window(&self, index: u64, host: u64, ds_page: u64) -> u64 {
        last_of_pages(index, WINDOW_PAGES, |next| {
            let hit = self.tlb.find(next, Access::Write, self.system_privilege());
            hit.is_some_and(|hit| {
                hit.host as u64 == host.wrapping_add(next.wrapping_sub(index))
                    && !self.is_kept_out(hit.gpa, ds_page)
            })
        })
    }

    /// Whether the guest-physical page at `gpa` cannot be in a window: it has the fields of the DS
    /// area, or decoded code.
    fn is_kept_out(&self, gpa: u64, ds_page: u64) -> bool {
        gpa == ds_page || self.ram.code_map().is_code(gpa)
    }

    /// As [`Self::last_of_window`] for an index in a large page that is marked as written, which
    /// `slot` is the translation of: one lookup does for many pages. `None`: it is in no such page.
    fn last_in_large_page(&self, index: u64, slot: &Hit, ds_page: u64) -> Option<u64> {
        let privilege = self.system_privilege().without_alignment();
        let gpa = paging::written_large_page(&self.ram, &self.sys, index, privilege)?;
        // Until the TLB is flushed, it may have what the page tables had before.
        if gpa != slot.gpa {
            return None;
        }
        Some(last_of_pages(index, LARGE_WINDOW_PAGES, |next| {
            let distance = next.wrapping_sub(index);
            let next_gpa = gpa.wrapping_add(distance);
            next & LARGE_PAGE_MASK != 0
                && !self.is_kept_out(next_gpa, ds_page)
                && !self.watched(next, Access::Write)
                && self.ram.page(next_gpa).is_some_and(|page| {
                    self.ram.written().add(next_gpa);
                    page.as_ptr() as u64 == (slot.host as u64).wrapping_add(distance)
                })
        }))
    }

    /// Makes writes to the page at `gpa` close the window, instead of writes to the page that did
    /// so before.
    fn track_ds_page(&mut self, gpa: u64) {
        let before = std::mem::replace(&mut self.ds_page, gpa);
        if before != gpa {
            self.update_write_tracking(before);
            self.update_write_tracking(gpa);
        }
    }

    /// Whether the guest-physical page of `gpa` is write-tracked: it holds decoded code, or the
    /// fields of the DS area.
    pub(crate) fn is_write_tracked(&self, gpa: u64) -> bool {
        is_write_tracked(self.ram.code_map(), self.ds_page, gpa)
    }

    /// Updates the TLB after a change of [`Self::is_write_tracked`] for this page.
    pub(crate) fn update_write_tracking(&mut self, gpa: u64) {
        self.tlb.set_write_tracked(gpa, self.is_write_tracked(gpa));
    }

    /// Updates the TLB after changes of [`Self::is_write_tracked`] for any pages.
    pub(crate) fn update_all_write_tracking(&mut self) {
        let (map, ds_page) = (self.ram.code_map(), self.ds_page);
        self.tlb
            .update_write_tracked(|gpa| is_write_tracked(map, ds_page, gpa));
    }
}

/// The last byte of the page of `index` and of those after it, in a row, that `follows` accepts by
/// their addresses: of `most` pages at most.
#[inline(always)]
fn last_of_pages(index: u64, most: usize, follows: impl Fn(u64) -> bool) -> u64 {
    let mut last = index | 0xFFF;
    for _ in 1..most {
        let next = last.wrapping_add(1);
        if !follows(next) {
            break;
        }
        last = next | 0xFFF;
    }
    last
}

pub(super) fn is_write_tracked(map: &CodeMap, ds_page: u64, gpa: u64) -> bool {
    map.is_code(gpa) || gpa & !0xFFF == ds_page
}

/// The value of [`Cpu`]'s `ds_page` without a page: no page begins there.
pub(crate) const NO_PAGE: u64 = u64::MAX;

/// Pages that a window reaches into at most. To find them takes time, and windows close often.
const WINDOW_PAGES: usize = 8;

/// Pages of a large page that a window reaches into at most, if the one before it was used up.
const LARGE_WINDOW_PAGES: usize = 64;

/// The part of a linear address that is within the smallest of the large pages, of 2 MBytes.
const LARGE_PAGE_MASK: u64 = (2 << 20) - 1;

/// Slots of the DS buffer in a few pages, or those of the log, with the host addresses to store
/// records there directly: records of the 64-bit format without flags (`DsArea::has_windows`). The
/// code segment begins at zero, so that an instruction pointer is a linear address.
///
/// While both want the branches, it stays closed: a record in the DS area, which the guest can
/// overwrite, does not become one of the log. So it does while the LBR stack wants them.
///
/// Each change that could invalidate it closes it: of a translation, of the DS area's address or
/// fields, of DEBUGCTL, and decoding of code from one of the pages. A write to the page of the
/// fields, by the guest or by a device, closes it, too. Writes by other processors become visible
/// at the start of the next run.
#[derive(Debug, Clone, Default)]
pub(crate) struct MappedWindow {
    slots: Window,
    /// Host address minus linear address of the slots, modulo 2^64.
    offset: u64,
    /// Host address of the index in the DS area.
    field: u64,
}

impl MappedWindow {
    /// Offsets in this type, for native code: of the slots, and of the two host addresses.
    pub(crate) const SLOTS_OFFSET: usize = offset_of!(Self, slots);
    pub(crate) const ADDEND_OFFSET: usize = offset_of!(Self, offset);
    pub(crate) const FIELD_OFFSET: usize = offset_of!(Self, field);

    /// Where the next record is stored, and then the index: host addresses of guest memory, and
    /// sizes in bytes. `None`: it has no slot.
    pub(crate) fn next_stores(&self) -> Option<[(*mut u8, usize); 2]> {
        let slot = self.offset.wrapping_add(self.slots.index()) as *mut u8;
        let stores = [
            (slot, RECORD_SIZE as usize),
            (self.field as *mut u8, size_of::<u64>()),
        ];
        (!self.slots.is_empty()).then_some(stores)
    }

    /// Closes it: the next record reads the fields of the DS area again.
    pub(crate) fn close(&mut self) {
        self.slots.close();
    }
}
