//! Saves the host's flags as the guest's, and restores them.
//!
//! Host and guest agree on most flags. A [`FlagFixup`] is the difference: where the manual leaves a
//! flag undefined, the result is that of the interpreter, on each host.

use crate::backend::jit::assembler::{Assembler, Byte, ByteOp, Imm, Mem, Shift, cond};
use crate::backend::jit::registers::frame::FRAME_FLAGS;
use crate::backend::jit::registers::map::{Location, POINTER, SCRATCH};
use crate::state::flags::Lazy;
use crate::state::rflags;

/// Turns the host's flags into the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagFixup {
    /// Host and guest agree.
    None,
    /// AF is clear: logical instructions, shifts by one.
    ClearAf,
    /// After SHL: AF is clear, OF is SF XOR CF.
    Left,
    /// After SAR: AF and OF are clear.
    ArithmeticRight,
    /// After SHR: AF is clear, OF is the most significant bit of the previous operand, which
    /// [`POINTER`] contains, with this number of bits.
    Right { bits: u8 },
    /// After SHLD and SHRD: AF is clear, OF is SF XOR the most significant bit of the previous
    /// operand, which [`POINTER`] contains, with this number of bits.
    Double { bits: u8 },
}

const AL: Byte = Byte::AL;
const AH: Byte = Byte::AH;
const OLD: Byte = Byte::lowest(POINTER);

/// Loads the host's flags into AX, in the saved form of those of the guest. Leaves the host's flags
/// undefined.
pub(super) fn load(a: &mut Assembler, fixup: FlagFixup) {
    a.lahf();
    match fixup {
        FlagFixup::None | FlagFixup::ClearAf => a.set_if(cond::O, AL),
        FlagFixup::Left => {
            a.byte_op(ByteOp::Mov, AL, AH);
            a.byte_shift(Shift::Right, AL, 7);
            a.byte_op(ByteOp::Xor, AL, AH);
            a.byte_imm(Imm::And, AL, 1);
        }
        FlagFixup::ArithmeticRight => a.mov_al_imm(0),
        FlagFixup::Right { bits } => {
            a.shift(Shift::Right, bits == 64, POINTER, bits - 1);
            a.byte_op(ByteOp::Mov, AL, OLD);
            a.byte_imm(Imm::And, AL, 1);
        }
        FlagFixup::Double { bits } => {
            a.shift(Shift::Right, bits == 64, POINTER, bits - 1);
            a.byte_op(ByteOp::Mov, AL, AH);
            a.byte_shift(Shift::Right, AL, 7);
            a.byte_op(ByteOp::Xor, AL, OLD);
            a.byte_imm(Imm::And, AL, 1);
        }
    }
    if fixup != FlagFixup::None {
        a.byte_imm(Imm::And, AH, !(rflags::AF as u8));
    }
}

/// Stores what [`load`] has loaded.
pub(super) fn store(a: &mut Assembler) {
    a.store16(&FRAME_FLAGS, SCRATCH);
}

/// Saves the host's flags in the frame, as those of the guest. Clobbers [`SCRATCH`]; leaves the
/// host's flags undefined.
pub(super) fn save(a: &mut Assembler, fixup: FlagFixup) {
    load(a, fixup);
    store(a);
}

/// Replaces the saved flag `bit`, of those that LAHF loads, by whether the host's flags meet
/// `condition`. Clobbers [`SCRATCH`]; leaves the host's flags undefined.
pub(super) fn save_one(a: &mut Assembler, condition: u8, bit: u8) {
    let lahf = Mem {
        disp: FRAME_FLAGS.disp + 1,
        ..FRAME_FLAGS
    };
    a.set_if(condition, AL);
    a.byte_shift(Shift::Left, AL, bit);
    a.imm_mem8(Imm::And, &lahf, !(1 << bit));
    a.byte_or_mem(&lahf, AL);
}

/// Saves CF and OF after a rotate by one, and keeps the other saved flags. Clobbers [`SCRATCH`];
/// leaves the host's flags undefined.
pub(super) fn save_of_rotate(a: &mut Assembler) {
    a.store_if(cond::O, &FRAME_FLAGS);
    save_one(a, cond::B, super::CF);
}

/// Saves the flags that follow from `result`, of the size of its instruction, with the host's CF
/// and without OF and AF. Clobbers [`SCRATCH`] and [`POINTER`].
pub(super) fn save_of_result(a: &mut Assembler, result: Location, wide: bool) {
    a.set_if(cond::B, AL);
    a.zero_extend_byte(POINTER, AL);
    load_of_result(a, result, wide);
    a.mov_al_imm(0);
    store(a);
}

/// Saves the flags of a product whose lower half is in `result`, of the size of its instruction: CF
/// and OF are the host's OF, the others follow from the lower half. Clobbers [`SCRATCH`] and
/// [`POINTER`].
pub(super) fn save_of_product(a: &mut Assembler, result: Location, wide: bool) {
    a.set_if(cond::O, AL);
    a.zero_extend_byte(POINTER, AL);
    load_of_result(a, result, wide);
    store(a);
}

/// Loads SF, ZF and PF of `result`, and the CF in [`POINTER`], into AH, and CF into AL.
fn load_of_result(a: &mut Assembler, result: Location, wide: bool) {
    const OF_RESULT: u64 = rflags::SF | rflags::ZF | rflags::PF;
    match result {
        Location::Register(r) => a.test(wide, r),
        Location::Memory(m) => {
            a.load(SCRATCH, &m);
            a.test(wide, SCRATCH);
        }
    }
    a.lahf();
    a.byte_imm(Imm::And, AH, OF_RESULT as u8);
    a.byte_op(ByteOp::Mov, AL, OLD);
    a.byte_op(ByteOp::Or, AH, AL);
}

/// Loads the saved flags into the host's. `pushed` is the number of bytes on the stack below the
/// frame. Clobbers [`SCRATCH`].
pub(crate) fn restore_saved(a: &mut Assembler, pushed: i32) {
    let flags = Mem {
        disp: FRAME_FLAGS.disp + pushed,
        ..FRAME_FLAGS
    };
    a.load16(SCRATCH, &flags);
    // Adding 7FH to 1 sets OF.
    a.byte_imm(Imm::Add, AL, 0x7F);
    a.sahf();
}

/// Loads the saved flags into the lowest 12 bits of [`SCRATCH`], as PUSHF stores them.
pub(crate) fn load_image(a: &mut Assembler) {
    a.load16(SCRATCH, &FRAME_FLAGS);
    a.byte_op(ByteOp::Exchange, AH, AL);
    // OF is bit 11 of RFLAGS, and bit 1 is always set.
    a.byte_shift(Shift::Left, AH, 3);
    a.byte_imm(Imm::Or, AL, rflags::FIXED as u8);
}

/// The flags that LAHF loads into AH, apart from fixed ones.
const LAHF: u64 = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;

/// The saved form of `flags`: OF in bit 0, and in the second byte what LAHF loads.
pub(crate) fn pack(flags: Lazy) -> u64 {
    let bits = flags.bits();
    (bits & LAHF) << 8 | u64::from(bits & rflags::OF != 0)
}

/// The flags with the saved form `image`.
pub(crate) fn unpack(image: u64) -> Lazy {
    let overflow = if image & 1 != 0 { rflags::OF } else { 0 };
    Lazy::from_bits((image >> 8 & LAHF) | overflow)
}
