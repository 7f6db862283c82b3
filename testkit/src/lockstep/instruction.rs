//! Random instructions that neither jump nor need privilege, in all encodings.

use std::collections::BTreeSet;

use iced_x86::{
    Decoder, DecoderOptions, Encoder, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use vbts_cpu::Model;

use crate::random::Random;

/// The instructions that random bytes favour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// All opcodes, mostly those of general registers.
    Any,
    /// Opcodes of vector registers, with and without VEX.
    Vector,
}

/// Registers that the rest of a program depends on.
const KEPT: [Register; 6] = [
    Register::RSP,
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R15,
];
/// Registers with addresses of data.
const BASES: [Register; 4] = [Register::RBX, Register::RBX, Register::RBP, Register::R13];
/// A register with a small number.
const INDEX: Register = Register::R12;

/// Draws until an instruction is accepted, but not longer.
const ATTEMPTS: u32 = 4096;

/// Draws instructions.
pub(super) struct Instructions {
    info: InstructionInfoFactory,
    model: &'static Model,
    refused: BTreeSet<Mnemonic>,
}

impl std::fmt::Debug for Instructions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instructions").finish_non_exhaustive()
    }
}

impl Instructions {
    /// Those of a model.
    pub fn new(model: &'static Model) -> Self {
        use Mnemonic::*;
        // They access memory that no operand of ModRM names, change what the program depends on,
        // or return other values than before by design.
        let refused = [
            In,
            Insb,
            Insw,
            Insd,
            Out,
            Outsb,
            Outsw,
            Outsd,
            Popf,
            Popfq,
            Pushf,
            Pushfq,
            Enter,
            Leave,
            Push,
            Pop,
            Xlatb,
            Maskmovq,
            Maskmovdqu,
            Vmaskmovdqu,
            Fxsave,
            Fxsave64,
            Fxrstor,
            Fxrstor64,
            Xsave,
            Xsave64,
            Xrstor,
            Xrstor64,
            Xsavec,
            Xsavec64,
            Xsaveopt,
            Xsaveopt64,
            Fnsave,
            Frstor,
            Fnstenv,
            Fldenv,
            Wrfsbase,
            Wrgsbase,
            Lfs,
            Lgs,
            Lss,
            Swapgs,
            Sti,
            Cli,
            Monitor,
            Mwait,
            Ldmxcsr,
            Vldmxcsr,
            Cpuid,
            Clflush,
            Clflushopt,
            Ud0,
            Ud1,
            Ud2,
        ];
        Self {
            info: InstructionInfoFactory::new(),
            model,
            refused: refused.into(),
        }
    }

    /// A random instruction.
    pub fn next(&mut self, random: &mut Random, group: Group) -> Instruction {
        for _ in 0..ATTEMPTS {
            let bytes = encoding(random, group);
            let mut i = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            if self.accepts(&i) {
                operand(&mut i, random);
                if self.keeps(&i) && Encoder::new(64).encode(&i, 0x2_0000).is_ok() {
                    return i;
                }
            }
        }
        Instruction::with(iced_x86::Code::Nopd)
    }

    fn accepts(&self, i: &Instruction) -> bool {
        let of_bits = matches!(
            i.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
        !i.is_invalid()
            && i.flow_control() == FlowControl::Next
            && !i.is_privileged()
            && !i.is_vsib()
            && !i.is_string_instruction()
            && !self.refused.contains(&i.mnemonic())
            && i.cpuid_features().iter().all(|f| self.model.executes(*f))
            // LOCK is #UD with a register.
            && (!i.has_lock_prefix() || i.op0_kind() == OpKind::Memory)
            // The index of a bit in memory reaches far.
            && !(of_bits && i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register)
            && (0..i.op_count()).all(|n| match i.op_kind(n) {
                OpKind::Register => {
                    let r = i.op_register(n);
                    r.is_gpr() || r.is_xmm() || r.is_ymm() || r.is_mm() || r.is_st()
                }
                OpKind::Memory => !format!("{:?}", i.code()).contains("moffs"),
                OpKind::Immediate8
                | OpKind::Immediate8_2nd
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64 => true,
                _ => false,
            })
    }

    /// Whether it writes none of [`KEPT`].
    fn keeps(&mut self, i: &Instruction) -> bool {
        let used = self.info.info(i).used_registers();
        used.iter().all(|used| {
            let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            reads || !KEPT.contains(&used.register().full_register())
        })
    }
}

/// Random bytes that begin as an instruction of the group does.
fn encoding(random: &mut Random, group: Group) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    let vector = group == Group::Vector;
    if vector && random.chance(50) {
        // VEX: the registers' upper bits, map, vvvv, length and prefix.
        let map = random.pick(&[1, 1, 1, 2, 2, 3]);
        bytes.extend([0xC4, random.bits() as u8 & 0xE0 | map, random.bits() as u8]);
    } else {
        if !vector && random.chance(5) {
            bytes.push(0xF0);
        }
        bytes.extend(random.pick(&[None, None, None, Some(0x66), Some(0xF2), Some(0xF3)]));
        if random.chance(60) {
            bytes.push(0x40 | random.below(16) as u8);
        }
        let map: &[u8] = match random.below(10) {
            0..=5 if !vector => &[],
            0..=6 => &[0x0F],
            7..=8 => &[0x0F, 0x38],
            _ => &[0x0F, 0x3A],
        };
        bytes.extend(map);
    }
    while bytes.len() < 15 {
        bytes.push(random.bits() as u8);
    }
    bytes
}

/// Gives a memory operand an address in data, now and then across the end of a page.
fn operand(i: &mut Instruction, random: &mut Random) {
    if (0..i.op_count()).all(|n| i.op_kind(n) != OpKind::Memory) {
        return;
    }
    i.set_segment_prefix(Register::None);
    let base = random.pick(&BASES);
    i.set_memory_base(base);
    let index = random.pick(&[Register::None, Register::None, Register::None, INDEX]);
    i.set_memory_index(index);
    i.set_memory_index_scale(random.pick(&[1, 2, 4, 8]));
    let displacement = match random.below(10) {
        0 => 0xFC0 + random.below(0x50),
        1..=4 => random.below(0x100),
        _ => 16 * random.below(0x40),
    };
    i.set_memory_displacement64(displacement);
    i.set_memory_displ_size(8);
}
