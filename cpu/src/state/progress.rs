//! How far a processor has come: retired instructions, virtual time, and the totals that depend on
//! them.

use serde::{Deserialize, Serialize};

use super::pmu::branch;

/// What a processor has counted since it was made.
///
/// They decide when the run loop returns, what virtual time it is and which numbers RDRAND returns,
/// so that a restored processor continues exactly like the saved one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Instructions retired. An exception counts as one instruction.
    pub instructions: u64,
    /// Virtual time in ns that passed without instructions, while the processor was halted or had
    /// no turn. Virtual time is `instructions` plus this.
    pub skipped: u64,
    /// Cycles in which no instruction retired. Instructions plus these are core cycles.
    pub idle_cycles: u64,
    /// Branch instructions retired while a performance counter counted them: conditional ones that
    /// were not taken and that were, direct and indirect near calls, near returns, indirect near
    /// jumps, and all others.
    pub branches: [u64; branch::TYPES],
    /// Numbers that RDRAND has generated.
    pub random_numbers: u64,
    /// Instructions by privilege level and tracing.
    pub usage: Usage,
    /// PAUSE instructions of a loop that may wait for another processor.
    pub spin: SpinCount,
    /// Such a loop was detected, and the run loop has to return before the next instruction.
    pub spins: bool,
}

/// Instructions by privilege level, and by whether IA32_DEBUGCTL asks for branches to be recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// At CPL 3, while branches are recorded.
    pub traced_user: u64,
    /// At CPL 0 to 2, while branches are recorded.
    pub traced_kernel: u64,
    /// At CPL 3, while no branches are recorded.
    pub user: u64,
    /// At CPL 0 to 2, while no branches are recorded.
    pub kernel: u64,
}

impl Usage {
    /// The number of all instructions.
    pub fn instructions(&self) -> u64 {
        self.traced_user + self.traced_kernel + self.user + self.kernel
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            traced_user: a.traced_user + b.traced_user,
            traced_kernel: a.traced_kernel + b.traced_kernel,
            user: a.user + b.user,
            kernel: a.kernel + b.kernel,
        })
    }
}

/// The PAUSE instructions that the detection of spin loops has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpinCount {
    /// PAUSE instructions since the count began.
    pub pauses: u32,
    /// Instructions retired when the count began.
    pub since: u64,
}
