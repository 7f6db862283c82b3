//! `vbts trace`: runs a program of the host in a guest and prints every branch that it takes.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stderr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock, shared};
use vbts_protocol::{Bytes, ExitStatus, Job, PORT_NAME, Scope, Share, Trace};

use super::options::{self, EXIT_STATUS, MachineArgs};
use super::stats;
use crate::accel::Accel;
use crate::config::{Initrd, KernelConfig, MachineConfig};
use crate::exit::{Failure, say, signal_name, status};
use crate::guest_files::GuestFiles;
use crate::host::Input;
use crate::launch::{Launch, SharedDirectory};
use crate::machine::{End, Machine};
use crate::memory::Size;
use crate::program;
use crate::root::Root;
use crate::trace::format::{Format, Json, Raw};
use crate::trace::object_file::ObjectFile;
use crate::trace::session::SessionError;
use crate::trace::symbols::Symbolizer;
use crate::trace::text::Text;
use crate::trace::{AgentConnection, Destination, Ending, Session, Summary};

/// Formats of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// One line a branch, with function names, for people
    Text,
    /// One JSON object a line
    Json,
    /// 24-byte little-endian records: from, to, flags
    Raw,
}

/// Which branches to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Those that the program makes itself; not the kernel's returns to it
    User,
    /// Those that lead into the kernel or stay there: system calls, faults, and interrupts while
    /// the program runs
    Kernel,
    /// All of them
    All,
}

impl From<ScopeArg> for Scope {
    fn from(arg: ScopeArg) -> Self {
        match arg {
            ScopeArg::User => Self::User,
            ScopeArg::Kernel => Self::Kernel,
            ScopeArg::All => Self::All,
        }
    }
}

/// Arguments of `vbts trace`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts trace [OPTIONS] -- PROGRAM [ARG]...")]
pub struct TraceArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts)
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// Format of the trace
    #[arg(
        long,
        value_enum,
        default_value = "text",
        help_heading = "Trace options"
    )]
    pub format: TraceFormat,
    /// Write the trace to FILE. Without it the trace goes to standard output; as text it is mixed
    /// there with what the program prints, as json or raw it has standard output to itself and the
    /// program's goes to standard error
    #[arg(long, value_name = "FILE", help_heading = "Trace options")]
    pub output: Option<PathBuf>,
    /// Which branches to record
    #[arg(
        long,
        value_enum,
        default_value = "user",
        help_heading = "Trace options"
    )]
    pub scope: ScopeArg,
    /// Size of the guest kernel's trace buffer. When it is full, it is emptied while the program
    /// waits; or, inside a system call, moved to a quarter of the guest's memory, which is emptied
    /// in time
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4M",
        help_heading = "Trace options"
    )]
    pub buffer: Size,
    /// Also record when the program arrives on a processor and departs from it
    #[arg(long, help_heading = "Trace options")]
    pub sched: bool,
    /// Say at the end where the time went
    #[arg(long, help_heading = "Trace options")]
    pub stats: bool,
    /// Program to run, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &TraceArgs) -> Result<u8, Failure> {
    let began = Instant::now();
    let config = MachineConfig::from(&args.machine);
    options::start_logging(config.log);
    let launch = Launch::new(&config, false)?;
    let prepared = Prepared::new(args, launch)?;
    let to_stdout = prepared.to_stdout;
    let session = prepared.session.clone();
    let (machine, end) = prepared.run(args.stats)?;
    let mut session = lock(&session);
    let summary = session.finish(false).map_err(SessionError::into_failure)?;
    let Some(ending) = session.ending() else {
        let how = match end {
            End::Status(status) => format!("with status {status}"),
            End::Reset => "by a reset".into(),
            End::Off => "by switching itself off".into(),
        };
        return Err(machine.crashed(&format!("the guest ended {how} before the program did")));
    };
    report(args, ending, &summary, to_stdout, began.elapsed());
    if args.stats {
        stats::print(&machine, session.writing(), began.elapsed());
    }
    Ok(ending.code())
}

/// A guest that is ready to boot and to run the program, and the session that will trace it.
struct Prepared {
    launch: Launch,
    kernel: KernelConfig,
    session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    job: Job,
    progress: ProgressBar,
    /// The trace goes to standard output.
    to_stdout: bool,
}

