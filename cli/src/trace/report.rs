//! `vbts trace --report`: traces a program, and makes reports of the trace.
//!
//! A process that has run a guest can open no files any more. Another one therefore traces, and
//! this one makes the report when that has ended.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::{TraceArgs, run};
use crate::options::{is_btrace, is_stdout};
use crate::report::{self, ReportArgs, ReportRequest};
use vbts_capture::output::TraceTo;
use vbts_capture::{TraceConfig, TraceFormat};
use vbts_host::HeldSignals;
use vbts_host::child::fork;
use vbts_host::exit::{Failure, conclude, status};
use vbts_host::ignored_signals::is_ignored;

/// Directories of killed processes with one number that are passed.
const MAX_LEFT: u32 = 100;

/// A directory for a trace, which is removed at the end.
pub(crate) struct TraceDirectory(PathBuf);

impl TraceDirectory {
    /// Makes the directory, in that for temporary files.
    ///
    /// # Errors
    /// The host refuses it.
    pub(crate) fn create() -> anyhow::Result<Self> {
        let mut number = 0;
        loop {
            let name = format!("vbts-report-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // It must not exist: nothing in it is of another user.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                // That of a process that was killed, and had the same number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_LEFT => {
                    number += 1;
                }
                created => {
                    let path_shown = path.display();
                    created.with_context(|| format!("Cannot create the directory {path_shown}"))?;
                    return Ok(Self(path));
                }
            }
        }
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TraceDirectory {
    fn drop(&mut self) {
        // What is left there is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Traces the program, and makes the reports that `args` ask for. The exit status is that of the
/// program.
///
/// # Errors
/// The trace cannot be kept, or a report fails.
pub(super) fn main(args: &TraceArgs) -> Result<u8, Failure> {
    if args.against.is_some() && !args.report.iter().any(ReportRequest::compares) {
        return Err(anyhow!("--against: only --report diff compares two traces").into());
    }
    let lacks_other = |report: &&ReportRequest| report.compares() && !report.names_other();
    if args.against.is_none() && args.report.iter().any(|report| lacks_other(&report)) {
        let message = "--report diff: --against FILE names the trace to compare with";
        return Err(anyhow!(message).into());
    }
    let (kept, output) = outputs(&args.report, args.output.as_deref())?;
    let directory = TraceDirectory::create()?;
    let outputs = args
        .report
        .iter()
        .filter_map(ReportRequest::output)
        .chain(output)
        .filter(|path| !is_stdout(path));
    let config = TraceConfig {
        report_outputs: outputs.map(PathBuf::from).collect(),
        ..args.config()
    };
    let reports = |trace: &Path| {
        let of_trace = |report: &ReportRequest| {
            let against = args.against.as_deref().filter(|_| report.compares());
            report.of_trace(trace, output, against)
        };
        args.report.iter().map(of_trace).collect()
    };
    trace_and_report(config, &directory, kept, reports).map(|made| made.status)
}

/// The file that keeps the trace, and the file for the report without one, from `--output`.
///
/// # Errors
/// There are several such reports.
pub(crate) fn outputs<'a>(
    reports: &[ReportRequest],
    output: Option<&'a Path>,
) -> anyhow::Result<(Option<&'a Path>, Option<&'a Path>)> {
    if let Some(kept) = output.filter(|path| is_btrace(path)) {
        return Ok((Some(kept), None));
    }
    let without = reports.iter().filter(|report| report.output().is_none());
    let names: Vec<&str> = without.map(ReportRequest::name).collect();
    match (output, names.as_slice()) {
        (Some(path), [_, _, ..]) => bail!(
            "--output {}: several reports need a file each, such as --report '{} --output FILE'",
            path.display(),
            names.first().unwrap_or(&"")
        ),
        (output, _) => Ok((None, output)),
    }
}

/// The end of a run whose trace was to be reported.
pub(crate) struct Reported {
    /// The exit status: that of the program, or of what has failed.
    pub status: u8,
    /// The report is complete.
    pub is_complete: bool,
}

/// Traces as `config` says, except for the format and the output, with the trace in the file
/// `kept`, or else in `directory`, and makes the reports of it that `reports` returns. The traced
/// files are found as in the run.
///
/// # Errors
/// The trace cannot be kept, or a report fails.
pub(crate) fn trace_and_report(
    mut config: TraceConfig,
    directory: &TraceDirectory,
    kept: Option<&Path>,
    reports: impl FnOnce(&Path) -> Vec<ReportArgs>,
) -> Result<Reported, Failure> {
    let trace = kept.map_or_else(|| directory.file("trace.btrace"), Path::to_path_buf);
    config.format = TraceFormat::Btrace;
    config.output = TraceTo::File(trace.clone());
    let before = version(&trace)?;
    let code = in_child(|| run::run(&config))?;
    let after = version(&trace)?;
    if after.is_none() || after == before {
        // No trace, or that of an earlier run. The other process has said why.
        return Ok(Reported {
            status: code,
            is_complete: false,
        });
    }
    for report in reports(&trace) {
        let args = ReportArgs {
            root: config.root().into(),
            kernel: config.kernel.clone(),
            sandbox: config.machine.sandbox,
            ..report
        };
        // A report that is not there matters more than the program's status.
        match report::main(&args)? {
            0 => {}
            status => {
                return Ok(Reported {
                    status,
                    is_complete: false,
                });
            }
        }
    }
    Ok(Reported {
        status: code,
        is_complete: true,
    })
}

/// The file's number, and when it was written (seconds, nanoseconds); `None` if there is none.
///
/// # Errors
/// The host does not say.
fn version(path: &Path) -> anyhow::Result<Option<(u64, i64, i64)>> {
    match std::fs::metadata(path) {
        Ok(file) => Ok(Some((file.ino(), file.mtime(), file.mtime_nsec()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("Cannot find {}", path.display())),
    }
}

/// Does `work` in a process of its own, which may confine itself. Returns its exit status.
///
/// # Errors
/// The host starts no process, or waiting for it fails.
pub(crate) fn in_child(work: impl FnOnce() -> Result<u8, Failure>) -> anyhow::Result<u8> {
    let held = HeldSignals::hold();
    let child = fork().context("Cannot start a process for the trace")?;
    let Some(child) = child else {
        drop(held);
        // Nothing of the process that has started this one is dropped here.
        std::process::exit(conclude(work()).into());
    };
    let status = forward_signals(child).and_then(|forwarder| {
        drop(held);
        let status = wait(child);
        forwarder.end();
        status
    });
    if status.is_err() {
        // It may have ended.
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    status
}

/// A thread that passes SIGTERM on to the child.
struct Forwarder {
    signals: Handle,
    thread: JoinHandle<()>,
}

impl Forwarder {
    fn end(self) {
        self.signals.close();
        let _ = self.thread.join();
    }
}

fn forward_signals(child: Pid) -> anyhow::Result<Forwarder> {
    let caught = [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter();
    // The other process inherits those that are ignored, but not those that are caught.
    let mut signals = Signals::new(caught.filter(|signal| !is_ignored(*signal)))?;
    let handle = signals.handle();
    let thread = Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            // A terminal sends the others to both processes.
            if let (SIGTERM, Some(signal)) = (signal, Signal::from_named_raw(signal)) {
                let _ = kill_process(child, signal);
            }
        }
    });
    Ok(Forwarder {
        signals: handle,
        thread: thread.context("Cannot start a thread")?,
    })
}

/// Waits for the process. If it stops, this one does, so that a shell notices.
fn wait(pid: Pid) -> anyhow::Result<u8> {
    loop {
        let waited = waitpid(Some(pid), WaitOptions::UNTRACED);
        let status: WaitStatus = match waited {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error).context("Cannot wait for vbts"),
        };
        if status.stopped() {
            kill_process(getpid(), Signal::STOP)?;
            kill_process(pid, Signal::CONT)?;
        } else if let Some(code) = status.exit_status() {
            return Ok(u8::try_from(code).unwrap_or(status::ERROR));
        } else if let Some(signal) = status.terminating_signal() {
            return Ok(u8::try_from(128 + signal).unwrap_or(status::ERROR));
        }
    }
}
