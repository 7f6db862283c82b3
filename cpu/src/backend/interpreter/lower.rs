//! From instructions to operations.

use std::sync::LazyLock;

use iced_x86::{DecoderError, EncodingKind, Instruction, Mnemonic};

use crate::backend::interpreter::dispatch::{Forwarding, Interpreter};
use crate::backend::interpreter::fused;
use crate::backend::interpreter::op::Op;
use crate::decode::{self, MAX_BLOCK};
use crate::exec::table::{Handler, Table};
use crate::exec::{self, address};
use crate::insn::{CodeSize, Insn, reg, seg};
use crate::processor::cpu::Cpu;
use crate::processor::pmu::branch_bits;

/// How the interpreter executes each instruction.
pub(crate) static INSTRUCTIONS: LazyLock<Table<Interpreter>> = LazyLock::new(exec::instructions);

/// The operations of a block.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    pub ops: Vec<Op>,
    /// Which of its instructions are branches, see [`branch_bits`].
    pub branches: u64,
    /// Length in bytes.
    pub len: usize,
}

/// Decodes the block at the start of `bytes`, which end where its page does, of at most `longest`
/// instructions. `None` if its first instruction crosses the page or is invalid.
pub(crate) fn block(cpu: &Cpu, bytes: &[u8], longest: u8) -> Option<Lowered> {
    let longest = longest.min(MAX_BLOCK);
    let mut decoder = decode::decoder(cpu.model, cpu.code_size, bytes);
    let mut lowered = Lowered {
        ops: Vec::with_capacity(16),
        branches: 0,
        len: 0,
    };
    let (mut decoded, mut previous) = (Instruction::default(), Instruction::default());
    let mut count = 0;
    let mut forwarded = Forwarded::default();
    while count < longest && decoder.can_decode() {
        decoder.decode_out(&mut decoded);
        // An invalid instruction may be one of more than 15 bytes: `single` tells them apart.
        if decoder.last_error() != DecoderError::None {
            break;
        }
        let ops = &mut lowered.ops;
        let (first, operand) = (ops.len().wrapping_sub(1), forwarded.operand);
        let insn = decode::insn(cpu.code_size, &decoded, lowered.len as u16, count);
        if count > 0 && decode::begins_block(&decoded, &insn) {
            break;
        }
        push(cpu, &decoded, insn, ops, &mut forwarded);
        if let Some(op) = ops.get_mut(first)
            && let Some(run) = fused::select(&previous, &decoded, operand)
        {
            op.run = run;
        }
        previous = decoded;
        lowered.branches |= branch_bits(&insn);
        count += 1;
        lowered.len = decoder.ip() as usize;
        if insn.branch.ends_block() {
            break;
        }
    }
    (count > 0).then_some(lowered)
}

/// Decodes one instruction; `None` if `bytes`, at most 15, do not hold all of it.
pub(crate) fn single(cpu: &Cpu, bytes: &[u8]) -> Option<Lowered> {
    let mut decoder = decode::decoder(cpu.model, cpu.code_size, bytes);
    let decoded = decoder.decode();
    if decoder.last_error() == DecoderError::NoMoreBytes {
        return None;
    }
    if decode::is_too_long(cpu.model, cpu.code_size, bytes, &decoded) {
        return Some(too_long(bytes));
    }
    let mut ops = Vec::with_capacity(2);
    let insn = decode::insn(cpu.code_size, &decoded, 0, 0);
    push(cpu, &decoded, insn, &mut ops, &mut Forwarded::default());
    Some(Lowered {
        ops,
        branches: branch_bits(&insn),
        len: decoder.ip() as usize,
    })
}

/// The block for an instruction of more than 15 bytes, of which `bytes` are the first: #GP(0) (SDM
/// Vol. 3A 6.15, vector 13).
pub(crate) fn too_long(bytes: &[u8]) -> Lowered {
    Lowered {
        ops: vec![Op::called(exec::too_long, Insn::INVALID)],
        branches: 0,
        len: bytes.len(),
    }
}

/// What the last operation so far forwards to the next (see `dispatch`).
#[derive(Debug, Default)]
struct Forwarded {
    /// The general register whose value it is.
    register: Option<u8>,
    /// Which operand is forwarded to the last operation itself.
    operand: u8,
}

/// Appends the operations of the instruction `insn`, which was decoded as `i`.
fn push(cpu: &Cpu, i: &Instruction, insn: Insn, ops: &mut Vec<Op>, forwarded: &mut Forwarded) {
    let before = std::mem::take(forwarded);
    let count = ops.len();
    let Some(found) = INSTRUCTIONS
        .find(&insn)
        .filter(|_| cpu.model.has_instruction(i))
    else {
        ops.push(Op::called(exec::undefined, insn));
        return;
    };
    let mut op = Op::called(found.body, insn);
    if insn.prefix & Insn::DIRECT == 0 {
        op.link = Op::INDIRECT;
    }
    if cpu.code_size != CodeSize::Bits64 && i.op_code().encoding() == EncodingKind::VEX {
        ops.push(Op::called(exec::require_protected_mode, insn));
    }
    if insn.prefix & Insn::MEM != 0 {
        memory(cpu.code_size, i, &mut op.insn, ops);
    }
    // An address operation forwards nothing.
    let register = before.register.filter(|_| ops.len() == count);
    forwarded.operand = found.operand(&op.insn, register);
    forwarded.register = match found.forwarding {
        Forwarding::Destination => Some(op.insn.dst),
        Forwarding::Unchanged => register,
        Forwarding::Nothing => None,
    };
    op.run = found.run(forwarded.operand);
    ops.push(op);
}

