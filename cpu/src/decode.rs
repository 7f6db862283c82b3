//! From bytes to operations: decoding with iced-x86, and filling [`Op`] from the decoded
//! instruction.

use iced_x86::{
    CodeSize as IcedCodeSize, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction,
    Mnemonic, OpKind, Register,
};

use crate::backend::interpreter::dispatch::{Passes, called};
use crate::backend::interpreter::fused;
use crate::engine::block::{Block, CodeSize};
use crate::exec;
use crate::insn::{Handler, Op, reg, seg};
use crate::processor::cpu::Cpu;

/// Longest instruction in bytes (SDM Vol. 2A 2.3.11).
pub(crate) const MAX_INSTRUCTION: usize = 15;
/// Longest block in instructions.
pub(crate) const MAX_BLOCK: u8 = 48;

fn decoder<'a>(size: CodeSize, bytes: &'a [u8]) -> Decoder<'a> {
    decoder_with(size, bytes, DecoderOptions::NONE)
}

fn decoder_with<'a>(size: CodeSize, bytes: &'a [u8], options: u32) -> Decoder<'a> {
    let bits = match size {
        CodeSize::Bits16 => 16,
        CodeSize::Bits32 => 32,
        CodeSize::Bits64 => 64,
    };
    // Encodings that later processors gave a meaning keep the one they had before: 0F 0D and 0F
    // 18-1F are hints, and F3 means nothing before BSF and BSR.
    const OPTIONS: u32 = DecoderOptions::FORCE_RESERVED_NOP
        | DecoderOptions::NO_MPFX_0FBC
        | DecoderOptions::NO_MPFX_0FBD
        | DecoderOptions::NO_WBNOINVD;
    // Addresses count from the start of the block: see `Op::imm` and `reg::BLOCK`.
    Decoder::with_ip(bits, bytes, 0, OPTIONS | options)
}

/// Decodes the block at `host`, which is guest-physical `gpa`, as far as the page goes, of at most
/// `longest` instructions. `None` if its first instruction crosses the page or is none.
pub(crate) fn block(cpu: &Cpu, host: *const u8, gpa: u64, longest: u8) -> Option<Block> {
    let mut bytes = [0u8; MAX_BLOCK as usize * MAX_INSTRUCTION];
    let longest = longest.min(MAX_BLOCK);
    let left = (0x1000 - (gpa & 0xFFF) as usize).min(usize::from(longest) * MAX_INSTRUCTION);
    // SAFETY: `host` is RAM, and `left` does not leave its page.
    unsafe { std::ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), left) };
    let mut decoder = decoder(cpu.code_size, &bytes[..left]);
    let mut ops = Vec::with_capacity(16);
    let (mut insn, mut previous) = (Instruction::default(), Instruction::default());
    let mut count = 0;
    let mut branches = 0u64;
    let mut len = 0;
    let mut passed = Passed::default();
    while count < longest && decoder.can_decode() {
        decoder.decode_out(&mut insn);
        // What is no instruction may be one of more than 15 bytes: `single` tells them apart.
        if decoder.last_error() != DecoderError::None {
            break;
        }
        let (first, operand) = (ops.len().wrapping_sub(1), passed.operand);
        push(cpu, &insn, len, count, &mut ops, &mut passed);
        if let Some(op) = ops.get_mut(first)
            && let Some(run) = fused::select(&previous, &insn, operand)
        {
            op.run = run;
        }
        previous = insn;
        branches |= u64::from(is_branch(&insn)) << count;
        count += 1;
        len = decoder.ip() as u16;
        if ends_block(&insn) {
            break;
        }
    }
    (count > 0).then(|| Block::new(ops, branches, &bytes[..usize::from(len)]))
}

