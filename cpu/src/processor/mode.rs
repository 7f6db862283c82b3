//! The processor's mode: what follows from CS, CPL, CR0, CR4, EFER, RFLAGS and DEBUGCTL.

use crate::insn::CodeSize;
use crate::mmu::access::Privilege;
use crate::processor::cpu::Cpu;
use crate::processor::pending_work::ArchEvents;
use crate::processor::platform::Signals;
use crate::state::{SegAttr, cr0, cr4, rflags, sreg};

impl Cpu {
    /// Derives the mode again after a change of CS, CPL, CR0, CR4, EFER, RFLAGS, DEBUGCTL or a
    /// segment.
    pub fn update_mode(&mut self) {
        self.window.close();
        self.linear_mask = self.derive_linear_mask();
        self.code_size = self.derive_code_size();
        self.update_code_segment();
        self.update_data_privilege();
        self.recording = self.wants_branches();
        self.update_meter();
        self.signal_mask = self.derive_signal_mask();
        self.update_flag_traps();
        self.update_jump_keys();
        self.update_breakpoints();
        self.update_counted_ring();
        if self.stops.is_some() {
            self.update_user_mode_stop();
        }
    }

    /// 64-bit mode: IA-32e mode with CS.L set.
    #[inline(always)]
    pub(crate) fn in_64_bit_mode(&self) -> bool {
        self.code_size == CodeSize::Bits64
    }

    /// Linear addresses have 32 bits outside IA-32e mode (SDM Vol. 1 3.3.7).
    fn derive_linear_mask(&self) -> u64 {
        if self.is_ia32e() {
            u64::MAX
        } else {
            u32::MAX.into()
        }
    }

    /// The default size of operands and addresses: the L and D flags of CS (SDM Vol. 3A 5.2.1).
    fn derive_code_size(&self) -> CodeSize {
        let attr = self.seg[sreg::CS].attr;
        match (self.is_code64(attr), attr.contains(SegAttr::DB)) {
            (true, _) => CodeSize::Bits64,
            (false, true) => CodeSize::Bits32,
            (false, false) => CodeSize::Bits16,
        }
    }

    /// Invalidates cached jump targets if an instruction pointer has another linear address now, or
    /// if another limit applies to it.
    fn update_code_segment(&mut self) {
        let cs = self.segment(sreg::CS);
        if !self.in_64_bit_mode() && self.code_segment != (cs.base, cs.limit) {
            self.code_segment = (cs.base, cs.limit);
            self.generation += 1;
            self.global_generation += 1;
        }
    }

    /// Derives the privilege of data accesses again.
    pub(crate) fn update_data_privilege(&mut self) {
        self.privilege = self.privilege_at(self.cpl);
        self.tlb.select(self.privilege);
    }

    /// The privilege of data accesses at CPL 0 to 2. CR4.SMAP forbids those to user pages while
    /// RFLAGS.AC is clear (SDM Vol. 3A 4.6.1).
    pub(crate) fn supervisor_privilege(&self) -> Privilege {
        if self.eflags & rflags::AC != 0 {
            Privilege::Supervisor
        } else {
            self.system_privilege()
        }
    }

    /// The privilege of implicit accesses to system structures, at any CPL. CR4.SMAP forbids those
    /// to user pages (SDM Vol. 3A 4.6.1).
    #[inline]
    pub(crate) fn system_privilege(&self) -> Privilege {
        if self.sys.cr4 & cr4::SMAP != 0 {
            Privilege::SupervisorPages
        } else {
            Privilege::Supervisor
        }
    }

    /// The privilege of data accesses at privilege level `cpl`, with alignment checking at level 3
    /// while CR0.AM and RFLAGS.AC are set (SDM Vol. 3A 4.6.1; 6.15, interrupt 17).
    pub(crate) fn privilege_at(&self, cpl: u8) -> Privilege {
        let checks_alignment = self.eflags & rflags::AC != 0 && self.sys.cr0 & cr0::AM != 0;
        match (cpl, checks_alignment) {
            (0..=2, _) => self.supervisor_privilege(),
            (_, false) => Privilege::User,
            (_, true) => Privilege::UserAligned,
        }
    }

    /// The signals that can be taken. RFLAGS.IF masks interrupts (SDM Vol. 3A 6.8.1). An NMI blocks
    /// further ones until IRET (6.7.1).
    fn derive_signal_mask(&self) -> u32 {
        let mut mask = Signals::KICK | Signals::INIT | Signals::DMA;
        if self.eflags & rflags::IF != 0 {
            mask |= Signals::INTR;
        }
        if !self.nmi_blocked {
            mask |= Signals::NMI;
        }
        mask
    }

    /// The flags in RFLAGS that demand work at each instruction boundary: TF and RF.
    fn update_flag_traps(&mut self) {
        self.pending_work
            .set(ArchEvents::TRAP, self.eflags & rflags::TF != 0);
        self.pending_work
            .set(ArchEvents::RESUME, self.eflags & rflags::RF != 0);
    }
}
