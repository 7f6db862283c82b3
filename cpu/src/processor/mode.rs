//! The processor's mode: what follows from CS, CPL, CR0, CR4, EFER, RFLAGS and DEBUGCTL.

use crate::insn::CodeSize;
use crate::mmu::access::Privilege;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::PendingWork;
use crate::processor::platform::Signals;
use crate::processor::segment::sreg;
use crate::state::{SegAttr, cr0, efer, rflags};

impl Cpu {
    /// Derives the mode again after a change of CS, CPL, CR0, CR4, EFER, RFLAGS, DEBUGCTL or a
    /// segment.
    pub fn update_mode(&mut self) {
        self.window.close();
        let cs = self.sys.seg[sreg::CS];
        let ia32e = self.sys.efer & efer::LMA != 0;
        self.linear_mask = if ia32e { u64::MAX } else { 0xFFFF_FFFF };
        self.code64 = ia32e && cs.attr.contains(SegAttr::L);
        if !self.code64 && self.code_segment != (cs.base, cs.limit) {
            self.code_segment = (cs.base, cs.limit);
            self.generation += 1;
            self.global_generation += 1;
        }
        for i in 0..6 {
            let flat = self.code64 && i < 4;
            self.set_seg_base(i, if flat { 0 } else { self.sys.seg[i].base });
        }
        self.privilege = match (
            self.cpl == 3,
            self.eflags & rflags::AC,
            self.sys.cr0 & cr0::AM,
        ) {
            (false, ..) => Privilege::Supervisor,
            (true, 0, _) | (true, _, 0) => Privilege::User,
            _ => Privilege::UserAligned,
        };
        self.tlb.select(self.privilege);
        self.recording = self.wants_branches();
        self.update_meter();
        self.signal_mask = Signals::KICK
            | Signals::INIT
            | Signals::DMA
            | if self.eflags & rflags::IF != 0 {
                Signals::INTR
            } else {
                0
            }
            | if self.nmi_blocked { 0 } else { Signals::NMI };
        self.pending_work
            .set(PendingWork::TRAP, self.eflags & rflags::TF != 0);
        self.pending_work
            .set(PendingWork::RESUME, self.eflags & rflags::RF != 0);
        self.code_size = match (self.code64, cs.attr.contains(SegAttr::DB)) {
            (true, _) => CodeSize::Bits64,
            (false, true) => CodeSize::Bits32,
            (false, false) => CodeSize::Bits16,
        };
        self.update_jump_keys();
        self.update_breakpoints();
        self.update_counted_ring();
    }
}
