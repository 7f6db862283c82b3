//! Instructions of the operating system that its short functions have.

use iced_x86::Code;

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, R14, RAX, RCX, RDX, cond};
use crate::backend::jit::branch::{RSP, SLOT};
use crate::backend::jit::form::Operand;
use crate::backend::jit::layout::{
    CPL, CR4, EFLAGS, FRAME_BUDGET, FRAME_FLAGS, FRAME_LIMIT, GUEST_RAX, KERNEL_GS_BASE,
    PENDING_WORK, SIGNAL_MASK, SKIPPED, SPIN_PAUSES, TSC_AUX, TSC_OFFSET, exit, register,
};
use crate::backend::jit::stub::Stub;
use crate::backend::jit::translate::{Item, Translator};
use crate::insn::{reg, seg};
use crate::mmu::access::Access;
use crate::processor::pending_work::{ArchEvents, Half};
use crate::processor::platform::Signals;
use crate::processor::spin::PAUSES;
use crate::state::{cr4, rflags};

impl Translator<'_> {
    /// Translates such an instruction. Returns whether there is a template.
    pub(super) fn system(&mut self, item: &Item) -> bool {
        let code = item.decoded.code();
        if code == Code::Sti {
            // It can leave.
            self.unload_vectors();
        }
        let (missed, back) = match code {
            // A processor that is the only one waits for no other.
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
                // CMP dword [spins], PAUSES - 1
                self.asm.memory(false, &[0x81], 7, &SPIN_PAUSES);
                self.asm.bytes(&(PAUSES - 1).to_le_bytes());
                self.asm.jump_if(cond::AE, missed);
                // INC dword [spins]
                self.asm.memory(false, &[0xFF], 0, &SPIN_PAUSES);
            }
            Code::Rdtsc | Code::Rdtscp => self.read_tsc(item, missed),
            Code::Cli => {
                self.check_cpl0(missed);
                self.clear(&EFLAGS, rflags::IF as u32);
                self.clear(&SIGNAL_MASK, Signals::INTR);
            }
            _ => {
                self.check_cpl0(missed);
                let base = register(reg::SEGMENT + seg::GS);
                let a = &mut self.asm;
                a.load(RAX, &base);
                a.load(R14, &KERNEL_GS_BASE);
                a.store(&KERNEL_GS_BASE, RAX);
                a.store(&base, R14);
            }
        }
        self.asm.bind(back);
        true
    }

    /// Goes to `missed` unless the CPL is 0.
    fn check_cpl0(&mut self, missed: Label) {
        // CMP byte [cpl], 0
        self.asm.memory(false, &[0x80], 7, &CPL);
        self.asm.bytes(&[0]);
        self.asm.jump_if(cond::NE, missed);
    }

    /// STI, at CPL 0. Goes to `back` if IF is set already, else it leaves: the instruction behind
    /// it runs before any interrupt (SDM Vol. 2B, STI).
    fn enable_interrupts(&mut self, item: &Item, back: Label) {
        self.assert_unloaded();
        self.asm.test_mem32(&EFLAGS, rflags::IF as u32);
        self.asm.jump_if(cond::NE, back);
        self.set(&EFLAGS, rflags::IF as u32);
        self.set(&SIGNAL_MASK, Signals::INTR);
        self.set(&PENDING_WORK, ArchEvents::SHADOW.word());
        let retired = item.insn.ordinal + 1;
        self.asm.imm_mem(Imm::Sub, &FRAME_BUDGET, retired.into());
        let at = self.asm.label();
        self.asm.jump(at);
        self.stubs.push(Stub::Exit {
            at,
            rip: Some(self.next_address(&item.insn)),
            code: exit::ENDED as u32,
            routine: self.context.routines.exit,
        });
    }

    /// Sets `bits` of 32.
    fn set(&mut self, m: &Mem, bits: u32) {
        // OR dword [m], bits
        self.asm.memory(false, &[0x81], 1, m);
        self.asm.bytes(&bits.to_le_bytes());
    }

    /// STAC (`set`) and CLAC, at CPL 0. Goes to `back` if AC is so already.
    fn set_ac(&mut self, set: bool, back: Label) {
        let a = &mut self.asm;
        a.test_mem32(&EFLAGS, rflags::AC as u32);
        a.jump_if(if set { cond::NE } else { cond::E }, back);
        // XOR dword [eflags], AC
        a.memory(false, &[0x81], 6, &EFLAGS);
        a.bytes(&(rflags::AC as u32).to_le_bytes());
        // Without SMAP the privilege stays.
        a.test_mem32(&CR4, cr4::SMAP as u32);
        a.jump_if(cond::E, back);
        let [clac, stac] = self.context.routines.set_ac;
        self.asm.call_address(if set { stac } else { clac });
    }

    /// RDTSC and RDTSCP, in virtual time: one tick for each instruction. As `Cpu::tsc`.
    fn read_tsc(&mut self, item: &Item, missed: Label) {
        let a = &mut self.asm;
        a.test_mem32(&CR4, cr4::TSD as u32);
        a.jump_if(cond::NE, missed);
        a.load(RAX, &FRAME_LIMIT);
        a.op_mem(Op::Sub, RAX, &FRAME_BUDGET);
        a.op_mem(Op::Add, RAX, &SKIPPED);
        a.op_mem(Op::Add, RAX, &TSC_OFFSET);
        a.imm(true, Imm::Add, RAX, item.insn.ordinal.into());
        a.mov32(GUEST_RAX, RAX);
        a.mov(RDX, RAX);
        a.shr(true, RDX, 32);
        if item.decoded.code() == Code::Rdtscp {
            a.load(RCX, &TSC_AUX);
        }
    }

    /// Clears `bits` of 32.
    fn clear(&mut self, m: &Mem, bits: u32) {
        // AND dword [m], NOT bits
        self.asm.memory(false, &[0x81], 4, m);
        self.asm.bytes(&(!bits).to_le_bytes());
    }

    /// PUSHFQ. It clears VM and RF in the image.
    fn push_flags(&mut self, missed: Label) {
        let m = self.probe(&Operand::at(RSP, -SLOT, 8), Access::Write, missed);
        self.asm.load_ax(&FRAME_FLAGS);
        // XCHG AL, AH; SHL AH, 3; OR AL, 2: OF is bit 11, and bit 1 is always set.
        self.asm.bytes(&[0x86, 0xC4, 0xC0, 0xE4, 3, 0x0C, 2]);
        // OR EAX, [eflags]; AND EAX, NOT (VM | RF)
        self.asm.memory(false, &[0x0B], RAX, &EFLAGS);
        self.asm
            .imm(false, Imm::And, RAX, !((rflags::VM | rflags::RF) as i32));
        self.asm.store(&m, RAX);
        self.move_stack(-SLOT);
    }
}
