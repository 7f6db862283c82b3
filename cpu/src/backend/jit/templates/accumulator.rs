//! Instructions with operands in fixed registers: SCRATCH and RDX of the guest, or POINTER of the
//! host.

use iced_x86::{Code, Mnemonic, OpKind};

use crate::backend::jit::assembler::{Ext, Imm, Label, Mem, Op, Shift, cond};
use crate::backend::jit::flags;
use crate::backend::jit::forms::operand::Operand;
use crate::backend::jit::registers::map::{
    GUEST_RAX, GUEST_RDX, Guest, Location, POINTER, SCRATCH,
};
use crate::backend::jit::translator::{Item, Translator};
use crate::mmu::access::Access;

const BSF: [u8; 2] = [0x0F, 0xBC];
const BSR: [u8; 2] = [0x0F, 0xBD];

impl Translator<'_> {
    /// Translates an instruction whose operands are in RAX and RDX, or that has no effect. Returns
    /// whether there is a template.
    pub(crate) fn accumulator(&mut self, item: &Item) -> bool {
        let a = &mut self.asm;
        match item.decoded.code() {
            Code::Nopw | Code::Nopd | Code::Nopq => {}
            Code::Cbw => {
                // MOVSX, with 16 bits
                a.bytes(&[0x66]);
                a.registers(false, &[0x0F, 0xBE], GUEST_RAX, GUEST_RAX);
            }
            // MOVSX and MOVSXD
            Code::Cwde => a.registers(false, &[0x0F, 0xBF], GUEST_RAX, GUEST_RAX),
            Code::Cdqe => a.registers(true, &[0x63], GUEST_RAX, GUEST_RAX),
            Code::Cdq => {
                a.mov32(SCRATCH, GUEST_RAX);
                a.sign_to_rdx(false);
            }
            Code::Cqo => {
                a.mov(SCRATCH, GUEST_RAX);
                a.sign_to_rdx(true);
            }
            Code::Mul_rm32 | Code::Mul_rm64 | Code::Imul_rm32 | Code::Imul_rm64 => {
                return self.multiply(item);
            }
            Code::Div_rm32 | Code::Div_rm64 => return self.divide(item),
            Code::Idiv_rm32 | Code::Idiv_rm64 => return self.divide_signed(item),
            // Hints and fences of loads and of stores do nothing.
            _ if matches!(
                item.decoded.mnemonic(),
                Mnemonic::Nop
                    | Mnemonic::Reservednop
                    | Mnemonic::Prefetchnta
                    | Mnemonic::Prefetcht0
                    | Mnemonic::Prefetcht1
                    | Mnemonic::Prefetcht2
                    | Mnemonic::Lfence
                    | Mnemonic::Sfence
            ) => {}
            _ => return false,
        }
        true
    }

    /// Saves the flags, and loads operand `n` into POINTER. Returns a label where `exec` executes
    /// the instruction, and one, to be bound, where it continues then; `None` without a template.
    fn source(&mut self, item: &Item, n: u32, wide: bool) -> Option<(Label, Label)> {
        let i = &item.decoded;
        if i.op_kind(n) == OpKind::Register {
            let (missed, back) = self.miss(item);
            self.read(POINTER, i.op_register(n).number() as Guest);
            return Some((missed, back));
        }
        let operand = Operand::of(i, &item.insn, self.context.rip)?;
        let (missed, back) = self.miss(item);
        let m = self.probe(&operand, Access::Read, missed);
        if wide {
            self.asm.load(POINTER, &m);
        } else {
            self.asm.op_mem32(Op::Load, POINTER, &m);
        }
        Some((missed, back))
    }

    /// Emits an instruction of opcode F7: the guest's RDX:RAX with POINTER.
    fn unary(&mut self, wide: bool, extension: Ext) {
        self.asm.mov(SCRATCH, GUEST_RAX);
        self.asm.unary(wide, extension, POINTER);
        self.asm.mov(GUEST_RAX, SCRATCH);
    }

    /// MUL and IMUL with one operand.
    fn multiply(&mut self, item: &Item) -> bool {
        let code = item.decoded.code();
        let wide = matches!(code, Code::Mul_rm64 | Code::Imul_rm64);
        let Some((_, back)) = self.source(item, 0, wide) else {
            return false;
        };
        let extension = if matches!(code, Code::Mul_rm32 | Code::Mul_rm64) {
            Ext(4)
        } else {
            Ext(5)
        };
        self.unary(wide, extension);
        self.flags
            .save_of_product(self.asm, Location::Register(GUEST_RAX), wide);
        self.asm.bind(back);
        true
    }

    /// DIV. Keeps the flags, as the interpreter does.
    fn divide(&mut self, item: &Item) -> bool {
        let wide = item.decoded.code() == Code::Div_rm64;
        let Some((missed, back)) = self.source(item, 0, wide) else {
            return false;
        };
        // The quotient fits iff the upper half is below the divisor.
        self.asm.compare(wide, GUEST_RDX, POINTER);
        self.asm.jump_if(cond::AE, missed);
        self.unary(wide, Ext(6));
        self.asm.bind(back);
        true
    }

    /// IDIV of a dividend that has been sign-extended, as compilers write it: the quotient of any
    /// other may not fit. Keeps the flags, as the interpreter does.
    fn divide_signed(&mut self, item: &Item) -> bool {
        let wide = item.decoded.code() == Code::Idiv_rm64;
        let Some((missed, back)) = self.source(item, 0, wide) else {
            return false;
        };
        self.asm.mov(SCRATCH, GUEST_RAX);
        self.asm.shift(
            Shift::ArithmeticRight,
            wide,
            SCRATCH,
            if wide { 63 } else { 31 },
        );
        self.asm.compare(wide, SCRATCH, GUEST_RDX);
        self.asm.jump_if(cond::NE, missed);
        // Neither 0 nor -1: the least number divided by -1 does not fit.
        self.asm.lea(SCRATCH, &Mem::at(POINTER, 1));
        self.asm.imm(wide, Imm::Cmp, SCRATCH, 1);
        self.asm.jump_if(cond::BE, missed);
        self.unary(wide, Ext(7));
        self.asm.bind(back);
        true
    }

    /// BSF and BSR. A source of zero keeps the destination. Returns whether there is a template.
    pub(crate) fn scan(&mut self, item: &Item) -> bool {
        let (opcode, wide) = match item.decoded.code() {
            Code::Bsf_r32_rm32 => (BSF, false),
            Code::Bsf_r64_rm64 => (BSF, true),
            Code::Bsr_r32_rm32 => (BSR, false),
            Code::Bsr_r64_rm64 => (BSR, true),
            _ => return false,
        };
        let Some((_, back)) = self.source(item, 1, wide) else {
            return false;
        };
        self.asm.registers(wide, &opcode, SCRATCH, POINTER);
        let zero = self.asm.label();
        self.asm.jump_if(cond::E, zero);
        self.write(item.decoded.op0_register().number() as Guest, SCRATCH);
        self.asm.bind(zero);
        self.flags.save_condition(self.asm, cond::E, flags::ZF);
        self.asm.bind(back);
        true
    }
}
