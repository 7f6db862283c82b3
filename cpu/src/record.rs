//! Where a taken branch meets the Branch Trace Store.

use vbts_bts::{BranchRecord, BtsFields, DsMemory, RECORD_SIZE, Stored};

use crate::cpu::Cpu;
use crate::debug;
use crate::state::rflags;

impl Cpu {
    /// A transfer from linear address `from` to RIP was made that may have changed CS and CPL: the CPL that counts is
    /// the one it has led to (see `Recorder::enabled`).
    #[inline(never)]
    pub(crate) fn record_far(&mut self, from: u64) {
        if self.recording {
            self.record(from, self.linear_ip(self.rip));
        }
    }

    /// Whether taken branches matter to anybody at this CPL.
    pub(crate) fn wants_branches(&self) -> bool {
        self.recorder.enabled(self.cpl) || self.steps_on_branches()
    }

    /// RFLAGS.TF with DEBUGCTL.BTF: trap after branches only (SDM Vol. 3B 17.4.3).
    pub(crate) fn steps_on_branches(&self) -> bool {
        self.eflags & rflags::TF != 0 && self.recorder.debugctl() & debug::DEBUGCTL_BTF != 0
    }

    /// A branch from linear address `from` to linear address `to` was taken, and `recording` is set; RIP has moved.
    #[inline(always)]
    pub(crate) fn record(&mut self, from: u64, to: u64) {
        self.branched = true;
        let w = &self.window;
        if w.generation == self.generation {
            // SAFETY: the window's generation is current: `fields` is the host address of four words of guest RAM.
            let [base, index, absolute_maximum, threshold] = std::array::from_fn(|i| unsafe {
                (w.fields as *const u64).add(i).read_unaligned()
            });
            if index.wrapping_sub(w.first) < w.len
                && index & 3 == 0
                && [base, absolute_maximum, threshold] == [w.base, w.absolute_maximum, w.threshold]
            {
                let slot = w.offset.wrapping_add(index) as *mut u64;
                let record = BranchRecord { from, to }.to_words();
                for (i, word) in record.into_iter().enumerate() {
                    // SAFETY: `index` lies in the window: a record there is in the page of writable guest RAM that
                    // `offset` leads to.
                    unsafe { slot.add(i).write_unaligned(word) };
                }
                // SAFETY: as for the read of the fields; the page is writable.
                unsafe {
                    (w.fields as *mut u64)
                        .add(1)
                        .write_unaligned(index + RECORD_SIZE)
                };
                self.recorder.count_stored();
                return;
            }
        }
        self.branch_anywhere(from, to);
    }

    /// Stores a record wherever the DS area says, and opens the window there.
    #[cold]
    #[inline(never)]
    fn branch_anywhere(&mut self, from: u64, to: u64) {
        self.window.close();
        if !self.recorder.enabled(self.cpl) {
            return;
        }
        let result = self.recorder.area().store(self, from, to);
        match self.recorder.count(result) {
            Stored::Stored => self.open_window(),
            Stored::StoredAndPmi => self.performance_interrupt(),
            Stored::Dropped(_) => {}
        }
    }

    /// Opens the window at the index.
    fn open_window(&mut self) {
        let la = self.recorder.ds_area();
        let Ok([base, index, absolute_maximum, threshold]) = self.read::<4>(la) else {
            return;
        };
        let (Some(fields), Some(page)) = (self.pin(la, BtsFields::SIZE), self.pin(index, 1)) else {
            return;
        };
        // A record that fits after the next one: no wrap. Neither reaches the threshold, or it lies behind.
        let mut end = absolute_maximum.saturating_sub(2 * RECORD_SIZE - 1);
        if index < threshold {
            end = end.min(threshold.saturating_sub(RECORD_SIZE));
        }
        // It stays in this page.
        let end = end.min((index | 0xFFF) - (RECORD_SIZE - 2));
        self.window = Window {
            generation: self.generation,
            fields,
            base,
            absolute_maximum,
            threshold,
            first: index,
            len: end.saturating_sub(index),
            offset: page.wrapping_sub(index),
        };
    }
}

/// Where records can be stored by a few comparisons: a run of slots in one page, the next one among them, in which a
/// record neither wraps the buffer, nor fills it, nor reaches the threshold.
///
/// Everything that could make this untrue closes it: another translation (by the generation), another DS area or
/// DEBUGCTL, code decoded from either page; and the fields in memory are compared at each record, since the guest may
/// write them at any time.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// [`Cpu`]'s generation when it was opened; 0: closed.
    generation: u64,
    /// Host address of the DS management area.
    fields: u64,
    base: u64,
    absolute_maximum: u64,
    threshold: u64,
    /// Linear address of the first slot.
    first: u64,
    /// Indices from `first` that are in the window, in bytes.
    len: u64,
    /// Host address minus linear address of the slots, modulo 2^64.
    offset: u64,
}

impl Window {
    /// Closes it.
    pub fn close(&mut self) {
        self.generation = 0;
    }
}
