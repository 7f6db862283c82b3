//! Memory operands, and the numbers of registers.

use iced_x86::{CodeSize as IcedCodeSize, Instruction, OpKind, Register};

use crate::insn::{CodeSize, Insn, reg, seg};

/// Fills the memory operand.
pub(super) fn memory(size: CodeSize, i: &Instruction, insn: &mut Insn) {
    let segment = number(segment(size, i));
    insn.seg = match (size, segment) {
        (CodeSize::Bits64, seg::SS) => seg::FLAT_SS,
        (CodeSize::Bits64, s) if s < seg::FS => seg::FLAT,
        (_, s) => s,
    };
    insn.scale = i.memory_index_scale() as u8;
    insn.index = match i.memory_index() {
        // The index of XLAT is AL, not RAX: the operation adds it.
        Register::AL => reg::ZERO,
        indices if indices.is_vector_register() => {
            insn.src = number(indices);
            insn.imm = insn.scale.into();
            reg::ZERO
        }
        index => number(index),
    };
    insn.prefix |= match address_size(i) {
        16 => Insn::A16,
        32 => Insn::A32,
        _ => 0,
    };
    if i.is_ip_rel_memory_operand() {
        insn.base = reg::BLOCK;
        let next = insn.next_offset();
        insn.disp = i.ip_rel_memory_address().wrapping_sub(next) as i32;
        return;
    }
    insn.base = number(i.memory_base());
    let disp = i.memory_displacement64();
    insn.disp = disp as i32;
    if insn.disp as u64 != disp && insn.prefix & (Insn::A16 | Insn::A32) == 0 {
        insn.disp = 0;
        insn.imm = disp;
        insn.prefix |= Insn::OFFSET64;
    }
}

/// The number that encodes a register in an instruction.
pub(super) fn number(r: Register) -> u8 {
    match r {
        Register::AH | Register::CH | Register::DH | Register::BH => {
            reg::HIGH8 + (r as u8 - Register::AH as u8)
        }
        Register::None => reg::ZERO,
        // iced numbers the byte registers in one row: AL..BL, AH..BH, then SPL..R15L.
        _ if r.is_gpr8() => r.full_register().number() as u8,
        _ => r.number() as u8,
    }
}

/// Segment of the memory operand. 64-bit mode ignores the prefixes of ES, CS, SS and DS: an address
/// relative to RSP or RBP is in SS, any other in DS (SDM Vol. 1 3.4.2.1, Vol. 2A 2.1.1).
fn segment(code_size: CodeSize, insn: &Instruction) -> Register {
    match (code_size, insn.memory_segment()) {
        (_, register @ (Register::FS | Register::GS)) => register,
        (CodeSize::Bits64, _) => match insn.memory_base() {
            Register::RSP | Register::RBP | Register::ESP | Register::EBP => Register::SS,
            _ => Register::DS,
        },
        (_, register) => register,
    }
}

/// Address size of the memory operand, or of the implicit one of a string instruction, in bits.
pub(super) fn address_size(insn: &Instruction) -> u32 {
    for i in 0..insn.op_count() {
        match insn.op_kind(i) {
            OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => return 16,
            OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI => return 32,
            OpKind::MemorySegRSI | OpKind::MemorySegRDI | OpKind::MemoryESRDI => return 64,
            OpKind::Memory => {
                let by = |r: Register| match r {
                    Register::None => None,
                    Register::EIP => Some(32),
                    Register::RIP => Some(64),
                    _ => Some(r.size() as u32 * 8),
                };
                return by(insn.memory_base())
                    .or_else(|| by(insn.memory_index()))
                    .unwrap_or(match insn.memory_displ_size() {
                        2 => 16,
                        4 => 32,
                        8 => 64,
                        _ => match insn.code_size() {
                            IcedCodeSize::Code64 => 64,
                            IcedCodeSize::Code32 => 32,
                            _ => 16,
                        },
                    });
            }
            _ => {}
        }
    }
    match insn.code_size() {
        IcedCodeSize::Code64 => 64,
        IcedCodeSize::Code32 => 32,
        _ => 16,
    }
}

/// The segment of a source that is addressed without ModRM, as [`Insn::seg`] numbers it: DS or the
/// override. In 64-bit mode only FS and GS are overrides.
pub(super) fn source_segment(i: &Instruction) -> u8 {
    let segment = match i.segment_prefix() {
        Register::None => seg::DS,
        prefix => number(prefix),
    };
    match (i.code_size() == IcedCodeSize::Code64, segment) {
        (true, s) if s < seg::FS => seg::FLAT,
        (_, s) => s,
    }
}