impl Prepared {
    /// Finds the program and the guest's files, opens the destination, and adds the devices.
    fn new(args: &TraceArgs, mut launch: Launch) -> Result<Self, Failure> {
        check(args)?;
        let root = open_root(args)?;
        let root_path = root.path().to_owned();
        let cwd = working_directory(&root)?;
        let name = args.program.first().context("no program given")?;
        let path = program::find(&root, &cwd, name, std::env::var_os("PATH").as_deref())?;
        tracing::info!(program = %path.display(), cwd = %cwd.display());
        let files = GuestFiles::find(args.kernel.as_deref())?;

        let readable = args.format == TraceFormat::Text;
        let mut destination = Destination::new(args.output.as_deref(), readable)?;
        let progress = progress_bar(&destination);
        destination.keep_clear_of(progress.clone());
        let to_stdout = destination.trace_is_stdout();
        let shares = launch.shares()?;
        let job = job(args, &cwd, guest_shares(&shares, &root));
        let format = format(args, root, &cwd, &files.kernel, launch.accel());
        let (memory, alarm) = (launch.memory().clone(), launch.alarm());
        let session = Session::start(memory, args.scope.into(), format, destination, alarm)
            .context("Cannot start a thread for the trace")?;
        let session = shared(session);

        // The agent's port is the first device: the order gives the devices their addresses.
        let port = launch.board.add_console(vec![ConsolePort::named(
            PORT_NAME,
            Box::new(session.clone()),
        )])?;
        launch.share_root(&root_path)?;
        launch.share(&shares)?;
        let kernel = KernelConfig {
            initrd: Some(Initrd::Contents(files.initramfs()?)),
            image: files.kernel,
            append: String::new(),
        };
        Ok(Self {
            launch,
            kernel,
            session,
            port,
            job,
            progress,
            to_stdout,
        })
    }

    /// Boots the guest and runs it to its end, with measured times if `measured`. If the run fails,
    /// the trace is finished first.
    fn run(self, measured: bool) -> Result<(Machine, End), Failure> {
        let mut machine = self.launch.boot(&self.kernel)?;
        if measured {
            machine.measure();
        }
        let input = Input::stdin()?;
        let mut connection = AgentConnection::new(self.session.clone(), self.port, self.job, input);
        connection.show_progress(self.progress.clone());
        let outcome = machine.run(&mut connection);
        self.progress.finish_and_clear();
        tracing::debug!(
            instructions = machine.instructions(),
            ns = machine.now(),
            handovers = ?machine.handovers(),
            "end"
        );
        match outcome {
            Ok(end) => Ok((machine, end)),
            Err(failure) => {
                // The branches up to here are worth keeping. An error of `finish` is not reported:
                // the first error is.
                let interrupted = matches!(
                    failure,
                    Failure::Interrupted | Failure::Signal(_) | Failure::Timeout { .. }
                );
                let _ = lock(&self.session).finish(interrupted);
                Err(failure)
            }
        }
    }
}

/// Opens the directory that is the guest's root.
fn open_root(args: &TraceArgs) -> Result<Root, Failure> {
    let directory = args.machine.root.as_deref().unwrap_or(Path::new("/"));
    Ok(Root::open(directory)
        .with_context(|| format!("--root: cannot open {}", directory.display()))?)
}

/// The format of the trace. Text has names for the addresses in the files below `root` and in
/// `kernel`.
fn format(
    args: &TraceArgs,
    root: Root,
    cwd: &Path,
    kernel: &Path,
    accel: Accel,
) -> Box<dyn Format> {
    match args.format {
        TraceFormat::Text => {
            let mut symbols = Symbolizer::new(root, cwd);
            name_kernel(&mut symbols, args.scope, kernel);
            Box::new(Text::new(symbols))
        }
        TraceFormat::Json => Box::new(Json::new(accel)),
        TraceFormat::Raw => Box::new(Raw),
    }
}

/// Refuses what cannot be traced.
fn check(args: &TraceArgs) -> Result<(), Failure> {
    let record = vbts_protocol::RECORD_SIZE as u64;
    if args.buffer.0 < record {
        return Err(
            anyhow::anyhow!("--buffer {}: a record takes {record} bytes", args.buffer).into(),
        );
    }
    Ok(())
}

/// Has the addresses of the kernel named, if there will be any.
fn name_kernel(symbols: &mut Symbolizer, scope: ScopeArg, kernel: &Path) {
    if scope == ScopeArg::User {
        return;
    }
    match ObjectFile::of_kernel(kernel) {
        Some(file) => symbols.set_kernel(file),
        None => say(format_args!(
            "{} has no symbols, so the trace shows the kernel's addresses without names; an uncompressed vmlinux has them",
            kernel.display()
        )),
    }
}

/// The working directory as the guest sees it: the same, or `/` if that lies outside the guest's
/// root.
fn working_directory(root: &Root) -> Result<PathBuf, Failure> {
    let cwd = std::env::current_dir().context("Cannot find the working directory")?;
    Ok(root.guest_path(&cwd).unwrap_or_else(|| {
        tracing::info!(cwd = %cwd.display(), "outside --root: the program starts in /");
        PathBuf::from("/")
    }))
}

