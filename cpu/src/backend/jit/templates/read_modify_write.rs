//! Read-modify-write of memory: LOCK, and instructions that no form of [`direct::direct`] has.
//!
//! A locked operand that is not aligned is left to `exec`: it may cross a cache line, and the
//! host's own instruction would then stop all of the host's processors (`processor/split_lock.rs`).

use iced_x86::{Code, IcedError, Mnemonic, OpKind};

use crate::backend::jit::assembler::{Byte, Ext, Imm, Label, Mem, cond};
use crate::backend::jit::flags::{self, FlagFixup};
use crate::backend::jit::forms::direct;
use crate::backend::jit::forms::operand::Operand;
use crate::backend::jit::registers::frame::FRAME_ADDRESS;
use crate::backend::jit::registers::map::{GUEST_RAX, GUEST_RDX, Guest, POINTER, SCRATCH};
use crate::backend::jit::registers::scratch::ScratchRegs;
use crate::backend::jit::templates::direct::set_memory;
use crate::backend::jit::translator::{Item, Translator};
use crate::insn::Insn;
use crate::mmu::access::Access;

impl Translator<'_> {
    /// Whether the host's instruction locks the operand of `item`. As in the interpreter, it does
    /// not if no other processor runs, except for XCHG, which locks without a prefix.
    pub(crate) fn is_locked(&self, item: &Item) -> bool {
        item.insn.prefix & Insn::LOCK != 0
            && (self.context.locks || item.decoded.mnemonic() == Mnemonic::Xchg)
    }

    /// Jumps to `missed` unless `m`, a power of two bytes in the reservation, is aligned there, and
    /// so in the guest's memory. Clobbers SCRATCH and the host's flags.
    pub(crate) fn check_alignment(&mut self, m: &Mem, size: usize, missed: Label) {
        if size > 1 {
            self.asm.lea32(SCRATCH, m);
            self.asm.byte_test(Byte::AL, size as u8 - 1);
            self.asm.jump_if(cond::NE, missed);
        }
    }

    /// Translates CMPXCHG, CMPXCHG8B and CMPXCHG16B, and bit tests with a bit string. Returns
    /// whether there is a template.
    pub(crate) fn read_modify_write(&mut self, item: &Item) -> Result<bool, IcedError> {
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
            _ if direct::is_bit_test(i.mnemonic()) && i.op1_kind() == OpKind::Register => {
                self.bit_string(item, &operand)
            }
            _ => Ok(false),
        }
    }

    /// CMPXCHG.
    fn compare_exchange(&mut self, item: &Item, operand: &Operand) -> Result<bool, IcedError> {
        let mut i = item.decoded;
        // SCRATCH contains the accumulator.
        let mut regs = ScratchRegs::new([GUEST_RAX]);
        if !self.substitute(&mut i, &mut regs) {
            return Ok(false);
        }
        let (missed, back) = (self.asm.label(), self.asm.label());
        self.flags.save(self.asm);
        let (m, locked) = self.compared_operand(item, operand, missed);
        set_memory(&mut i, &m);
        i.set_has_lock_prefix(locked);
        self.asm.mov(SCRATCH, GUEST_RAX);
        if regs.is_empty() {
            self.encode(&i)?;
        } else {
            self.asm.store(&FRAME_ADDRESS, GUEST_RAX);
            regs.load(self.asm);
            self.encode(&i)?;
            self.asm.load(GUEST_RAX, &FRAME_ADDRESS);
        }
        // If they are equal, all of the accumulator stays.
        self.asm.mov_if(cond::NE, GUEST_RAX, SCRATCH);
        self.flags.set_in_host(FlagFixup::None, None);
        self.on_miss(missed, back, item.start);
        self.asm.bind(back);
        Ok(true)
    }

    /// Returns the operand of CMPXCHG or CMPXCHG8B, whose address does not name the host register
    /// of the guest's RAX, because the instruction overwrites that. Also returns whether the
    /// instruction is locked.
    fn compared_operand(&mut self, item: &Item, operand: &Operand, missed: Label) -> (Mem, bool) {
        let m = self.probe(operand, Access::Write, missed);
        self.asm.lea(POINTER, &m);
        let m = Mem::reserved(POINTER, 0);
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
        self.asm.store(&FRAME_ADDRESS, GUEST_RDX);
        self.asm.mov(SCRATCH, GUEST_RAX);
        if locked {
            self.asm.bytes(&[0xF0]);
        }
        self.asm.memory(false, &[0x0F, 0xC7], Ext(1), &m);
        // If they are equal, all of RAX and RDX stays.
        self.asm.mov_if(cond::NE, GUEST_RAX, SCRATCH);
        self.asm.load_if(cond::E, GUEST_RDX, &FRAME_ADDRESS);
        self.flags.save_condition(self.asm, cond::E, flags::ZF);
        self.asm.bind(back);
    }

    /// CMPXCHG16B. An operand that is not aligned faults.
    fn compare_exchange128(&mut self, item: &Item, operand: &Operand) {
        let (missed, back) = self.miss(item);
        let m = self.probe(operand, Access::Write, missed);
        self.asm.lea(POINTER, &m);
        let m = Mem::reserved(POINTER, 0);
        self.check_alignment(&m, operand.size, missed);
        self.asm.mov(SCRATCH, GUEST_RAX);
        if self.is_locked(item) {
            self.asm.bytes(&[0xF0]);
        }
        self.asm.memory(true, &[0x0F, 0xC7], Ext(1), &m);
        self.asm.mov(GUEST_RAX, SCRATCH);
        self.flags.save_condition(self.asm, cond::E, flags::ZF);
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
        // The lookup has found the quadword or doubleword: the number of a bit in it is left.
        self.read(SCRATCH, i.op1_register().full_register().number() as Guest);
        self.asm
            .imm(false, Imm::And, SCRATCH, 8 * operand.size as i32 - 1);
        i.set_op1_register(SCRATCH.named(operand.size));
        self.encode(&i)?;
        self.flags.save_condition(self.asm, cond::B, flags::CF);
        self.asm.bind(back);
        Ok(true)
    }
}
