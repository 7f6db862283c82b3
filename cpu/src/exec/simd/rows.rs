//! The rows of vector instructions that exist without VEX and with it.
//!
//! A row declares an instruction once, in all encodings: its form with its kernel, as one type, and
//! its code in each of them. The form has what executes the kernel. An instruction that has one
//! encoding has a row of [`Table`]: moves of MMX registers in `mmx`, SHA in `aes`, conversions from
//! and to MMX registers in `convert`, and what AVX and later extensions added in `vex`.

use std::marker::PhantomData;

use iced_x86::Code;

use super::encoding::{Encoding, Legacy};
use crate::exec::native::VectorForm;
use crate::exec::table::{Backend, Handler, Table};
use crate::insn::{Exec, Insn};
use crate::processor::cpu::Cpu;

/// What executes an instruction with a register operand, and with a memory operand.
pub(super) type Handlers = [Handler; 2];

/// An instruction on XMM registers, without VEX and with it.
pub(super) trait Form {
    /// How native code executes it without VEX, if it does.
    const NATIVE: Option<VectorForm> = Some(VectorForm::ALIGNED);
    /// How native code executes it with VEX, if it does.
    const NATIVE_VEX: Option<VectorForm> = unaligned(Self::NATIVE);

    /// Without VEX.
    fn sse() -> Handlers;
    /// With VEX.
    fn vex() -> Handlers;
}

/// A [`Form`] that also exists on YMM registers.
pub(super) trait WideForm: Form {
    /// On YMM registers.
    fn ymm() -> Handlers;
}

/// A [`WideForm`] that also exists on MMX registers.
pub(super) trait MmxForm: WideForm {
    /// On MMX registers.
    fn mmx() -> Handlers;
}

/// With VEX, memory operands need not be aligned (SDM Vol. 2A 2.4).
const fn unaligned(form: Option<VectorForm>) -> Option<VectorForm> {
    match form {
        Some(form) => Some(VectorForm {
            unaligned: true,
            ..form
        }),
        None => None,
    }
}

/// An instruction whose encodings differ in what [`Encoding`] has.
pub(super) trait Encoded {
    /// The encoding with VEX.
    type Vex: Encoding;
    /// See [`Form::NATIVE`].
    const NATIVE: Option<VectorForm> = Some(VectorForm::ALIGNED);

    /// Executes it with a register operand.
    fn register<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec;
    /// Executes it with a memory operand.
    fn memory<E: Encoding>(cpu: &mut Cpu, insn: &Insn) -> Exec {
        Self::register::<E>(cpu, insn)
    }
}

impl<I: Encoded> Form for I {
    const NATIVE: Option<VectorForm> = I::NATIVE;

    fn sse() -> Handlers {
        [I::register::<Legacy>, I::memory::<Legacy>]
    }
    fn vex() -> Handlers {
        [I::register::<I::Vex>, I::memory::<I::Vex>]
    }
}

/// The form `F` for which native code calls the handlers.
pub(super) struct Called<F>(PhantomData<F>);

impl<F: Form> Form for Called<F> {
    const NATIVE: Option<VectorForm> = None;

    fn sse() -> Handlers {
        F::sse()
    }
    fn vex() -> Handlers {
        F::vex()
    }
}

impl<F: WideForm> WideForm for Called<F> {
    fn ymm() -> Handlers {
        F::ymm()
    }
}

fn set<B: Backend>(
    t: &mut Table<B>,
    code: Code,
    [register, memory]: Handlers,
    native: Option<VectorForm>,
) {
    let rows = t.handlers([code], register, memory);
    if let Some(form) = native {
        rows.vector(form);
    }
}

/// The row of an instruction on XMM registers.
pub(super) fn xmm<B: Backend, F: Form>(t: &mut Table<B>, [sse, vex]: [Code; 2]) {
    set(t, sse, F::sse(), F::NATIVE);
    set(t, vex, F::vex(), F::NATIVE_VEX);
}

/// The row of an instruction on XMM registers that with VEX has a code for each of its operands: a
/// register, and memory.
pub(super) fn split_xmm<B: Backend, F: Form>(t: &mut Table<B>, [sse, register, memory]: [Code; 3]) {
    xmm::<B, F>(t, [sse, register]);
    set(t, memory, F::vex(), F::NATIVE_VEX);
}

/// The row of an instruction on XMM and YMM registers.
pub(super) fn ymm<B: Backend, F: WideForm>(t: &mut Table<B>, [sse, vex, wide]: [Code; 3]) {
    xmm::<B, F>(t, [sse, vex]);
    set(t, wide, F::ymm(), F::NATIVE_VEX);
}

/// The row of an instruction on MMX, XMM and YMM registers.
pub(super) fn mmx<B: Backend, F: MmxForm>(t: &mut Table<B>, [mm, sse, vex, wide]: [Code; 4]) {
    set(t, mm, F::mmx(), None);
    ymm::<B, F>(t, [sse, vex, wide]);
}

/// The row of an instruction that only AVX or a later extension has, on XMM and YMM registers.
pub(super) fn vex<B: Backend, F: WideForm>(t: &mut Table<B>, [vex, wide]: [Code; 2]) {
    set(t, vex, F::vex(), F::NATIVE_VEX);
    set(t, wide, F::ymm(), F::NATIVE_VEX);
}
