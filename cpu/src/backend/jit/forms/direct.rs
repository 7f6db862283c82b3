//! Integer instructions that become native code as themselves, and their effect on the flags.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, RflagsBits};

use crate::backend::interpreter::lower::INSTRUCTIONS;
use crate::backend::jit::flags::FlagFixup;
use crate::exec::native::{FlagEffect, Native, NativeForm};
use crate::model::host_has;

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
    /// The effect on the flags that the table of instructions declares.
    pub flags: FlagEffect,
    /// The effect with the operands of this instruction.
    pub effect: Effect,
    /// The flags that it reads, of [`RflagsBits`].
    pub reads: u32,
}

/// Returns the form of an instruction, or `None` if it does not become native code as itself.
pub(crate) fn direct(i: &Instruction) -> Option<DirectForm> {
    let Native { code, form } = INSTRUCTIONS.native(i.code())?;
    let NativeForm::Integer(flags) = form else {
        return None;
    };
    if !host_executes(i) {
        return None;
    }
    let effect = match flags {
        FlagEffect::Keeps => Effect::Keeps,
        FlagEffect::Arithmetic | FlagEffect::ArithmeticKeepsCf => Effect::Writes(FlagFixup::None),
        FlagEffect::Logic => Effect::Writes(FlagFixup::ClearAf),
        // A register can name a bit beyond the memory operand.
        FlagEffect::BitTest if i.op0_kind() != OpKind::Register && has_bit_register(i) => {
            return None;
        }
        FlagEffect::BitTest => Effect::Carry,
        FlagEffect::Shift => shift(i),
        FlagEffect::Rotate if count(i) == Some(0) => Effect::Keeps,
        FlagEffect::Rotate | FlagEffect::Product | FlagEffect::Result => Effect::Unknown,
    };
    // CF, which INC and DEC keep, comes from the host's flags.
    let reads = match flags {
        FlagEffect::ArithmeticKeepsCf => RflagsBits::CF,
        _ => i.rflags_read(),
    };
    Some(DirectForm {
        code,
        flags,
        effect,
        reads,
    })
}

/// Whether the host's processor has the instruction. The interpreter executes some that it lacks.
pub(super) fn host_executes(i: &Instruction) -> bool {
    let mut features = i.cpuid_features().iter();
    features.all(|feature| host_has(*feature))
}

fn has_bit_register(i: &Instruction) -> bool {
    i.op1_kind() == OpKind::Register
}

/// Whether it is BT, BTS, BTR or BTC.
pub(crate) fn is_bit_test(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{Bt, Btc, Btr, Bts};
    matches!(mnemonic, Bt | Bts | Btr | Btc)
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

fn shift(i: &Instruction) -> Effect {
    match (count(i), i.mnemonic()) {
        (Some(0), _) => Effect::Keeps,
        (Some(1), _) => Effect::Writes(FlagFixup::ClearAf),
        // A count may exceed the width of a byte or a word.
        (Some(n), _) if n as usize >= 8 * size(i) => Effect::Unknown,
        (Some(_), Mnemonic::Shl | Mnemonic::Sal) => Effect::Writes(FlagFixup::Left),
        (Some(_), Mnemonic::Sar) => Effect::Writes(FlagFixup::ArithmeticRight),
        _ => Effect::Unknown,
    }
}