/// Decodes one instruction; `None` if `bytes`, at most 15, do not hold all of it.
pub(crate) fn single(cpu: &Cpu, bytes: &[u8]) -> Option<Block> {
    let mut decoder = decoder(cpu.code_size, bytes);
    let insn = decoder.decode();
    if decoder.last_error() == DecoderError::NoMoreBytes {
        return None;
    }
    // Its answer for what goes on behind the 15th byte is the same as for a LOCK prefix out of
    // place.
    if insn.is_invalid()
        && insn.len() == MAX_INSTRUCTION
        && decoder_with(cpu.code_size, bytes, DecoderOptions::NO_INVALID_CHECK)
            .decode()
            .is_invalid()
    {
        return Some(too_long(bytes));
    }
    let mut ops = Vec::with_capacity(2);
    push(cpu, &insn, 0, 0, &mut ops, &mut Passed::default());
    let bytes = &bytes[..decoder.ip() as usize];
    Some(Block::new(ops, is_branch(&insn).into(), bytes))
}

/// The block for an instruction of more than 15 bytes, of which `bytes` are the first: #GP(0) (SDM
/// Vol. 3A 6.15, vector 13).
pub(crate) fn too_long(bytes: &[u8]) -> Block {
    let op = Op {
        body: exec::too_long,
        ..Op::BLANK
    };
    Block::new(vec![op], 0, bytes)
}

/// It is one of control transfer, whether conditional or not.
fn is_branch(insn: &Instruction) -> bool {
    !matches!(
        insn.flow_control(),
        FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend
    )
}

