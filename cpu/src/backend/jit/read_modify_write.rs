//! Read-modify-write of memory: LOCK, and instructions that no form of [`form::plain`] has.
//!
//! A locked operand that is not aligned is left to `exec`: it may cross a cache line, and the
//! host's own instruction would then stop all of the host's processors (`processor/split_lock.rs`).

use iced_x86::{Code, IcedError, Mnemonic, OpKind};

use crate::backend::jit::assembler::{Imm, Label, Mem, R14, RAX, RDX, cond};
use crate::backend::jit::borrowed::{Borrowed, named};
use crate::backend::jit::flags::{self, Fix};
use crate::backend::jit::form::{self, Guest, Operand};
use crate::backend::jit::layout::{FRAME_ADDRESS, GUEST_RAX};
use crate::backend::jit::template::set_memory;
use crate::backend::jit::translate::{Item, Translator};
use crate::insn::Insn;
use crate::mmu::access::Access;

impl Translator<'_> {
    /// Whether the host's instruction locks the operand of `item`: as in the interpreter, not where
    /// no other processor runs. XCHG does so without a prefix.
    pub(super) fn is_locked(&self, item: &Item) -> bool {
        item.insn.prefix & Insn::LOCK != 0
            && (self.context.locks || item.decoded.mnemonic() == Mnemonic::Xchg)
    }

    /// Goes to `missed` unless `m`, a power of two bytes in the reservation, is aligned there,
    /// and so in the guest's memory. Overwrites RAX and the host's flags.
    pub(super) fn check_alignment(&mut self, m: &Mem, size: usize, missed: Label) {
        if size > 1 {
            self.asm.lea32(RAX, m);
            // TEST AL, size - 1
            self.asm.bytes(&[0xA8, size as u8 - 1]);
            self.asm.jump_if(cond::NE, missed);
        }
    }

    /// Translates CMPXCHG, CMPXCHG8B and CMPXCHG16B, and bit tests with a bit string. Returns
    /// whether there is a template.
    pub(super) fn read_modify_write(&mut self, item: &Item) -> Result<bool, IcedError> {
        let i = &item.decoded;
        if item.insn.prefix & Insn::MEM == 0 {
            return Ok(false);
        }
        let Some(operand) = Operand::of(i, &item.insn, self.context.rip) else {
            return Ok(false);
        };
        match i.code() {
            Code::Cmpxchg_rm8_r8
            | Code::Cmpxchg_rm16_r16
            | Code::Cmpxchg_rm32_r32
            | Code::Cmpxchg_rm64_r64 => self.compare_exchange(item, &operand),
            Code::Cmpxchg16b_m128 if is_x86_feature_detected!("cmpxchg16b") => {
                self.compare_exchange128(item, &operand);
                Ok(true)
            }
            Code::Cmpxchg8b_m64 => {
                self.compare_exchange64(item, &operand);
                Ok(true)
            }
            _ if form::is_bit_test(i.mnemonic()) && i.op1_kind() == OpKind::Register => {
                self.bit_string(item, &operand)
            }
            _ => Ok(false),
        }
    }

    /// CMPXCHG.
    fn compare_exchange(&mut self, item: &Item, operand: &Operand) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        // RAX has the accumulator.
        let mut borrowed = Borrowed::new([GUEST_RAX]);
        if !self.substitute(&mut i, &mut borrowed) {
            return Ok(false);
        }
        let (missed, back) = (self.asm.label(), self.asm.label());
        self.save_flags();
        let (m, locked) = self.compared_operand(item, operand, missed);
        set_memory(&mut i, &m);
        i.set_has_lock_prefix(locked);
        self.asm.mov(RAX, GUEST_RAX);
        if borrowed.is_empty() {
            self.asm.instruction(self.encoder, &i)?;
        } else {
            self.asm.store(&FRAME_ADDRESS, GUEST_RAX);
            self.load_borrowed(&borrowed);
            self.asm.instruction(self.encoder, &i)?;
            self.asm.load(GUEST_RAX, &FRAME_ADDRESS);
        }
        // CMOVNE: if they are equal, all of the accumulator stays.
        self.asm.registers(true, &[0x0F, 0x45], GUEST_RAX, RAX);
        self.flags_in_host(Fix::None, None);
        self.on_miss(missed, back, item.start);
        self.asm.bind(back);
        Ok(true)
    }

    /// Finds the operand of CMPXCHG or CMPXCHG8B without the guest's RAX, which the instruction
    /// overwrites, in its address. Returns whether the instruction is locked, too.
    fn compared_operand(&mut self, item: &Item, operand: &Operand, missed: Label) -> (Mem, bool) {
        let m = self.probe(operand, Access::Write, missed);
        self.asm.lea(R14, &m);
        let m = Mem::reserved(R14, 0);
        let locked = self.is_locked(item);
        if locked {
            self.check_alignment(&m, operand.size, missed);
        }
        (m, locked)
    }

    /// CMPXCHG8B.
    fn compare_exchange64(&mut self, item: &Item, operand: &Operand) {
        let (missed, back) = self.miss(item);
        let (m, locked) = self.compared_operand(item, operand, missed);
        self.asm.store(&FRAME_ADDRESS, RDX);
        self.asm.mov(RAX, GUEST_RAX);
        if locked {
            self.asm.bytes(&[0xF0]);
        }
        self.asm.memory(false, &[0x0F, 0xC7], 1, &m);
        // CMOVNE and CMOVE: if they are equal, all of RAX and RDX stays.
        self.asm.registers(true, &[0x0F, 0x45], GUEST_RAX, RAX);
        self.asm.memory(true, &[0x0F, 0x44], RDX, &FRAME_ADDRESS);
        flags::save_one(self.asm, cond::E, flags::ZF);
        self.asm.bind(back);
    }

    /// CMPXCHG16B. An operand that is not aligned faults.
    fn compare_exchange128(&mut self, item: &Item, operand: &Operand) {
        let (missed, back) = self.miss(item);
        let m = self.probe(operand, Access::Write, missed);
        self.asm.lea(R14, &m);
        let m = Mem::reserved(R14, 0);
        self.check_alignment(&m, operand.size, missed);
        self.asm.mov(RAX, GUEST_RAX);
        if self.is_locked(item) {
            self.asm.bytes(&[0xF0]);
        }
        self.asm.memory(true, &[0x0F, 0xC7], 1, &m);
        self.asm.mov(GUEST_RAX, RAX);
        flags::save_one(self.asm, cond::E, flags::ZF);
        self.asm.bind(back);
    }

    /// BT, BTS, BTR and BTC of the bit of a string whose number a register has.
    fn bit_string(&mut self, item: &Item, operand: &Operand) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        let access = self.access(&i);
        let (missed, back) = self.miss(item);
        let m = self.probe(operand, access, missed);
        let locked = self.is_locked(item);
        if locked {
            self.check_alignment(&m, operand.size, missed);
        }
        set_memory(&mut i, &m);
        i.set_has_lock_prefix(locked);
        // The operand has been found: what is left is the number of a bit in it.
        self.read(RAX, i.op1_register().full_register().number() as Guest);
        self.asm
            .imm(false, Imm::And, RAX, 8 * operand.size as i32 - 1);
        i.set_op1_register(named(RAX, operand.size));
        self.asm.instruction(self.encoder, &i)?;
        flags::save_one(self.asm, cond::B, flags::CF);
        self.asm.bind(back);
        Ok(true)
    }
}
