//! Where code comes from that is in no file of the host.

use crate::Error;
use crate::payload::malformed;

/// Where the bytes of [`crate::ToHost::Code`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeSource {
    /// The memory of the process at its end, at an address: code without a file.
    Memory = 0,
    /// The vDSO, which the kernel has mapped at an address.
    Vdso = 1,
    /// A part of the process's `/tmp/perf-PID.map`, at an offset.
    PerfMap = 2,
    /// A part of the process's `jit-PID.dump`, at an offset.
    JitDump = 3,
}

impl CodeSource {
    /// The source with this number.
    pub(crate) fn new(number: u32) -> Result<Self, Error> {
        Ok(match number {
            0 => Self::Memory,
            1 => Self::Vdso,
            2 => Self::PerfMap,
            3 => Self::JitDump,
            _ => return Err(malformed("Code", format_args!("source {number}"))),
        })
    }
}
