//! The end of a trace: how the run ended, and the numbers.

use signal_hook::consts::SIGPIPE;
use vbts_protocol::ExitStatus;
use vbts_trace::Event;

use crate::filter::FilterNote;
use vbts_host::escape::printable;
use vbts_host::exit::{Failure, killed_by};
use vbts_symbols::Unnamed;

/// Number of untraced tasks that the summary names.
const NAMED: usize = 4;

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The program ended.
    Program(ExitStatus),
    /// The time limit ended it.
    Timeout,
    /// A signal to `vbts` ended it.
    Interrupted,
    /// The machine reached the point at which the user wants the run to end.
    Stopped,
    /// The guest's kernel panicked, or its processor shut down.
    Panic,
    /// All tasks of the program waited for each other for ever.
    Deadlock,
    /// Something else ended it, such as a full disk.
    Error,
}

impl RunEnd {
    /// The name in the formats.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program(ExitStatus::Code(_)) => "exited",
            Self::Program(ExitStatus::Signal(_)) => "signal",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
            Self::Stopped => "stopped",
            Self::Panic => "panic",
            Self::Deadlock => "deadlock",
            Self::Error => "error",
        }
    }

    /// The end of a run that has failed.
    pub fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::Timeout { .. }
            | Failure::WritingTimeout { .. }
            | Failure::ReportTimeout { .. } => Self::Timeout,
            Failure::Signal(signal) if *signal != SIGPIPE => Self::Interrupted,
            Failure::Interrupted | Failure::Quit => Self::Interrupted,
            Failure::Guest { .. } => Self::Panic,
            Failure::Deadlock => Self::Deadlock,
            Failure::Signal(_)
            | Failure::Error(_)
            | Failure::Host(_)
            | Failure::NotFound(_)
            | Failure::NotExecutable(_)
            | Failure::Killed(_) => Self::Error,
        }
    }

    /// The program's exit status as shells report it; `None` if it has not ended.
    pub fn exit(self) -> Option<u8> {
        match self {
            Self::Program(ExitStatus::Code(code)) => Some(code),
            Self::Program(ExitStatus::Signal(signal)) => Some(killed_by(signal.into())),
            _ => None,
        }
    }
}

/// The numbers at the end of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Number of branches.
    pub records: u64,
    /// Number of records that are missing.
    pub lost: u64,
    /// More than `lost` may be missing: the guest's kernel does not count them.
    pub lost_more: bool,
    /// Number of records that may be missing in addition: those that the buffers in the guest could
    /// have, which were not drained.
    pub undrained: u64,
    /// Number of branches that the user did not want, if there was a choice.
    pub filtered: Option<u64>,
    /// What the user should know about the choice.
    pub filter_notes: Vec<FilterNote>,
    /// Number of tasks that were traced.
    pub tasks: u64,
    /// Number of tasks that were not traced.
    pub untraced: u64,
    /// The first of them, each as [`Event::Untraced`].
    pub first_untraced: Vec<Event>,
    /// Files whose functions have no names.
    pub unnamed: Unnamed,
    /// Some records come after younger ones of another task.
    pub unordered: bool,
    /// How the run ended.
    pub end: RunEnd,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            records: 0,
            lost: 0,
            lost_more: false,
            undrained: 0,
            filtered: None,
            filter_notes: Vec::new(),
            tasks: 0,
            untraced: 0,
            first_untraced: Vec::new(),
            unnamed: Unnamed::default(),
            unordered: false,
            end: RunEnd::Program(ExitStatus::Code(0)),
        }
    }
}

impl Summary {
    /// Counts a task that is not traced, by its [`Event::Untraced`].
    pub(crate) fn count_untraced(&mut self, event: &Event) {
        self.untraced = self.untraced.saturating_add(1);
        if self.first_untraced.len() < NAMED {
            self.first_untraced.push(event.clone());
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = if self.lost_more { "at least " } else { "" };
        write!(f, "records: {}", self.records)?;
        if let Some(filtered) = self.filtered {
            write!(f, ", filtered: {filtered}")?;
        }
        write!(f, ", lost: {least}{}", self.lost)?;
        if self.undrained > 0 {
            write!(f, " and at most {} more", self.undrained)?;
        }
        if self.tasks > 1 {
            write!(f, ", tasks: {}", self.tasks)?;
        }
        match (self.end.exit(), self.end) {
            (Some(exit), _) => write!(f, ", exit: {exit}")?,
            (None, end) => write!(f, ", end: {}", end.name())?,
        }
        if self.unordered {
            f.write_str(", not in the order of time")?;
        }
        if !self.unnamed.is_empty() {
            write!(f, ", names missing: {}", self.unnamed)?;
        }
        if self.untraced == 0 {
            return Ok(());
        }
        write!(f, ", processes and threads not traced: {}", self.untraced)?;
        for (n, event) in self.first_untraced.iter().enumerate() {
            if let Event::Untraced {
                id, name, reason, ..
            } = event
            {
                let before = if n == 0 { " (" } else { ", " };
                let (name, reason) = (printable(name), printable(reason));
                write!(f, "{before}{id} {name}: {reason}")?;
            }
        }
        let more = self.untraced > self.first_untraced.len() as u64;
        f.write_str(if more { ", …)" } else { ")" })
    }
}

/// What is written of a trace that has no end, because its disk is full or its reader does not
/// read.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of branches that they have at least.
    pub records: u64,
    /// There are no further bytes.
    pub all: bool,
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.all && self.bytes == 0 {
            return f.write_str("the trace is empty: nothing of it was written");
        }
        let more = if self.all { "" } else { " or more" };
        write!(
            f,
            "the trace is incomplete: only its first {} bytes{more} were written, \
             which have {} records or more",
            self.bytes, self.records
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_without_an_end_says_how_long_it_is() {
        let written = |bytes, records, all| {
            Written {
                bytes,
                records,
                all,
            }
            .to_string()
        };
        assert_eq!(
            written(0, 0, true),
            "the trace is empty: nothing of it was written"
        );
        assert_eq!(
            written(100, 2, true),
            "the trace is incomplete: only its first 100 bytes were written, which have 2 records \
             or more"
        );
        assert!(written(100, 2, false).contains("only its first 100 bytes or more were written"));
    }

    #[test]
    fn a_summary_says_what_is_missing() {
        let mut summary = Summary {
            records: 2,
            ..Summary::default()
        };
        assert_eq!(summary.to_string(), "records: 2, lost: 0, exit: 0");
        summary.unnamed.add("/a\n", "it is too large");
        assert_eq!(
            summary.to_string(),
            "records: 2, lost: 0, exit: 0, names missing: /a\\n (it is too large)"
        );
        summary.unnamed = Unnamed::default();
        summary.end = RunEnd::Timeout;
        summary.undrained = 100;
        summary.tasks = 2;
        assert_eq!(
            summary.to_string(),
            "records: 2, lost: 0 and at most 100 more, tasks: 2, end: timeout"
        );
        summary.end = RunEnd::Program(ExitStatus::Signal(11));
        summary.undrained = 0;
        summary.lost_more = true;
        for id in 7..12 {
            summary.count_untraced(&Event::Untraced {
                id,
                parent: 6,
                time: 0,
                name: b"a\n".to_vec(),
                reason: "traced by task 6".into(),
            });
        }
        assert_eq!(
            summary.to_string(),
            "records: 2, lost: at least 0, tasks: 2, exit: 139, processes and threads not traced: 5 \
             (7 a\\n: traced by task 6, 8 a\\n: traced by task 6, 9 a\\n: traced by task 6, \
             10 a\\n: traced by task 6, …)"
        );
    }
}
