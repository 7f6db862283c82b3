//! Instructions of the operating system that its short functions have.

use iced_x86::Code;

use crate::backend::jit::assembler::{Imm, Label, Op, Shift, cond};
use crate::backend::jit::calls::exit;
use crate::backend::jit::flags;
use crate::backend::jit::forms::operand::{Operand, RSP, SLOT};
use crate::backend::jit::registers::frame::{FRAME_BUDGET, FRAME_LIMIT};
use crate::backend::jit::registers::map::{GUEST_RAX, GUEST_RCX, GUEST_RDX, POINTER, SCRATCH};
use crate::backend::jit::registers::processor::{
    CPL, CR4, EFLAGS, KERNEL_GS_BASE, PENDING_WORK, SIGNAL_MASK, SKIPPED, SPIN_PAUSES, TSC_AUX,
    TSC_OFFSET, register,
};
use crate::backend::jit::translator::cold::ColdPath;
use crate::backend::jit::translator::{Item, Translator};
use crate::insn::{reg, seg};
use crate::mmu::access::Access;
use crate::processor::pending_work::{ArchEvents, Half};
use crate::processor::platform::Signals;
use crate::processor::spin::PAUSES;
use crate::state::{cr4, rflags};

impl Translator<'_> {
    /// Translates such an instruction. Returns whether there is a template.
    pub(crate) fn system(&mut self, item: &Item) -> bool {
        let code = item.decoded.code();
        if code == Code::Sti {
            // STI can leave.
            self.vectors.unload(self.asm);
        }
        let (missed, back) = match code {
            // The only processor waits for no other.
            Code::Pause if self.context.is_only => return true,
            Code::Rdtsc | Code::Rdtscp if !self.context.virtual_time => return false,
            Code::Pushfq
            | Code::Cli
            | Code::Sti
            | Code::Swapgs
            | Code::Stac
            | Code::Clac
            | Code::Pause
            | Code::Rdtsc
            | Code::Rdtscp => self.miss(item),
            _ => return false,
        };
        match code {
            Code::Pushfq => self.push_flags(missed),
            Code::Sti => {
                self.check_cpl0(missed);
                self.enable_interrupts(item, back);
            }
            Code::Stac | Code::Clac => {
                self.check_cpl0(missed);
                self.set_ac(code == Code::Stac, back);
            }
            Code::Pause => {
                self.asm.imm_mem32(Imm::Cmp, &SPIN_PAUSES, PAUSES - 1);
                self.asm.jump_if(cond::AE, missed);
                self.asm.increment_mem32(&SPIN_PAUSES);
            }
            Code::Rdtsc | Code::Rdtscp => self.read_tsc(item, missed),
            Code::Cli => {
                self.check_cpl0(missed);
                self.asm.imm_mem32(Imm::And, &EFLAGS, !(rflags::IF as u32));
                self.asm.imm_mem32(Imm::And, &SIGNAL_MASK, !Signals::INTR);
            }
            _ => {
                self.check_cpl0(missed);
                let base = register(reg::SEGMENT + seg::GS);
                let a = &mut self.asm;
                a.load(SCRATCH, &base);
                a.load(POINTER, &KERNEL_GS_BASE);
                a.store(&KERNEL_GS_BASE, SCRATCH);
                a.store(&base, POINTER);
            }
        }
        self.asm.bind(back);
        true
    }

    /// Jumps to `missed` unless the CPL is 0.
    fn check_cpl0(&mut self, missed: Label) {
        self.asm.imm_mem8(Imm::Cmp, &CPL, 0);
        self.asm.jump_if(cond::NE, missed);
    }

    /// STI, at CPL 0. Jumps to `back` if IF is set already, and leaves otherwise: the next
    /// instruction runs before any interrupt (SDM Vol. 2B, STI).
    fn enable_interrupts(&mut self, item: &Item, back: Label) {
        self.vectors.assert_unloaded();
        self.asm.test_mem32(&EFLAGS, rflags::IF as u32);
        self.asm.jump_if(cond::NE, back);
        self.asm.imm_mem32(Imm::Or, &EFLAGS, rflags::IF as u32);
        self.asm.imm_mem32(Imm::Or, &SIGNAL_MASK, Signals::INTR);
        self.asm
            .imm_mem32(Imm::Or, &PENDING_WORK, ArchEvents::SHADOW.word());
        let retired = item.insn.ordinal + 1;
        self.asm.imm_mem(Imm::Sub, &FRAME_BUDGET, retired.into());
        let at = self.asm.label();
        self.asm.jump(at);
        self.cold.push(ColdPath::Leave {
            at,
            rip: self.next_address(&item.insn),
            code: exit::ENDED as u32,
        });
    }

    /// STAC (`set`) and CLAC, at CPL 0. Jumps to `back` if AC has that value already.
    fn set_ac(&mut self, set: bool, back: Label) {
        let a = &mut self.asm;
        a.test_mem32(&EFLAGS, rflags::AC as u32);
        a.jump_if(if set { cond::NE } else { cond::E }, back);
        a.imm_mem32(Imm::Xor, &EFLAGS, rflags::AC as u32);
        // Without SMAP the privilege stays.
        a.test_mem32(&CR4, cr4::SMAP as u32);
        a.jump_if(cond::E, back);
        let [clac, stac] = self.context.routines.set_ac;
        self.asm.call_address(if set { stac } else { clac });
    }

    /// RDTSC and RDTSCP, in virtual time: one tick for each instruction, as in `Cpu::tsc`.
    fn read_tsc(&mut self, item: &Item, missed: Label) {
        let a = &mut self.asm;
        a.test_mem32(&CR4, cr4::TSD as u32);
        a.jump_if(cond::NE, missed);
        a.load(SCRATCH, &FRAME_LIMIT);
        a.op_mem(Op::Sub, SCRATCH, &FRAME_BUDGET);
        a.op_mem(Op::Add, SCRATCH, &SKIPPED);
        a.op_mem(Op::Add, SCRATCH, &TSC_OFFSET);
        a.imm(true, Imm::Add, SCRATCH, item.insn.ordinal.into());
        a.mov32(GUEST_RAX, SCRATCH);
        a.mov(GUEST_RDX, SCRATCH);
        a.shift(Shift::Right, true, GUEST_RDX, 32);
        if item.decoded.code() == Code::Rdtscp {
            a.load(GUEST_RCX, &TSC_AUX);
        }
    }

    /// PUSHFQ, which clears VM and RF in the image.
    fn push_flags(&mut self, missed: Label) {
        let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
        flags::load_image(self.asm);
        self.asm.op_mem32(Op::Or, SCRATCH, &EFLAGS);
        self.asm.imm(
            false,
            Imm::And,
            SCRATCH,
            !((rflags::VM | rflags::RF) as i32),
        );
        self.asm.store(&m, SCRATCH);
        self.move_stack(-SLOT);
    }
}
