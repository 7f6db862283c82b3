//! The destinations of a trace and of the program's output.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::ProgressBar;

use super::streams::Sink;
use super::task::{Task, TaskEvent};
use super::task_files::TaskFiles;
use crate::host::output::{Output, OutputError};

/// Length in bytes at which an unfinished line of the program is written.
const MAX_PARTIAL_LINE: usize = 64 << 10;

/// Where the trace goes.
#[derive(Debug)]
enum TraceOutput {
    Stream(Output),
    Files(Box<TaskFiles>),
}

/// Where a stream of the program goes.
#[derive(Debug)]
enum Stream {
    Stdout,
    Stderr,
    Other(Output),
}

/// The destinations of the trace and of the program's output.
#[derive(Debug)]
pub struct Destination {
    trace: TraceOutput,
    stdout: Output,
    stderr: Output,
    /// Streams of the program.
    streams: BTreeMap<u32, Stream>,
    /// The program's unfinished line, if the trace and the program's standard output are one stream
    /// of lines.
    mixed: Option<Vec<u8>>,
    progress: ProgressBar,
}

impl Destination {
    /// The trace goes to `file`, or to standard output. On standard output, `readable` text is
    /// mixed with the program's standard output. A format for machines is alone there.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn new(file: Option<&Path>, readable: bool) -> Result<Self, OutputError> {
        let file = file.filter(|path| *path != Path::new("-"));
        let trace = file.map_or_else(Output::stdout, Output::create)?;
        let trace = TraceOutput::Stream(trace);
        let mixed = (file.is_none() && readable).then(Vec::new);
        Ok(Self {
            trace,
            stdout: Output::stdout()?,
            stderr: Output::stderr()?,
            streams: BTreeMap::new(),
            mixed,
            progress: ProgressBar::hidden(),
        })
    }

    /// The trace goes to a file for each task in `directory`.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn directory(directory: &Path) -> Result<Self, OutputError> {
        Ok(Self {
            trace: TraceOutput::Files(Box::new(TaskFiles::create(directory)?)),
            stdout: Output::stdout()?,
            stderr: Output::stderr()?,
            streams: BTreeMap::new(),
            mixed: None,
            progress: ProgressBar::hidden(),
        })
    }

    /// The trace goes to `trace`.
    #[cfg(test)]
    pub(crate) fn to(trace: std::fs::File) -> Self {
        Self {
            trace: TraceOutput::Stream(Output::new(trace, "trace")),
            stdout: Output::stdout().unwrap(),
            stderr: Output::stderr().unwrap(),
            streams: BTreeMap::new(),
            mixed: None,
            progress: ProgressBar::hidden(),
        }
    }

    /// Hides `progress` while the program's output is written.
    pub fn keep_clear_of(&mut self, progress: ProgressBar) {
        self.progress = progress;
    }

    /// Writes complete lines or records of the trace, which are about `task`.
    ///
    /// # Errors
    /// The write fails.
    pub fn write_records(&mut self, task: &Task, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(output) => output.write(bytes),
            TraceOutput::Files(files) => files.write(task, bytes),
        }
    }

    /// Writes complete lines of the trace between records.
    ///
    /// # Errors
    /// The write fails.
    pub fn write_trace(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(output) => output.write(bytes),
            TraceOutput::Files(files) => files.write_index(bytes),
        }
    }

    /// Prepares for a task that starts, and for one that has ended.
    ///
    /// # Errors
    /// The file of the task cannot be created.
    pub fn task_event(&mut self, task: &Task, event: &TaskEvent) -> Result<(), OutputError> {
        match &mut self.trace {
            TraceOutput::Stream(_) => Ok(()),
            TraceOutput::Files(files) => files.event(task, event),
        }
    }

    /// Sets where the streams of the program go.
    pub fn connect(&mut self, sinks: BTreeMap<u32, Sink>) {
        let connect = |(fd, sink)| match sink {
            Sink::Stdout => (fd, Stream::Stdout),
            Sink::Stderr => (fd, Stream::Stderr),
            Sink::Other(file) => (
                fd,
                Stream::Other(Output::new(file, &format!("descriptor {fd}"))),
            ),
        };
        self.streams = sinks.into_iter().map(connect).collect();
    }

    /// Whether the stream `fd` of the program goes where the trace goes.
    pub fn shares_trace(&self, fd: u32) -> bool {
        self.mixed.is_some() && matches!(self.streams.get(&fd), Some(Stream::Stdout))
    }

    /// Writes bytes of the program's stream `fd`.
    ///
    /// # Errors
    /// The write fails.
    pub fn write_stream(&mut self, fd: u32, bytes: &[u8]) -> Result<(), OutputError> {
        match self.streams.get_mut(&fd) {
            Some(Stream::Stdout) => self.write_stdout(bytes),
            Some(Stream::Stderr) => self.write_stderr(bytes),
            Some(Stream::Other(output)) => output.write(bytes),
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
        self.stdout.write(&partial[..whole])?;
        partial.drain(..whole);
        Ok(())
    }

    /// Writes bytes of the program's standard error.
    ///
    /// # Errors
    /// The write fails.
    pub fn write_stderr(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let stderr = &mut self.stderr;
        self.progress.suspend(|| stderr.write(bytes))
    }

    /// Writes the program's unfinished line. It may be a prompt.
    ///
    /// # Errors
    /// The write fails.
    pub fn flush_line(&mut self) -> Result<(), OutputError> {
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
    pub fn end_line(&mut self) -> Result<(), OutputError> {
        match &mut self.mixed {
            Some(partial) if !partial.is_empty() => {
                partial.push(b'\n');
                self.flush_line()
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the trace goes to standard output.
    pub fn trace_is_stdout(&self) -> bool {
        matches!(&self.trace, TraceOutput::Stream(output) if output.is_stdout())
    }

    /// Returns whether the trace goes to a terminal, where it would mix with progress.
    pub fn trace_is_terminal(&self) -> bool {
        matches!(&self.trace, TraceOutput::Stream(output) if output.is_terminal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek};

    #[test]
    fn lines_of_the_program_are_not_split() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(fd);
        let output = || Output::new(file.try_clone().unwrap(), "test");
        let mut d = Destination {
            trace: TraceOutput::Stream(output()),
            stdout: output(),
            stderr: output(),
            streams: BTreeMap::new(),
            mixed: Some(Vec::new()),
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
