//! Where code comes from that is in no file of the host, or differs from it.

use serde::{Deserialize, Serialize};

/// Where the bytes of [`crate::ToHost::Code`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeSource {
    /// The memory of the process at its end, at an address: code that is in no file, or that was
    /// written over that of a file.
    Memory,
    /// The vDSO, which the kernel has mapped at an address.
    Vdso,
    /// A part of the process's `/tmp/perf-PID.map`, at an offset.
    PerfMap,
    /// A part of the process's `jit-PID.dump`, at an offset.
    JitDump,
}
