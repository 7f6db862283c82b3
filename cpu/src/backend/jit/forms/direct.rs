//! Integer instructions that become native code as themselves, and their effect on the flags.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, RflagsBits};

use crate::backend::jit::flags::FlagFixup;

/// The effect of an instruction on the arithmetic flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Keeps them.
    Keeps,
    /// Writes all of them.
    Writes(FlagFixup),
    /// Writes CF alone.
    Carry,
    /// Writes flags that no [`FlagFixup`] reproduces: usable as itself only if they are dead
    /// afterwards.
    Unknown,
}

/// The form of an instruction that becomes native code as itself, with host registers in place of
/// the guest's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectForm {
    /// The instruction in a form without implicit registers.
    pub code: Code,
    pub effect: Effect,
    /// The flags that it reads, of [`RflagsBits`].
    pub reads: u32,
}

/// Returns the form of an instruction, or `None` if it does not become native code as itself.
pub(crate) fn direct(i: &Instruction) -> Option<DirectForm> {
    let code = explicit(i.code());
    let reads = i.rflags_read();
    let effect = match i.mnemonic() {
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Lea
        | Mnemonic::Not
        | Mnemonic::Bswap => Effect::Keeps,
        Mnemonic::Xchg => Effect::Keeps,
        Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Cmp
        | Mnemonic::Neg
        | Mnemonic::Adc
        | Mnemonic::Sbb
        | Mnemonic::Xadd
        | Mnemonic::Popcnt => Effect::Writes(FlagFixup::None),
        // A register can name a bit beyond the memory operand.
        mnemonic
            if is_bit_test(mnemonic)
                && (i.op0_kind() == OpKind::Register || i.op1_kind() != OpKind::Register) =>
        {
            Effect::Carry
        }
        // CF, which they keep, comes from the host's flags.
        Mnemonic::Inc | Mnemonic::Dec => {
            return Some(DirectForm {
                code,
                effect: Effect::Writes(FlagFixup::None),
                reads: RflagsBits::CF,
            });
        }
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
            Effect::Writes(FlagFixup::ClearAf)
        }
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => shift(i)?,
        Mnemonic::Rol | Mnemonic::Ror => match count(i) {
            Some(0) => Effect::Keeps,
            _ => Effect::Unknown,
        },
        Mnemonic::Imul if i.op_count() > 1 => Effect::Unknown,
        mnemonic if sets_flags_of_result(mnemonic) && host_has_bmi() => Effect::Unknown,
        Mnemonic::Pdep
        | Mnemonic::Pext
        | Mnemonic::Mulx
        | Mnemonic::Rorx
        | Mnemonic::Sarx
        | Mnemonic::Shlx
        | Mnemonic::Shrx
        | Mnemonic::Movbe
            if host_has_bmi() =>
        {
            Effect::Keeps
        }
        _ if is_conditional(i) => Effect::Keeps,
        _ => return None,
    };
    // 66H before BSWAP has an undefined result. MOV of other registers can fault.
    let general = |n| i.op_kind(n) != OpKind::Register || i.op_register(n).is_gpr();
    if code == Code::Bswap_r16 || !(0..i.op_count()).all(general) {
        return None;
    }
    Some(DirectForm {
        code,
        effect,
        reads,
    })
}

/// Whether it is BT, BTS, BTR or BTC.
pub(crate) fn is_bit_test(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{Bt, Btc, Btr, Bts};
    matches!(mnemonic, Bt | Bts | Btr | Btc)
}

/// Whether an instruction of BMI1, BMI2 or LZCNT leaves the flags of its result: with the host's
/// CF, and without OF. The manual leaves some of them undefined.
pub(crate) fn sets_flags_of_result(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Tzcnt
            | Mnemonic::Lzcnt
            | Mnemonic::Andn
            | Mnemonic::Bextr
            | Mnemonic::Blsi
            | Mnemonic::Blsmsk
            | Mnemonic::Blsr
            | Mnemonic::Bzhi
    )
}

/// Whether the host's processor has what the models with BMI1 have: BMI2, LZCNT and MOVBE, too.
fn host_has_bmi() -> bool {
    is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
}

fn is_conditional(i: &Instruction) -> bool {
    use iced_x86::ConditionCode;
    i.condition_code() != ConditionCode::None && !i.is_jcc_short_or_near() && i.op_count() > 0 && {
        // CMOVcc and SETcc: neither LOOPcc nor FCMOVcc.
        i.op0_kind() == OpKind::Memory || i.op0_register().is_gpr()
    }
}

