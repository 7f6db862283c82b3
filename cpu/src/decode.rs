//! Decodes bytes to [`Insn`] with iced-x86.
//!
//! [`Insn::aux`] has the third register operand. For these instructions it has another value:
//!
//! | instruction | value |
//! |---|---|
//! | string instructions, INS, OUTS, LOOP, JCXZ | address size in bits |
//! | XCHG with memory | the register operand |
//! | ENTER | nesting level, 0 to 31 |
//! | LDS, LES, LFS, LGS, LSS | the segment register |
//! | x87 | the low three bits of the opcode |
//!
//! [`Insn::imm`] has the fourth register operand. A gather has the register of its indices in
//! [`Insn::src`] and their factor in [`Insn::imm`]. Gathers and masked moves have no [`Insn::MEM`],
//! because each of their elements has an address of its own.
//!
//! MASKMOVQ and MASKMOVDQU have the address size in [`Insn::dst`]. An x87 instruction has ModRM or
//! its reg field in [`Insn::src`], and the size of its memory operand in bytes in [`Insn::dst`].

mod operand;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpCodeOperandKind,
    OpCodeTableKind, OpKind,
};

use crate::decode::operand::{address_size, memory, number, source_segment};
use crate::insn::{BranchKind, CodeSize, Insn, seg};
use crate::model::Model;

/// Longest instruction in bytes (SDM Vol. 2A 2.3.11).
pub(crate) const MAX_INSTRUCTION: usize = 15;
/// Longest block in instructions.
pub(crate) const MAX_BLOCK: u8 = 48;

/// A decoder of `bytes` for a processor of `model`, which counts addresses from their start.
pub(crate) fn decoder<'a>(model: &Model, size: CodeSize, bytes: &'a [u8]) -> Decoder<'a> {
    decoder_with(model, size, bytes, DecoderOptions::NONE)
}

fn decoder_with<'a>(model: &Model, size: CodeSize, bytes: &'a [u8], options: u32) -> Decoder<'a> {
    let bits = match size {
        CodeSize::Bits16 => 16,
        CodeSize::Bits32 => 32,
        CodeSize::Bits64 => 64,
    };
    // Encodings that later processors use keep their earlier meaning: 0F 0D and 0F 18-1F are hints,
    // and F3 before BSF and BSR is ignored unless it makes them TZCNT and LZCNT.
    const OPTIONS: u32 = DecoderOptions::FORCE_RESERVED_NOP | DecoderOptions::NO_WBNOINVD;
    const BIT_SCANS: u32 = DecoderOptions::NO_MPFX_0FBC | DecoderOptions::NO_MPFX_0FBD;
    let scans = if model.counts_zeros { 0 } else { BIT_SCANS };
    Decoder::with_ip(bits, bytes, 0, OPTIONS | scans | options)
}

/// Whether `decoded` is invalid only because it continues after the 15th byte.
pub(crate) fn is_too_long(
    model: &Model,
    size: CodeSize,
    bytes: &[u8],
    decoded: &Instruction,
) -> bool {
    // iced-x86 reports a misplaced LOCK prefix in the same way.
    decoded.is_invalid()
        && decoded.len() == MAX_INSTRUCTION
        && decoder_with(model, size, bytes, DecoderOptions::NO_INVALID_CHECK)
            .decode()
            .is_invalid()
}

/// The instruction `i`, which is the `ordinal`th of its block and at `offset` in it.
pub(crate) fn insn(size: CodeSize, i: &Instruction, offset: u16, ordinal: u8) -> Insn {
    let mut insn = Insn {
        offset,
        ordinal,
        len: i.len() as u8,
        code: i.code(),
        prefix: prefixes(i),
        branch: branch_kind(i),
        ..Insn::INVALID
    };
    operands(i, &mut insn);
    special_cases(i, &mut insn);
    if insn.prefix & Insn::MEM != 0 {
        memory(size, i, &mut insn);
    }
    if i.is_vsib() || is_masked_move(i) {
        insn.prefix &= !Insn::MEM;
    }
    insn
}