/// It is a branch that leads to one place.
fn is_direct(insn: &Instruction) -> bool {
    matches!(
        insn.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

/// Nothing after this instruction runs without a jump. Conditional branches do not end a block: not
/// taken, they go on in it.
fn ends_block(insn: &Instruction) -> bool {
    !matches!(
        insn.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend
    )
}

/// What the last operation so far passes on to the next (see `dispatch`).
#[derive(Debug, Default)]
struct Passed {
    /// The general register whose value it is.
    register: Option<u8>,
    /// Which operand the last operation itself is passed.
    operand: u8,
}

/// Appends the operations of one instruction.
fn push(cpu: &Cpu, insn: &Instruction, off: u16, idx: u8, ops: &mut Vec<Op>, passed: &mut Passed) {
    let before = std::mem::take(passed);
    let count = ops.len();
    let mut op = Op {
        off,
        idx,
        len: insn.len() as u8,
        ..Op::BLANK
    };
    op.prefix = prefixes(insn);
    let known = !insn.is_invalid() && insn.cpuid_features().iter().all(|f| cpu.model.executes(*f));
    if !known {
        ops.push(op);
        return;
    }
    operands(insn, &mut op);
    let Some(found) = exec::lower(insn, &mut op) else {
        ops.push(op);
        return;
    };
    op.body = found.body;
    if !is_direct(insn) {
        op.link = Op::INDIRECT;
    }
    if op.prefix & Op::MEM != 0 {
        memory(cpu, insn, &mut op, ops);
    }
    // An address operation passes nothing on.
    let register = before.register.filter(|_| ops.len() == count);
    passed.operand = found.operand(&op, register);
    passed.register = match found.passes {
        Passes::Destination => Some(op.dst),
        Passes::Same => register,
        Passes::Nothing => None,
    };
    op.run = found.run(passed.operand);
    ops.push(op);
}

fn prefixes(insn: &Instruction) -> u8 {
    let mut p = 0;
    if insn.has_rep_prefix() {
        p |= Op::REP;
    }
    if insn.has_repne_prefix() {
        p |= Op::REPNE;
    }
    if insn.has_lock_prefix() {
        p |= Op::LOCK;
    }
    let code = insn.op_code();
    match code.operand_size() {
        64 => p |= Op::O64,
        16 => p |= Op::O16,
        _ => {}
    }
    p
}

/// Fills registers and immediates. The first register operand in position 0 is `dst`, in position 1
/// `src`, in position 2 `aux`.
fn operands(insn: &Instruction, op: &mut Op) {
    for i in 0..insn.op_count() {
        match insn.op_kind(i) {
            OpKind::Register => {
                let n = number(insn.op_register(i));
                match i {
                    0 => op.dst = n,
                    1 => op.src = n,
                    _ => op.aux = n,
                }
            }
            OpKind::NearBranch16 => op.imm = insn.near_branch16() as i16 as u64,
            OpKind::NearBranch32 => op.imm = insn.near_branch32() as i32 as u64,
            OpKind::NearBranch64 => op.imm = insn.near_branch64(),
            // ENTER and EXTRQ have a second immediate; their lowering fetches it.
            OpKind::Immediate8_2nd => {}
            OpKind::FarBranch16 | OpKind::FarBranch32 => {}
            OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI => {
                op.prefix |= if insn.op_kind(i) == OpKind::Memory {
                    Op::MEM
                } else {
                    0
                }
            }
            _ => op.imm = insn.immediate(i),
        }
    }
}

/// The number by which instructions encode a register.
pub(crate) fn number(r: Register) -> u8 {
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

/// Segment of the memory operand. In 64-bit mode the prefixes of ES, CS, SS and DS are ignored, so
/// that an address relative to RSP or RBP stays in SS and no other is (SDM Vol. 1 3.4.2.1, Vol. 2A
/// 2.1.1).
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

/// Fills the memory operand: directly for 64-bit addressing, else through an address operation.
fn memory(cpu: &Cpu, insn: &Instruction, op: &mut Op, ops: &mut Vec<Op>) {
    let base = insn.memory_base();
    let index = insn.memory_index();
    let segment = number(segment(cpu.code_size, insn));
    let size = address_size(insn);
    let stack = segment == seg::SS;
    op.scale = insn.memory_index_scale() as u8;
    // XLAT adds AL, not RAX: see `address::addend`.
    op.index = if index == Register::AL {
        reg::ZERO
    } else {
        number(index)
    };
    if insn.is_ip_rel_memory_operand() {
        // The decoder counts from the block's start, and so does `reg::BLOCK`.
        op.base = reg::BLOCK;
        op.disp = insn.ip_rel_memory_address() as i64;
    } else {
        op.base = number(base);
        op.disp = insn.memory_displacement64() as i64;
    }
    let flat = cpu.code_size == CodeSize::Bits64 && segment < seg::FS;
    op.seg = match (flat, stack) {
        (true, false) => seg::FLAT,
        (true, true) => seg::FLAT_SS,
        _ => segment,
    };
    let before = |body: Handler, op: &Op| Op {
        run: called,
        body,
        ..*op
    };
    // An address of POP counts from the stack pointer after the pop (SDM Vol. 2B, POP), an address
    // operation runs before.
    let popped = match (insn.mnemonic(), base) {
        (Mnemonic::Pop, Register::RSP | Register::ESP) => insn.memory_size().size() as i64,
        _ => 0,
    };
    if let Some(body) = exec::address::addend(insn) {
        ops.push(before(body, op));
        at_tmp(op);
    }
    if cpu.code_size == CodeSize::Bits64 && size == 64 {
        if !flat && insn.mnemonic() != Mnemonic::Lea {
            if op.index != reg::ZERO {
                let mut address = before(exec::address::offset, op);
                address.disp += popped;
                ops.push(address);
                at_tmp(op);
            }
            (op.index, op.scale) = (reg::SEGMENT + segment, 1);
        }
        return;
    }
    op.prefix |= if size == 16 { Op::A16 } else { Op::A32 };
    if let Some(body) = exec::before_address(insn) {
        ops.push(before(body, op));
    }
    let mut address = before(exec::address::select(insn, cpu.code_size), op);
    address.disp += popped;
    address.imm = u64::from(exec::address::access(insn));
    ops.push(address);
    at_tmp(op);
    op.seg = if stack { seg::FLAT_SS } else { seg::FLAT };
}

/// The memory operand is where an operation before this one has left in [`reg::TMP`].
fn at_tmp(op: &mut Op) {
    op.base = reg::TMP;
    op.index = reg::ZERO;
    op.disp = 0;
    op.scale = 1;
}

/// Address size of the memory operand, or of the implicit one of a string instruction, in bits.
pub(crate) fn address_size(insn: &Instruction) -> u32 {
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
