//! Operands of an instruction, and what registers and memory must hold for them.

use super::super::layout::{CODE, DATA, DATA_LEN};
use super::super::random::Random;
use super::super::vendor::Vendor;
use super::super::{Mode, State};
use super::MAX_CODE;
use super::codes::is_vsib;
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, OpCodeOperandKind, OpKind, Register,
};

/// One case under construction.
pub(super) struct Draft<'a> {
    pub(super) random: &'a mut Random,
    pub(super) vendor: Vendor,
    pub(super) state: State,
    /// General registers whose value an earlier operand depends on.
    pub(super) fixed: u16,
}

impl Draft<'_> {
    /// Fills the operands of `code` for address `ip`; the instruction as decoded again, and its
    /// bytes.
    pub(super) fn instruction(&mut self, code: Code, ip: u64) -> Option<(Instruction, Vec<u8>)> {
        let mut instruction = Instruction::new();
        instruction.set_code(code);
        let op_code = code.op_code();
        for (n, kind) in (0..op_code.op_count()).zip(op_code.op_kinds()) {
            self.operand(&mut instruction, n, *kind)?;
        }
        self.prefixes(&mut instruction);
        self.implicit(&instruction)?;
        let mut encoder = Encoder::new(self.state.mode.bitness());
        encoder.encode(&instruction, ip).ok()?;
        let bytes = encoder.take_buffer();
        let decoded =
            Decoder::with_ip(self.state.mode.bitness(), &bytes, ip, DecoderOptions::NONE).decode();
        (decoded.len() == bytes.len()).then_some((decoded, bytes))
    }

    fn operand(
        &mut self,
        instruction: &mut Instruction,
        n: u32,
        kind: OpCodeOperandKind,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let register = match kind {
            K::r8_or_mem
            | K::r16_or_mem
            | K::r32_or_mem
            | K::r64_or_mem
            | K::mm_or_mem
            | K::xmm_or_mem
            | K::ymm_or_mem
                if self.random.chance(50) =>
            {
                self.memory_operand(instruction, n)?;
                return Some(());
            }
            kind if is_vsib(kind) => {
                self.gathered_operand(instruction, n, kind)?;
                return Some(());
            }
            K::mem | K::mem_offs => {
                if kind == K::mem_offs {
                    self.absolute_operand(instruction, n);
                } else {
                    self.memory_operand(instruction, n)?;
                }
                return Some(());
            }
            K::r8_or_mem | K::r8_reg | K::r8_opcode => self.byte_register(),
            K::r16_or_mem | K::r16_reg | K::r16_reg_mem | K::r16_rm | K::r16_opcode => {
                self.register(Register::AX)
            }
            K::r32_or_mem
            | K::r32_reg
            | K::r32_reg_mem
            | K::r32_rm
            | K::r32_opcode
            | K::r32_vvvv => self.register(Register::EAX),
            K::r64_or_mem
            | K::r64_reg
            | K::r64_reg_mem
            | K::r64_rm
            | K::r64_opcode
            | K::r64_vvvv => self.register(Register::RAX),
            K::mm_or_mem | K::mm_reg | K::mm_rm => Register::MM0 + self.random.below(8) as u32,
            K::xmm_or_mem | K::xmm_reg | K::xmm_rm | K::xmm_vvvv | K::xmm_is4 => {
                Register::XMM0 + self.random.below(self.state.mode.registers()) as u32
            }
            K::ymm_or_mem | K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 => {
                Register::YMM0 + self.random.below(self.state.mode.registers()) as u32
            }
            K::sti_opcode => Register::ST0 + self.random.below(8) as u32,
            K::al => Register::AL,
            K::cl => Register::CL,
            K::ax => Register::AX,
            K::dx => Register::DX,
            K::eax => Register::EAX,
            K::rax => Register::RAX,
            K::st0 => Register::ST0,
            K::fs => Register::FS,
            K::gs => Register::GS,
            K::seg_rSI => {
                instruction.set_op_kind(
                    n,
                    self.string_kind(OpKind::MemorySegRSI, OpKind::MemorySegESI, 6),
                );
                return Some(());
            }
            K::es_rDI => {
                instruction.set_op_kind(
                    n,
                    self.string_kind(OpKind::MemoryESRDI, OpKind::MemoryESEDI, 7),
                );
                return Some(());
            }
            K::seg_rDI => {
                // Whether a masked byte may fault is the processor's choice.
                let address = DATA + self.random.below(DATA_LEN as u64 - 16);
                if !self.set(7, address) {
                    return None;
                }
                let wide = self.state.mode == Mode::Bits64;
                instruction.set_op_kind(
                    n,
                    if wide {
                        OpKind::MemorySegRDI
                    } else {
                        OpKind::MemorySegEDI
                    },
                );
                return Some(());
            }
            K::seg_rBX_al => {
                let address = self.random_address(1);
                self.set(3, address);
                instruction.set_op_kind(n, OpKind::Memory);
                instruction.set_memory_base(match self.state.mode {
                    Mode::Bits64 => Register::RBX,
                    Mode::Bits32 => Register::EBX,
                });
                instruction.set_memory_index(Register::AL);
                return Some(());
            }
            K::br64_1 | K::br64_4 => {
                // A short branch reaches 127 bytes: behind the code, but before `TARGETS`.
                instruction.set_op_kind(n, OpKind::NearBranch64);
                instruction.set_near_branch64(CODE + MAX_CODE as u64 + self.random.below(16));
                return Some(());
            }
            K::br32_1 | K::br32_4 => {
                instruction.set_op_kind(n, OpKind::NearBranch32);
                let target = CODE + MAX_CODE as u64 + self.random.below(16);
                instruction.set_near_branch32(target as u32);
                return Some(());
            }
            _ => return self.immediate(instruction, n, kind),
        };
        instruction.set_op_kind(n, OpKind::Register);
        instruction.set_op_register(n, register);
        Some(())
    }

    fn immediate(
        &mut self,
        instruction: &mut Instruction,
        n: u32,
        kind: OpCodeOperandKind,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let value = self.random.integer();
        // ENTER has a second byte, its nesting level.
        let second = n == 1 && instruction.op0_kind() == OpKind::Immediate16;
        let op_kind = match kind {
            K::imm8 if second => OpKind::Immediate8_2nd,
            K::imm8 | K::imm8_const_1 => OpKind::Immediate8,
            K::imm8sex16 => OpKind::Immediate8to16,
            K::imm8sex32 => OpKind::Immediate8to32,
            K::imm8sex64 => OpKind::Immediate8to64,
            K::imm16 => OpKind::Immediate16,
            K::imm32 => OpKind::Immediate32,
            K::imm32sex64 => OpKind::Immediate32to64,
            K::imm64 => OpKind::Immediate64,
            _ => return None,
        };
        instruction.set_op_kind(n, op_kind);
        match op_kind {
            OpKind::Immediate8_2nd => instruction.set_immediate8_2nd(self.random.below(40) as u8),
            OpKind::Immediate8 if kind == K::imm8_const_1 => instruction.set_immediate8(1),
            // A 16-bit SHLD or SHRD beyond the operand size gives no defined result.
            OpKind::Immediate8 if n == 2 && instruction.op1_register().size() == 2 => {
                instruction.set_immediate8(value as u8 & 0xF);
            }
            OpKind::Immediate8 => instruction.set_immediate8(value as u8),
            OpKind::Immediate8to16 => instruction.set_immediate8to16(i16::from(value as i8)),
            OpKind::Immediate8to32 => instruction.set_immediate8to32(i32::from(value as i8)),
            OpKind::Immediate8to64 => instruction.set_immediate8to64(i64::from(value as i8)),
            // Also what RET and ENTER add to RSP: not far, usually.
            OpKind::Immediate16 if self.random.chance(70) => {
                instruction.set_immediate16(value as u16 & 0xFF)
            }
            OpKind::Immediate16 => instruction.set_immediate16(value as u16),
            OpKind::Immediate32 => instruction.set_immediate32(value as u32),
            OpKind::Immediate32to64 => instruction.set_immediate32to64(i64::from(value as i32)),
            _ => instruction.set_immediate64(value),
        }
        Some(())
    }

    fn byte_register(&mut self) -> Register {
        if self.state.mode == Mode::Bits32 {
            return Register::AL + self.random.below(8) as u32;
        }
        let n = self.random.below(20) as u32;
        // AL.. R15L without the four that need REX, then AH, CH, DH, BH.
        match n {
            16.. => Register::AH + (n - 16),
            4..16 => Register::SPL + (n - 4),
            _ => Register::AL + n,
        }
    }

    /// A register of the class that starts at `first`; RSP seldom.
    fn register(&mut self, first: Register) -> Register {
        let n = self.random.below(self.state.mode.registers());
        let n = if n == 4 && self.random.chance(80) {
            0
        } else {
            n
        };
        first + n as u32
    }

    /// Gives a register a value, unless something depends on the one it has.
    pub(super) fn set(&mut self, n: usize, value: u64) -> bool {
        let free = self.fixed >> n & 1 == 0;
        if free {
            self.state.gpr[n] = value & self.state.mode.mask();
            self.fixed |= 1 << n;
        }
        free
    }

    fn string_kind(&mut self, wide: OpKind, narrow: OpKind, register: usize) -> OpKind {
        let address = self.random_address(16);
        if self.state.mode == Mode::Bits64 && self.random.chance(90) {
            self.set(register, address);
            wide
        } else {
            let garbage = if self.random.chance(50) {
                self.random.bits() << 32
            } else {
                0
            };
            self.set(register, garbage | address & 0xFFFF_FFFF);
            narrow
        }
    }
}
