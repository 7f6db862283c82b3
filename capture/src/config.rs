//! The configuration of a program's trace, as plain data beside [`MachineConfig`].
//!
//! The command line makes a configuration; programs and tests make others.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thiserror::Error;
use vbts_protocol::{Follow, RECORD_SIZE, Scope};
use vbts_vmm::config::{BtsMode, MachineConfig, trace_model};
use vbts_vmm::memory::Size;

use crate::filter::{FilterError, Filters};
use crate::output::{StdoutUse, TraceTo};

/// Default size of the guest kernel's trace buffer of a task.
pub const DEFAULT_BUFFER: Size = Size(4 << 20);

/// Selects the format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// For people: one line a branch, with functions and source lines.
    Text,
    /// One JSON object a line.
    Json,
    /// Records of 24 bytes, little-endian: from, to, flags.
    Raw,
    /// Compressed, for the reports.
    Btrace,
}

impl TraceFormat {
    /// Whether the format is for programs alone.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Raw | Self::Btrace)
    }
}

/// The trace of a program: the machine that runs it, the branches to record, and the output.
///
/// ```
/// use vbts_capture::config::TraceConfig;
/// use vbts_capture::output::TraceTo;
/// use vbts_protocol::Scope;
///
/// let config = TraceConfig {
///     scope: Scope::All,
///     output: TraceTo::File("ls.txt".into()),
///     ..TraceConfig::new(["ls", "/"])
/// };
/// config.check()?;
/// assert_eq!(config.machine.processors, 1);
/// # Ok::<(), vbts_capture::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TraceConfig {
    /// The machine.
    pub machine: MachineConfig,
    /// The guest kernel's file. `None` is the kernel that was built with vbts.
    pub kernel: Option<PathBuf>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Format of the trace.
    pub format: TraceFormat,
    /// Destination of the trace.
    pub output: TraceTo,
    /// Files that are written when the trace is complete, so that the run must not use them.
    pub report_outputs: Vec<PathBuf>,
    /// Privilege levels of the branches to record.
    pub scope: Scope,
    /// Tasks to trace.
    pub follow: Follow,
    /// Whether the run ends with the last process that the program has started; else it ends with
    /// the first one.
    pub wait_all: bool,
    /// The run ends when all tasks of the program wait for each other for ever.
    pub ends_at_deadlock: bool,
    /// Size of the guest kernel's trace buffer of a task.
    pub buffer: Size,
    /// Whether the trace shows when tasks arrive on processors and depart from them.
    pub sched: bool,
    /// The branches to keep.
    pub filters: Filters,
    /// Date of the guest at its boot, in seconds since 1970. `None` is `SOURCE_DATE_EPOCH`, or else
    /// the host's date.
    pub epoch: Option<i64>,
    /// Prints no messages except errors and lost records.
    pub quiet: bool,
    /// Prints at the end how the time was spent.
    pub stats: bool,
}

/// Why a configuration makes no trace. The messages name the options of the command line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// No processor records branches.
    #[error("--bts off: a program is traced with the Branch Trace Store")]
    NoBts,
    /// The format does not separate tasks by files.
    #[error("--output {}: only --format raw can write to a directory", .0.display())]
    Directory(PathBuf),
    /// The format does not separate tasks at all.
    #[error(
        "--follow: a raw file has the records of one task; --output DIR/ writes a file for each \
         task, and --format json tells the tasks in one file"
    )]
    OneTask,
    /// No branch reaches a point.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The buffer holds no record.
    #[error("--buffer {0}: a record takes {RECORD_SIZE} bytes")]
    Buffer(Size),
}

