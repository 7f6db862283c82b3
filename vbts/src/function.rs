//! What was executed of a function.

use serde::Deserialize;

/// A function of a traced program or of a library, with exact counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Source file and line, or the file that has it.
    pub place: Option<String>,
    /// Number of times that it was called.
    pub calls: u64,
    /// Number of instructions executed in it, without those of functions that it has called.
    pub instructions: u64,
    /// Number of instructions executed in it and in the functions that it has called.
    pub total: u64,
    /// Number of branches taken in it.
    pub branches: u64,
}
