//! Every instruction of a set of CPUID features, in its forms, made from the decoder's tables.

use iced_x86::{
    Code, CpuidFeature, Encoder, Instruction, MemoryOperand, OpCodeOperandKind as Kind, OpKind,
    Register,
};

use super::random::Random;

/// General registers that an operand may be: neither RSP, nor RDI and R15, which have other uses
/// here.
const GPRS: [Register; 13] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RBP,
    Register::RSI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
];

const FEATURES: [CpuidFeature; 26] = [
    CpuidFeature::FPU,
    CpuidFeature::FPU287,
    CpuidFeature::FPU387,
    CpuidFeature::MMX,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
    CpuidFeature::LZCNT,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::MOVBE,
    CpuidFeature::FXSR,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::ADX,
    CpuidFeature::SHA,
    CpuidFeature::VAES,
    CpuidFeature::VPCLMULQDQ,
];

/// The instructions that these features add, of vectors, bits and floating-point numbers for the
/// most part. Left out are those that begin with FWAIT: to a processor they are two.
pub fn all() -> impl Iterator<Item = Code> {
    Code::values().filter(|c| {
        let features = c.cpuid_features();
        let info = c.op_code();
        info.is_instruction()
            && !info.fwait()
            && features.iter().any(|f| FEATURES.contains(f))
            && features
                .iter()
                .all(|f| FEATURES.contains(f) || *f == CpuidFeature::CMOV)
    })
}

/// An instruction and its bytes.
#[derive(Debug, Clone)]
pub struct Form {
    pub instruction: Instruction,
    pub bytes: Vec<u8>,
}

impl Form {
    /// `code` with random registers and immediate; memory operands are at RDI.
    pub fn new(code: Code, memory: bool, random: &mut Random) -> Option<Self> {
        let mut i = Instruction::default();
        i.set_code(code);
        let at_rdi = MemoryOperand::with_base(Register::RDI);
        // The three registers of a gather are different ones.
        let first = random.below(16) as u32;
        let mut next = first;
        for (n, &kind) in code.op_code().op_kinds().iter().enumerate() {
            let n = n as u32;
            let register = match kind {
                Kind::mem => None,
                Kind::mem_vsib32x | Kind::mem_vsib64x | Kind::mem_vsib32y | Kind::mem_vsib64y => {
                    let wide = matches!(kind, Kind::mem_vsib32y | Kind::mem_vsib64y);
                    let base = if wide { Register::YMM0 } else { Register::XMM0 };
                    i.set_memory_index(base + (first + 7) % 16);
                    i.set_memory_index_scale(1 << random.below(4));
                    None
                }
                Kind::xmm_or_mem
                | Kind::ymm_or_mem
                | Kind::mm_or_mem
                | Kind::r8_or_mem
                | Kind::r16_or_mem
                | Kind::r32_or_mem
                | Kind::r64_or_mem
                    if memory =>
                {
                    None
                }
                Kind::xmm_reg | Kind::xmm_vvvv if i.is_vsib() => {
                    next += 3;
                    Some(Register::XMM0 + next % 16)
                }
                Kind::ymm_reg | Kind::ymm_vvvv if i.is_vsib() => {
                    next += 3;
                    Some(Register::YMM0 + next % 16)
                }
                Kind::xmm_reg
                | Kind::xmm_vvvv
                | Kind::xmm_rm
                | Kind::xmm_or_mem
                | Kind::xmm_is4 => Some(Register::XMM0 + random.below(16) as u32),
                Kind::ymm_reg
                | Kind::ymm_vvvv
                | Kind::ymm_rm
                | Kind::ymm_or_mem
                | Kind::ymm_is4 => Some(Register::YMM0 + random.below(16) as u32),
                Kind::mm_reg | Kind::mm_rm | Kind::mm_or_mem => {
                    Some(Register::MM0 + random.below(8) as u32)
                }
                Kind::r64_reg | Kind::r64_vvvv | Kind::r64_or_mem => Some(*random.pick(&GPRS)),
                Kind::r32_reg | Kind::r32_vvvv | Kind::r32_or_mem => {
                    Some(random.pick(&GPRS).full_register32())
                }
                Kind::r16_reg | Kind::r16_or_mem => {
                    Some(Register::AX + random.pick(&GPRS).number() as u32)
                }
                // AL to BL, which every encoding has.
                Kind::r8_or_mem => Some(Register::AL + random.below(4) as u32),
                Kind::st0 => Some(Register::ST0),
                Kind::sti_opcode => Some(Register::ST0 + random.below(8) as u32),
                Kind::ax => Some(Register::AX),
                Kind::imm8 => {
                    i.set_op_kind(n, OpKind::Immediate8);
                    i.set_immediate8(random.next() as u8);
                    continue;
                }
                Kind::seg_rDI => {
                    i.set_op_kind(n, OpKind::MemorySegRDI);
                    continue;
                }
                other => panic!("{code:?}: operand {other:?}"),
            };
            match register {
                Some(r) => {
                    i.set_op_kind(n, OpKind::Register);
                    i.set_op_register(n, r);
                }
                None => {
                    i.set_op_kind(n, OpKind::Memory);
                    i.set_memory_base(at_rdi.base);
                }
            }
        }
        let mut encoder = Encoder::new(64);
        // Not every form exists in 64-bit mode.
        encoder.encode(&i, 0).ok()?;
        Some(Self {
            instruction: i,
            bytes: encoder.take_buffer(),
        })
    }

    pub fn has_memory(&self) -> bool {
        (0..self.instruction.op_count()).any(|n| self.instruction.op_kind(n) == OpKind::Memory)
    }
}
