//! Instructions with operands in fixed registers: RAX and RDX of the guest, or R14 of the host.

use iced_x86::{Code, Mnemonic, OpKind};

use crate::backend::jit::assembler::{Imm, Label, Mem, Op, R14, RAX, RDX, cond};
use crate::backend::jit::flags;
use crate::backend::jit::form::{Guest, Operand};
use crate::backend::jit::layout::{GUEST_RAX, Location};
use crate::backend::jit::translate::{Item, Translator};
use crate::mmu::access::Access;

const BSF: [u8; 2] = [0x0F, 0xBC];
const BSR: [u8; 2] = [0x0F, 0xBD];

impl Translator<'_> {
    /// Instructions whose operands are in RAX and RDX. Returns whether there is a template.
    pub(super) fn accumulator(&mut self, item: &Item) -> bool {
        let a = &mut self.asm;
        match item.decoded.code() {
            Code::Nopw | Code::Nopd | Code::Nopq => {}
            // MOVSX R10W, R10B; MOVSX R10D, R10W; MOVSXD R10, R10D
            Code::Cbw => a.bytes(&[0x66, 0x45, 0x0F, 0xBE, 0xD2]),
            Code::Cwde => a.bytes(&[0x45, 0x0F, 0xBF, 0xD2]),
            Code::Cdqe => a.bytes(&[0x4D, 0x63, 0xD2]),
            Code::Cdq => {
                a.mov32(RAX, GUEST_RAX);
                a.bytes(&[0x99]);
            }
            Code::Cqo => {
                a.mov(RAX, GUEST_RAX);
                a.bytes(&[0x48, 0x99]);
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

    /// Loads operand `n` into R14. Returns where to go to have the instruction executed by `exec`,
    /// and where it goes on then; `None` without a template.
    fn source(&mut self, item: &Item, n: u32, wide: bool) -> Option<(Label, Label)> {
        let i = &item.decoded;
        if i.op_kind(n) == OpKind::Register {
            let (missed, back) = self.miss(item);
            self.read(R14, i.op_register(n).number() as Guest);
            return Some((missed, back));
        }
        let operand = Operand::of(i, &item.insn, self.context.rip)?;
        let (missed, back) = self.miss(item);
        let m = self.probe(&operand, Access::Read, missed);
        if wide {
            self.asm.load(R14, &m);
        } else {
            self.asm.op_mem32(Op::Load, R14, &m);
        }
        Some((missed, back))
    }

    /// An instruction of opcode F7 of RDX:RAX with R14.
    fn unary(&mut self, wide: bool, extension: u8) {
        self.asm.mov(RAX, GUEST_RAX);
        self.asm.unary(wide, extension, R14);
        self.asm.mov(GUEST_RAX, RAX);
    }

    /// MUL and IMUL with one operand.
    fn multiply(&mut self, item: &Item) -> bool {
        let code = item.decoded.code();
        let wide = matches!(code, Code::Mul_rm64 | Code::Imul_rm64);
        let Some((_, back)) = self.source(item, 0, wide) else {
            return false;
        };
        let extension = if matches!(code, Code::Mul_rm32 | Code::Mul_rm64) {
            4
        } else {
            5
        };
        self.unary(wide, extension);
        flags::save_of_product(self.asm, Location::Register(GUEST_RAX), wide);
        self.asm.bind(back);
        true
    }

    /// DIV. It keeps the flags, as that of the interpreter.
    fn divide(&mut self, item: &Item) -> bool {
        let wide = item.decoded.code() == Code::Div_rm64;
        let Some((missed, back)) = self.source(item, 0, wide) else {
            return false;
        };
        // The quotient fits iff the upper half is below the divisor.
        self.asm.compare(wide, RDX, R14);
        self.asm.jump_if(cond::AE, missed);
        self.unary(wide, 6);
        self.asm.bind(back);
        true
    }

    /// IDIV of a dividend that has been sign-extended, as compilers write it: the quotient of any
    /// other may not fit. It keeps the flags, as that of the interpreter.
    fn divide_signed(&mut self, item: &Item) -> bool {
        let wide = item.decoded.code() == Code::Idiv_rm64;
        let Some((missed, back)) = self.source(item, 0, wide) else {
            return false;
        };
        self.asm.mov(RAX, GUEST_RAX);
        self.asm.sar(wide, RAX, if wide { 63 } else { 31 });
        self.asm.compare(wide, RAX, RDX);
        self.asm.jump_if(cond::NE, missed);
        // Neither 0 nor -1: the least number divided by -1 does not fit.
        self.asm.lea(RAX, &Mem::at(R14, 1));
        self.asm.imm(wide, Imm::Cmp, RAX, 1);
        self.asm.jump_if(cond::BE, missed);
        self.unary(wide, 7);
        self.asm.bind(back);
        true
    }

    /// BSF and BSR. A source of zero keeps the destination. Returns whether there is a template.
    pub(super) fn scan(&mut self, item: &Item) -> bool {
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
        self.asm.registers(wide, &opcode, RAX, R14);
        let zero = self.asm.label();
        self.asm.jump_if(cond::E, zero);
        self.write(item.decoded.op0_register().number() as Guest, RAX);
        self.asm.bind(zero);
        flags::save_one(self.asm, cond::E, flags::ZF);
        self.asm.bind(back);
        true
    }
}
