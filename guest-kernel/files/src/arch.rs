//! The architectures of a guest's kernel.

use vbts_cpu::Model;

/// The architecture of a guest's kernel, which the programs of vbts that run on it share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit. Its Linux runs 32-bit programs, too.
    X86_64,
    /// 32-bit.
    I386,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::I386];

    /// The best one for a processor model.
    pub fn of_model(model: &Model) -> Self {
        match model.has_intel_64() {
            true => Self::X86_64,
            false => Self::I386,
        }
    }

    /// Its name for `guest-kernel/build --arch`.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::I386 => "i386",
        }
    }
}
