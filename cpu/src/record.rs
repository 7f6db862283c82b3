//! Where a taken branch meets the Branch Trace Store.

use vbts_bts::Stored;

use crate::cpu::Cpu;
use crate::debug;
use crate::state::rflags;

impl Cpu {
    /// A near branch from linear address `from` to linear address `to` was taken; RIP has moved.
    #[inline(always)]
    pub(crate) fn record(&mut self, from: u64, to: u64) {
        if self.recording {
            self.branch(from, to);
        }
    }

    /// A transfer from linear address `from` to RIP was made that may have changed CS and CPL: the CPL that counts is
    /// the one it has led to (see `Recorder::enabled`).
    #[inline]
    pub(crate) fn record_far(&mut self, from: u64) {
        if self.recording {
            self.branch(from, self.linear_ip(self.rip));
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

    #[inline(never)]
    fn branch(&mut self, from: u64, to: u64) {
        self.branched = true;
        if !self.recorder.enabled(self.cpl) {
            return;
        }
        let mut recorder = self.recorder.clone();
        let stored = recorder.store(self, from, to);
        self.recorder = recorder;
        if stored == Stored::StoredAndPmi {
            self.platform.performance_interrupt(self.now());
        }
    }
}
