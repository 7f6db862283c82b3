//! `vbts trace`: runs a program of the host in a guest and prints every branch that it takes.

mod args;
mod job;

use std::ffi::OsStr;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock, shared};
use vbts_protocol::{ExitStatus, Job, PORT_NAME};

use super::{options, stats};
use crate::accel::Accel;
use crate::config::{Initrd, KernelConfig, TRACE_MODEL};
use crate::exit::{Failure, say, signal_name, status};
use crate::guest_files::GuestFiles;
use crate::host::Input;
use crate::launch::Launch;
use crate::machine::{End, Machine};
use crate::program;
use crate::root::Root;
use crate::trace::format::{Format, Json, Raw};
use crate::trace::object_file::ObjectFile;
use crate::trace::session::SessionError;
use crate::trace::symbols::Symbolizer;
use crate::trace::text::Text;
use crate::trace::{AgentConnection, Destination, Ending, Session, Summary};
pub use args::TraceArgs;
use args::{ScopeArg, TraceFormat};

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &TraceArgs) -> Result<u8, Failure> {
    let began = Instant::now();
    let config = args.machine.config(TRACE_MODEL);
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

/// A guest that is ready to boot, and the session that traces its program.
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
    /// Finds the program and the files of the guest, opens the destination, and adds the devices.
    fn new(args: &TraceArgs, mut launch: Launch) -> Result<Self, Failure> {
        args.check()?;
        let root = open_root(args)?;
        let root_path = root.path().to_owned();
        let cwd = job::working_directory(&root)?;
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
        let job = job::job(args, &cwd, job::guest_shares(&shares, &root));
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

    /// Boots the guest and runs it to its end, and measures host time if `measured`. If the run
    /// fails, the trace is finished first.
    fn run(self, measured: bool) -> Result<(Machine, End), Failure> {
        let mut machine = self.launch.boot(&self.kernel)?;
        if measured {
            machine.measure_host_time();
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
                // Keeps the branches up to here. The first error is reported, not one of `finish`.
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

/// The format of the trace. Text names the addresses in the files below `root` and in `kernel`.
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

/// Gives `symbols` the symbols of the kernel if `scope` includes it.
fn name_kernel(symbols: &mut Symbolizer, scope: ScopeArg, kernel: &Path) {
    if scope == ScopeArg::User {
        return;
    }
    match ObjectFile::of_kernel(kernel) {
        Some(file) => symbols.set_kernel(file),
        None => say(format_args!(
            "{} has no symbols, so the trace shows the kernel's addresses without names; \
             an uncompressed vmlinux has them",
            kernel.display()
        )),
    }
}

/// Progress on standard error, if that is a terminal and the trace does not go to a terminal.
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

/// Prints the end of the program and the numbers of the trace on standard error.
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
    // On standard output, text and JSON have the summary already.
    if !to_stdout || args.format == TraceFormat::Raw {
        say(format_args!("{summary} ({:.1} s)", took.as_secs_f64()));
    }
}