/// Whether a block ends before the instruction, so that the time at the start of its own block is
/// that of the instruction: it accesses a device, the local APIC or an MSR, writes a control
/// register, or can change the privilege level.
pub(crate) fn begins_block(i: &Instruction, insn: &Insn) -> bool {
    let transfers = matches!(
        insn.branch,
        BranchKind::Far
            | BranchKind::SystemCall
            | BranchKind::SystemReturn
            | BranchKind::Interrupt
            | BranchKind::InterruptReturn
    );
    transfers
        || matches!(i.code(), Code::Mov_cr_r32 | Code::Mov_cr_r64)
        || matches!(
            i.mnemonic(),
            Mnemonic::In
                | Mnemonic::Insb
                | Mnemonic::Insw
                | Mnemonic::Insd
                | Mnemonic::Out
                | Mnemonic::Outsb
                | Mnemonic::Outsw
                | Mnemonic::Outsd
                | Mnemonic::Rdmsr
                | Mnemonic::Wrmsr
        )
}

/// Whether it is a move of the elements that a vector selects.
pub(crate) fn is_masked_move(i: &Instruction) -> bool {
    matches!(
        i.mnemonic(),
        Mnemonic::Vmaskmovps | Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovd | Mnemonic::Vpmaskmovq
    )
}

/// How an instruction transfers control.
fn branch_kind(i: &Instruction) -> BranchKind {
    match i.flow_control() {
        FlowControl::Next | FlowControl::XbeginXabortXend => BranchKind::None,
        FlowControl::ConditionalBranch => BranchKind::Conditional,
        _ => match i.mnemonic() {
            Mnemonic::Call if i.is_call_far() || i.is_call_far_indirect() => BranchKind::Far,
            Mnemonic::Jmp if i.is_jmp_far() || i.is_jmp_far_indirect() => BranchKind::Far,
            Mnemonic::Retf => BranchKind::Far,
            Mnemonic::Call => BranchKind::NearCall,
            Mnemonic::Jmp => BranchKind::NearJump,
            Mnemonic::Ret => BranchKind::NearReturn,
            Mnemonic::Syscall | Mnemonic::Sysenter => BranchKind::SystemCall,
            Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
                BranchKind::SystemReturn
            }
            Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Into => {
                BranchKind::Interrupt
            }
            Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => BranchKind::InterruptReturn,
            _ => BranchKind::Exception,
        },
    }
}

fn prefixes(insn: &Instruction) -> u16 {
    let mut p = 0;
    if insn.has_rep_prefix() {
        p |= Insn::REP;
    }
    if insn.has_repne_prefix() {
        p |= Insn::REPNE;
    }
    if insn.has_lock_prefix() {
        p |= Insn::LOCK;
    }
    let code = insn.op_code();
    match code.operand_size() {
        64 => p |= Insn::O64,
        16 => p |= Insn::O16,
        _ => {}
    }
    p
}

/// Fills registers and immediates. The register operand in position 0 is `dst`, in position 1
/// `src`, in position 2 `aux`.
fn operands(i: &Instruction, insn: &mut Insn) {
    for n in 0..i.op_count() {
        match i.op_kind(n) {
            OpKind::Register => {
                let register = number(i.op_register(n));
                match n {
                    0 => insn.dst = register,
                    1 => insn.src = register,
                    2 => insn.aux = register,
                    _ => insn.imm = register.into(),
                }
            }
            OpKind::NearBranch16 => {
                insn.imm = i.near_branch16() as i16 as u64;
                insn.prefix |= Insn::DIRECT;
            }
            OpKind::NearBranch32 => {
                insn.imm = i.near_branch32() as i32 as u64;
                insn.prefix |= Insn::DIRECT;
            }
            OpKind::NearBranch64 => {
                insn.imm = i.near_branch64();
                insn.prefix |= Insn::DIRECT;
            }
            OpKind::FarBranch16 => {
                insn.imm = i.far_branch16().into();
                insn.disp = i.far_branch_selector().into();
            }
            OpKind::FarBranch32 => {
                insn.imm = i.far_branch32().into();
                insn.disp = i.far_branch_selector().into();
            }
            // Of ENTER and EXTRQ: see `special_cases`.
            OpKind::Immediate8_2nd => {}
            OpKind::Memory => insn.prefix |= Insn::MEM,
            OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI => {}
            _ => insn.imm = i.immediate(n),
        }
    }
}

