//! The process that makes a report. What it reads is hostile: a trace from anywhere, and the files
//! of the traced guest. It therefore opens what has a name on the command line, and then confines
//! itself as `vbts trace` does. The process that has started it reads nothing. That one ends it at
//! the time limit and at a signal, and leaves no part of an answer.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::Resource;

use vbts_host::child::{Child, End};
use vbts_host::exit::{Failure, say};
use vbts_host::sandbox::{self, FileRules, Reach, Sandbox};
use vbts_host::{Alarm, Event, HeldSignals, Output, OutputError};
use vbts_symbols::debuginfod_cache;
use vbts_vmm::config::SandboxMode;

/// Memory in bytes of the process, without its program and what it maps of files.
const MAX_MEMORY: u64 = 2 << 30;

/// A file without a name, for what may not fit into memory.
pub(super) fn temporary_file() -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    // Some file systems have no such files.
    let in_memory = |_| rustix::fs::memfd_create("vbts-report", MemfdFlags::CLOEXEC);
    Ok(file.or_else(in_memory)?.into())
}

/// What a report is written to.
struct Destination {
    /// A file that has a name, and whether it is new.
    file: Option<(PathBuf, bool)>,
    output: Output,
}

impl Destination {
    /// Opens the file at `path`, or standard output. A file keeps its contents for now.
    fn open(path: Option<&Path>) -> Result<Self, OutputError> {
        let file = path.map(|path| (path.to_owned(), std::fs::symlink_metadata(path).is_err()));
        let output = match path {
            Some(path) => Output::open(path)?,
            None => Output::stdout()?,
        };
        Ok(Self { file, output })
    }

    /// Removes what was written to a file.
    fn discard(self) {
        let Some((path, is_new)) = self.file else {
            return;
        };
        if is_new && self.output.is_at(&path) {
            // It may have been removed.
            let _ = std::fs::remove_file(&path);
        } else if self.output.position() > 0 && self.output.truncate().is_ok() {
            say(format_args!(
                "{} is empty now: the answer was not complete",
                path.display()
            ));
        }
    }
}

/// Lets another process make a report with `work`, which writes it to the output, and waits until
/// that is done, for `limit` at most. Returns the exit status.
///
/// # Errors
/// The output cannot be opened, or a signal or the time limit has ended the report.
pub(super) fn run(
    path: Option<&Path>,
    limit: Duration,
    work: impl FnOnce(Output) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let destination = Destination::open(path).map_err(OutputError::into_failure)?;
    run_to(destination, limit, work)
}

/// Lets another process make a report with `work`, and returns it, with the exit status.
///
/// # Errors
/// The host has no temporary files, or a signal or the time limit has ended the report.
pub(super) fn read(
    limit: Duration,
    work: impl FnOnce(Output) -> Result<u8, Failure>,
) -> Result<(u8, Vec<u8>), Failure> {
    const CANNOT_READ: &str = "Cannot use a temporary file";
    let mut file = temporary_file().context(CANNOT_READ)?;
    let destination = Destination {
        file: None,
        output: Output::new(file.try_clone().context(CANNOT_READ)?, "a temporary file"),
    };
    let status = run_to(destination, limit, work)?;
    let mut text = Vec::new();
    file.rewind().context(CANNOT_READ)?;
    file.read_to_end(&mut text).context(CANNOT_READ)?;
    Ok((status, text))
}

/// Lets another process make a report for `destination`.
fn run_to(
    destination: Destination,
    limit: Duration,
    work: impl FnOnce(Output) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let held = HeldSignals::hold();
    let child = Child::start().context("Cannot start a process for the report")?;
    let Some(child) = child else {
        drop(held);
        finish(work(destination.output));
    };
    let alarm = Alarm::new(Arc::default(), Some(limit))?;
    drop(held);
    alarm.start_timer()?;
    let end = match child.wait(&alarm) {
        Ok(end) => end,
        Err(error) => {
            destination.discard();
            let message = "Cannot wait for the process that makes the report";
            return Err(anyhow::Error::from(error).context(message).into());
        }
    };
    if end == End::Exited(0) {
        return Ok(0);
    }
    if !matches!(end, End::Exited(_)) && stderr().is_terminal() {
        // There may be a line of progress.
        let _ = write!(stderr(), "\r\x1b[K");
    }
    destination.discard();
    match end {
        // It has said why.
        End::Exited(status) => Ok(status),
        End::Interrupted(Event::Signal(signal)) => Err(Failure::Signal(signal)),
        End::Interrupted(Event::Timeout) => Err(Failure::ReportTimeout { after: limit }),
        End::Killed(signal) => Err(Failure::Killed(signal)),
    }
}

/// Writes the whole of a report, in the place of what was in the output before.
///
/// # Errors
/// The output fails.
pub(super) fn write_whole(mut output: Output, text: &str) -> Result<(), Failure> {
    let written = output
        .truncate()
        .and_then(|()| output.write(text.as_bytes()));
    written.map_err(OutputError::into_failure)
}

/// Ends the process that makes the report.
fn finish(outcome: Result<u8, Failure>) -> ! {
    let status = match &outcome {
        Ok(status) => *status,
        Err(failure) => {
            failure.report();
            failure.status()
        }
    };
    // Nothing of the process that has started this one is dropped here.
    std::process::exit(status.into())
}

/// Confines this process as `mode` says: it opens files below `root` and in
/// the cache of debug files alone, and only to read them.
/// All that it needs besides is open, and its threads have started.
///
/// # Errors
/// The host cannot confine it.
pub(super) fn restrict_files(mode: SandboxMode, root: &Path) -> Result<(), Failure> {
    sandbox::limit(Resource::Data, MAX_MEMORY).context("Cannot limit memory")?;
    if mode == SandboxMode::Off {
        return Ok(());
    }
    sandbox::drop_capabilities().context("Cannot give up capabilities")?;
    let mut rules = FileRules::default();
    rules.allow(root, Reach::Read)?;
    if let Some(cache) = debuginfod_cache() {
        rules.allow(&cache, Reach::Read)?;
    }
    sandbox::restrict_files(rules, mode == SandboxMode::Strict)
}

/// Restricts this process to the system calls that a report needs. Its threads have started.
///
/// # Errors
/// The host cannot filter system calls.
pub(super) fn restrict_calls(mode: SandboxMode) -> Result<(), Failure> {
    match mode {
        SandboxMode::Off => Ok(()),
        _ => Sandbox::for_reports().enter(),
    }
}
