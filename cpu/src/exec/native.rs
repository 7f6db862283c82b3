//! The forms in which native code executes instructions as themselves, with host registers in place
//! of the guest's.
//!
//! A row of the table of instructions contains the form. An instruction without one has a template
//! of its own in `backend/jit`, or native code calls its handler.

use iced_x86::Code;

/// The effect of an integer instruction on the arithmetic flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagEffect {
    /// Keeps all.
    Keeps,
    /// Writes all, and leaves none undefined.
    Arithmetic,
    /// Writes all except for CF.
    ArithmeticKeepsCf,
    /// Clears CF and OF, and writes the others. AF is undefined: the interpreter clears it.
    Logic,
    /// BT, BTS, BTR and BTC: writes CF. The others are undefined: the interpreter keeps them.
    BitTest,
    /// A shift: depends on the count.
    Shift,
    /// A rotate: depends on the count.
    Rotate,
    /// IMUL with two or three operands: writes CF and OF. The others are undefined: the interpreter
    /// sets them by the lower half of the product.
    Product,
    /// An instruction of BMI1, BMI2 or LZCNT: writes CF, and flags of the result. The manual leaves
    /// some undefined: the interpreter clears OF and AF, and sets the others by the result.
    Result,
}

/// Properties of an instruction of SSE or AVX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VectorForm {
    /// A memory operand of 16 or 32 bytes need not be aligned.
    pub unaligned: bool,
    /// It rounds, or sets flags of MXCSR.
    pub uses_mxcsr: bool,
    /// It writes all arithmetic flags.
    pub writes_flags: bool,
}

impl VectorForm {
    /// An instruction with aligned memory operands, which MXCSR does not concern.
    pub(crate) const ALIGNED: Self = Self {
        unaligned: false,
        uses_mxcsr: false,
        writes_flags: false,
    };
    /// An instruction with unaligned memory operands, which MXCSR does not concern.
    pub(crate) const UNALIGNED: Self = Self {
        unaligned: true,
        ..Self::ALIGNED
    };

    /// Returns the form of a floating-point instruction.
    pub(crate) const fn float(self) -> Self {
        Self {
            uses_mxcsr: true,
            ..self
        }
    }

    /// Returns the form of an instruction that writes all arithmetic flags.
    pub(crate) const fn flags(self) -> Self {
        Self {
            writes_flags: true,
            ..self
        }
    }
}

/// The form in which native code executes an instruction as itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeForm {
    /// With general registers and memory as operands.
    Integer(FlagEffect),
    /// With a vector register among its operands.
    Vector(VectorForm),
}

/// A [`NativeForm`], and the instruction that stands for the guest's: the same one without implicit
/// registers, or without a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Native {
    pub code: Code,
    pub form: NativeForm,
}
