//! Export and import of the architectural state.

use crate::processor::clock::Clock;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::{ArchEvents, PendingWork, VmmRequests};
use crate::state::xsave::component;
use crate::state::{
    Activity, ArchState, PendingEvent, Progress, cr0, dr6, dr7, efer, rflags, sreg,
};

/// The activity states other than [`Activity::Active`].
const ACTIVITIES: [(ArchEvents, Activity); 3] = [
    (ArchEvents::HALTED, Activity::Halted),
    (ArchEvents::SHUTDOWN, Activity::Shutdown),
    (ArchEvents::WAIT_FOR_SIPI, Activity::WaitForSipi),
];

impl Cpu {
    /// Exports the architectural state, at an instruction boundary.
    pub fn state(&self) -> ArchState {
        let mut gpr = [0; 16];
        gpr.copy_from_slice(&self.gpr[..16]);
        ArchState {
            gpr,
            rip: self.rip,
            rflags: self.rflags(),
            seg: std::array::from_fn(|n| self.segment(n)),
            sys: self.sys.clone(),
            msr: self.msr.clone(),
            debugctl: self.recorder.debugctl(),
            ds_area: self.recorder.ds_area(),
            x87: self.x87,
            xmm: self.xmm,
            ymm_high: self.ymm_high,
            mxcsr: self.mxcsr,
            tsc: self.tsc(0),
            nmi_blocked: self.nmi_blocked,
            interrupt_shadow: self.pending_work.contains(ArchEvents::SHADOW),
            mov_ss_shadow: self.pending_work.contains(ArchEvents::HOLD_TRAP),
            activity: self.activity(),
            pending: if self.pending_work.contains(ArchEvents::DEBUG) {
                Some(PendingEvent::Debug(self.pending_db))
            } else {
                self.accepted
            },
            progress: self.progress(),
        }
    }

    fn activity(&self) -> Activity {
        ACTIVITIES
            .into_iter()
            .find(|(event, _)| self.pending_work.contains(*event))
            .map_or(Activity::Active, |(_, activity)| activity)
    }

    fn progress(&self) -> Progress {
        Progress {
            instructions: self.icount,
            skipped: self.skipped,
            idle_cycles: self.pmu.idle,
            branches: self.pmu.branches,
            random_numbers: self.random_numbers,
            usage: self.usage(),
            spin: self.spin,
            spins: self.pending_work.contains(VmmRequests::SPINNING),
        }
    }

    /// Imports the architectural state. Values of DEBUGCTL, DS_AREA and XCR0 that this processor
    /// would not accept are loaded as those after RESET. RFLAGS.VM is clear where there is no
    /// virtual-8086 mode.
    pub fn load_state(&mut self, s: &ArchState) {
        self.load_progress(&s.progress);
        self.gpr[..16].copy_from_slice(&s.gpr);
        self.rip = s.rip;
        for (n, segment) in s.seg.into_iter().enumerate() {
            self.set_segment(n, segment);
        }
        self.sys = s.sys.clone();
        self.sys.dr6 |= dr6::FIXED;
        self.sys.dr7 |= dr7::FIXED;
        if !self.xcr0_accepts(s.sys.xcr0) {
            self.sys.xcr0 = component::X87;
        }
        self.msr = s.msr.clone();
        if self.recorder.set_debugctl(s.debugctl).is_err() {
            let _ = self.recorder.set_debugctl(0);
        }
        if self.recorder.set_ds_area(s.ds_area).is_err() {
            let _ = self.recorder.set_ds_area(0);
        }
        self.x87 = s.x87;
        self.xmm = s.xmm;
        self.ymm_high = s.ymm_high;
        self.mxcsr = s.mxcsr;
        // The host's counter advances by itself.
        if matches!(self.clock, Clock::Instructions) {
            self.tsc_offset = s.tsc.wrapping_sub(self.now());
        }
        self.nmi_blocked = s.nmi_blocked;
        // Code that is stale stays so in any state.
        let stale = self.pending_work.contains(VmmRequests::INVALIDATE_CODE);
        self.pending_work = PendingWork::default();
        self.pending_work.set(VmmRequests::INVALIDATE_CODE, stale);
        self.pending_work
            .set(ArchEvents::SHADOW, s.interrupt_shadow);
        self.pending_work
            .set(ArchEvents::HOLD_TRAP, s.mov_ss_shadow);
        self.pending_work
            .set(VmmRequests::SPINNING, s.progress.spins);
        for (event, activity) in ACTIVITIES {
            self.pending_work.set(event, s.activity == activity);
        }
        (self.pending_db, self.accepted) = (0, None);
        match s.pending {
            Some(PendingEvent::Debug(causes)) => {
                self.pending_db = causes;
                self.pending_work.insert(ArchEvents::DEBUG);
            }
            Some(event) => {
                self.accepted = Some(event);
                self.pending_work.insert(ArchEvents::ACCEPTED);
            }
            None => {}
        }
        let has_virtual_8086 = s.sys.cr0 & cr0::PE != 0 && s.sys.efer & efer::LMA == 0;
        let no_flags = if has_virtual_8086 { 0 } else { rflags::VM };
        self.set_rflags(s.rflags & !no_flags, !0);
        self.cpl = if s.sys.cr0 & cr0::PE == 0 {
            0
        } else if self.is_virtual_8086() {
            3
        } else {
            s.seg[sreg::SS].dpl()
        };
        self.load_counters();
        self.limit_last_branches();
        self.flush_tlb(false);
        self.update_mode();
    }

    fn load_progress(&mut self, progress: &Progress) {
        self.icount = progress.instructions;
        self.skipped = progress.skipped;
        self.pmu.idle = progress.idle_cycles;
        self.pmu.branches = progress.branches;
        self.random_numbers = progress.random_numbers;
        self.spin = progress.spin;
        self.load_usage(progress.usage);
    }
}
