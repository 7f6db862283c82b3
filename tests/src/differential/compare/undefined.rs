//! What the manual leaves undefined: flags, and condition codes of the x87 unit.

use super::super::State;
use super::super::layout::CODE;
use crate::differential::generate::Case;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};

/// The status word's condition codes.
pub(super) const C0: u16 = 1 << 8;
pub(super) const C2: u16 = 1 << 10;
pub(super) const C3: u16 = 1 << 14;

/// RFLAGS, from iced's numbering.
pub(super) fn rflags(bits: u32) -> u64 {
    const TABLE: [(u32, u64); 6] = [
        (RflagsBits::OF, 1 << 11),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::CF, 1 << 0),
        (RflagsBits::PF, 1 << 2),
    ];
    TABLE
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, flag)| flag)
        .sum()
}

/// Which flags are undefined after `instruction` if `before` were undefined before it (iced's
/// numbering).
#[must_use]
pub fn undefined_after(instruction: &Instruction, before: u32) -> u32 {
    let mut undefined = instruction.rflags_undefined();
    let mut defined =
        instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
    match instruction.mnemonic() {
        // A count of zero leaves every flag alone, and one above the operand size leaves CF
        // undefined.
        Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sal => {
            let (count, known) = immediate_count(instruction);
            if !known {
                defined = 0;
            }
            if (!known || count >= operand_bits(instruction)) && operand_bits(instruction) < 32 {
                undefined |= RflagsBits::CF;
            }
            if !known || count > 1 {
                undefined |= RflagsBits::OF;
            }
        }
        Mnemonic::Sar
        | Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rcl
        | Mnemonic::Rcr
        | Mnemonic::Shld
        | Mnemonic::Shrd => {
            let (count, known) = immediate_count(instruction);
            if !known {
                defined = 0;
            }
            if !known || count > 1 {
                undefined |= RflagsBits::OF;
            }
            // Beyond the operand size everything is undefined; `shrd_beyond` leaves those out.
        }
        _ if instruction.is_string_instruction() => defined = 0,
        _ => {}
    }
    (before & !defined) | undefined
}

/// The count of a shift, and whether it is in the instruction.
pub(super) fn immediate_count(instruction: &Instruction) -> (u32, bool) {
    let last = instruction.op_count() - 1;
    if instruction.op_kind(last) == OpKind::Immediate8 {
        let mask = if operand_bits(instruction) == 64 {
            63
        } else {
            31
        };
        (u32::from(instruction.immediate8()) & mask, true)
    } else {
        (0, false)
    }
}

pub(super) fn operand_bits(instruction: &Instruction) -> u32 {
    let size = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        _ => instruction.memory_size().size(),
    };
    size as u32 * 8
}

/// The flags that are undefined where the case ended (iced's numbering).
pub(super) fn undefined_flags(case: &Case, host: &State) -> u32 {
    let behind = case.instructions.last().map_or(CODE, Instruction::next_ip);
    let stopped_inside = (CODE..behind).contains(&host.rip);
    let mut undefined = 0;
    let mut branched = false;
    for instruction in &case.instructions {
        if stopped_inside && instruction.ip() >= host.rip {
            break;
        }
        // An instruction after a branch may have run or not.
        let after = undefined_after(instruction, undefined);
        undefined = if branched { undefined | after } else { after };
        branched |= instruction.flow_control() != FlowControl::Next;
    }
    undefined
}

/// Condition codes that an x87 instruction leaves undefined (SDM Vol. 2, "FPU Flags Affected").
pub(super) fn undefined_conditions(instruction: &Instruction) -> u16 {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Fcom
        | M::Fcomp
        | M::Fcompp
        | M::Fucom
        | M::Fucomp
        | M::Fucompp
        | M::Ficom
        | M::Ficomp
        | M::Ftst
        | M::Fxam => 0,
        M::Fprem | M::Fprem1 => 0,
        M::Fninit | M::Fnclex | M::Fstcw | M::Fnstcw | M::Fnstsw => 0,
        _ if format!("{:?}", instruction.mnemonic()).starts_with('F') => C0 | C2 | C3,
        _ => 0,
    }
}
