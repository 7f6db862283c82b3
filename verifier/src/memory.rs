//! The memory that native code may access.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::scratch::Scratch;
use crate::{Field, Piece, Refused, Rules, Why};

/// Checks the memory operand of an instruction, with what is known of the scratch registers before
/// it.
pub(crate) fn check(
    rules: &Rules<'_>,
    piece: &Piece<'_>,
    scratch: &Scratch,
    i: &Instruction,
) -> Result<(), Refused> {
    let accesses = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let indirect = matches!(i.mnemonic(), Mnemonic::Jmp | Mnemonic::Call)
        && i.op0_kind() != OpKind::NearBranch64;
    let allowed = match i.mnemonic() {
        _ if indirect => scratch.may_jump(rules, i),
        Mnemonic::Lea => true,
        Mnemonic::Ldmxcsr => {
            is_field(i, Register::R15, rules.mxcsr) || is_field(i, Register::RSP, rules.host_mxcsr)
        }
        Mnemonic::Stmxcsr => is_field(i, Register::R15, rules.mxcsr),
        Mnemonic::Vldmxcsr | Mnemonic::Vstmxcsr => false,
        _ => !accesses || is_allowed(rules, piece, scratch, i),
    };
    if allowed {
        Ok(())
    } else {
        Err(Refused {
            address: i.ip(),
            why: Why::Memory,
        })
    }
}

fn is_allowed(rules: &Rules<'_>, piece: &Piece<'_>, scratch: &Scratch, i: &Instruction) -> bool {
    // A register can name a bit beyond the operand.
    let is_bit = matches!(
        i.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    );
    if is_bit && i.op1_kind() == OpKind::Register && !scratch.has_bit_number(i.op1_register()) {
        return false;
    }
    if i.has_segment_prefix() {
        return is_reserved(i);
    }
    if i.memory_index() != Register::None {
        return false;
    }
    match i.memory_base() {
        Register::RSP => has_field(rules.frame, i),
        Register::R15 if displacement(i) == rules.window_index && writes(i) => {
            scratch.may_store_index(i)
        }
        Register::R15 => has_field(rules.processor, i),
        Register::RIP => !writes(i) && is_constant(piece, i),
        _ => !writes(i) && scratch.may_read(rules, i),
    }
}

/// Whether the operand is at GS plus an address of 32 bits, which is not relative to RIP.
fn is_reserved(i: &Instruction) -> bool {
    let is_short = |r: Register| r == Register::None || r.is_gpr32();
    let (base, index) = (i.memory_base(), i.memory_index());
    let has_register = base != Register::None || index != Register::None;
    i.segment_prefix() == Register::GS
        && is_short(base)
        && is_short(index)
        && (has_register || i.memory_displ_size() == 4)
}

/// Whether the operand has one register of 64 bits and no segment prefix.
pub(crate) fn is_direct(i: &Instruction) -> bool {
    !i.has_segment_prefix() && i.memory_index() == Register::None && i.memory_base().is_gpr64()
}

/// Whether the operand is at `at` from this register.
pub(crate) fn is_field(i: &Instruction, base: Register, at: i32) -> bool {
    is_direct(i) && i.memory_base() == base && displacement(i) == at
}

pub(crate) fn displacement(i: &Instruction) -> i32 {
    i.memory_displacement64() as i32
}

fn size(i: &Instruction) -> u64 {
    i.memory_size().size() as u64
}

fn has_field(fields: &[Field], i: &Instruction) -> bool {
    let (at, size) = (i64::from(displacement(i)), size(i) as i64);
    let writes = writes(i);
    fields.iter().any(|field| {
        let start = i64::from(field.at);
        start <= at && at + size <= start + i64::from(field.len) && (field.writable || !writes)
    })
}

/// Whether the operand lies in the piece, or is a key.
fn is_constant(piece: &Piece<'_>, i: &Instruction) -> bool {
    let (address, size) = (i.ip_rel_memory_address(), size(i));
    let in_part = piece.parts.iter().any(|part| {
        let at = address.wrapping_sub(part.address);
        at.checked_add(size)
            .is_some_and(|end| end <= part.code.len() as u64)
    });
    in_part || size == 8 && piece.keys.contains(&address)
}

/// Whether the instruction may write its memory operand: it is the first one, and the instruction
/// is none of those that only read that.
pub(crate) fn writes(i: &Instruction) -> bool {
    let reads = matches!(
        i.mnemonic(),
        Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Bt
            | Mnemonic::Mul
            | Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Nop
    ) || i.mnemonic() == Mnemonic::Imul && i.op_count() == 1;
    i.op0_kind() == OpKind::Memory && !reads
        // XCHG and XADD write all operands, wherever the memory is.
        || matches!(i.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd)
}
