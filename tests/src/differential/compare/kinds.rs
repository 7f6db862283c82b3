//! Kinds of instructions whose outcome may differ.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// A reserved opcode of which the decoder does not know the operands: at most a SIB byte, a
/// displacement and an immediate of four bytes each.
pub(super) fn may_be_too_long(instruction: &Instruction) -> bool {
    instruction.is_invalid() && instruction.len() + 9 > 15
}

/// Returns whether the last bits of an instruction's result depend on the vendor. Bytes that were
/// changed can make one.
pub(super) fn estimates(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Rcpps
            | M::Rcpss
            | M::Rsqrtps
            | M::Rsqrtss
            | M::Vrcpps
            | M::Vrcpss
            | M::Vrsqrtps
            | M::Vrsqrtss
            | M::F2xm1
            | M::Fyl2x
            | M::Fyl2xp1
            | M::Fptan
            | M::Fpatan
            | M::Fsin
            | M::Fcos
            | M::Fsincos
    )
}

pub(super) fn compares_strings(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_string_instruction()
        && matches!(
            instruction.mnemonic(),
            M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq
        )
}

pub(super) fn converts_to_halves(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Vcvtps2ph
}

pub(super) fn moves_by_a_mask(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Vmaskmovps | M::Vmaskmovpd | M::Vpmaskmovd | M::Vpmaskmovq
    )
}

/// A masked move whose address has 16 bits.
pub(super) fn moves_by_a_mask_in_64_kbytes(instruction: &Instruction) -> bool {
    let registers = [instruction.memory_base(), instruction.memory_index()];
    moves_by_a_mask(instruction)
        && (instruction.memory_displ_size() == 2 || registers.iter().any(|r| r.size() == 2))
}

pub(super) fn loads_mxcsr(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr
    )
}

pub(super) fn is_sha(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Sha1msg1
            | M::Sha1msg2
            | M::Sha1nexte
            | M::Sha1rnds4
            | M::Sha256msg1
            | M::Sha256msg2
            | M::Sha256rnds2
    )
}

/// The numbers of the vector registers that a gather changes: its destination and its mask.
pub(super) fn changed_by_gather(instruction: &Instruction) -> Option<[usize; 2]> {
    let number = |register: Register| register.number();
    let has_indices =
        instruction.op1_kind() == OpKind::Memory && instruction.memory_index().is_vector_register();
    has_indices.then(|| [instruction.op0_register(), instruction.op2_register()].map(number))
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

/// Whether it is a repeated string instruction with 32-bit addressing.
#[must_use]
pub fn repeats_with_32_bits(instruction: &Instruction) -> bool {
    use OpKind as K;
    is_repeated(instruction)
        && instruction
            .op_kinds()
            .any(|kind| matches!(kind, K::MemorySegESI | K::MemorySegEDI | K::MemoryESEDI))
}

/// Whether the instruction reads all 64 bits of RCX, RSI or RDI, as an operand or in an address.
#[must_use]
pub fn reads_string_registers(instruction: &Instruction) -> bool {
    use OpAccess as A;
    use Register as R;
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    used.iter().any(|used| {
        matches!(used.register(), R::RCX | R::RSI | R::RDI)
            && matches!(
                used.access(),
                A::Read | A::CondRead | A::ReadWrite | A::ReadCondWrite
            )
    })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

    use iced_x86::code_asm::*;
    use iced_x86::{IcedError, RepPrefixKind};

    use super::*;

    fn instruction(code: fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Instruction {
        let mut a = CodeAssembler::new(64).unwrap();
        code(&mut a).unwrap();
        *a.instructions().first().unwrap()
    }

    #[test]
    fn a_repeat_with_32_bits_has_the_prefix_and_a_32_bit_pointer() {
        for repeated in [
            Instruction::with_rep_stosw(32),
            Instruction::with_rep_lodsb(32),
            Instruction::with_repe_cmpsb(32),
        ] {
            assert!(repeats_with_32_bits(&repeated.unwrap()));
        }
        for other in [
            Instruction::with_rep_stosw(64),
            Instruction::with_stosw(32, RepPrefixKind::None),
        ] {
            assert!(!repeats_with_32_bits(&other.unwrap()));
        }
    }

    #[test]
    fn a_string_register_is_read_as_an_operand_or_in_an_address() {
        for reads in [
            instruction(|a| a.mov(rax, rcx)),
            instruction(|a| a.mov(rax, qword_ptr(rsi + 8))),
            instruction(|a| a.lea(rax, qword_ptr(rdi * 2))),
            instruction(|a| a.lodsb()),
            instruction(|a| a.rep().movsb()),
            instruction(|a| a.add(rcx, 1)),
        ] {
            assert!(reads_string_registers(&reads), "{reads}");
        }
        for other in [
            instruction(|a| a.mov(rcx, rax)),
            instruction(|a| a.mov(eax, ecx)),
            instruction(|a| a.mov(eax, dword_ptr(esi))),
            instruction(|a| a.mov(cl, 1)),
            instruction(|a| a.shl(rax, cl)),
            instruction(|a| a.mov(rax, qword_ptr(rbx + r8))),
            Instruction::with_rep_movsb(32).unwrap(),
        ] {
            assert!(!reads_string_registers(&other), "{other}");
        }
    }
}
