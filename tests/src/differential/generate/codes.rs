//! The instructions that the software CPU has and that two processors can be compared on, from
//! iced's tables.

use iced_x86::{Code, CpuidFeature, EncodingKind, Mnemonic, OpCodeOperandKind};

use super::super::vendor::{Behaviour, Vendor};
use super::super::{Mode, processor};

/// A part of the instruction set that is tested by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// General registers and flags.
    Integer,
    /// MMX, SSE to SSE4.2, AES, AVX, AVX2, FMA and F16C.
    Vector,
    /// x87.
    X87,
    /// All of them, one at a time, with bytes changed: odd prefixes, and what is no instruction.
    Bytes,
}

const INTEGER_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::CX8,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::MULTIBYTENOP,
    CpuidFeature::PAUSE,
    CpuidFeature::POPCNT,
    CpuidFeature::LZCNT,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::MOVBE,
    CpuidFeature::ADX,
];

const VECTOR_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::MMX,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::SHA,
    CpuidFeature::VAES,
    CpuidFeature::VPCLMULQDQ,
];

const X87_FEATURES: &[CpuidFeature] = &[
    CpuidFeature::FPU,
    CpuidFeature::FPU287,
    CpuidFeature::FPU387,
];

/// What is left out: instructions that depend on the operating system or the model, that go to the
/// kernel, or whose result no two processors agree on.
const EXCLUDED: &[Mnemonic] = &[
    // To the kernel, or reserved to it.
    Mnemonic::Int,
    Mnemonic::Int1,
    Mnemonic::Int3,
    Mnemonic::Syscall,
    Mnemonic::Sysenter,
    Mnemonic::Sysexit,
    Mnemonic::Sysret,
    Mnemonic::Iret,
    Mnemonic::Iretd,
    Mnemonic::Iretq,
    Mnemonic::Hlt,
    Mnemonic::Cli,
    Mnemonic::Sti,
    Mnemonic::In,
    Mnemonic::Out,
    Mnemonic::Insb,
    Mnemonic::Insw,
    Mnemonic::Insd,
    Mnemonic::Outsb,
    Mnemonic::Outsw,
    Mnemonic::Outsd,
    Mnemonic::Lgdt,
    Mnemonic::Lidt,
    Mnemonic::Lldt,
    Mnemonic::Ltr,
    Mnemonic::Lmsw,
    Mnemonic::Clts,
    Mnemonic::Invd,
    Mnemonic::Wbinvd,
    Mnemonic::Invlpg,
    // Segments and descriptor tables.
    Mnemonic::Lar,
    Mnemonic::Lsl,
    Mnemonic::Verr,
    Mnemonic::Verw,
    Mnemonic::Sgdt,
    Mnemonic::Sidt,
    Mnemonic::Sldt,
    Mnemonic::Str,
    Mnemonic::Smsw,
    Mnemonic::Lds,
    Mnemonic::Les,
    Mnemonic::Lfs,
    Mnemonic::Lgs,
    Mnemonic::Lss,
    Mnemonic::Retf,
    Mnemonic::Swapgs,
    // Invalid in 64-bit mode or reserved.
    Mnemonic::Loadall,
    Mnemonic::Ud0,
    Mnemonic::Ud1,
    Mnemonic::Reservednop,
    // The 16-bit forms are undefined, or truncate RIP on one vendor's processors alone.
    Mnemonic::Xbegin,
    Mnemonic::Xabort,
    // Estimates and transcendental functions, whose last bits each vendor's processors compute in
    // their own way. The tests of `cpu/tests/cpu/host` compare them within the manual's error.
    Mnemonic::F2xm1,
    Mnemonic::Fyl2x,
    Mnemonic::Fyl2xp1,
    Mnemonic::Fptan,
    Mnemonic::Fpatan,
    Mnemonic::Fsin,
    Mnemonic::Fcos,
    Mnemonic::Fsincos,
    Mnemonic::Rcpps,
    Mnemonic::Rcpss,
    Mnemonic::Rsqrtps,
    Mnemonic::Rsqrtss,
    Mnemonic::Vrcpps,
    Mnemonic::Vrcpss,
    Mnemonic::Vrsqrtps,
    Mnemonic::Vrsqrtss,
    // Environments with pointers that vendors save differently.
    Mnemonic::Fldenv,
    Mnemonic::Fnstenv,
    Mnemonic::Fnsave,
    Mnemonic::Frstor,
    Mnemonic::Fstenv,
    Mnemonic::Fsave,
    Mnemonic::Fxsave,
    Mnemonic::Fxsave64,
    Mnemonic::Fxrstor,
    Mnemonic::Fxrstor64,
];

/// Forms that are left out for the same reasons.
const EXCLUDED_CODES: &[Code] = &[
    Code::Bswap_r16,
    // Whether it needs a writable segment when it does not write.
    Code::Arpl_rm16_r16,
    Code::Arpl_r32m16_r32,
    Code::Call_rm16,
    Code::Jmp_rm16,
    Code::Call_m1616,
    Code::Call_m1632,
    Code::Call_m1664,
    Code::Jmp_m1616,
    Code::Jmp_m1632,
    Code::Jmp_m1664,
    Code::Popw_FS,
    Code::Popd_FS,
    Code::Popd_GS,
    Code::Popq_FS,
    Code::Popw_GS,
    Code::Popq_GS,
];

