//! Kinds of instructions whose outcome may differ.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// A reserved opcode of which the decoder does not know the operands: at most a SIB byte, a
/// displacement and an immediate of four bytes each.
pub(super) fn may_be_too_long(instruction: &Instruction) -> bool {
    instruction.is_invalid() && instruction.len() + 9 > 15
}

pub(super) fn compares_strings(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_string_instruction()
        && matches!(
            instruction.mnemonic(),
            M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq
        )
}

pub(super) fn is_repeated(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

pub(super) fn repeats_a_comparison(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    is_repeated(instruction)
        && (compares_strings(instruction)
            || matches!(
                instruction.mnemonic(),
                M::Scasb | M::Scasw | M::Scasd | M::Scasq
            ))
}

pub(super) fn repeats_with_32_bits(instruction: &Instruction) -> bool {
    use OpKind as K;
    is_repeated(instruction)
        && instruction
            .op_kinds()
            .any(|kind| matches!(kind, K::MemorySegESI | K::MemorySegEDI | K::MemoryESEDI))
}

pub(super) fn stores_x87(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.op0_kind() == OpKind::Memory
        && matches!(
            instruction.mnemonic(),
            M::Fst | M::Fstp | M::Fist | M::Fistp | M::Fisttp | M::Fbstp
        )
}

pub(super) fn stores_mmx(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory && instruction.op1_register().is_mm()
}

pub(super) fn converts_to_mmx(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Cvtpd2pi | M::Cvttpd2pi | M::Cvtps2pi | M::Cvttps2pi | M::Cvtpi2ps | M::Cvtpi2pd
    )
}