/// Brings the memory operand into the form that `Cpu::ea` computes, which has no segment limits, no
/// truncation and a displacement of 32 bits: what is beyond that an address operation computes.
fn memory(size: CodeSize, i: &Instruction, insn: &mut Insn, ops: &mut Vec<Op>) {
    let flat = matches!(insn.seg, seg::FLAT | seg::FLAT_SS);
    let stack = matches!(insn.seg, seg::SS | seg::FLAT_SS);
    let long = insn.prefix & (Insn::A16 | Insn::A32) == 0;
    // An address of POP counts from the stack pointer after the pop (SDM Vol. 2B, POP), an address
    // operation runs before.
    let popped = match (i.mnemonic(), insn.base) {
        (Mnemonic::Pop, RSP) => i.memory_size().size() as i64,
        _ => 0,
    };
    let disp = if insn.prefix & Insn::OFFSET64 != 0 {
        insn.imm as i64
    } else if insn.base == reg::BLOCK {
        // `reg::BLOCK` is RIP of the block's start.
        i64::from(insn.disp) + insn.next_offset() as i64
    } else {
        insn.disp.into()
    };
    insn.disp = disp as i32;
    if long && i64::from(insn.disp) != disp {
        ops.push(offset(insn, disp));
        at_tmp(insn);
    }
    if let Some(body) = INSTRUCTIONS.addend(insn.code) {
        ops.push(Op::called(body, *insn));
        at_tmp(insn);
    }
    if size == CodeSize::Bits64 && long {
        if !flat && i.mnemonic() != Mnemonic::Lea {
            if insn.index != reg::ZERO {
                ops.push(offset(insn, i64::from(insn.disp) + popped));
                at_tmp(insn);
            }
            (insn.index, insn.scale) = (reg::SEGMENT + insn.seg, 1);
        }
        return;
    }
    if let Some(body) = INSTRUCTIONS.before_address(insn.code) {
        ops.push(Op::called(body, *insn));
    }
    let mut address = Op::called(address::select(i, size), *insn);
    address.insn.disp = insn.disp.wrapping_add(popped as i32);
    address.insn.imm = u64::from(address::access(i));
    ops.push(address);
    at_tmp(insn);
    insn.seg = if stack { seg::FLAT_SS } else { seg::FLAT };
}

const RSP: u8 = crate::state::gpr::RSP as u8;

/// The address operation for base and index of `insn` with this displacement.
fn offset(insn: &Insn, disp: i64) -> Op {
    let body: Handler = address::offset;
    let mut op = Op::called(body, *insn);
    (op.insn.disp, op.insn.imm) = (0, disp as u64);
    op
}

/// The memory operand is where an operation before this one has left it in [`reg::TMP`].
fn at_tmp(insn: &mut Insn) {
    insn.base = reg::TMP;
    insn.index = reg::ZERO;
    insn.disp = 0;
    insn.scale = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model;

    /// Base, displacement and immediate of each operation of one instruction, at offset 0 of its
    /// block in 64-bit code.
    fn lowered(bytes: &[u8]) -> Vec<(u8, i32, u64)> {
        let model = model("core2").unwrap();
        let i = decode::decoder(model, CodeSize::Bits64, bytes).decode();
        let mut insn = decode::insn(CodeSize::Bits64, &i, 0, 0);
        let mut ops = Vec::new();
        memory(CodeSize::Bits64, &i, &mut insn, &mut ops);
        ops.push(Op::called(exec::undefined, insn));
        ops.iter()
            .map(|op| (op.insn.base, op.insn.disp, op.insn.imm))
            .collect()
    }

    #[test]
    fn displacements_of_more_than_32_bits_become_an_address_operation() {
        // CMP dword [RIP + disp], 5, of 7 bytes.
        let cmp = |disp: u8| lowered(&[0x83, 0x3D, disp, 0xFF, 0xFF, 0x7F, 5]);
        assert_eq!(cmp(0xF8), [(reg::BLOCK, i32::MAX, 5)]);
        assert_eq!(cmp(0xF9), [(reg::BLOCK, 0, 0x8000_0000), (reg::TMP, 0, 5)]);
        // MOV RAX, [0x8877665544332211]
        let offset = 0x8877_6655_4433_2211;
        let mov = lowered(&[0x48, 0xA1, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(mov, [(reg::ZERO, 0, offset), (reg::TMP, 0, offset)]);
    }
}
