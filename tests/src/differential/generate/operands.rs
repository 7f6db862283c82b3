//! Operands of an instruction, and what registers and memory must hold for them.

use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, MemoryOperand, Mnemonic,
    OpCodeOperandKind, OpKind, Register,
};

use super::super::layout::{CODE, DATA, DATA_LEN, MEMORY_LEN};
use super::super::random::Random;
use super::super::vendor::{Behaviour, Vendor};
use super::super::{Mode, State};
use super::codes::is_x87;
use super::{MAX_CODE, float_state, vector};

/// Where branches go: INT3, like all that follows the code.
const TARGETS: u64 = CODE + 0x100;

const GPR64: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

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
                if self.random.chance(50) =>
            {
                self.memory_operand(instruction, n)?;
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
            K::r32_or_mem | K::r32_reg | K::r32_reg_mem | K::r32_rm | K::r32_opcode => {
                self.register(Register::EAX)
            }
            K::r64_or_mem | K::r64_reg | K::r64_reg_mem | K::r64_rm | K::r64_opcode => {
                self.register(Register::RAX)
            }
            K::mm_or_mem | K::mm_reg | K::mm_rm => Register::MM0 + self.random.below(8) as u32,
            K::xmm_or_mem | K::xmm_reg | K::xmm_rm => {
                Register::XMM0 + self.random.below(self.state.mode.registers()) as u32
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
    fn set(&mut self, n: usize, value: u64) -> bool {
        let free = self.fixed >> n & 1 == 0;
        if free {
            self.state.gpr[n] = value & self.state.mode.mask();
            self.fixed |= 1 << n;
        }
        free
    }

    /// An address for an operand of `size` bytes: mostly inside the data and often aligned, now and
    /// then across a page, across the end of what is writable or mapped, or not there at all.
    fn random_address(&mut self, size: u64) -> u64 {
        let offset = self.random.below(DATA_LEN as u64 - 64);
        let back = self.random.below(size.max(1) * 2);
        let address = match self.random.below(100) {
            0..=5 => DATA + 0x1000 * (1 + self.random.below(2)) - back,
            6..=7 => DATA + DATA_LEN as u64 - back,
            8 => DATA + MEMORY_LEN as u64 - back,
            9 => DATA - back,
            10..=40 => DATA + offset,
            _ => DATA + (offset & !15),
        };
        let value = self.pattern();
        self.poke(address, &value);
        address
    }

    /// What may lie at a memory operand.
    fn pattern(&mut self) -> [u8; 16] {
        if self.random.chance(20) {
            let mut bytes = [0; 16];
            bytes[..10].copy_from_slice(&self.random.extended());
            return bytes;
        }
        vector(self.random).to_le_bytes()
    }

    fn poke(&mut self, address: u64, bytes: &[u8]) {
        for (n, &byte) in (0..).zip(bytes) {
            let at = address.wrapping_sub(DATA).wrapping_add(n);
            if let Some(slot) = self.state.memory.get_mut(at as usize) {
                *slot = byte;
            }
        }
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

    fn absolute_operand(&mut self, instruction: &mut Instruction, n: u32) {
        instruction.set_op_kind(n, OpKind::Memory);
        instruction.set_memory_displ_size(self.state.mode.bitness() / 8);
        let address = self.random_address(8);
        instruction.set_memory_displacement64(address);
    }

    fn memory_operand(&mut self, instruction: &mut Instruction, n: u32) -> Option<()> {
        let size = 16;
        let target = self.random_address(size);
        let wide_mode = self.state.mode == Mode::Bits64;
        let narrow = !wide_mode || self.random.chance(10);
        let class = if narrow { Register::EAX } else { Register::RAX };
        let displacement = match self.random.below(4) {
            0 | 1 => 0,
            2 => i64::from(self.random.bits() as i8),
            _ => i64::from(self.random.bits() as i32 >> 8),
        };
        let operand = match self.random.below(10) {
            // Absolute, and relative to RIP.
            0 => {
                let size = if wide_mode && self.random.chance(50) {
                    8
                } else {
                    4
                };
                MemoryOperand::with_displ(target, size)
            }
            1 if wide_mode => MemoryOperand::with_base_displ(Register::RIP, target as i64),
            kind => {
                let free: Vec<usize> = (0..16).filter(|n| self.fixed >> n & 1 == 0).collect();
                if free.len() < 2 {
                    return None;
                }
                let base = self.random.pick(&free);
                let index = (kind > 5)
                    .then(|| self.random.pick(&free))
                    .filter(|&index| index != base && index != 4);
                let scale = 1u32 << self.random.below(4);
                let mut address = target.wrapping_sub(displacement as u64);
                if let Some(index) = index {
                    let value = self.random.bits() >> 40;
                    self.set(index, value);
                    address = address.wrapping_sub(value.wrapping_mul(u64::from(scale)));
                }
                let garbage = if narrow && wide_mode {
                    self.random.bits() << 32
                } else {
                    0
                };
                self.set(
                    base,
                    if narrow {
                        garbage | address & 0xFFFF_FFFF
                    } else {
                        address
                    },
                );
                MemoryOperand::with_base_index_scale_displ_size(
                    class + base as u32,
                    index.map_or(Register::None, |index| class + index as u32),
                    index.map_or(1, |_| scale),
                    displacement,
                    match displacement {
                        0 if base & 7 != 5 => 0,
                        -128..=127 => 1,
                        _ if narrow => 4,
                        _ => 8,
                    },
                )
            }
        };
        instruction.set_op_kind(n, OpKind::Memory);
        instruction.set_memory_base(operand.base);
        instruction.set_memory_index(operand.index);
        instruction.set_memory_index_scale(operand.scale);
        instruction.set_memory_displ_size(operand.displ_size);
        instruction.set_memory_displacement64(operand.displacement as u64);
        // Which of a pending x87 exception and a segment that forbids the access comes first is not
        // compared.
        let any = self.state.mode == Mode::Bits64 || !is_x87(instruction.code());
        if self.random.chance(5) {
            let segment = self.random.pick(&[
                Register::ES,
                Register::SS,
                Register::DS,
                if any { Register::CS } else { Register::ES },
                if any { Register::FS } else { Register::DS },
                if any { Register::GS } else { Register::SS },
            ]);
            instruction.set_segment_prefix(segment);
        }
        Some(())
    }

    fn prefixes(&mut self, instruction: &mut Instruction) {
        let op_code = instruction.op_code();
        if instruction.is_string_instruction() && self.random.chance(70) {
            let repne = op_code.can_use_repne_prefix() && self.random.chance(50);
            instruction.set_has_repne_prefix(repne);
            instruction.set_has_rep_prefix(!repne && op_code.can_use_rep_prefix());
            // Only the lower half counts with 32-bit addressing.
            let count = match self.random.below(20) {
                0 => self.random.integer(),
                1 => 0,
                2 => self.random.bits() << 32,
                3 => self.random.bits() << 32 | 3,
                n => n,
            };
            self.set(1, count);
        }
        let memory_destination =
            instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory;
        if op_code.can_use_lock_prefix() && memory_destination && self.random.chance(30) {
            instruction.set_has_lock_prefix(true);
        }
    }

    /// Values that registers and memory need for an instruction to do more than fault, and to do
    /// what is defined; `None` if it is too late for them.
    fn implicit(&mut self, instruction: &Instruction) -> Option<()> {
        match instruction.mnemonic() {
            // A count above the operand size gives no defined result.
            Mnemonic::Shld | Mnemonic::Shrd if instruction.op1_register().size() == 2 => {
                let count = self.random.below(17);
                if instruction.op2_kind() == OpKind::Register && !self.set(1, count) {
                    return None;
                }
            }
            // A quotient that fits, often.
            Mnemonic::Div | Mnemonic::Idiv if self.random.chance(70) => {
                let high = if self.random.chance(50) {
                    0
                } else {
                    self.random.below(16)
                };
                let high = if instruction.mnemonic() == Mnemonic::Idiv && self.random.chance(50) {
                    !high
                } else {
                    high
                };
                self.set(2, high);
            }
            // Bit offsets reach any byte of memory from a register; keep most inside the data.
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
                if instruction.op0_kind() == OpKind::Memory
                    && instruction.op1_kind() == OpKind::Register =>
            {
                let n = instruction.op1_register().full_register().number();
                let offset = self.random.below(4096).wrapping_sub(2048);
                if !self.set(n, offset) {
                    return None;
                }
            }
            // Where they go: to the INT3s.
            Mnemonic::Ret => {
                let target = (TARGETS + self.random.below(256)).to_le_bytes();
                self.poke(self.state.gpr[4], &target);
            }
            Mnemonic::Jmp | Mnemonic::Call => {
                let target = TARGETS + self.random.below(256);
                match instruction.op0_kind() {
                    OpKind::Register => {
                        self.set(instruction.op0_register().full_register().number(), target);
                    }
                    OpKind::Memory => {
                        let address = self.effective_address(instruction);
                        self.poke(address, &target.to_le_bytes());
                    }
                    _ => {}
                }
            }
            // TF would trap, AC and NT outlive the case.
            Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => {
                let flags = (self.random.bits() & 0xCD5).to_le_bytes();
                self.poke(self.state.gpr[4], &flags);
            }
            // The values that a compare-and-exchange finds, half of the time.
            Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b
                if instruction.op0_kind() == OpKind::Memory && self.random.chance(50) =>
            {
                let address = self.effective_address(instruction);
                let (low, high) = (self.random.bits(), self.random.bits());
                self.set(0, low);
                self.set(2, high);
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&low.to_le_bytes());
                let at = if instruction.mnemonic() == Mnemonic::Cmpxchg8b {
                    4
                } else {
                    8
                };
                bytes[at..at + 8].copy_from_slice(&high.to_le_bytes());
                self.poke(address, &bytes);
            }
            // Reserved bits fault; that is worth a try, but not every time.
            Mnemonic::Ldmxcsr => {
                let address = self.effective_address(instruction);
                let mask = if self.random.chance(70) {
                    0xFFFF
                } else if self.vendor.may_differ(Behaviour::MisalignedMode) {
                    !0x2_0000
                } else {
                    u32::MAX
                };
                let value = (self.random.bits() as u32) & mask;
                self.poke(address, &value.to_le_bytes());
            }
            // Precision control 01 is reserved, and an unmasked exception may be pending at once.
            Mnemonic::Fldcw => {
                let address = self.effective_address(instruction);
                let value = float_state(self.random).fcw;
                self.poke(address, &value.to_le_bytes());
            }
            _ => {}
        }
        Some(())
    }

    fn effective_address(&self, instruction: &Instruction) -> u64 {
        instruction
            .virtual_address(0, 0, |register, _, _| {
                if register.is_segment_register() {
                    return Some(0);
                }
                let full = register.full_register();
                let value = *self.state.gpr.get(GPR64.iter().position(|&r| r == full)?)?;
                Some(if register.size() == 4 {
                    value & 0xFFFF_FFFF
                } else {
                    value
                })
            })
            .unwrap_or(0)
    }
}
