//! Instructions as themselves: with host registers in place of the guest's.

use iced_x86::{IcedError, Instruction, Mnemonic, OpAccess, OpKind, Register};

use crate::backend::jit::assembler::{Mem, R14, RAX, Reg, cond};
use crate::backend::jit::borrowed::{Borrowed, guest, named};
use crate::backend::jit::flags::{self, Fix, Place};
use crate::backend::jit::form::{self, Effect, Guest, Operand, Plain};
use crate::backend::jit::layout::{FRAME_FLAGS, HOST, location};
use crate::backend::jit::translate::{Item, Translator};
use crate::insn::Insn;
use crate::mmu::access::Access;
use crate::state::gpr;

impl Translator<'_> {
    /// Translates an instruction that is no branch. Returns whether there is a template.
    pub(super) fn template(&mut self, item: &Item, rest: &[Item]) -> Result<bool, IcedError> {
        let i = &item.decoded;
        if !item.available {
            return Ok(false);
        }
        if self.stack(item) || self.system(item) || self.accumulator(item) || self.scan(item) {
            return Ok(true);
        }
        if self.read_modify_write(item)? {
            return Ok(true);
        }
        if i.mnemonic() == Mnemonic::Lea {
            return self.lea(item);
        }
        if self.vector(item)? {
            return Ok(true);
        }
        let Some(plain) = item.plain else {
            return self.shift_of_old(item);
        };
        match plain.effect {
            Effect::Unknown if !self.flags_are_dead(rest) => self.unknown(item, &plain),
            _ => self.plain(item, &plain, rest),
        }
    }

    fn lea(&mut self, item: &Item) -> Result<bool, IcedError> {
        let i = &item.decoded;
        let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
            return Ok(false);
        };
        let size = i.op0_register().size();
        let Some(to) = guest(i.op0_register()).filter(|_| size >= 4) else {
            return Ok(false);
        };
        if operand.base.is_none() && operand.index.is_none() {
            let value = match size {
                4 => operand.disp as u32 as u64,
                _ => operand.disp as u64,
            };
            self.asm.mov_imm(RAX, value);
            self.write(to, RAX);
            return Ok(true);
        }
        let Ok(disp) = i32::try_from(operand.disp) else {
            return Ok(false);
        };
        let mut borrowed = Borrowed::new([RAX, R14]);
        let mut host = |guest: Guest| borrowed.host(guest).unwrap_or(RAX);
        let m = Mem {
            base: operand.base.map(&mut host),
            index: operand.index.map(|(r, factor)| (host(r), factor)),
            disp,
            reserved: false,
        };
        self.load_borrowed(&borrowed);
        let result = HOST[usize::from(to)].unwrap_or(RAX);
        if size == 4 {
            self.asm.lea32(result, &m);
        } else {
            self.asm.lea(result, &m);
        }
        self.write(to, result);
        Ok(true)
    }

    /// How a memory operand is accessed.
    pub(super) fn access(&mut self, i: &Instruction) -> Access {
        let info = self.info.info(i);
        let reads = (0..i.op_count())
            .filter(|n| i.op_kind(*n) == OpKind::Memory)
            .all(|n| matches!(info.op_access(n), OpAccess::Read | OpAccess::CondRead));
        if reads { Access::Read } else { Access::Write }
    }

    /// The instruction as itself.
    fn plain(&mut self, item: &Item, plain: &Plain, rest: &[Item]) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        i.set_code(plain.code);
        let locked = self.is_locked(item);
        i.set_has_lock_prefix(locked);
        let memory = item.insn.prefix & Insn::MEM != 0;
        let mut borrowed = Borrowed::beside(memory);
        let operand = if memory {
            match Operand::of(&item.decoded, &item.insn, self.context.rip) {
                Some(operand) => Some((operand, self.access(&i))),
                None => return Ok(false),
            }
        } else {
            None
        };
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        let mut back = None;
        if let Some((operand, access)) = operand {
            let (missed, label) = (self.asm.label(), self.asm.label());
            self.give_up_flags();
            let before = self.place;
            let m = self.probe(&operand, access, missed);
            if locked {
                self.check_alignment(&m, operand.size, missed);
            }
            set_memory(&mut i, &m);
            back = Some((missed, label, before));
        }
        if plain.reads != 0 {
            self.restore_flags(plain.reads);
        }
        if plain.effect == Effect::Carry {
            self.save_flags();
        }
        self.load_borrowed(&borrowed);
        self.asm.instruction(self.encoder, &i)?;
        self.store_borrowed(&borrowed);
        match plain.effect {
            Effect::Keeps => {}
            Effect::Writes(fix) => {
                let again = self.recompute(item, fix, rest);
                self.flags_in_host(fix, again);
            }
            Effect::Carry => {
                flags::save_one(self.asm, cond::B, flags::CF);
                self.place = Place::Saved;
            }
            Effect::Unknown => self.flags_in_host(Fix::ClearAf, None),
        }
        if let Some((missed, back, before)) = back {
            self.on_miss_of(missed, back, item.start, 1, before);
            self.asm.bind(back);
        }
        Ok(true)
    }

    /// An instruction whose flags are not simply those of the host's, and are read later.
    fn unknown(&mut self, item: &Item, plain: &Plain) -> Result<bool, IcedError> {
        let i = &item.decoded;
        let size = form::size(i);
        let to = match i.op0_kind() {
            OpKind::Register => guest(i.op0_register()),
            _ => None,
        };
        let Some(to) = to else {
            return self.shift_of_old(item);
        };
        let wide = size == 8;
        let bits = 8 * size as u8;
        match i.mnemonic() {
            Mnemonic::Imul if size >= 4 => {
                if !self.plain(item, plain, &[])? {
                    return Ok(false);
                }
                flags::save_of_product(self.asm, location(to), wide);
            }
            mnemonic if form::sets_flags_of_result(mnemonic) && size >= 4 => {
                if !self.plain(item, plain, &[])? {
                    return Ok(false);
                }
                flags::save_of_result(self.asm, location(to), wide);
            }
            Mnemonic::Shr if form::count(i).is_some_and(|n| n < bits.into()) => {
                self.read(R14, to);
                if !self.plain(item, plain, &[])? {
                    return Ok(false);
                }
                flags::save(self.asm, Fix::Right { bits });
            }
            Mnemonic::Rol | Mnemonic::Ror => return self.rotate(item, plain),
            // A count in CL: if it is zero, the flags stay.
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar
                if to != gpr::RCX as Guest && size >= 4 =>
            {
                let fix = match i.mnemonic() {
                    Mnemonic::Shr => Fix::Right { bits },
                    Mnemonic::Sar => Fix::ArithmeticRight,
                    _ => Fix::Left,
                };
                self.save_flags();
                self.read(R14, to);
                if !self.plain(item, plain, &[])? {
                    return Ok(false);
                }
                flags::load(self.asm, fix);
                // TEST CL, mask
                self.asm
                    .bytes(&[0xF6, 0xC1, if wide { 0x3F } else { 0x1F }]);
                let unchanged = self.asm.label();
                self.asm.jump_if(cond::E, unchanged);
                self.asm.store_ax(&FRAME_FLAGS);
                self.asm.bind(unchanged);
            }
            _ => return Ok(false),
        }
        self.place = Place::Saved;
        Ok(true)
    }

    /// ROL and ROR of a register by a constant that is not zero. The manual defines OF for a count
    /// of one: the last step is one of its own.
    fn rotate(&mut self, item: &Item, plain: &Plain) -> Result<bool, IcedError> {
        let (Some(count), OpKind::Register) = (form::count(&item.decoded), item.decoded.op0_kind())
        else {
            return Ok(false);
        };
        let mut i = item.decoded;
        i.set_code(plain.code);
        let mut borrowed = Borrowed::new([R14]);
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        self.save_flags();
        self.load_borrowed(&borrowed);
        for part in [count - 1, 1] {
            if part > 0 {
                i.set_immediate8(part as u8);
                self.asm.instruction(self.encoder, &i)?;
            }
        }
        self.store_borrowed(&borrowed);
        flags::save_of_rotate(self.asm);
        self.place = Place::Saved;
        Ok(true)
    }
}

/// Replaces the memory operand of `i` by one in the reservation.
pub(super) fn set_memory(i: &mut Instruction, m: &Mem) {
    debug_assert!(m.reserved);
    let name = |r: Reg| named(r, 4);
    i.set_memory_base(m.base.map_or(Register::None, name));
    let (index, factor) = m
        .index
        .map_or((Register::None, 1), |(r, factor)| (name(r), factor));
    i.set_memory_index(index);
    i.set_memory_index_scale(factor.into());
    i.set_memory_displacement64(u64::from(m.disp as u32));
    let short = i8::try_from(m.disp).is_ok();
    i.set_memory_displ_size(match (m.disp, short) {
        (0, _) => 0,
        (_, true) => 1,
        _ => 4,
    });
    i.set_segment_prefix(Register::GS);
}