/// The masked count of a shift by an immediate.
pub(crate) fn count(i: &Instruction) -> Option<u32> {
    let size = size(i);
    (i.op1_kind() == OpKind::Immediate8)
        .then(|| u32::from(i.immediate8()) & if size == 8 { 63 } else { 31 })
}

/// Size of the first operand in bytes.
pub(crate) fn size(i: &Instruction) -> usize {
    match i.op0_kind() {
        OpKind::Register => i.op0_register().size(),
        _ => i.memory_size().size(),
    }
}

fn shift(i: &Instruction) -> Option<Effect> {
    Some(match (count(i), i.mnemonic()) {
        (Some(0), _) => Effect::Keeps,
        (Some(1), _) => Effect::Writes(FlagFixup::ClearAf),
        // A count may exceed the width of a byte or a word.
        (Some(n), _) if n as usize >= 8 * size(i) => Effect::Unknown,
        (Some(_), Mnemonic::Shl | Mnemonic::Sal) => Effect::Writes(FlagFixup::Left),
        (Some(_), Mnemonic::Sar) => Effect::Writes(FlagFixup::ArithmeticRight),
        _ => Effect::Unknown,
    })
}

/// The code of the same instruction with explicit operands.
fn explicit(code: Code) -> Code {
    use Code::*;
    match code {
        Add_AL_imm8 => Add_rm8_imm8,
        Add_AX_imm16 => Add_rm16_imm16,
        Add_EAX_imm32 => Add_rm32_imm32,
        Add_RAX_imm32 => Add_rm64_imm32,
        Or_AL_imm8 => Or_rm8_imm8,
        Or_AX_imm16 => Or_rm16_imm16,
        Or_EAX_imm32 => Or_rm32_imm32,
        Or_RAX_imm32 => Or_rm64_imm32,
        Adc_AL_imm8 => Adc_rm8_imm8,
        Adc_AX_imm16 => Adc_rm16_imm16,
        Adc_EAX_imm32 => Adc_rm32_imm32,
        Adc_RAX_imm32 => Adc_rm64_imm32,
        Sbb_AL_imm8 => Sbb_rm8_imm8,
        Sbb_AX_imm16 => Sbb_rm16_imm16,
        Sbb_EAX_imm32 => Sbb_rm32_imm32,
        Sbb_RAX_imm32 => Sbb_rm64_imm32,
        And_AL_imm8 => And_rm8_imm8,
        And_AX_imm16 => And_rm16_imm16,
        And_EAX_imm32 => And_rm32_imm32,
        And_RAX_imm32 => And_rm64_imm32,
        Sub_AL_imm8 => Sub_rm8_imm8,
        Sub_AX_imm16 => Sub_rm16_imm16,
        Sub_EAX_imm32 => Sub_rm32_imm32,
        Sub_RAX_imm32 => Sub_rm64_imm32,
        Xor_AL_imm8 => Xor_rm8_imm8,
        Xor_AX_imm16 => Xor_rm16_imm16,
        Xor_EAX_imm32 => Xor_rm32_imm32,
        Xor_RAX_imm32 => Xor_rm64_imm32,
        Cmp_AL_imm8 => Cmp_rm8_imm8,
        Cmp_AX_imm16 => Cmp_rm16_imm16,
        Cmp_EAX_imm32 => Cmp_rm32_imm32,
        Cmp_RAX_imm32 => Cmp_rm64_imm32,
        Test_AL_imm8 => Test_rm8_imm8,
        Test_AX_imm16 => Test_rm16_imm16,
        Test_EAX_imm32 => Test_rm32_imm32,
        Test_RAX_imm32 => Test_rm64_imm32,
        Mov_AL_moffs8 => Mov_r8_rm8,
        Mov_AX_moffs16 => Mov_r16_rm16,
        Mov_EAX_moffs32 => Mov_r32_rm32,
        Mov_RAX_moffs64 => Mov_r64_rm64,
        Mov_moffs8_AL => Mov_rm8_r8,
        Mov_moffs16_AX => Mov_rm16_r16,
        Mov_moffs32_EAX => Mov_rm32_r32,
        Mov_moffs64_RAX => Mov_rm64_r64,
        Xchg_r16_AX => Xchg_rm16_r16,
        Xchg_r32_EAX => Xchg_rm32_r32,
        Xchg_r64_RAX => Xchg_rm64_r64,
        other => other,
    }
}
