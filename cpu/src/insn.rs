//! The decoded operation: what the CPU runs.

use crate::backend::interpreter::dispatch::{Run, called};
use crate::exec;
use crate::processor::cpu::Cpu;

/// What a handler tells the run loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// Go on with the next operation of the block.
    Next,
    /// A near branch was taken; the handler has set [`Cpu::rip`].
    Branch,
    /// The block ends here; the handler has set [`Cpu::rip`], and has recorded the branch, if it is
    /// one.
    Jump,
}

/// The instruction did not complete; [`Cpu::fault`] says why. Architectural state is as before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort;

/// What a handler returns.
pub type Exec = Result<Flow, Abort>;

/// A handler executes one operation.
pub type Handler = fn(&mut Cpu, &Op) -> Exec;

/// Register numbers beyond the sixteen general registers, for operand fields of [`Op`].
pub mod reg {
    /// Always reads as zero: the absent base or index.
    pub const ZERO: u8 = 16;
    /// RIP of the first byte of the block: the base of RIP-relative operands.
    pub const BLOCK: u8 = 17;
    /// Linear address that an address operation has left for the operation after it.
    pub const TMP: u8 = 18;
    /// AH, CH, DH, BH are `HIGH8 + 0..=3`.
    pub const HIGH8: u8 = 20;
    /// The base of segment register `n` as `seg` numbers it is `SEGMENT + n`: in 64-bit mode only
    /// FS and GS differ from zero.
    pub const SEGMENT: u8 = 24;
    /// Room for any operand field.
    pub const COUNT: usize = 256;
}

/// Segment numbers for [`Op::seg`]: 0-5 are ES, CS, SS, DS, FS, GS as the instruction encodes them.
pub mod seg {
    #![allow(missing_docs)]
    pub const ES: u8 = 0;
    pub const CS: u8 = 1;
    pub const SS: u8 = 2;
    pub const DS: u8 = 3;
    pub const FS: u8 = 4;
    pub const GS: u8 = 5;
    /// 64-bit mode: base zero, #GP if not canonical (ES, CS, DS).
    pub const FLAT: u8 = 6;
    /// 64-bit mode: base zero, #SS if not canonical (SS).
    pub const FLAT_SS: u8 = 7;
}

/// One decoded operation: usually a whole instruction.
///
/// An instruction whose address size is not 64 bits, or whose address has more parts than an
/// operation has room for, becomes several: those before the last compute the address into
/// [`reg::TMP`], so that the others need not ask. All carry the same `off`, `len` and `idx`.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// Its code, see [`crate::backend::interpreter::dispatch`].
    pub run: Run,
    /// Executes it where the code alone cannot.
    pub body: Handler,
    /// Immediate, sign-extended; for a direct near branch the target's offset from the block's
    /// start.
    pub imm: u64,
    /// Displacement of the memory operand.
    pub disp: i64,
    /// Base register of the memory operand ([`reg::ZERO`] if none).
    pub base: u8,
    /// Index register of the memory operand ([`reg::ZERO`] if none); the base of a segment that
    /// differs from zero.
    pub index: u8,
    /// What the index is multiplied by: 1, 2, 4 or 8.
    pub scale: u8,
    /// Segment of the memory operand, see [`seg`].
    pub seg: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register.
    pub src: u8,
    /// A third register, or what else the handler needs.
    pub aux: u8,
    /// Length of the instruction in bytes, 1 to 15.
    pub len: u8,
    /// Offset of the instruction's first byte from the start of the block.
    pub off: u16,
    /// Ordinal of the instruction in its block.
    pub idx: u8,
    /// Prefixes, see the constants.
    pub prefix: u8,
    /// A direct branch, or the end of a block: the block to which it led before, if any.
    pub link: u32,
}

const _: () = assert!(size_of::<Op>() == 48);

impl Op {
    /// [`Op::link`] of one that leads anywhere.
    pub const INDIRECT: u32 = u32::MAX;
    /// [`Op::link`] of one that has led nowhere yet.
    pub const UNLINKED: u32 = u32::MAX - 1;

    /// No instruction: what others are made from.
    pub const BLANK: Self = Self {
        run: called,
        body: exec::undefined,
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
        off: 0,
        idx: 0,
        prefix: 0,
        link: Self::UNLINKED,
    };

    /// [`Op::prefix`]: F3 (REP/REPE).
    pub const REP: u8 = 1 << 0;
    /// [`Op::prefix`]: F2 (REPNE).
    pub const REPNE: u8 = 1 << 1;
    /// [`Op::prefix`]: F0 (LOCK).
    pub const LOCK: u8 = 1 << 2;
    /// [`Op::prefix`]: the instruction has a memory operand.
    pub const MEM: u8 = 1 << 3;
    /// [`Op::prefix`]: effective operand size is 64 bits (REX.W or by default).
    pub const O64: u8 = 1 << 4;
    /// [`Op::prefix`]: effective operand size is 16 bits.
    pub const O16: u8 = 1 << 5;
    /// [`Op::prefix`]: effective address size is 32 bits.
    pub const A32: u8 = 1 << 6;
    /// [`Op::prefix`]: effective address size is 16 bits.
    pub const A16: u8 = 1 << 7;

    /// Offset of the next instruction from the start of the block.
    #[inline(always)]
    pub fn next_off(&self) -> u64 {
        u64::from(self.off) + u64::from(self.len)
    }
}