/// Fills the fields that do not follow from the kinds of operands.
fn special_cases(i: &Instruction, insn: &mut Insn) {
    match i.mnemonic() {
        // XCHG with memory is always locked (SDM Vol. 2B, XCHG).
        Mnemonic::Xchg if insn.prefix & Insn::MEM != 0 => {
            insn.aux = if i.op0_kind() == OpKind::Memory {
                insn.src
            } else {
                insn.dst
            };
            insn.prefix |= Insn::LOCK;
        }
        // Hints do not fault, so no address is computed.
        Mnemonic::Nop
        | Mnemonic::Reservednop
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2 => insn.prefix &= !Insn::MEM,
        Mnemonic::Xlatb => insn.prefix |= Insn::MEM,
        Mnemonic::Enter => insn.aux = i.immediate8_2nd() & 31,
        Mnemonic::Retf => insn.imm &= 0xFFFF,
        Mnemonic::Les => insn.aux = seg::ES,
        Mnemonic::Lss => insn.aux = seg::SS,
        Mnemonic::Lds => insn.aux = seg::DS,
        Mnemonic::Lfs => insn.aux = seg::FS,
        Mnemonic::Lgs => insn.aux = seg::GS,
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
            insn.dst = address_size(i) as u8;
            insn.seg = source_segment(i);
        }
        Mnemonic::Loop
        | Mnemonic::Loope
        | Mnemonic::Loopne
        | Mnemonic::Jcxz
        | Mnemonic::Jecxz
        | Mnemonic::Jrcxz => insn.aux = counter_size(i.code()),
        _ if i.is_string_instruction() => {
            insn.aux = address_size(i) as u8;
            insn.seg = source_segment(i);
        }
        _ if is_x87(i) => x87(i, insn),
        _ => {}
    }
    // They load a base of 24 bits.
    if matches!(i.code(), Code::Lgdt_m1632_16 | Code::Lidt_m1632_16) {
        insn.prefix |= Insn::O16;
    }
}

/// Size of the counter of LOOP and JCXZ in bits: the address size.
fn counter_size(code: Code) -> u8 {
    match code {
        Code::Loop_rel8_16_CX
        | Code::Loop_rel8_32_CX
        | Code::Loope_rel8_16_CX
        | Code::Loope_rel8_32_CX
        | Code::Loopne_rel8_16_CX
        | Code::Loopne_rel8_32_CX
        | Code::Jcxz_rel8_16
        | Code::Jcxz_rel8_32 => 16,
        Code::Loop_rel8_16_ECX
        | Code::Loop_rel8_32_ECX
        | Code::Loop_rel8_64_ECX
        | Code::Loope_rel8_16_ECX
        | Code::Loope_rel8_32_ECX
        | Code::Loope_rel8_64_ECX
        | Code::Loopne_rel8_16_ECX
        | Code::Loopne_rel8_32_ECX
        | Code::Loopne_rel8_64_ECX
        | Code::Jecxz_rel8_16
        | Code::Jecxz_rel8_32
        | Code::Jecxz_rel8_64 => 32,
        _ => 64,
    }
}

/// Whether the opcode is one of D8-DF, without a mandatory prefix or FWAIT.
fn is_x87(i: &Instruction) -> bool {
    let info = i.op_code();
    let opcode = info.op_code();
    let escape = if opcode > 0xFF { opcode >> 8 } else { opcode };
    info.is_instruction()
        && (0xD8..=0xDF).contains(&escape)
        && info.table() == OpCodeTableKind::Normal
}

