//! The software CPU against the host CPU: the same few instructions, from the same state, must
//! leave the same state.
//!
//! | module | what it is |
//! |---|---|
//! | [`generate`] | random instructions of the software CPU's instruction set, and states that make them interesting |
//! | [`native`] | runs them on the host, in a traced process |
//! | [`soft`] | runs them on the software CPU, at CPL 3 in 64-bit mode |
//! | [`compare`] | what may differ, and what differs |
//! | [`vendor`] | where processors differ, by vendor |

pub mod compare;
pub mod generate;
pub mod native;
pub mod soft;
pub mod vendor;

pub use vbts_testkit::random;

use vbts_cpu::{MODELS, Model, model};

/// The model that the software CPU is: the last that executes nothing that the host lacks. The
/// later ones have more instructions.
#[must_use]
pub fn processor() -> Option<&'static Model> {
    let models = MODELS.iter().rev().filter_map(|name| model(name));
    models
        .into_iter()
        .find(|model| model.missing_on_host().is_empty())
}

/// Linear addresses on both sides.
pub mod layout {
    /// The code page: execute and read. Filled with INT3 behind the code.
    pub const CODE: u64 = 0x20_0000;
    /// Size of the code page.
    pub const CODE_LEN: usize = 0x1000;
    /// Data, writable; the page below is not mapped.
    pub const DATA: u64 = 0x21_0000;
    /// Size of the writable data.
    pub const DATA_LEN: usize = 0x3000;
    /// A read-only page right above the data; the page above it is not mapped.
    pub const READ_ONLY: u64 = 0x21_3000;
    /// Size of all data.
    pub const MEMORY_LEN: usize = DATA_LEN + 0x1000;
}

/// x87, SSE and AVX registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloatState {
    /// x87 control word.
    pub fcw: u16,
    /// x87 status word.
    pub fsw: u16,
    /// Abridged tag word: bit *i* is set if physical register *i* is not empty.
    pub ftw: u8,
    /// ST(0) to ST(7), 80 bits each.
    pub st: [[u8; 10]; 8],
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
    /// The upper halves of YMM0 to YMM15.
    pub ymm_high: [u128; 16],
    /// SSE control and status.
    pub mxcsr: u32,
}

/// The size of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit mode.
    Bits64,
    /// Compatibility mode with 32-bit code.
    Bits32,
}

impl Mode {
    /// As iced counts it.
    #[must_use]
    pub const fn bitness(self) -> u32 {
        match self {
            Self::Bits64 => 64,
            Self::Bits32 => 32,
        }
    }

    /// How many general and vector registers there are.
    #[must_use]
    pub const fn registers(self) -> u64 {
        match self {
            Self::Bits64 => 16,
            Self::Bits32 => 8,
        }
    }

    /// The part of a general register that exists.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Bits64 => u64::MAX,
            Self::Bits32 => 0xFFFF_FFFF,
        }
    }
}

/// What instructions can see and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The size of the code.
    pub mode: Mode,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub gpr: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// x87, SSE and AVX.
    pub float: FloatState,
    /// The data from [`layout::DATA`] on, [`layout::MEMORY_LEN`] bytes.
    pub memory: Vec<u8>,
}

/// How the instructions ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// At the INT3 behind the code: all completed.
    Completed,
    /// #DE.
    Divide,
    /// #DB.
    Debug,
    /// #UD.
    InvalidOpcode,
    /// #GP.
    GeneralProtection,
    /// #SS.
    Stack,
    /// #PF with CR2.
    Page(u64),
    /// #AC.
    Alignment,
    /// #MF.
    X87,
    /// #XM.
    Simd,
    /// Anything else: an exception by its vector, or a signal by its number.
    Other(u32),
}

impl Event {
    /// Whether it is a fault of a memory access.
    #[must_use]
    pub const fn is_memory_fault(self) -> bool {
        matches!(
            self,
            Self::GeneralProtection | Self::Stack | Self::Page(_) | Self::Alignment
        )
    }
}

/// How the instructions ended, and the state they left. RIP is that of the instruction that
/// faulted, or of the INT3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How they ended.
    pub event: Event,
    /// What they left.
    pub state: State,
}
