//! Recomputes guest flags that only a TLB miss can observe, instead of saving them.
//!
//! The guest's arithmetic flags stay in the host's flags until something overwrites those. The TLB
//! lookup of a memory operand does, so flags that are live across it have to be saved first. Most
//! of these saves are wasted: the guest overwrites its flags a few instructions later without
//! reading them, and until then they show only if the access faults and pushes RFLAGS. Faults are
//! raised by the slow path, after a TLB miss. Where possible, native code therefore saves nothing
//! before the lookup, and leaves a [`FlagRecipe`] to the slow path, which recomputes the flags from
//! the operands or the result that their instruction has left in registers.
//!
//! For example, with the guest's RAX in R10 and its other registers under their own names:
//!
//! ```text
//!  guest                    native code
//!  cmp  rax, rcx                  cmp  r10, rcx          sets the guest's flags
//!  mov  rdx, [rbx]                (TLB lookup)           overwrites them
//!                                 jne  miss
//!                                 mov  rdx, [rbx + r14]
//!                           back:
//!  add  rdi, 1                    add  rdi, 1            sets all flags; none of CMP's was read
//!
//!                           miss: cmp  r10, rcx          the recipe: repeats the comparison
//!                                 (LAHF, SETO, MOV)      saves the flags in the frame
//!                                 call execute           executes the guest's MOV, which may fault
//!                                 jmp  back
//! ```
//!
//! R10 and RCX must be intact at every lookup between CMP and ADD. If an instruction overwrites one
//! of them and a memory access follows, there is no recipe, and the flags are saved as usual.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::backend::jit::assembler::{Assembler, Ext, Reg};
use crate::backend::jit::flags::fixup::{self, FlagFixup};
use crate::backend::jit::registers::map::{SCRATCH, host};
use crate::backend::jit::registers::scratch::guest;

/// A two-operand instruction that writes all arithmetic flags, by the opcodes of its 8-bit forms.
/// Bit 0 of an opcode selects the larger operand sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AluOp {
    /// Opcode of the form `r/m8, r8`.
    opcode: u8,
    /// Opcode of the form `r/m8, imm8`, and its extension in ModRM.reg.
    imm_opcode: (u8, u8),
}

const ADD: AluOp = alu_op(0x00, (0x80, 0));
const SUB: AluOp = alu_op(0x28, (0x80, 5));
const CMP: AluOp = alu_op(0x38, (0x80, 7));
const TEST: AluOp = alu_op(0x84, (0xF6, 0));

const fn alu_op(opcode: u8, imm_opcode: (u8, u8)) -> AluOp {
    AluOp { opcode, imm_opcode }
}

/// The second operand of [`FlagRecipe::op`]; for a logical instruction, its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SecondOperand {
    Register(Reg),
    Immediate(i32),
}

/// Recomputes the flags of an earlier instruction from host registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlagRecipe {
    /// The inverse of `op`, to recover the first operand where the result has replaced it.
    undo: Option<AluOp>,
    op: AluOp,
    /// Operand size in bytes.
    size: usize,
    /// Host register of the first operand, or of the result.
    first: Reg,
    second: SecondOperand,
    /// Turns the host's flags after `op` into the guest's.
    fixup: FlagFixup,
}

impl FlagRecipe {
    /// Returns a recipe for the flags of `i`, or `None` if `i` is not one of the instructions
    /// below, or leaves neither its operands nor a sufficient result in host registers.
    pub(crate) fn for_instruction(i: &Instruction, fixup: FlagFixup) -> Option<Self> {
        let host_register = |n: u32| match i.op_kind(n) {
            OpKind::Register => host(guest(i.op_register(n))?),
            _ => None,
        };
        let first = host_register(0)?;
        let second_operand = || match i.op_kind(1) {
            OpKind::Memory => None,
            OpKind::Register => host_register(1).map(SecondOperand::Register),
            _ => Some(SecondOperand::Immediate(i.immediate(1) as i32)),
        };
        let size = i.op0_register().size();
        let (undo, op, second) = match i.mnemonic() {
            Mnemonic::Cmp => (None, CMP, second_operand()?),
            Mnemonic::Test => (None, TEST, second_operand()?),
            // Logical instructions clear CF and OF and set the other flags from the result, as TEST
            // of the result with itself does.
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => {
                (None, TEST, SecondOperand::Register(first))
            }
            Mnemonic::Add if size >= 4 => (Some(SUB), ADD, second_operand()?),
            Mnemonic::Sub if size >= 4 => (Some(ADD), SUB, second_operand()?),
            _ => return None,
        };
        // ADD and SUB of a register with itself leave neither operand.
        let is_overwritten = undo.is_some() && second == SecondOperand::Register(first);
        (!is_overwritten).then_some(Self {
            undo,
            op,
            size,
            first,
            second,
            fixup,
        })
    }

    /// Returns whether the recipe reads the host register `r`.
    fn reads(&self, r: Reg) -> bool {
        r == self.first || SecondOperand::Register(r) == self.second
    }

    /// Returns whether `i` writes a register that the recipe reads.
    pub(crate) fn is_overwritten_by(
        &self,
        i: &Instruction,
        info: &mut InstructionInfoFactory,
    ) -> bool {
        info.info(i).used_registers().iter().any(|used| {
            let host = gpr_number(used.register()).and_then(host);
            let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            !is_read && host.is_some_and(|host| self.reads(host))
        })
    }

    /// Emits code that recomputes the flags and saves them in the frame. Clobbers SCRATCH and the
    /// host's flags.
    pub(super) fn save(&self, a: &mut Assembler) {
        let mut first = self.first;
        if let Some(undo) = self.undo {
            a.mov(SCRATCH, first);
            first = SCRATCH;
            self.emit(undo, first, a);
        }
        self.emit(self.op, first, a);
        fixup::save(a, self.fixup);
    }

    /// Emits `op first, second`.
    fn emit(&self, op: AluOp, first: Reg, a: &mut Assembler) {
        if self.size == 2 {
            a.bytes(&[0x66]);
        }
        // Without a REX prefix, byte registers 4 to 7 are AH, CH, DH and BH (SDM Vol. 2A 2.2.1.2).
        // `registers` emits REX for registers from 8 on.
        let needs_rex = |r: Reg| (4..8).contains(&r.number());
        let has_rex = |r: Reg| r.number() >= 8;
        let (wide, size_bit) = (self.size == 8, u8::from(self.size > 1));
        match self.second {
            SecondOperand::Register(r) => {
                let needs = (needs_rex(r) || needs_rex(first)) && !(has_rex(r) || has_rex(first));
                if self.size == 1 && needs {
                    a.bytes(&[0x40]);
                }
                a.registers(wide, &[op.opcode | size_bit], r, first);
            }
            SecondOperand::Immediate(n) => {
                if self.size == 1 && needs_rex(first) {
                    a.bytes(&[0x40]);
                }
                let (opcode, extension) = op.imm_opcode;
                a.registers(wide, &[opcode | size_bit], Ext(extension), first);
                a.bytes(&n.to_le_bytes()[..self.size.min(4)]);
            }
        }
    }
}

/// Returns the number of the general register that contains `r`.
fn gpr_number(r: Register) -> Option<u8> {
    r.is_gpr().then(|| r.full_register().number() as u8)
}
