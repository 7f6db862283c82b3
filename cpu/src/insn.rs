//! A decoded instruction as data.
//!
//! A backend may rewrite the memory operand into a form that it executes faster, see
//! [`reg::TMP`]. The other fields stay as decoded.

use iced_x86::Code;

/// What the processor does after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// Continue with the next instruction of the block.
    Next,
    /// A near branch was taken: RIP is its target, and the branch is not recorded yet.
    Branch,
    /// The block ends: RIP is that of the next instruction, and a branch to it has been recorded.
    Jump,
}

/// The instruction did not complete. The processor has the reason. Its architectural state is as
/// before the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort;

/// The result of an instruction.
pub type Exec = Result<Flow, Abort>;

/// Register numbers beyond the sixteen general registers, for operand fields of [`Insn`].
pub mod reg {
    /// The base of segment register `n` is `SEGMENT + n`. In 64-bit mode an address adds only those
    /// of FS and GS: `seg::FLAT` and `seg::FLAT_SS` number bases that stay zero. Native code uses
    /// them as often as registers.
    pub const SEGMENT: u8 = 16;
    /// Always reads as zero: the absent base or index.
    pub const ZERO: u8 = 24;
    /// RIP of the first byte of the block: the base of RIP-relative operands.
    pub const BLOCK: u8 = 25;
    /// An effective or linear address that a backend has computed before the instruction.
    pub const TMP: u8 = 26;
    /// AH, CH, DH, BH are `HIGH8 + 0..=3`.
    pub const HIGH8: u8 = 28;
    /// Number of registers: each value of an operand field is a valid index.
    pub const COUNT: usize = 256;
}

/// Segment numbers for [`Insn::seg`]: 0-5 are ES, CS, SS, DS, FS, GS as the instruction encodes
/// them.
pub mod seg {
    #![allow(missing_docs)]

    use crate::state::sreg;

    pub const ES: u8 = sreg::ES as u8;
    pub const CS: u8 = sreg::CS as u8;
    pub const SS: u8 = sreg::SS as u8;
    pub const DS: u8 = sreg::DS as u8;
    pub const FS: u8 = sreg::FS as u8;
    pub const GS: u8 = sreg::GS as u8;
    /// 64-bit mode: base zero, #GP if not canonical (ES, CS, DS).
    pub const FLAT: u8 = 6;
    /// 64-bit mode: base zero, #SS if not canonical (SS).
    pub const FLAT_SS: u8 = 7;
}

/// The operand that a backend forwards to the code of an instruction in a host register: a generic
/// parameter of that code.
pub(crate) mod operand {
    /// No operand: all are read from the register file.
    pub(crate) const NONE: u8 = 0;
    /// The first register of a register form, or the base of a memory form.
    pub(crate) const FIRST: u8 = 1;
    /// The second register of a register form, or the index of a memory form.
    pub(crate) const SECOND: u8 = 2;
}

/// The default operand and address size of code: the L and D flags of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CodeSize {
    Bits16,
    Bits32,
    Bits64,
}

/// How an instruction transfers control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BranchKind {
    /// No transfer.
    None,
    /// Near CALL.
    NearCall,
    /// Near RET.
    NearReturn,
    /// Near JMP.
    NearJump,
    /// Jcc, LOOPcc or JrCXZ.
    Conditional,
    /// Far JMP, CALL or RET.
    Far,
    /// SYSCALL or SYSENTER.
    SystemCall,
    /// SYSRET or SYSEXIT.
    SystemReturn,
    /// INT n, INT3, INTO or INT1.
    Interrupt,
    /// IRET.
    InterruptReturn,
    /// None, but an exception always: UD, and instructions that this processor does not have.
    Exception,
}

impl BranchKind {
    /// Whether performance monitoring counts it as a branch instruction.
    pub fn is_branch(self) -> bool {
        !matches!(self, Self::None | Self::Exception)
    }

    /// Whether execution never continues with the next instruction in memory. After a conditional
    /// branch that is not taken it does.
    pub fn ends_block(self) -> bool {
        !matches!(self, Self::None | Self::Conditional)
    }
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Packed to 28 bytes, so that an operation of the interpreter, which adds two pointers and a link,
// has 48.
#[repr(C, packed(4))]
pub struct Insn {
    /// Immediate, sign-extended. For a direct near branch: the target's offset from the start of
    /// the block. For a direct far branch: the target's offset in its segment. With
    /// [`Self::OFFSET64`]: the memory operand's offset.
    pub imm: u64,
    /// Displacement of the memory operand, relative to the next instruction if the base is RIP. For
    /// a direct far branch: the selector.
    pub disp: i32,
    /// Base register of the memory operand ([`reg::ZERO`] if none).
    pub base: u8,
    /// Index register of the memory operand ([`reg::ZERO`] if none).
    pub index: u8,
    /// Factor of the index: 1, 2, 4 or 8.
    pub scale: u8,
    /// Segment of the memory operand, see [`seg`].
    pub seg: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register.
    pub src: u8,
    /// Third register, or another value that the operation needs, see `decode`.
    pub aux: u8,
    /// Length in bytes, 1 to 15.
    pub len: u8,
    /// Offset of the first byte from the start of the block.
    pub offset: u16,
    /// The operation.
    pub code: Code,
    /// Prefixes and properties that follow from them, see the constants.
    pub prefix: u16,
    /// Ordinal in the block.
    pub ordinal: u8,
    /// How it transfers control.
    pub branch: BranchKind,
}

const _: () = assert!(size_of::<Insn>() == 28);

impl Insn {
    /// An invalid instruction.
    pub const INVALID: Self = Self {
        imm: 0,
        disp: 0,
        base: reg::ZERO,
        index: reg::ZERO,
        scale: 1,
        seg: seg::FLAT,
        dst: 0,
        src: 0,
        aux: 0,
        len: 0,
        offset: 0,
        code: Code::INVALID,
        prefix: 0,
        ordinal: 0,
        branch: BranchKind::Exception,
    };

    /// [`Insn::prefix`]: F3 (REP/REPE).
    pub const REP: u16 = 1 << 0;
    /// [`Insn::prefix`]: F2 (REPNE).
    pub const REPNE: u16 = 1 << 1;
    /// [`Insn::prefix`]: F0 (LOCK), or the operation is always locked.
    pub const LOCK: u16 = 1 << 2;
    /// [`Insn::prefix`]: the instruction accesses a memory operand, or computes its address.
    pub const MEM: u16 = 1 << 3;
    /// [`Insn::prefix`]: effective operand size is 64 bits (REX.W or by default).
    pub const O64: u16 = 1 << 4;
    /// [`Insn::prefix`]: effective operand size is 16 bits.
    pub const O16: u16 = 1 << 5;
    /// [`Insn::prefix`]: the memory operand's address size is 32 bits.
    pub const A32: u16 = 1 << 6;
    /// [`Insn::prefix`]: the memory operand's address size is 16 bits.
    pub const A16: u16 = 1 << 7;
    /// [`Insn::prefix`]: the memory operand is at an offset of 64 bits, see [`Insn::imm`].
    pub const OFFSET64: u16 = 1 << 8;
    /// [`Insn::prefix`]: a near branch with its target in the instruction.
    pub const DIRECT: u16 = 1 << 9;

    /// Offset of the next instruction from the start of the block.
    #[inline(always)]
    pub fn next_offset(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }
}
