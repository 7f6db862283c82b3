//! Requirements of Rust's code on MXCSR and on the upper halves of the host's YMM registers.
//!
//! Rust's code computes with the MXCSR of [`HOST_MXCSR`], and is slow while an upper half is not
//! zero. Instructions of the guest need the guest's. So native code changes both, and restores them
//! before each call of Rust's code and before it returns to it:
//!
//! * Native code is entered from Rust's code, by `enter`, and from the end of another block. At the
//!   start of a block both are the host's, since all ends of a block below restore them.
//! * MXCSR becomes the guest's in [`Vectors::turn_on`] and in [`Vectors::return_to`]. Upper halves
//!   cease to be zero where they are loaded, and by an instruction with a YMM operand. [`Vectors`]
//!   notes both, for the place in the block at which the translator is. A cold path has the
//!   [`Vectors`] of the place from which it is jumped to.
//! * [`Vectors::unload`] restores both. It precedes each of these, where
//!   [`Vectors::assert_unloaded`] checks that nothing has changed them since:
//!   - a call of `exec`: in the block, for an operand that the TLB does not find
//!     (`ColdPath::Execute`, also that of RET, CALL and JMP), and for the rest of a block
//!     (`ColdPath::Finish`);
//!   - the end of a block, by a direct jump (`jump`; `ColdPath::Taken` for a branch that is taken)
//!     and by an indirect one (`jump_indirect`): first the call that records the branch
//!     (`ColdPath::Record`), then the exit behind `retire`;
//!   - the exits in the middle of a block: of STI, and of code that is checked (`leave`).
//! * One exit has nothing to restore: that of a key that is not valid any more, with which a block
//!   begins.
//! * No instruction of the host faults with the guest's MXCSR: `turn_on` leaves a block to the
//!   interpreter unless MXCSR masks every exception. Linux enters a signal handler with the initial
//!   MXCSR and vector registers, and restores those of native code when it returns.
//!
//! [`Vectors`]: super::Vectors
//! [`Vectors::turn_on`]: super::Vectors::turn_on
//! [`Vectors::return_to`]: super::Vectors::return_to
//! [`Vectors::unload`]: super::Vectors::unload
//! [`Vectors::assert_unloaded`]: super::Vectors::assert_unloaded
//! [`HOST_MXCSR`]: crate::exec::HOST_MXCSR

use std::arch::asm;

use crate::exec::HOST_MXCSR;

/// The bits of MXCSR that decide how instructions compute. The others are the flags, which Rust's
/// code sets and never reads.
const CONTROL: u32 = 0xFFC0;

/// Checks, in a debug build, that Rust's code has been called by native code, or returned to, with
/// the host's MXCSR and with upper halves of zero.
#[inline(always)]
pub(crate) fn check() {
    if cfg!(debug_assertions) {
        check_now();
    }
}

#[inline(never)]
fn check_now() {
    let mut mxcsr = 0u32;
    // SAFETY: every x86-64 processor has STMXCSR, which stores 4 bytes to `mxcsr`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    assert_eq!(
        mxcsr & CONTROL,
        HOST_MXCSR & CONTROL,
        "native code leaves the guest's MXCSR to Rust's code"
    );
    if !std::arch::is_x86_feature_detected!("avx") {
        return;
    }
    let mut upper = [0u128; 16];
    // SAFETY: the processor has AVX. The instructions store 16 bytes to each element of `upper`,
    // and change no register.
    unsafe {
        asm!(
            "vextractf128 [{0}], ymm0, 1",
            "vextractf128 [{0} + 16], ymm1, 1",
            "vextractf128 [{0} + 32], ymm2, 1",
            "vextractf128 [{0} + 48], ymm3, 1",
            "vextractf128 [{0} + 64], ymm4, 1",
            "vextractf128 [{0} + 80], ymm5, 1",
            "vextractf128 [{0} + 96], ymm6, 1",
            "vextractf128 [{0} + 112], ymm7, 1",
            "vextractf128 [{0} + 128], ymm8, 1",
            "vextractf128 [{0} + 144], ymm9, 1",
            "vextractf128 [{0} + 160], ymm10, 1",
            "vextractf128 [{0} + 176], ymm11, 1",
            "vextractf128 [{0} + 192], ymm12, 1",
            "vextractf128 [{0} + 208], ymm13, 1",
            "vextractf128 [{0} + 224], ymm14, 1",
            "vextractf128 [{0} + 240], ymm15, 1",
            in(reg) &raw mut upper,
            options(nostack, preserves_flags)
        );
    }
    assert_eq!(
        upper, [0; 16],
        "native code leaves upper halves of the guest's to Rust's code"
    );
}
