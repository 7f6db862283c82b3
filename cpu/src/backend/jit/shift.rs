//! Shifts whose OF depends on what their operand was: SHLD, SHRD, and SHR of memory.

use iced_x86::{Code, IcedError, Mnemonic, OpKind};

use crate::backend::jit::assembler::{Op, R14, RAX, cond};
use crate::backend::jit::borrowed::{Borrowed, guest};
use crate::backend::jit::flags::{self, Fix, Place};
use crate::backend::jit::form::{self, Operand};
use crate::backend::jit::layout::{FRAME_ADDRESS, FRAME_FLAGS};
use crate::backend::jit::template::set_memory;
use crate::backend::jit::translate::{Item, Translator};
use crate::mmu::access::Access;
use crate::state::gpr;

impl Translator<'_> {
    /// Translates such a shift of 32 or 64 bits. Returns whether there is a template.
    pub(super) fn shift_of_old(&mut self, item: &Item) -> Result<bool, IcedError> {
        use Code::{Shld_rm32_r32_CL, Shld_rm64_r64_CL, Shrd_rm32_r32_CL, Shrd_rm64_r64_CL};
        let mut i = item.decoded;
        let of_memory = i.op0_kind() == OpKind::Memory;
        let is_double = matches!(i.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd);
        // There is another template for SHR of a register.
        let is_right = of_memory && i.mnemonic() == Mnemonic::Shr && form::count(&i).is_some();
        if !is_double && !is_right {
            return Ok(false);
        }
        let size = form::size(&i);
        let bits = 8 * size as u8;
        let fix = match is_double {
            true => Fix::Double { bits },
            false => Fix::Right { bits },
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
        // CL tells afterwards whether the flags stay.
        let to = guest(i.op0_register()).filter(|_| !of_memory);
        if by_cl && to == Some(gpr::RCX as u8) {
            return Ok(false);
        }
        let mut borrowed = Borrowed::beside(of_memory);
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        i.set_has_lock_prefix(false);
        let (missed, back) = self.miss(item);
        if let Some(operand) = &operand {
            let m = self.probe(operand, Access::Write, missed);
            match size {
                8 => self.asm.load(RAX, &m),
                _ => self.asm.op_mem32(Op::Load, RAX, &m),
            }
            set_memory(&mut i, &m);
        } else if let Some(to) = to {
            self.read(RAX, to);
        }
        self.asm.store(&FRAME_ADDRESS, RAX);
        self.load_borrowed(&borrowed);
        self.asm.instruction(self.encoder, &i)?;
        self.store_borrowed(&borrowed);
        if let Some(to) = to.filter(|_| by_cl && size == 4) {
            // With a count of zero, too.
            self.read(RAX, to);
            self.asm.mov32(RAX, RAX);
            self.write(to, RAX);
        }
        self.asm.load(R14, &FRAME_ADDRESS);
        flags::load(self.asm, fix);
        let unchanged = self.asm.label();
        if by_cl {
            // TEST CL, mask
            self.asm.bytes(&[0xF6, 0xC1, bits - 1]);
            self.asm.jump_if(cond::E, unchanged);
        }
        self.asm.store_ax(&FRAME_FLAGS);
        self.asm.bind(unchanged);
        self.asm.bind(back);
        self.place = Place::Saved;
        Ok(true)
    }
}
