//! What users choose and read about native code.

use std::time::Duration;

/// How a processor makes native code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeOptions {
    /// Runs of a block in the interpreter after which it is translated.
    pub threshold: u32,
    /// Each block is also executed by the interpreter, and the results are compared, which is slow.
    /// A difference is a panic.
    pub check: bool,
    /// Memory in bytes for the code of a processor. Several processors share twice as much: few
    /// programs fill what one of two has, and memory that is not used costs nothing. A processor's
    /// code is cleared when its memory is full.
    pub memory: usize,
}

impl NativeOptions {
    /// Memory in bytes for the code of each of `processors`.
    pub(crate) fn memory_of_each(&self, processors: usize) -> usize {
        match processors {
            0 | 1 => self.memory,
            _ => 2 * self.memory / processors,
        }
    }
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            threshold: 16,
            check: false,
            memory: 64 << 20,
        }
    }
}

/// Counts of a processor's native code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NativeStats {
    /// Blocks that were translated.
    pub blocks: u64,
    /// Blocks whose code the verifier has refused: an error of vbts.
    pub refused: u64,
    /// Bytes of native code that were made.
    pub bytes: u64,
    /// How often the code memory was full, and was cleared.
    pub flushes: u64,
    /// Entries that were made or updated in the tables of targets of indirect jumps.
    pub jump_targets: u64,
    /// Time of the host that translating took.
    pub time: Duration,
}

impl std::iter::Sum for NativeStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            blocks: a.blocks + b.blocks,
            refused: a.refused + b.refused,
            bytes: a.bytes + b.bytes,
            flushes: a.flushes + b.flushes,
            jump_targets: a.jump_targets + b.jump_targets,
            time: a.time + b.time,
        })
    }
}