/// Where the guest mounts the directories: at the same place, as far as that is inside its root.
fn guest_shares(shares: &[SharedDirectory], root: &Root) -> Vec<Share> {
    let place = |path: &Path| root.guest_path(path).unwrap_or_else(|| path.into());
    shares
        .iter()
        .map(|share| Share {
            tag: share.tag.clone(),
            path: bytes(place(&share.path).as_os_str()),
        })
        .collect()
}

fn bytes(text: &OsStr) -> Bytes {
    Bytes(text.as_bytes().to_vec())
}

fn job(args: &TraceArgs, cwd: &Path, shares: Vec<Share>) -> Job {
    let entry = |(name, value): (OsString, OsString)| {
        let mut entry = name.into_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        Bytes(entry)
    };
    Job {
        argv: args.program.iter().map(|arg| bytes(arg)).collect(),
        envp: std::env::vars_os().map(entry).collect(),
        cwd: bytes(cwd.as_os_str()),
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
        trace: Some(Trace {
            buffer_size: args.buffer.0,
            sched: args.sched,
            scope: args.scope.into(),
        }),
        shares,
        hostname: Some(Bytes(
            rustix::system::uname().nodename().to_bytes().to_vec(),
        )),
        epoch: None,
    }
}

/// Progress on standard error, if a person sees it there and it does not run into the trace.
fn progress_bar(destination: &Destination) -> ProgressBar {
    if !stderr().is_terminal() || destination.trace_is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {human_pos} records") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// What remains to be said at the end, on standard error.
fn report(args: &TraceArgs, ending: Ending, summary: &Summary, to_stdout: bool, took: Duration) {
    let name = args
        .program
        .first()
        .map_or(OsStr::new(""), |name| name)
        .display();
    match ending.status {
        ExitStatus::Signal(signal) => {
            say(format_args!(
                "{name} was killed by {}",
                signal_name(signal.into())
            ));
        }
        ExitStatus::Code(
            code @ (status::TIMEOUT | status::ERROR | status::HOST | status::GUEST),
        ) => say(format_args!("{name} itself ended with status {code}")),
        ExitStatus::Code(_) => {}
    }
    if summary.lost > 0 {
        let lost = summary.lost;
        let least = if summary.lost_more { "at least " } else { "" };
        let help = match args.scope {
            ScopeArg::User => "a larger --buffer may help",
            ScopeArg::Kernel | ScopeArg::All => "more --memory or a larger --buffer may help",
        };
        say(format_args!("{least}{lost} branches were lost; {help}"));
    }
    // On standard output, text and JSON have said this already.
    if !to_stdout || args.format == TraceFormat::Raw {
        say(format_args!("{summary} ({:.1} s)", took.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn args(words: &[&str]) -> TraceArgs {
        let words = ["vbts", "trace"].iter().chain(words);
        match super::super::Cli::try_parse_from(words).unwrap().command {
            super::super::Command::Trace(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        for words in [
            &["--sched", "--", "ls", "--format", "x"][..],
            &["--sched", "ls", "--format", "x"],
        ] {
            let args = args(words);
            assert!(args.sched);
            assert_eq!(args.program, ["ls", "--format", "x"]);
            assert_eq!(args.format, TraceFormat::Text);
        }
    }

    #[test]
    fn the_job_is_what_was_asked_for() {
        let args = args(&["--buffer", "64K", "--sched", "--", "ls", "-l"]);
        let job = job(&args, Path::new("/tmp"), Vec::new());
        assert_eq!(job.argv, [Bytes::from("ls"), Bytes::from("-l")]);
        assert_eq!(job.cwd, Bytes::from("/tmp"));
        let trace = job.trace.unwrap();
        assert_eq!((trace.buffer_size, trace.sched), (65536, true));
        assert_eq!(trace.scope, Scope::User);
        assert!(job.envp.iter().all(|entry| entry.0.contains(&b'=')));

        for (word, scope) in [("kernel", Scope::Kernel), ("all", Scope::All)] {
            let args = self::args(&["--scope", word, "--", "ls"]);
            let job = self::job(&args, Path::new("/"), Vec::new());
            assert_eq!(job.trace.unwrap().scope, scope);
        }
    }

    #[test]
    fn a_buffer_holds_a_record() {
        assert!(check(&args(&["--buffer", "23", "x"])).is_err());
        assert!(check(&args(&["--buffer", "24", "x"])).is_ok());
    }
}
