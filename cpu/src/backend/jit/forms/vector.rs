//! SSE and AVX instructions that become native code as themselves.

use iced_x86::{Code, EncodingKind, Instruction, OpKind};

use crate::backend::interpreter::lower::INSTRUCTIONS;
use crate::backend::jit::forms::direct::host_executes;
use crate::exec::native::{Native, NativeForm, VectorForm};

/// An instruction of SSE or AVX that becomes native code as itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirectVector {
    /// The instruction, without a hint for the caches, which would let the host reorder the access.
    pub code: Code,
    /// It has VEX: it writes whole YMM registers.
    pub vex: bool,
    pub form: VectorForm,
}

/// Returns how an instruction becomes native code, or `None` if it has no template.
pub(crate) fn of(i: &Instruction) -> Option<DirectVector> {
    let Native { code, form } = INSTRUCTIONS.native(i.code())?;
    let NativeForm::Vector(form) = form else {
        return None;
    };
    let is_mmx = |n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_mm();
    if (0..i.op_count()).any(is_mmx) || !host_executes(i) {
        return None;
    }
    Some(DirectVector {
        code,
        vex: i.code().encoding() == EncodingKind::VEX,
        form,
    })
}
