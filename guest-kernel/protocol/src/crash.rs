//! The report about a task that its own instruction kills.

use crate::Error;
use crate::payload::{long, malformed, some_words};

/// Names of the values of [`Crash::registers`], in order.
pub const REGISTERS: [&str; 19] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "rip", "rflags", "cs",
];

/// Maximum length of an instruction in bytes (SDM volume 2, section 2.3.11).
pub const MAX_INSTRUCTION: usize = 15;

/// A task that a signal of its own instruction kills.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub instruction: Vec<u8>,
}

impl Crash {
    /// The payload of the message.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let words = [self.task, self.signal, self.code.cast_unsigned()].map(u32::to_le_bytes);
        let registers = self.registers.map(u64::to_le_bytes);
        let address = self.address.to_le_bytes();
        [
            words.as_flattened(),
            &address,
            registers.as_flattened(),
            &self.instruction,
        ]
        .concat()
    }

    /// Reads the payload of the message.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Error> {
        let ([task, signal, code], rest) = some_words("Crash", payload)?;
        let (address, mut rest) = long("Crash", rest)?;
        let mut registers = [0; REGISTERS.len()];
        for value in &mut registers {
            (*value, rest) = long("Crash", rest)?;
        }
        if rest.len() > MAX_INSTRUCTION {
            let why = format_args!("an instruction of {} bytes", rest.len());
            return Err(malformed("Crash", why));
        }
        Ok(Self {
            task,
            signal,
            code: code.cast_signed(),
            address,
            registers,
            instruction: rest.to_vec(),
        })
    }
}
