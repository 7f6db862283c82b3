//! Templates of shifts whose OF depends on the previous operand: SHLD, SHRD, and SHR of memory.

use iced_x86::{Code, IcedError, Mnemonic, OpKind};

use crate::backend::jit::assembler::Op;
use crate::backend::jit::flags::FlagFixup;
use crate::backend::jit::forms::direct;
use crate::backend::jit::forms::operand::Operand;
use crate::backend::jit::registers::frame::FRAME_ADDRESS;
use crate::backend::jit::registers::map::{POINTER, SCRATCH};
use crate::backend::jit::registers::scratch::{ScratchRegs, guest};
use crate::backend::jit::templates::direct::set_memory;
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::Access;
use crate::state::gpr;

impl Translator<'_> {
    /// Translates such a shift of 32 or 64 bits. Returns whether there is a template.
    pub(crate) fn shift_of_old(&mut self, item: &Item) -> Result<bool, IcedError> {
        use Code::{Shld_rm32_r32_CL, Shld_rm64_r64_CL, Shrd_rm32_r32_CL, Shrd_rm64_r64_CL};
        let mut i = item.decoded;
        let of_memory = i.op0_kind() == OpKind::Memory;
        let is_double = matches!(i.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd);
        // There is another template for SHR of a register.
        let is_right = of_memory && i.mnemonic() == Mnemonic::Shr && direct::count(&i).is_some();
        if !is_double && !is_right {
            return Ok(false);
        }
        let size = direct::size(&i);
        let bits = 8 * size as u8;
        let fix = match is_double {
            true => FlagFixup::Double { bits },
            false => FlagFixup::Right { bits },
        };
        let by_cl = matches!(
            i.code(),
            Shld_rm32_r32_CL | Shld_rm64_r64_CL | Shrd_rm32_r32_CL | Shrd_rm64_r64_CL
        );
        // A count of zero keeps the flags.
        let count = u32::from(i.immediate8()) & (u32::from(bits) - 1);
        if size < 4 || !by_cl && count == 0 {
            return Ok(false);
        }
        let operand = match of_memory {
            true => match Operand::of(&i, &item.insn, self.context.rip) {
                Some(operand) => Some(operand),
                None => return Ok(false),
            },
            false => None,
        };
        // CL decides afterwards whether the flags stay.
        let to = guest(i.op0_register()).filter(|_| !of_memory);
        if by_cl && to == Some(gpr::RCX as u8) {
            return Ok(false);
        }
        let mut regs = ScratchRegs::beside(of_memory);
        if !self.substitute(&mut i, &mut regs) {
            return Ok(false);
        }
        i.set_has_lock_prefix(false);
        let (missed, back) = self.miss(item);
        if let Some(operand) = &operand {
            let m = self.probe(operand, Access::Write, missed);
            match size {
                8 => self.asm.load(SCRATCH, &m),
                _ => self.asm.op_mem32(Op::Load, SCRATCH, &m),
            }
            set_memory(&mut i, &m);
        } else if let Some(to) = to {
            self.read(SCRATCH, to);
        }
        self.asm.store(&FRAME_ADDRESS, SCRATCH);
        regs.load(self.asm);
        self.encode(&i)?;
        regs.store(self.asm);
        if let Some(to) = to.filter(|_| by_cl && size == 4) {
            // A count of zero clears the upper half, too.
            self.read(SCRATCH, to);
            self.asm.mov32(SCRATCH, SCRATCH);
            self.write(to, SCRATCH);
        }
        self.asm.load(POINTER, &FRAME_ADDRESS);
        if by_cl {
            self.flags.save_shifted_by_cl(self.asm, fix, bits - 1);
        } else {
            self.flags.save_host(self.asm, fix);
        }
        self.asm.bind(back);
        Ok(true)
    }
}
