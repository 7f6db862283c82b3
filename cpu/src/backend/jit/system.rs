//! Instructions of the operating system that its short functions have: PUSHFQ, CLI and SWAPGS.

use iced_x86::Code;

use crate::backend::jit::assembler::{Imm, Label, Mem, R14, RAX, cond};
use crate::backend::jit::branch::{RSP, SLOT};
use crate::backend::jit::form::Operand;
use crate::backend::jit::layout::{
    CPL, EFLAGS, FRAME_FLAGS, KERNEL_GS_BASE, SIGNAL_MASK, register,
};
use crate::backend::jit::translate::{Item, Translator};
use crate::insn::{reg, seg};
use crate::mmu::access::Access;
use crate::processor::platform::Signals;
use crate::state::rflags;

impl Translator<'_> {
    /// Translates such an instruction. Returns whether there is a template.
    pub(super) fn system(&mut self, item: &Item) -> bool {
        let (missed, back) = match item.decoded.code() {
            Code::Pushfq | Code::Cli | Code::Swapgs => self.miss(item),
            _ => return false,
        };
        match item.decoded.code() {
            Code::Pushfq => self.push_flags(missed),
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
