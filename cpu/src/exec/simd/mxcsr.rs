//! MXCSR, and SIMD floating-point exceptions (SDM Vol. 1 11.5).
//!
//! Arithmetic runs on the host's SSE unit, so that rounding, NaNs, denormals and flags are those of
//! the hardware.

use iced_x86::Code;

use super::encoding::{Encoding, OneSource};
use super::rows::{Encoded, xmm};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn};
use crate::processor::cpu::Cpu;
use crate::state::cr4;
use crate::state::vector;
use crate::state::xsave::MXCSR_MASK;

/// The flags: IE, DE, ZE, OE, UE, PE.
const FLAGS: u32 = 0x3F;
/// Flags of exceptions that are found in the operands, before anything is computed: IE, DE, ZE.
const PRE: u32 = 0x7;
pub(super) const UE: u32 = 1 << 4;
/// Distance in bits from a flag to its mask.
pub(super) const MASK_SHIFT: u32 = 7;
/// The masks of all exceptions.
pub(crate) const MASKS: u32 = FLAGS << MASK_SHIFT;
/// Flush to zero.
const FTZ: u32 = 1 << 15;
/// DAZ, rounding control and FTZ.
const CONTROL: u32 = 0xE040;

/// MXCSR as Rust's code expects it: no flag set, all exceptions masked, rounding to nearest.
pub(crate) static HOST_MXCSR: u32 = 0x1F80;

/// A value for MXCSR in which every exception is masked and no flag is set: with it, no instruction
/// of the host raises #XM. [`Cpu::float`] makes them.
#[derive(Clone, Copy)]
pub(super) struct Masked(u32);

impl Masked {
    /// The value with the guest's rounding, DAZ and FTZ.
    #[inline(always)]
    fn of(mxcsr: u32) -> Self {
        Self(mxcsr & CONTROL | MASKS)
    }

    /// With the bit FTZ.
    #[inline(always)]
    pub(super) fn flushing(self, ftz: bool) -> Self {
        Self(if ftz { self.0 | FTZ } else { self.0 & !FTZ })
    }

    #[inline(always)]
    pub(super) fn get(self) -> u32 {
        self.0
    }
}

/// Assembly code that runs with `csr`, a variable, as MXCSR, and leaves MXCSR in it. The block is
/// `unsafe` to expand: every exception must be masked in `csr`.
macro_rules! with_mxcsr {
    ($csr:ident, [$($insn:expr),+], $($operands:tt)*) => {
        std::arch::asm!(
            "ldmxcsr [{csr}]",
            $($insn,)+
            "stmxcsr [{csr}]",
            "ldmxcsr [rip + {host}]",
            csr = in(reg) &raw mut $csr,
            host = sym $crate::exec::simd::mxcsr::HOST_MXCSR,
            $($operands)*
        )
    };
}
pub(super) use with_mxcsr;

/// `a = insn(a, b)` on the host with the [`Masked`] `csr`; the result and MXCSR after it. The block
/// is `unsafe` to expand: the host must have the instruction.
macro_rules! host {
    ($insn:expr, $csr:expr, $a:expr, $b:expr $(, $name:ident = const $value:expr)*) => {{
        let (mut csr, mut a): (u32, V) = ($crate::exec::simd::mxcsr::Masked::get($csr), $a);
        $crate::exec::simd::mxcsr::with_mxcsr!(
            csr,
            [$insn],
            a = inout(xmm_reg) a,
            b = in(xmm_reg) $b,
            $($name = const $value,)*
            options(nostack, preserves_flags),
        );
        (a, csr)
    }};
}
pub(super) use host;

impl Cpu {
    /// Runs a floating-point operation, which gets a value for MXCSR and returns its result and
    /// MXCSR after it. Merges the flags, or raises the exception.
    #[inline(always)]
    pub(super) fn float<R>(&mut self, f: impl Fn(Masked) -> (R, u32)) -> Result<R, Abort> {
        let (r, csr) = f(Masked::of(self.mxcsr));
        let flags = csr & FLAGS;
        let unmasked = !self.mxcsr >> MASK_SHIFT;
        if (flags | UE) & unmasked != 0 {
            return self.unmasked(r, flags, f);
        }
        self.mxcsr |= flags;
        Ok(r)
    }

    /// The rest of [`Cpu::float`] if an exception is not masked, or may not be.
    #[cold]
    #[inline(never)]
    fn unmasked<R>(
        &mut self,
        mut r: R,
        mut flags: u32,
        f: impl Fn(Masked) -> (R, u32),
    ) -> Result<R, Abort> {
        let unmasked = !self.mxcsr >> MASK_SHIFT & FLAGS;
        if unmasked & UE != 0 {
            // Unmasked, underflow is reported for every tiny result; masked, only for an inexact
            // one, or if flushing to zero would make it so (11.5.2.5). And unmasked, there is no
            // flushing.
            let masked = Masked::of(self.mxcsr);
            let tiny = f(masked.flushing(true)).1 & UE;
            let (exact, csr) = f(masked.flushing(false));
            r = exact;
            flags = csr & (FLAGS & !UE) | tiny;
        }
        if flags & unmasked & PRE != 0 {
            // Nothing is computed, so no other exception is found (11.5.4).
            flags &= PRE;
        }
        self.mxcsr |= flags;
        if flags & unmasked == 0 {
            return Ok(r);
        }
        if self.sys.cr4 & cr4::OSXMMEXCPT == 0 {
            return Err(self.ud());
        }
        Err(self.exception(vector::XM, None))
    }
}

/// LDMXCSR.
struct Ldmxcsr;

impl Encoded for Ldmxcsr {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = None;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        let v = cpu.load::<u32>(cpu.ea(insn))?;
        if v & !MXCSR_MASK != 0 {
            return Err(cpu.gp(0));
        }
        cpu.mxcsr = v;
        Ok(Flow::Next)
    }
}

/// STMXCSR.
struct Stmxcsr;

impl Encoded for Stmxcsr {
    type Vex = OneSource;
    const NATIVE: Option<VectorForm> = None;

    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        E::need(cpu)?;
        cpu.store(cpu.ea(insn), cpu.mxcsr)?;
        Ok(Flow::Next)
    }
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    xmm::<B, Ldmxcsr>(t, [Ldmxcsr_m32, VEX_Vldmxcsr_m32]);
    xmm::<B, Stmxcsr>(t, [Stmxcsr_m32, VEX_Vstmxcsr_m32]);
}