/// Forms that only some vendors' processors are compared on.
const BY_VENDOR: &[(Behaviour, &[Code])] = &[
    (
        Behaviour::PushSegment,
        &[
            Code::Pushd_ES,
            Code::Pushd_CS,
            Code::Pushd_SS,
            Code::Pushd_DS,
            Code::Pushd_FS,
            Code::Pushd_GS,
        ],
    ),
    (Behaviour::Movsxd16, &[Code::Movsxd_r16_rm16]),
];

/// Every instruction of a group.
#[must_use]
pub(super) fn codes(group: Group, mode: Mode, vendor: Vendor) -> Vec<Code> {
    let differs = |code| {
        BY_VENDOR
            .iter()
            .any(|(behaviour, codes)| codes.contains(&code) && vendor.may_differ(*behaviour))
    };
    Code::values()
        .filter(|&code| belongs(code, group, mode) && !differs(code))
        .collect()
}

fn belongs(code: Code, group: Group, mode: Mode) -> bool {
    let features = code.cpuid_features();
    let among = |set: &[CpuidFeature]| features.iter().any(|feature| set.contains(feature));
    let only = |sets: &[&[CpuidFeature]]| {
        features
            .iter()
            .all(|feature| sets.iter().any(|set| set.contains(feature)))
    };
    let in_group = match group {
        Group::Integer => only(&[INTEGER_FEATURES]),
        Group::Vector => among(VECTOR_FEATURES) && only(&[VECTOR_FEATURES, INTEGER_FEATURES]),
        Group::X87 => among(X87_FEATURES) && only(&[X87_FEATURES, INTEGER_FEATURES]),
        Group::Bytes => only(&[INTEGER_FEATURES, VECTOR_FEATURES, X87_FEATURES]),
    };
    let op_code = code.op_code();
    in_group
        && processor().is_some_and(|model| features.iter().all(|f| model.executes(*f)))
        && match mode {
            Mode::Bits64 => op_code.mode64(),
            Mode::Bits32 => op_code.mode32() && op_code.compatibility_mode(),
        }
        && op_code.is_instruction()
        && matches!(op_code.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && !op_code.is_privileged()
        && !EXCLUDED.contains(&code.mnemonic())
        && !(code.is_jcc_short_or_near()
            || code.is_jmp_short_or_near()
            || code.is_call_near()
            || is_ret(code))
            | has_full_target(code, mode)
        && !op_code
            .op_kinds()
            .iter()
            .any(|&kind| is_unsupported(kind, mode))
        && !EXCLUDED_CODES.contains(&code)
}

pub(super) fn is_x87(code: Code) -> bool {
    code.cpuid_features()
        .iter()
        .any(|feature| X87_FEATURES.contains(feature))
}

pub(super) fn is_ret(code: Code) -> bool {
    code.mnemonic() == Mnemonic::Ret
}

/// Near branches with a 16-bit operand size truncate RIP, in 64-bit mode on some processors and not
/// on others.
fn has_full_target(code: Code, mode: Mode) -> bool {
    use OpCodeOperandKind as K;
    let kinds = code.op_code().op_kinds();
    match mode {
        Mode::Bits64 => {
            matches!(code, Code::Retnq | Code::Retnq_imm16)
                || kinds
                    .iter()
                    .any(|kind| matches!(kind, K::br64_1 | K::br64_4))
        }
        Mode::Bits32 => {
            matches!(code, Code::Retnd | Code::Retnd_imm16)
                || kinds
                    .iter()
                    .any(|kind| matches!(kind, K::br32_1 | K::br32_4))
        }
    }
}

fn is_unsupported(kind: OpCodeOperandKind, mode: Mode) -> bool {
    use OpCodeOperandKind as K;
    if mode == Mode::Bits32 && matches!(kind, K::br32_1 | K::br32_4) {
        return false;
    }
    matches!(
        kind,
        K::seg_reg
            | K::cr_reg
            | K::dr_reg
            | K::tr_reg
            | K::es
            | K::ss
            | K::ds
            | K::br16_1
            | K::br32_1
            | K::br16_2
            | K::br32_4
            | K::farbr2_2
            | K::farbr4_2
            | K::xbegin_2
            | K::xbegin_4
            | K::brdisp_2
            | K::brdisp_4
    )
}

/// Whether it is a memory operand with a vector of indices.
pub(super) fn is_vsib(kind: OpCodeOperandKind) -> bool {
    use OpCodeOperandKind as K;
    matches!(
        kind,
        K::mem_vsib32x | K::mem_vsib32y | K::mem_vsib64x | K::mem_vsib64y
    )
}

/// Whether an instruction is only defined, or only harmless, with the values that the case starts
/// from.
pub(super) fn needs_initial_state(code: Code) -> bool {
    use Mnemonic as M;
    let indirect = code.is_jmp_near_indirect() || code.is_call_near_indirect() || is_ret(code);
    let bit = matches!(code.mnemonic(), M::Bt | M::Bts | M::Btr | M::Btc);
    let control = matches!(
        code.mnemonic(),
        M::Popf | M::Popfd | M::Popfq | M::Fldcw | M::Ldmxcsr | M::Vldmxcsr
    );
    let count = matches!(code, Code::Shld_rm16_r16_CL | Code::Shrd_rm16_r16_CL);
    let masked = matches!(
        code.mnemonic(),
        M::Maskmovq | M::Maskmovdqu | M::Vmaskmovdqu
    );
    let bound = code.mnemonic() == M::Bound;
    let gather = code.op_code().op_kinds().iter().any(|kind| is_vsib(*kind));
    indirect || bit || control || count || masked || bound || gather
}
