//! `vbts trace --report`: traces a program, and answers a question from the trace.
//!
//! A process that has run a guest can open no files any more. Another one therefore traces, and
//! this one answers when that has ended.

use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::Builder;

use anyhow::{Context as _, anyhow};
use clap::Parser as _;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::TraceArgs;
use crate::options::name_of;
use crate::own_program;
use crate::report::{self, Kind, Opt};
use crate::{Cli, Command as Cmd};
use vbts_host::exit::{Failure, status};

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn create() -> anyhow::Result<Self> {
        let name = format!("vbts-report-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // It must not exist: nothing in it is of another user.
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("Cannot create the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left there is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Traces the program, and answers `what`. The exit status is that of the program.
///
/// # Errors
/// The trace cannot be kept, or the answer fails.
pub fn main(args: &TraceArgs, what: &Kind) -> Result<u8, Failure> {
    match (what.options.contains(&Opt::Other), &args.against) {
        (true, None) => {
            let message = "--report diff: --against FILE names the trace to compare with";
            return Err(anyhow!(message).into());
        }
        (true, Some(_)) | (false, None) => {}
        (false, Some(_)) => {
            return Err(anyhow!("--against: only --report diff compares two traces").into());
        }
    }
    let common = common(args)?;
    let directory = Directory::create()?;
    let trace = directory.0.join("trace.btrace");
    let code = run(&trace)?;
    let is_kept = trace.try_exists();
    if !is_kept.with_context(|| format!("Cannot find {}", trace.display()))? {
        // The other process has said why.
        return Ok(code);
    }
    let Cli { command, .. } = common.command_line(what, &trace)?;
    let Cmd::Report(report_args) = command else {
        return Err(anyhow!("--report: not a report").into());
    };
    // An answer that is not there matters more than what the program says.
    match report::main(&report_args)? {
        0 => Ok(code),
        status => Ok(status),
    }
}

/// The options that the report has in common with the trace.
struct Common {
    words: Vec<OsString>,
    /// The trace that comes first.
    against: Option<PathBuf>,
}

impl Common {
    fn command_line(self, what: &Kind, trace: &Path) -> anyhow::Result<Cli> {
        let words = [OsString::from("vbts"), "report".into(), what.name.into()];
        let words = words
            .into_iter()
            .chain(self.words)
            .chain(["--".into()])
            .chain(self.against.map(OsString::from))
            .chain([trace.into()]);
        Cli::try_parse_from(words).map_err(|error| anyhow!("--report: {error}"))
    }
}

fn common(args: &TraceArgs) -> anyhow::Result<Common> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |name: &str, value: Option<&Path>| {
        if let Some(value) = value {
            words.extend([name.into(), value.into()]);
        }
    };
    add("--output", args.output.as_deref());
    add("--root", args.machine.root.as_deref());
    add("--kernel", args.kernel.as_deref());
    let sandbox = args.machine.config("").sandbox;
    add("--sandbox", Some(Path::new(name_of(&sandbox))));
    let against = args.against.clone();
    Ok(Common { words, against })
}

/// Traces with the options of this process into `trace`. Returns the exit status.
fn run(trace: &Path) -> anyhow::Result<u8> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // `--log trace` is not the command.
    let is_command = |at: &usize| {
        words.get(*at).is_some_and(|word| word == "trace")
            && words
                .get(at.wrapping_sub(1))
                .is_none_or(|word| word != "--log")
    };
    let at = (1..words.len())
        .find(is_command)
        .context("--report: no command")?;
    words.splice(at + 1..at + 1, ["--keep-for-report".into(), trace.into()]);
    let mut command = own_program();
    if let Some((name, rest)) = words.split_first() {
        command.arg0(name).args(rest);
    }
    command.stdin(Stdio::inherit());
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
    let mut child = command.spawn().context("Cannot start vbts")?;
    let pid = pid(&child)?;
    let handle = signals.handle();
    let forwarder = Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            // A terminal sends the others to both processes.
            if let (SIGTERM, Some(signal)) = (signal, Signal::from_named_raw(signal)) {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let forwarder = match forwarder {
        Ok(forwarder) => forwarder,
        Err(error) => {
            // It has just begun.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error).context("Cannot start a thread");
        }
    };
    let status = wait(pid);
    handle.close();
    let _ = forwarder.join();
    status
}

fn pid(child: &Child) -> anyhow::Result<Pid> {
    let number = i32::try_from(child.id()).ok();
    number
        .and_then(Pid::from_raw)
        .context("a process without a number")
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
