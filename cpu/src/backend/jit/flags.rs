//! The arithmetic flags in native code.
//!
//! They stay in the host's flags until something overwrites those: then they are saved, unless the
//! guest's have been overwritten, too. Where the manual leaves a flag undefined, the result is that
//! of the interpreter, on each host.

use crate::backend::jit::assembler::{Assembler, Mem, R14, RAX, cond};
use crate::backend::jit::layout::{FRAME_FLAGS, Location};
use crate::backend::jit::recompute::Recompute;
use crate::state::flags::Lazy;
use crate::state::rflags;

/// What has to be done to the host's flags to make those of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fix {
    /// They are equal.
    None,
    /// AF is clear: logical instructions, shifts by one.
    ClearAf,
    /// After SHL: AF is clear, OF is SF XOR CF.
    Left,
    /// After SAR: AF and OF are clear.
    ArithmeticRight,
    /// After SHR: AF is clear, OF is the most significant bit of the operand, which R14 has, with
    /// this number of bits.
    Right { bits: u8 },
    /// After SHLD and SHRD: AF is clear, OF is SF XOR the most significant bit of the operand,
    /// which R14 has, with this number of bits.
    Double { bits: u8 },
}

/// Where the guest's arithmetic flags are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the frame.
    Saved,
    /// In the host's flags.
    Host(Fix),
    /// Nowhere: what needs them computes them again.
    Lost(Recompute),
}

/// Loads the host's flags into AX, in the saved form of those of the guest. Leaves the host's flags
/// undefined.
pub(super) fn load(a: &mut Assembler, fix: Fix) {
    // LAHF
    a.bytes(&[0x9F]);
    match fix {
        // SETO AL
        Fix::None | Fix::ClearAf => a.bytes(&[0x0F, 0x90, 0xC0]),
        // MOV AL, AH; SHR AL, 7; XOR AL, AH; AND AL, 1
        Fix::Left => a.bytes(&[0x88, 0xE0, 0xC0, 0xE8, 7, 0x30, 0xE0, 0x24, 1]),
        // MOV AL, 0
        Fix::ArithmeticRight => a.bytes(&[0xB0, 0]),
        Fix::Right { bits } => {
            a.shr(bits == 64, R14, bits - 1);
            // MOV AL, R14B; AND AL, 1
            a.bytes(&[0x44, 0x88, 0xF0, 0x24, 1]);
        }
        Fix::Double { bits } => {
            a.shr(bits == 64, R14, bits - 1);
            // MOV AL, AH; SHR AL, 7; XOR AL, R14B
            a.bytes(&[0x88, 0xE0, 0xC0, 0xE8, 7, 0x44, 0x30, 0xF0]);
            // AND AL, 1
            a.bytes(&[0x24, 1]);
        }
    }
    if fix != Fix::None {
        // AND AH, NOT AF
        a.bytes(&[0x80, 0xE4, 0xEF]);
    }
}

/// Saves the host's flags in the frame, as those of the guest. Overwrites RAX; leaves the host's
/// flags undefined.
pub(super) fn save(a: &mut Assembler, fix: Fix) {
    load(a, fix);
    a.store_ax(&FRAME_FLAGS);
}

/// Bits of flags in what LAHF loads.
pub(super) const CF: u8 = 0;
pub(super) const ZF: u8 = 6;

/// Replaces the saved flag `bit` by whether the host's flags meet `condition`. Overwrites RAX;
/// leaves the host's flags undefined.
pub(super) fn save_one(a: &mut Assembler, condition: u8, bit: u8) {
    let lahf = Mem {
        disp: FRAME_FLAGS.disp + 1,
        ..FRAME_FLAGS
    };
    // SETcc AL; SHL AL, bit
    a.bytes(&[0x0F, 0x90 | condition, 0xC0, 0xC0, 0xE0, bit]);
    // AND byte [lahf], NOT bit
    a.memory(false, &[0x80], 4, &lahf);
    a.bytes(&[!(1 << bit)]);
    // OR byte [lahf], AL
    a.memory(false, &[0x08], RAX, &lahf);
}

/// Saves CF and OF after a rotate by one, and keeps the other saved flags. Overwrites RAX; leaves
/// the host's flags undefined.
pub(super) fn save_of_rotate(a: &mut Assembler) {
    // SETO byte [flags]
    a.memory(false, &[0x0F, 0x90], 0, &FRAME_FLAGS);
    save_one(a, cond::B, CF);
}

/// Saves the flags that follow from `result`, of the size of its instruction, with the host's CF
/// and without OF and AF. Overwrites RAX and R14.
pub(super) fn save_of_result(a: &mut Assembler, result: Location, wide: bool) {
    // SETC AL; MOVZX R14D, AL
    a.bytes(&[0x0F, 0x92, 0xC0, 0x44, 0x0F, 0xB6, 0xF0]);
    load_of_result(a, result, wide);
    // MOV AL, 0
    a.bytes(&[0xB0, 0]);
    a.store_ax(&FRAME_FLAGS);
}

/// Loads SF, ZF and PF of `result` and the CF that R14 has into AH, and CF into AL.
fn load_of_result(a: &mut Assembler, result: Location, wide: bool) {
    match result {
        Location::Register(r) => a.test(wide, r),
        Location::Memory(m) => {
            a.load(RAX, &m);
            a.test(wide, RAX);
        }
    }
    // LAHF; AND AH, SF | ZF | PF; MOV AL, R14B; OR AH, AL
    a.bytes(&[0x9F, 0x80, 0xE4, 0xC4, 0x44, 0x88, 0xF0, 0x08, 0xC4]);
}

/// Saves the flags of a product whose lower half is in `result`, of the size of its instruction: CF
/// and OF are the host's OF, the others follow from the lower half. Overwrites RAX and R14.
pub(super) fn save_of_product(a: &mut Assembler, result: Location, wide: bool) {
    // SETO AL; MOVZX R14D, AL
    a.bytes(&[0x0F, 0x90, 0xC0, 0x44, 0x0F, 0xB6, 0xF0]);
    load_of_result(a, result, wide);
    a.store_ax(&FRAME_FLAGS);
}

/// Loads the saved flags into the host's. Overwrites RAX.
pub(super) fn restore(a: &mut Assembler) {
    a.load_ax(&FRAME_FLAGS);
    // ADD AL, 7FH; SAHF
    a.bytes(&[0x04, 0x7F, 0x9E]);
}

/// The flags that LAHF loads into AH, apart from fixed ones.
const LAHF: u64 = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;

/// The saved form of `flags`.
pub(super) fn pack(flags: Lazy) -> u64 {
    let bits = flags.bits();
    (bits & LAHF) << 8 | u64::from(bits & rflags::OF != 0)
}

/// The flags with the saved form `image`.
pub(super) fn unpack(image: u64) -> Lazy {
    let overflow = if image & 1 != 0 { rflags::OF } else { 0 };
    Lazy::from_bits((image >> 8 & LAHF) | overflow)
}
