//! Where a taken branch meets the Branch Trace Store.

use vbts_bts::{BranchRecord, BtsFields, DS_INDEX_OFFSET, DsMemory, RECORD_SIZE, Stored};

use crate::insn::seg;
use crate::processor::cpu::Cpu;
use crate::processor::debug;
use crate::state::rflags;

impl Cpu {
    /// A transfer from linear address `from` to RIP was made that may have changed CS and CPL: the
    /// CPL that counts is the one it has led to (see `Recorder::enabled`).
    #[inline(never)]
    pub(crate) fn record_far(&mut self, from: u64) {
        let to = self.linear_ip(self.rip);
        if self.recording && !self.record_in_window(from, to) {
            self.branch_anywhere(from, to);
        }
    }

    /// Whether taken branches at this CPL are recorded or single-stepped on.
    pub(crate) fn wants_branches(&self) -> bool {
        self.recorder.enabled(self.cpl) || self.steps_on_branches()
    }

    /// Whether IA32_DEBUGCTL asks for branches to be recorded or for single-stepping on branches.
    pub fn watches_branches(&self) -> bool {
        self.recorder.tracing() || self.recorder.debugctl() & debug::DEBUGCTL_BTF != 0
    }

    /// RFLAGS.TF with DEBUGCTL.BTF: trap after branches only (SDM Vol. 3B 17.4.3).
    pub(crate) fn steps_on_branches(&self) -> bool {
        self.eflags & rflags::TF != 0 && self.recorder.debugctl() & debug::DEBUGCTL_BTF != 0
    }

    /// A branch was taken in the code segment, and `recording` is set; RIP has moved.
    #[inline(always)]
    pub(crate) fn record_near(&mut self, from: u64, to: u64) {
        if !self.record_in_window(from, to) {
            self.branch_anywhere(self.linear_ip(from), self.linear_ip(to));
        }
    }

    /// Stores a record if the window is open.
    #[inline(always)]
    fn record_in_window(&mut self, from: u64, to: u64) -> bool {
        let w = &mut self.window;
        if w.index < w.end {
            let slot = w.offset.wrapping_add(w.index) as *mut u64;
            let record = BranchRecord { from, to }.to_words();
            for (i, word) in record.into_iter().enumerate() {
                // SAFETY: the window is open, and `index` lies in it: a record there is in the page
                // of writable guest RAM that `offset` leads to.
                unsafe { slot.add(i).write_unaligned(word) };
            }
            w.index += RECORD_SIZE;
            // SAFETY: the window is open: `field` is the host address of a word of writable guest
            // RAM.
            unsafe { (w.field as *mut u64).write_unaligned(w.index) };
            return true;
        }
        false
    }

    /// Stores a record wherever the DS area says, and opens the window there.
    #[cold]
    #[inline(never)]
    fn branch_anywhere(&mut self, from: u64, to: u64) {
        self.window.close();
        self.branched = true;
        if !self.recorder.enabled(self.cpl) {
            return;
        }
        match self.recorder.area().store(self, from, to) {
            Ok(Stored::Stored) => self.open_window(),
            Ok(Stored::StoredAndPmi) => self.performance_interrupt(),
            // The processor does not report a record that it drops.
            Err(_) => {}
        }
    }

    /// Opens the window at the index.
    fn open_window(&mut self) {
        if self.steps_on_branches() || self.seg_base(seg::CS) != 0 {
            return;
        }
        let la = self.recorder.ds_area();
        let Ok([base, index, absolute_maximum, threshold]) = self.read::<4>(la) else {
            return;
        };
        if (base | index) & 3 != 0 || index < base {
            return;
        }
        let (Some(fields), Some(slot)) = (self.pin(la, BtsFields::SIZE), self.pin(index, 1)) else {
            return;
        };
        let ds_page = fields.gpa & !0xFFF;
        if slot.gpa & !0xFFF == ds_page && slot.gpa < fields.gpa + BtsFields::SIZE as u64 {
            // Records might overwrite the fields.
            return;
        }
        self.track_ds_page(ds_page);
        // A record that fits after the next one: no wrap. Neither reaches the threshold, or it lies
        // behind.
        let mut end = absolute_maximum.saturating_sub(2 * RECORD_SIZE - 1);
        if index < threshold {
            end = end.min(threshold.saturating_sub(RECORD_SIZE));
        }
        self.window = Window {
            index,
            // It stays in this page.
            end: end.min((index | 0xFFF) - (RECORD_SIZE - 2)),
            offset: (slot.host as u64).wrapping_sub(index),
            field: fields.host as u64 + DS_INDEX_OFFSET,
        };
    }

    /// Has writes to the page at `gpa` close the window, and no longer those to the page of which
    /// that was so.
    fn track_ds_page(&mut self, gpa: u64) {
        let before = std::mem::replace(&mut self.ds_page, gpa);
        if before != gpa {
            self.update_write_tracking(before);
            self.update_write_tracking(gpa);
        }
    }

    /// Whether writes to the guest-physical page of `gpa` must be looked at: it holds decoded code,
    /// or the fields of the DS area.
    pub(crate) fn is_write_tracked(&self, gpa: u64) -> bool {
        self.code_map.is_code(gpa) || gpa & !0xFFF == self.ds_page
    }

    /// Tells the TLB that [`Self::is_write_tracked`] may have changed for this page.
    pub(crate) fn update_write_tracking(&mut self, gpa: u64) {
        self.tlb.set_write_tracked(gpa, self.is_write_tracked(gpa));
    }
}

/// [`Cpu`]'s `ds_page` when there is none: no page begins there.
pub(crate) const NO_PAGE: u64 = u64::MAX;

/// Where records can be stored by one comparison: a run of slots in one page, the next one among
/// them, in which a record neither wraps the buffer, nor fills it, nor reaches the threshold. The
/// code segment begins at zero, so that an instruction pointer is a linear address.
///
/// Everything that could make this untrue closes it: another translation, another DS area or
/// DEBUGCTL, code decoded from either page, and a write to the page of the fields, by the guest or
/// by a device. What another processor writes there is seen when the next run begins.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The BTS index: linear address of the next slot. In the DS area it is the same.
    index: u64,
    /// The slots below this index are in the window. 0: closed.
    end: u64,
    /// Host address minus linear address of the slots, modulo 2^64.
    offset: u64,
    /// Host address of the index in the DS area.
    field: u64,
}

impl Window {
    /// Closes it.
    pub fn close(&mut self) {
        self.end = 0;
    }
}
