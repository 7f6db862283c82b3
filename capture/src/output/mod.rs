//! The destinations of a trace and of the program's output.

mod task_files;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use indicatif::ProgressBar;
use rustix::fs::FileType;
use vbts_trace::Event;

use crate::task::Task;
use task_files::TaskFiles;
use vbts_host::output::{Output, OutputError};
use vbts_host::{Unit, WriteMonitor};

pub use task_files::INDEX;

/// Length in bytes at which an unfinished line of the program is written.
const MAX_PARTIAL_LINE: usize = 64 << 10;
/// Bytes of waiting reports after which further ones are only counted.
const MAX_HELD_REPORTS: usize = 1 << 20;

/// Where the trace goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceTo {
    /// To standard output.
    Stdout,
    /// To a file.
    File(PathBuf),
    /// To a file for each task in a directory.
    Directory(PathBuf),
    /// Nowhere: no branches are recorded.
    Nowhere,
}

/// What is written to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdoutUse {
    /// What the program writes there.
    Program,
    /// The trace, together with what the program writes there.
    Both,
    /// The trace. What the program writes there goes to standard error.
    Trace,
    /// What the program writes there. It passes through `vbts` even if it is a file, so that a
    /// replay can write it again.
    Recorded,
}

/// Where a stream of the program goes.
#[derive(Debug)]
pub enum StreamOutput {
    /// To standard output. If the trace goes there too, they are mixed by lines.
    Stdout,
    /// To standard error.
    Stderr,
    /// To another descriptor.
    Other(Output),
}

/// The opened destination of the trace.
#[derive(Debug)]
enum TraceOutput {
    Stream(Output),
    Files(Box<TaskFiles>),
    Nothing,
}

/// The destinations of the trace and of the program's output.
#[derive(Debug)]
pub struct Destination {
    trace: TraceOutput,
    /// What the records of the trace consist of.
    unit: Unit,
    stdout: Output,
    stderr: Output,
    /// Streams of the program.
    streams: BTreeMap<u32, StreamOutput>,
    /// The stream that is the program's terminal.
    terminal: Option<u32>,
    /// The program's unfinished line, if the trace and the program's standard output are one stream
    /// of lines.
    mixed: Option<Vec<u8>>,
    /// Reports until [`Self::end_reports`], if standard error is a regular file.
    held_reports: Option<HeldReports>,
    progress: ProgressBar,
}

/// Reports that wait for the end of the run.
#[derive(Debug, Default)]
struct HeldReports {
    text: String,
    /// Number of reports that are not in `text`, because it has become too long.
    left_out: u64,
}

