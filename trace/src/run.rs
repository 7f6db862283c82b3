//! What a file says about the run. Both types are JSON in the file. Fields that a reader does not
//! know are kept in `other`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What the branches of a trace are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streams {
    /// Each stream is a task. Its number is that of its start.
    #[default]
    Tasks,
    /// Each stream is a processor of the machine, and its number that of the processor.
    Processors,
}

fn is_default(streams: &Streams) -> bool {
    *streams == Streams::default()
}

/// The run, as far as it is known at its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The program that writes the file, with its version.
    pub writer: String,
    /// The traced command.
    pub command: Vec<String>,
    /// Its working directory.
    pub directory: String,
    /// Which branches are recorded: `user`, `kernel` or `all`.
    pub scope: String,
    /// What executes the guest: `soft` or `kvm`.
    pub accel: String,
    /// Whether the user wants to see when tasks arrive on processors and depart from them. The file
    /// has these events anyway.
    pub sched: bool,
    /// What the streams are.
    #[serde(skip_serializing_if = "is_default")]
    pub streams: Streams,
    /// The kernel's file, for the names of its functions, if the trace has its branches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The build ID of that file in hexadecimal digits, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_build_id: Option<String>,
    /// Further facts.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The end of the run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Number of branches.
    pub records: u64,
    /// Number of records that are missing.
    pub lost: u64,
    /// More than `lost` may be missing.
    pub lost_more: bool,
    /// Number of records that may be missing in addition, in buffers that were not drained.
    pub undrained: u64,
    /// Number of branches that the user did not want, if there was a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filtered: Option<u64>,
    /// Number of tasks that were traced.
    pub tasks: u64,
    /// Some branches come after younger ones of another task.
    pub unordered: bool,
    /// How the run ended: `exited`, `signal`, `timeout`, `interrupted`, `panic` or `error`.
    pub end: String,
    /// The program's exit status, if `end` is `exited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The signal that killed the program, if `end` is `signal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Further facts.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
