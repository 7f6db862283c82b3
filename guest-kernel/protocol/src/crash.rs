//! The report about a task that its own instruction kills.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Names of the values of [`Crash::registers`], in order.
pub const REGISTERS: [&str; 19] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "rip", "rflags", "cs",
];

/// Maximum length of an instruction in bytes (SDM volume 2, section 2.3.11).
pub const MAX_INSTRUCTION: usize = 15;

/// A task that a signal of its own instruction kills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The task.
    pub task: u32,
    /// The number of the signal.
    pub signal: u32,
    /// `si_code` of the signal.
    pub code: i32,
    /// `si_addr` of the signal: the address that the instruction has accessed, or its own.
    pub address: u64,
    /// The values of [`REGISTERS`].
    pub registers: [u64; REGISTERS.len()],
    /// The bytes at `rip`, at most [`MAX_INSTRUCTION`]. They are fewer if the next page is not
    /// mapped.
    #[serde(
        serialize_with = "serde_bytes::serialize",
        deserialize_with = "instruction"
    )]
    pub instruction: Vec<u8>,
}

/// Reads an instruction.
fn instruction<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let bytes: &[u8] = serde_bytes::deserialize(from)?;
    match bytes.len() {
        0..=MAX_INSTRUCTION => Ok(bytes.to_vec()),
        len => Err(D::Error::custom(format_args!(
            "an instruction of {len} bytes"
        ))),
    }
}
