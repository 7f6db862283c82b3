//! Prefixes, and values of registers and memory that an instruction needs for more than a fault.

use super::super::layout::CODE;
use super::super::vendor::{Behaviour, MISALIGNED_MODE};
use super::float_state;
use super::operands::Draft;
use iced_x86::{Instruction, Mnemonic, OpKind};

/// Where branches go: INT3, like all that follows the code.
const TARGETS: u64 = CODE + 0x100;

impl Draft<'_> {
    pub(super) fn prefixes(&mut self, instruction: &mut Instruction) {
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
    pub(super) fn implicit(&mut self, instruction: &Instruction) -> Option<()> {
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
            Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr => {
                let address = self.effective_address(instruction);
                let mask = if self.random.chance(70) {
                    0xFFFF
                } else if self.vendor.may_differ(Behaviour::MisalignedMode) {
                    !MISALIGNED_MODE
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
}
