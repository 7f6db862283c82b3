//! Template of the integer instructions that become native code as themselves.

use iced_x86::{IcedError, Instruction, Mnemonic, OpKind, Register};

use crate::backend::jit::assembler::{Mem, Reg, cond};
use crate::backend::jit::flags::{self, FlagFixup};
use crate::backend::jit::forms::direct::{self, DirectForm, Effect};
use crate::backend::jit::forms::operand::Operand;
use crate::backend::jit::registers::map::{Guest, POINTER, SCRATCH, host, location};
use crate::backend::jit::registers::scratch::{ScratchRegs, guest};
use crate::backend::jit::translator::{Item, Translator};
use crate::exec::native::FlagEffect;
use crate::insn::Insn;
use crate::state::gpr;

impl Translator<'_> {
    /// LEA, with these registers for those of the guest that no host register contains.
    pub(crate) fn lea(&mut self, item: &Item, mut regs: ScratchRegs) -> Result<bool, IcedError> {
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
            self.asm.mov_imm(SCRATCH, value);
            self.write(to, SCRATCH);
            return Ok(true);
        }
        let Ok(disp) = i32::try_from(operand.disp) else {
            return Ok(false);
        };
        let mut register = |guest: Guest| regs.host(guest).unwrap_or(SCRATCH);
        let m = Mem {
            base: operand.base.map(&mut register),
            index: operand.index.map(|(r, factor)| (register(r), factor)),
            disp,
            reserved: false,
        };
        regs.load(self.asm);
        let result = host(to).unwrap_or(SCRATCH);
        if size == 4 {
            self.asm.lea32(result, &m);
        } else {
            self.asm.lea(result, &m);
        }
        self.write(to, result);
        Ok(true)
    }

    /// Translates an instruction to itself, with host registers.
    pub(crate) fn direct(
        &mut self,
        item: &Item,
        form: &DirectForm,
        rest: &[Item],
    ) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        i.set_code(form.code);
        let locked = self.is_locked(item);
        i.set_has_lock_prefix(locked);
        let memory = item.insn.prefix & Insn::MEM != 0;
        let mut regs = ScratchRegs::beside(memory);
        let operand = if memory {
            match Operand::of(&item.decoded, &item.insn, self.context.rip) {
                Some(operand) => Some((operand, self.access(&i))),
                None => return Ok(false),
            }
        } else {
            None
        };
        if !self.substitute(&mut i, &mut regs) {
            return Ok(false);
        }
        let mut back = None;
        if let Some((operand, access)) = operand {
            let (missed, label) = (self.asm.label(), self.asm.label());
            self.flags.release_host(self.asm);
            let before = self.flags.location();
            let m = self.probe(&operand, access, missed);
            if locked {
                self.check_alignment(&m, operand.size, missed);
            }
            set_memory(&mut i, &m);
            back = Some((missed, label, before));
        }
        self.emit_direct(item, form, &i, &regs, rest)?;
        if let Some((missed, back, before)) = back {
            self.on_miss_of(missed, back, item.start, 1, before);
            self.asm.bind(back);
        }
        Ok(true)
    }

    /// Emits `i`, the instruction of `item` with host registers, which are `regs` for those of the
    /// guest that no other one contains. Clobbers SCRATCH.
    pub(crate) fn emit_direct(
        &mut self,
        item: &Item,
        form: &DirectForm,
        i: &Instruction,
        regs: &ScratchRegs,
        rest: &[Item],
    ) -> Result<(), IcedError> {
        if form.reads != 0 {
            self.flags.restore(self.asm, form.reads);
        }
        if form.effect == Effect::Carry {
            self.flags.save(self.asm);
        }
        regs.load(self.asm);
        self.encode(i)?;
        regs.store(self.asm);
        match form.effect {
            Effect::Keeps => {}
            Effect::Writes(fix) => {
                let recipe = self.find_flag_recipe(item, fix, rest);
                self.flags.set_in_host(fix, recipe);
            }
            Effect::Carry => {
                self.flags.save_condition(self.asm, cond::B, flags::CF);
            }
            Effect::Unknown => self.flags.set_in_host(FlagFixup::ClearAf, None),
        }
        Ok(())
    }

    /// Translates an instruction whose flags no [`FlagFixup`] makes of the host's, and are read
    /// later.
    pub(crate) fn unknown(&mut self, item: &Item, form: &DirectForm) -> Result<bool, IcedError> {
        let i = &item.decoded;
        let size = direct::size(i);
        let to = match i.op0_kind() {
            OpKind::Register => guest(i.op0_register()),
            _ => None,
        };
        let Some(to) = to else {
            return self.shift_of_old(item);
        };
        let wide = size == 8;
        let bits = 8 * size as u8;
        match form.flags {
            FlagEffect::Product if size >= 4 => {
                if !self.direct(item, form, &[])? {
                    return Ok(false);
                }
                self.flags.save_of_product(self.asm, location(to), wide);
            }
            FlagEffect::Result if size >= 4 => {
                if !self.direct(item, form, &[])? {
                    return Ok(false);
                }
                self.flags.save_of_result(self.asm, location(to), wide);
            }
            FlagEffect::Shift
                if i.mnemonic() == Mnemonic::Shr
                    && direct::count(i).is_some_and(|n| n < bits.into()) =>
            {
                self.read(POINTER, to);
                if !self.direct(item, form, &[])? {
                    return Ok(false);
                }
                self.flags.save_host(self.asm, FlagFixup::Right { bits });
            }
            FlagEffect::Rotate => return self.rotate(item, form),
            // With a count of zero in CL, the flags stay.
            FlagEffect::Shift if to != gpr::RCX as Guest && size >= 4 => {
                let fix = match i.mnemonic() {
                    Mnemonic::Shr => FlagFixup::Right { bits },
                    Mnemonic::Sar => FlagFixup::ArithmeticRight,
                    _ => FlagFixup::Left,
                };
                self.flags.save(self.asm);
                self.read(POINTER, to);
                if !self.direct(item, form, &[])? {
                    return Ok(false);
                }
                let mask = if wide { 0x3F } else { 0x1F };
                self.flags.save_shifted_by_cl(self.asm, fix, mask);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// ROL and ROR of a register by a constant that is not zero. The manual defines OF for a count
    /// of one, so the last step is a rotate of its own.
    fn rotate(&mut self, item: &Item, form: &DirectForm) -> Result<bool, IcedError> {
        let (Some(count), OpKind::Register) =
            (direct::count(&item.decoded), item.decoded.op0_kind())
        else {
            return Ok(false);
        };
        let mut i = item.decoded;
        i.set_code(form.code);
        let mut regs = ScratchRegs::new([POINTER]);
        if !self.substitute(&mut i, &mut regs) {
            return Ok(false);
        }
        self.flags.save(self.asm);
        regs.load(self.asm);
        for part in [count - 1, 1] {
            if part > 0 {
                i.set_immediate8(part as u8);
                self.encode(&i)?;
            }
        }
        regs.store(self.asm);
        self.flags.save_of_rotate(self.asm);
        Ok(true)
    }
}

/// Replaces the memory operand of `i` by one in the reservation.
pub(crate) fn set_memory(i: &mut Instruction, m: &Mem) {
    debug_assert!(m.reserved);
    let name = |r: Reg| r.named(4);
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