/// Fills opcode and ModRM of an x87 instruction.
fn x87(i: &Instruction, insn: &mut Insn) {
    let info = i.op_code();
    let opcode = info.op_code();
    if insn.prefix & Insn::MEM != 0 {
        insn.aux = opcode as u8 & 7;
        // All forms with a memory operand have an opcode extension.
        insn.src = info.group_index().max(0) as u8;
        insn.dst = i.memory_size().size() as u8;
        return;
    }
    let st = (0..i.op_count())
        .find(|&n| info.op_kind(n) == OpCodeOperandKind::sti_opcode)
        .map_or(0, |n| i.op_register(n).number() as u8);
    insn.aux = (opcode >> 8) as u8 & 7;
    insn.src = (opcode as u8).wrapping_add(st);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::reg;
    use crate::model::model;

    /// The first instruction of `bytes` in 64-bit code, at offset 0x20 of its block.
    fn decoded(bytes: &[u8]) -> Insn {
        let mut padded = vec![0x90; 0x20];
        padded.extend(bytes);
        let model = model("x86-64-v3").unwrap();
        let mut decoder = decoder(model, CodeSize::Bits64, &padded);
        for _ in 0..0x20 {
            let _ = decoder.decode();
        }
        insn(CodeSize::Bits64, &decoder.decode(), 0x20, 0x20)
    }

    #[test]
    fn each_branch_has_its_kind() {
        let kinds: &[(&[u8], BranchKind)] = &[
            (&[0x90], BranchKind::None),
            (&[0xE8, 0, 0, 0, 0], BranchKind::NearCall),
            (&[0xFF, 0xD0], BranchKind::NearCall),
            (&[0xC3], BranchKind::NearReturn),
            (&[0xEB, 0], BranchKind::NearJump),
            (&[0xFF, 0x20], BranchKind::NearJump),
            (&[0x74, 0], BranchKind::Conditional),
            (&[0xE2, 0], BranchKind::Conditional),
            (&[0xE3, 0], BranchKind::Conditional),
            (&[0xFF, 0x28], BranchKind::Far),
            (&[0xFF, 0x18], BranchKind::Far),
            (&[0xCB], BranchKind::Far),
            (&[0x0F, 0x05], BranchKind::SystemCall),
            (&[0x0F, 0x34], BranchKind::SystemCall),
            (&[0x0F, 0x07], BranchKind::SystemReturn),
            (&[0x48, 0x0F, 0x35], BranchKind::SystemReturn),
            (&[0xCC], BranchKind::Interrupt),
            (&[0xCD, 0x80], BranchKind::Interrupt),
            (&[0xF1], BranchKind::Interrupt),
            (&[0x48, 0xCF], BranchKind::InterruptReturn),
            (&[0x0F, 0x0B], BranchKind::Exception),
            // VMCALL.
            (&[0x0F, 0x01, 0xC1], BranchKind::Exception),
        ];
        for (bytes, kind) in kinds {
            assert_eq!(decoded(bytes).branch, *kind, "{bytes:02x?}");
        }
    }

    #[test]
    fn memory_operands_keep_all_bits_of_their_offset() {
        // MOV RAX, [RIP + 0x7FFFFFFF]
        let rip = decoded(&[0x48, 0x8B, 0x05, 0xFF, 0xFF, 0xFF, 0x7F]);
        assert_eq!(({ rip.base }, { rip.disp }), (reg::BLOCK, i32::MAX));
        // MOV RAX, [-16]
        let near = decoded(&[0x48, 0x8B, 0x04, 0x25, 0xF0, 0xFF, 0xFF, 0xFF]);
        assert_eq!(({ near.base }, { near.disp }), (reg::ZERO, -16));
        assert_eq!(near.prefix & Insn::OFFSET64, 0);
        // MOV RAX, [0x8877665544332211]
        let far = decoded(&[0x48, 0xA1, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!({ far.imm }, 0x8877_6655_4433_2211);
        assert_ne!(far.prefix & Insn::OFFSET64, 0);
    }

    #[test]
    fn values_beside_the_operands_are_filled() {
        // ENTER 0x1234, 33: the nesting level is modulo 32.
        let enter = decoded(&[0xC8, 0x34, 0x12, 33]);
        assert_eq!(({ enter.imm } & 0xFFFF, enter.aux), (0x1234, 1));
        // XCHG [RAX], RCX is locked without a prefix.
        let xchg = decoded(&[0x48, 0x87, 0x08]);
        assert_eq!((xchg.aux, xchg.prefix & Insn::LOCK), (1, Insn::LOCK));
        // ADDR32 LOOP counts with ECX.
        assert_eq!(decoded(&[0x67, 0xE2, 0]).aux, 32);
        // FADD ST(3), ST
        let fadd = decoded(&[0xDC, 0xC3]);
        assert_eq!((fadd.aux, fadd.src), (4, 0xC3));
        // FSTP qword [RAX] is DD /3.
        let fstp = decoded(&[0xDD, 0x18]);
        assert_eq!((fstp.aux, fstp.src, fstp.dst), (5, 3, 8));
        // A prefetch computes no address.
        assert_eq!(decoded(&[0x0F, 0x18, 0x08]).prefix & Insn::MEM, 0);
    }
}
