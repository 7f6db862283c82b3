//! Virtual-8086 mode and virtual interrupts (SDM Vol. 3A chapter 20).

use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::processor::frame::Frame;
use crate::processor::pending_work::ArchEvents;
use crate::state::{Segment, cr4, gpr, rflags, sreg};

/// Offset of the I/O map base in a TSS (SDM Vol. 3A 7.7).
const IO_MAP_BASE: u64 = 0x66;
/// Size of the interrupt redirection bitmap, which ends at the I/O map (20.3.3).
const REDIRECTION_SIZE: u64 = 32;

/// What CLI, STI, PUSHF, POPF and IRET access in place of IF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptFlag {
    /// IF itself.
    Real,
    /// VIF.
    Virtual,
}

impl Cpu {
    /// Virtual-8086 mode. It exists only in protected mode, and CPL is 3 there.
    #[inline]
    pub(crate) fn is_virtual_8086(&self) -> bool {
        self.eflags & rflags::VM != 0
    }

    /// The I/O privilege level.
    pub(crate) fn iopl(&self) -> u8 {
        ((self.eflags & rflags::IOPL) >> 12) as u8
    }

    fn has_cr4(&self, flag: u64) -> bool {
        self.sys.cr4 & flag != 0
    }

    /// The flag of a program that may not change IF, for CLI and STI (20.4, 20.2.7): #GP(0) without
    /// virtual interrupts.
    #[cold]
    pub(crate) fn require_virtual_interrupts(&mut self) -> Result<(), Abort> {
        let has = match self.is_virtual_8086() {
            true => self.has_cr4(cr4::VME),
            false => self.has_cr4(cr4::PVI) && self.cpl == 3,
        };
        if has { Ok(()) } else { Err(self.gp(0)) }
    }

    /// The flag that is IF in the image of FLAGS that PUSHF, POPF and IRET have, with operands of
    /// `bytes` (SDM Vol. 2B). In virtual-8086 mode they need IOPL 3, or 16 bits and VME.
    #[inline]
    pub(crate) fn interrupt_flag(&mut self, bytes: usize) -> Result<InterruptFlag, Abort> {
        if !self.is_virtual_8086() || self.iopl() == 3 {
            Ok(InterruptFlag::Real)
        } else if self.has_cr4(cr4::VME) && bytes == 2 {
            Ok(InterruptFlag::Virtual)
        } else {
            Err(self.gp(0))
        }
    }

    /// FLAGS as a program sees them whose interrupts are virtual: IOPL is 3, and IF is VIF.
    pub(crate) fn virtual_flags(&self) -> u64 {
        let flags = self.rflags() & !rflags::IF | rflags::IOPL;
        match self.eflags & rflags::VIF {
            0 => flags,
            _ => flags | rflags::IF,
        }
    }

    /// Loads FLAGS for a program whose interrupts are virtual. It may neither step, nor enable
    /// interrupts while one is pending (SDM Vol. 2B, POPF).
    pub(crate) fn set_virtual_flags(&mut self, flags: u64) -> Result<(), Abort> {
        let enables = flags & rflags::IF != 0;
        if flags & rflags::TF != 0 || (enables && self.eflags & rflags::VIP != 0) {
            return Err(self.gp(0));
        }
        let vif = if enables { rflags::VIF } else { 0 };
        let mask = rflags::ARITH | rflags::TF | rflags::DF | rflags::NT | rflags::RF;
        self.set_rflags(flags & !rflags::RF | vif, mask | rflags::VIF);
        Ok(())
    }

    /// The data and stack segments of the program on a frame that leaves virtual-8086 mode, in the
    /// order of the pushes.
    pub(crate) const PUSHED_SEGMENTS: [usize; 4] = [sreg::GS, sreg::FS, sreg::DS, sreg::ES];