impl TraceConfig {
    /// The default trace of a program with its arguments: text on standard output. The guest has
    /// the host's root directory.
    pub fn new(program: impl IntoIterator<Item: Into<OsString>>) -> Self {
        Self {
            machine: MachineConfig {
                model: trace_model().into(),
                root: Some("/".into()),
                ..MachineConfig::default()
            },
            kernel: None,
            program: program.into_iter().map(Into::into).collect(),
            format: TraceFormat::Text,
            output: TraceTo::Stdout,
            report_outputs: Vec::new(),
            scope: Scope::User,
            follow: Follow::All,
            wait_all: true,
            ends_at_deadlock: true,
            buffer: DEFAULT_BUFFER,
            sched: false,
            filters: Filters::default(),
            epoch: None,
            quiet: false,
            stats: false,
        }
    }

    /// The directory of the host that is the guest's root.
    pub fn root(&self) -> &Path {
        self.machine.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// Whether each task gets a file.
    pub fn has_task_files(&self) -> bool {
        matches!(self.output, TraceTo::Directory(_))
    }

    /// The use of standard output. Text is mixed there with the program's output. A format for
    /// machines is alone there.
    pub fn stdout_use(&self) -> StdoutUse {
        match (&self.output, self.format) {
            (TraceTo::File(_) | TraceTo::Directory(_), _) => StdoutUse::Program,
            (TraceTo::Stdout, TraceFormat::Text) => StdoutUse::Both,
            (TraceTo::Stdout, _) => StdoutUse::Trace,
            (TraceTo::Nowhere, _) => StdoutUse::Recorded,
        }
    }

    /// Memory in bytes for records that wait for older ones of other tasks: twice what the agent
    /// allows for the buffers of all tasks (`guest-kernel/agent/src/bts.rs`), and room for what is
    /// drained between two sweeps.
    pub fn merge_limit(&self) -> usize {
        const BETWEEN_SWEEPS: u64 = 64 << 20;
        let memory = self.machine.memory.0;
        // With the kernel's branches, a virtual buffer can have half of the guest's memory.
        let virtual_buffer = match self.scope {
            Scope::User => 0,
            Scope::Kernel | Scope::All => memory / 2,
        };
        let limit = memory / 4 + self.buffer.0 + virtual_buffer + BETWEEN_SWEEPS;
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// Refuses a configuration that makes no trace.
    ///
    /// # Errors
    /// The buffer is too small, the format cannot have what was asked for, or no branch reaches a
    /// point of the filters.
    pub fn check(&self) -> Result<(), ConfigError> {
        match (&self.output, self.format) {
            (TraceTo::Directory(directory), format) if format != TraceFormat::Raw => {
                return Err(ConfigError::Directory(directory.clone()));
            }
            (TraceTo::Stdout | TraceTo::File(_), TraceFormat::Raw)
                if self.follow != Follow::None =>
            {
                return Err(ConfigError::OneTask);
            }
            _ => {}
        }
        if self.output == TraceTo::Nowhere {
            return Ok(());
        }
        if self.machine.bts == BtsMode::Off {
            return Err(ConfigError::NoBts);
        }
        self.filters.check(self.scope)?;
        if self.buffer.0 < RECORD_SIZE as u64 {
            return Err(ConfigError::Buffer(self.buffer));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_a_record() {
        for (bytes, ok) in [(23, false), (24, true)] {
            let config = TraceConfig {
                buffer: Size(bytes),
                ..TraceConfig::new(["x"])
            };
            assert_eq!(config.check().is_ok(), ok);
        }
    }

    #[test]
    fn a_trace_needs_the_branch_trace_store() {
        let mut config = TraceConfig::new(["x"]);
        config.machine.bts = BtsMode::Off;
        assert!(matches!(config.check(), Err(ConfigError::NoBts)));
    }

    #[test]
    fn the_kernels_records_wait_in_more_memory() {
        let user = TraceConfig::new(["x"]);
        let all = TraceConfig {
            scope: Scope::All,
            ..user.clone()
        };
        let more = (all.merge_limit() - user.merge_limit()) as u64;
        assert_eq!(more, all.machine.memory.0 / 2);
    }
}