/// Whether standard error is a regular file. The program has it as such and writes to it at an
/// offset of its own. It would overwrite what is written there during the run, or be overwritten.
pub(crate) fn stderr_is_file() -> bool {
    let stat = rustix::fs::fstat(rustix::stdio::stderr());
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

impl Destination {
    /// Opens the destination `to` of the trace. A file keeps its contents until
    /// [`Self::truncate`].
    ///
    /// # Errors
    /// The file or the directory cannot be created, or standard output or error is closed.
    pub fn new(to: &TraceTo, stdout: StdoutUse) -> Result<Self, OutputError> {
        let trace = match to {
            TraceTo::Stdout => TraceOutput::Stream(Output::stdout()?),
            TraceTo::File(path) => TraceOutput::Stream(Output::open(path)?),
            TraceTo::Directory(path) => TraceOutput::Files(Box::new(TaskFiles::create(path)?)),
            TraceTo::Nowhere => TraceOutput::Nothing,
        };
        Ok(Self {
            trace,
            unit: Unit::BYTE,
            stdout: Output::stdout()?,
            stderr: Output::stderr()?,
            streams: BTreeMap::new(),
            terminal: None,
            mixed: (stdout == StdoutUse::Both).then(Vec::new),
            held_reports: stderr_is_file().then(HeldReports::default),
            progress: ProgressBar::hidden(),
        })
    }

    /// The destination is `file`. There is no program.
    ///
    /// # Errors
    /// The host is out of file descriptors.
    pub fn file(file: &File) -> std::io::Result<Self> {
        let output = || Ok::<_, std::io::Error>(Output::new(file.try_clone()?, "a temporary file"));
        Ok(Self {
            trace: TraceOutput::Stream(output()?),
            unit: Unit::BYTE,
            stdout: output()?,
            stderr: output()?,
            streams: BTreeMap::new(),
            terminal: None,
            mixed: None,
            held_reports: None,
            progress: ProgressBar::hidden(),
        })
    }

    /// Discards the former contents of the files, when everything else is open.
    ///
    /// # Errors
    /// The host refuses it.
    pub fn truncate(&self) -> Result<(), OutputError> {
        match &self.trace {
            TraceOutput::Stream(output) => output.truncate(),
            TraceOutput::Files(files) => files.truncate(),
            TraceOutput::Nothing => Ok(()),
        }
    }

    /// The records of the trace consist of `unit`. `monitor` observes all writes, and can end them
    /// with a whole one.
    pub(crate) fn write_in(&mut self, unit: Unit, monitor: &Arc<WriteMonitor>) {
        self.unit = unit;
        let other = self.streams.values_mut().filter_map(|stream| match stream {
            StreamOutput::Other(output) => Some(output),
            StreamOutput::Stdout | StreamOutput::Stderr => None,
        });
        let outputs = [&mut self.stdout, &mut self.stderr]
            .into_iter()
            .chain(other);
        outputs.for_each(|output| output.observe(monitor.clone()));
        match &mut self.trace {
            TraceOutput::Stream(output) => output.observe(monitor.clone()),
            TraceOutput::Files(files) => files.observe(monitor),
            TraceOutput::Nothing => {}
        }
    }

    /// Hides `progress` while the program's output is written, and ends it when the program draws
    /// on its terminal.
    pub fn keep_clear_of(&mut self, progress: ProgressBar) {
        self.progress = progress;
    }

    /// Writes complete lines or records of the trace, which are about the task with this number.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn write_records(&mut self, task: u64, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(output) => output.write_units(bytes, self.unit),
            TraceOutput::Files(files) => files.write(task, bytes, self.unit),
            TraceOutput::Nothing => Ok(()),
        }
    }

    /// Writes complete lines of the trace, or its bytes, between records.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn write_trace(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(output) => output.write_units(bytes, self.unit),
            TraceOutput::Files(files) => files.write_index(bytes),
            TraceOutput::Nothing => Ok(()),
        }
    }

    /// Number of bytes of the trace that were written so far.
    pub(crate) fn trace_bytes(&self) -> u64 {
        match &self.trace {
            TraceOutput::Stream(output) => output.written(),
            TraceOutput::Files(files) => files.written(),
            TraceOutput::Nothing => 0,
        }
    }

    /// Prepares for a task that starts, and for one that has ended.
    ///
    /// # Errors
    /// The file of the task cannot be created.
    pub(crate) fn task_event(&mut self, task: &Task, event: &Event) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(_) | TraceOutput::Nothing => Ok(()),
            TraceOutput::Files(files) => files.event(task, event),
        }
    }

    /// Sets where the streams of the program go. One of them may be its `terminal`.
    pub fn connect(&mut self, streams: BTreeMap<u32, StreamOutput>, terminal: Option<u32>) {
        self.streams = streams;
        self.terminal = terminal;
    }

    /// Whether the stream `fd` of the program goes where the trace goes.
    pub(crate) fn shares_trace(&self, fd: u32) -> bool {
        self.mixed.is_some() && matches!(self.streams.get(&fd), Some(StreamOutput::Stdout))
    }

    /// Writes bytes of the program's stream `fd`.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn write_stream(&mut self, fd: u32, bytes: &[u8]) -> Result<(), OutputError> {
        if self.terminal == Some(fd) {
            // What is written may be a prompt, beside which there is no room.
            self.progress.finish_and_clear();
        }
        match self.streams.get_mut(&fd) {
            Some(StreamOutput::Stdout) => self.write_stdout(bytes),
            Some(StreamOutput::Stderr) => self.write_stderr(bytes),
            Some(StreamOutput::Other(output)) => output.write(bytes),
            // Only an agent that does not follow the job writes to another stream.
            None => Ok(()),
        }
    }

    /// Writes bytes of the program's standard output. If the trace goes there too, complete lines
    /// are written.
    ///
    /// # Errors
    /// The write fails.
    fn write_stdout(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let Some(partial) = &mut self.mixed else {
            let stdout = &mut self.stdout;
            return self.progress.suspend(|| stdout.write(bytes));
        };
        partial.extend_from_slice(bytes);
        let whole = match partial.iter().rposition(|b| *b == b'\n') {
            Some(at) => at + 1,
            None if partial.len() > MAX_PARTIAL_LINE => partial.len(),
            None => return Ok(()),
        };
        self.stdout.write_units(&partial[..whole], Unit::Line)?;
        partial.drain(..whole);
        Ok(())
    }

    /// Writes bytes of the program's standard error.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn write_stderr(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let stderr = &mut self.stderr;
        self.progress.suspend(|| stderr.write(bytes))
    }

    /// Writes a report while the program runs.
    ///
    /// # Errors
    /// The write fails.
    pub fn report(&mut self, text: &str) -> Result<(), OutputError> {
        let Some(held) = &mut self.held_reports else {
            return self.write_stderr(text.as_bytes());
        };
        if held.text.len() < MAX_HELD_REPORTS {
            held.text.push_str(text);
        } else {
            held.left_out += 1;
        }
        Ok(())
    }

    /// Writes the reports that have waited for the end of the program.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn end_reports(&mut self) -> Result<(), OutputError> {
        let Some(mut held) = self.held_reports.take() else {
            return Ok(());
        };
        if held.left_out > 0 {
            let left_out = held.left_out;
            held.text += &format!("vbts: {left_out} further reports are left out\n");
        }
        self.write_stderr(held.text.as_bytes())
    }

    /// Writes the program's unfinished line. It may be a prompt.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn flush_line(&mut self) -> Result<(), OutputError> {
        if let Some(partial) = &mut self.mixed
            && !partial.is_empty()
        {
            self.stdout.write(partial)?;
            partial.clear();
        }
        Ok(())
    }

    /// Writes the program's unfinished line and a line end, so that the trace continues on a new
    /// line.
    ///
    /// # Errors
    /// The write fails.
    pub(crate) fn end_line(&mut self) -> Result<(), OutputError> {
        match &mut self.mixed {
            Some(partial) if !partial.is_empty() => {
                partial.push(b'\n');
                self.flush_line()
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the trace goes to a terminal, where it would mix with progress.
    pub fn trace_is_terminal(&self) -> bool {
        matches!(&self.trace, TraceOutput::Stream(output) if output.is_terminal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn lines_of_the_program_are_not_split() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(fd);
        let output = || Output::new(file.try_clone().unwrap(), "test");
        let mut d = Destination {
            trace: TraceOutput::Stream(output()),
            unit: Unit::Line,
            stdout: output(),
            stderr: output(),
            streams: BTreeMap::new(),
            terminal: None,
            mixed: Some(Vec::new()),
            held_reports: None,
            progress: ProgressBar::hidden(),
        };
        d.write_stdout(b"one\ntw").unwrap();
        d.write_trace(b"A -> B\n").unwrap();
        d.write_stdout(b"o\n> ").unwrap();
        d.flush_line().unwrap();
        d.write_stdout(b"end").unwrap();
        d.end_line().unwrap();
        d.write_trace(b"C -> D\n").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\nA -> B\ntwo\n> end\nC -> D\n");
    }
}