    /// IRET from CPL 0 to virtual-8086 mode: the rest of the frame behind EFLAGS (SDM Vol. 2A,
    /// "RETURN-TO-VIRTUAL-8086-MODE" of IRET). The caller continues at the address that it has
    /// popped.
    pub(crate) fn return_to_virtual_8086(
        &mut self,
        mut frame: Frame,
        cs: u16,
        flags: u64,
    ) -> Result<(), Abort> {
        let esp: u32 = frame.pop(self)?;
        let mut selectors = [cs; 6];
        for n in [sreg::SS, sreg::ES, sreg::DS, sreg::FS, sreg::GS] {
            selectors[n] = frame.pop::<u32>(self)? as u16;
        }
        self.gpr[gpr::RSP] = esp.into();
        self.put_rflags(flags, !0);
        self.load_virtual_8086(selectors);
        Ok(())
    }

    /// Loads the segment registers and CPL of virtual-8086 mode.
    pub(crate) fn load_virtual_8086(&mut self, selectors: [u16; 6]) {
        for (n, selector) in selectors.into_iter().enumerate() {
            self.set_segment(n, Segment::virtual_8086(selector));
        }
        self.cpl = 3;
    }

    /// INT n in virtual-8086 mode: enters the handler of the program itself, if the interrupt
    /// redirection bitmap says so (20.3.3). Returns whether it does.
    pub(crate) fn redirect_interrupt(
        &mut self,
        insn: &Insn,
        vector: u8,
    ) -> Result<Option<Flow>, Abort> {
        if self.has_cr4(cr4::VME) && self.is_redirected(vector)? {
            return self.enter_program_handler(insn, vector).map(Some);
        }
        if self.iopl() == 3 {
            return Ok(None);
        }
        Err(self.gp(0))
    }

    /// Offset of the I/O map in the TSS of the current task, which must have the field for it.
    pub(crate) fn io_map(&mut self) -> Result<u64, Abort> {
        let tr = self.sys.tr;
        if u64::from(tr.limit) < IO_MAP_BASE + 1 {
            return Err(self.gp(0));
        }
        let map: u16 = self.load_system(tr.base.wrapping_add(IO_MAP_BASE))?;
        Ok(map.into())
    }

    /// Whether the bit of `vector` in the TSS is clear.
    fn is_redirected(&mut self, vector: u8) -> Result<bool, Abort> {
        let tr = self.sys.tr;
        let at = (self.io_map()? + u64::from(vector >> 3)).checked_sub(REDIRECTION_SIZE);
        let Some(at) = at.filter(|at| *at <= u64::from(tr.limit)) else {
            return Err(self.gp(0));
        };
        let bits: u8 = self.load_system(tr.base.wrapping_add(at))?;
        Ok(bits & 1 << (vector & 7) == 0)
    }

    /// Enters the handler of the vector table at linear address 0, as in real-address mode. IOPL
    /// decides whether interrupts or virtual interrupts are off then.
    fn enter_program_handler(&mut self, insn: &Insn, vector: u8) -> Exec {
        let pointer: u32 = self.load(4 * u64::from(vector))?;
        let (ip, selector) = (u64::from(pointer & 0xFFFF), (pointer >> 16) as u16);
        let (image, flag) = match self.iopl() {
            3 => (self.rflags(), rflags::IF),
            _ => (self.virtual_flags(), rflags::VIF),
        };
        let mut frame = Frame::current(self);
        for word in [
            image,
            self.seg[sreg::CS].selector.into(),
            self.next_rip(insn),
        ] {
            frame.push(self, word as u16)?;
        }
        let from = self.far_source(insn);
        if self.eflags & rflags::TF != 0 {
            self.pending_work.insert(ArchEvents::NO_STEP);
        }
        frame.commit(self);
        self.set_segment(sreg::CS, Segment::virtual_8086(selector));
        self.rip = ip;
        self.eflags &= !(flag | rflags::TF | rflags::RF);
        self.update_mode();
        self.record_far(from);
        Ok(Flow::Jump)
    }
}
