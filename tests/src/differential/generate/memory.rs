//! Memory operands: addresses, and what lies there.

use super::super::Mode;
use super::super::layout::{DATA, DATA_LEN, MEMORY_LEN};
use super::codes::is_x87;
use super::operands::Draft;
use super::vector;
use iced_x86::{Instruction, MemoryOperand, OpCodeOperandKind, OpKind, Register};

/// RFLAGS.TF.
const TF: u64 = 1 << 8;

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

impl Draft<'_> {
    /// An address for an operand of `size` bytes: mostly inside the data and often aligned, now and
    /// then across a page, across the end of what is writable or mapped, or not there at all.
    pub(super) fn random_address(&mut self, size: u64) -> u64 {
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
        for at in (0..size.max(1)).step_by(16) {
            let value = self.pattern();
            self.poke(address + at, &value);
        }
        address
    }

    /// What may lie at a memory operand.
    pub(super) fn pattern(&mut self) -> [u8; 16] {
        if self.random.chance(20) {
            let mut bytes = [0; 16];
            bytes[..10].copy_from_slice(&self.random.extended());
            return bytes;
        }
        vector(self.random).to_le_bytes()
    }

    pub(super) fn poke(&mut self, address: u64, bytes: &[u8]) {
        for (n, &byte) in (0..).zip(bytes) {
            let at = address.wrapping_sub(DATA).wrapping_add(n);
            if let Some(slot) = self.state.memory.get_mut(at as usize) {
                *slot = byte;
            }
        }
    }

    pub(super) fn absolute_operand(&mut self, instruction: &mut Instruction, n: u32) {
        instruction.set_op_kind(n, OpKind::Memory);
        instruction.set_memory_displ_size(self.state.mode.bitness() / 8);
        let address = self.random_address(8);
        instruction.set_memory_displacement64(address);
    }

    pub(super) fn memory_operand(&mut self, instruction: &mut Instruction, n: u32) -> Option<()> {
        let size = instruction.memory_size().size().max(16) as u64;
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

    /// A base register and a vector of indices, most of them such that the elements are in the
    /// data.
    pub(super) fn gathered_operand(
        &mut self,
        instruction: &mut Instruction,
        n: u32,
        kind: OpCodeOperandKind,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let narrow = self.state.mode == Mode::Bits32 || self.random.chance(10);
        let registers = self.state.mode.registers();
        let (base, index) = (self.random.below(registers), self.random.below(registers));
        let scale = 1u64 << self.random.below(4);
        let wide = matches!(kind, K::mem_vsib64x | K::mem_vsib64y);
        let target = self.random_address(8);
        let displacement = i64::from(self.random.bits() as i8);
        let mut element = |bits: u32| {
            let offset = self.random.below(0x800).wrapping_sub(0x400);
            let value = if self.random.chance(3) {
                self.random.bits()
            } else {
                (offset as i64 / scale as i64) as u64
            };
            u128::from(value & u64::MAX >> (64 - bits))
        };
        let mut half = || match wide {
            true => element(64) | element(64) << 64,
            false => (0..4).fold(0, |half, _| half << 32 | element(32)),
        };
        let (low, high) = (half(), half());
        self.state.float.xmm[index as usize] = low;
        self.state.float.ymm_high[index as usize] = high;
        let address = target.wrapping_sub(displacement as u64);
        if !self.set(base as usize, address) {
            return None;
        }
        // Whether a trap comes before the fault of an element is the processor's choice.
        self.state.rflags &= !TF;
        let (class, vector) = (
            if narrow { Register::EAX } else { Register::RAX },
            match kind {
                K::mem_vsib32x | K::mem_vsib64x => Register::XMM0,
                _ => Register::YMM0,
            },
        );
        instruction.set_op_kind(n, OpKind::Memory);
        instruction.set_memory_base(class + base as u32);
        instruction.set_memory_index(vector + index as u32);
        instruction.set_memory_index_scale(scale as u32);
        instruction.set_memory_displ_size(1);
        instruction.set_memory_displacement64(displacement as u64);
        Some(())
    }

    pub(super) fn effective_address(&self, instruction: &Instruction) -> u64 {
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
