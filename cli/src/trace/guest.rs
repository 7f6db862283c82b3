//! The guest of a trace: what it needs of the host, and its run to the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use indicatif::ProgressBar;
use rustix::fs::FileType;
use vbts_devices::virtio::console::{Console, ConsolePort};
use vbts_devices::virtio::mmio::MmioTransport;
use vbts_devices::{Shared, lock, shared};
use vbts_protocol::{FILES_TAG, Job, PORT_NAME, ROOT_TAG, Scope};

use super::format::{facts, format};
use super::job;
use crate::file_uses::FileUses;
use crate::kernel_file;
use crate::own_program;
use crate::progress::progress;
use crate::recording::{GuestFacts, NewRecording, ReplayedStreams, ServedFiles};
use crate::rescue;
use vbts_capture::kernel_code::KernelText;
use vbts_capture::output::TraceTo;
use vbts_capture::program::Positions;
use vbts_capture::program::Terminal;
use vbts_capture::program::{self, ProgramError};
use vbts_capture::{
    AgentConnection, Destination, EndedBy, INDEX, Options, Session, Streams, TraceConfig,
    TraceFormat,
};
use vbts_guest_files::GuestFiles;
use vbts_guest_files::arch::Arch;
use vbts_host::descriptors::Inherited;
use vbts_host::exit::{Failure, say};
use vbts_host::root::Root;
use vbts_host::{Event, OutputError};
use vbts_symbols::Symbolizer;
use vbts_vmm::config::{Initrd, KernelConfig};
use vbts_vmm::inputs::Inputs;
use vbts_vmm::launch::{KernelFiles, Launch, SharedWrites};
use vbts_vmm::machine::{End, Machine};

const STREAMS: &str = "Cannot hand the open files to the program";

/// A guest that is ready to boot, and the session that traces its program.
pub(super) struct TracedGuest {
    launch: Launch,
    kernel: KernelFiles,
    pub(super) session: Shared<Session>,
    port: Shared<MmioTransport<Console>>,
    /// The writes to shares.
    pub(super) shared_writes: SharedWrites,
    job: Job,
    /// What the program reads, by stream.
    inputs: BTreeMap<u32, File>,
    /// All inputs of the run, as they are recorded.
    logged: Inputs,
    terminal: Option<Terminal>,
    progress: ProgressBar,
    /// The summary goes to standard error.
    reports: bool,
    /// The kernel's code, if the trace is to say how it has changed.
    kernel_text: Option<KernelText>,
}

impl TracedGuest {
    /// Finds the program and the files of the guest, opens the destination, and adds the devices.
    /// The inputs of the run go to `recording`.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(super) fn new(
        config: &TraceConfig,
        recording: Option<&NewRecording>,
        mut launch: Launch,
    ) -> Result<Self, Failure> {
        config.check()?;
        if recording.is_some() {
            launch.check_recordable()?;
        }
        check_proc()?;
        let root = open_root(config)?;
        let cwd = job::working_directory(&root)?;
        let name = config.program.first().context("no program given")?;
        let files = GuestFiles::find(config.kernel.as_deref(), launch.model());
        let arch = files.as_ref().map_or(Arch::X86_64, |files| files.arch);
        let search = std::env::var_os("PATH");
        let path = program::find(&root, &cwd, name, search.as_deref(), arch)
            .map_err(ProgramError::into_failure)?;
        let files = files?;
        tracing::info!(program = %path.display(), cwd = %cwd.display());

        let program = root.path().join(path.strip_prefix("/").unwrap_or(&path));
        let mut uses = file_uses(config, &program, &files);
        if let Some(recording) = recording {
            uses.writes("-o", &recording.path);
        }
        uses.check()?;

        let is_traced = config.output != TraceTo::Nowhere;
        let readable = config.format == TraceFormat::Text;
        let mut streams = streams(config)?;
        let mut destination = Destination::new(&config.output, config.stdout_use())?;
        if let TraceTo::Directory(directory) = &config.output {
            launch.create_files(directory);
        }
        if config.format == TraceFormat::Btrace && destination.trace_is_terminal() {
            return Err(
                anyhow!("a btrace file is not written to a terminal: use --output FILE").into(),
            );
        }
        let terminal = streams.terminal.as_ref().map(Terminal::stream);
        let outputs = std::mem::take(&mut streams.outputs);
        let replayed = ReplayedStreams::new(&outputs, terminal);
        destination.connect(outputs, terminal);
        let shares = launch.shares()?;
        let job = job::job(
            config,
            &cwd,
            job::guest_shares(&shares, &root)?,
            &streams,
            recording.is_some(),
        )?;
        let mut symbols = Symbolizer::new(root, &cwd);
        let filters = config.filters.clone();
        if is_traced && (readable || !config.quiet || filters.have_names()) {
            let vbts = &mut own_program();
            let started = symbols.start_reader(vbts, launch.is_confined());
            started.context("Cannot start the process that reads symbols")?;
            launch.read_symbols();
            if config.scope != Scope::User {
                let kernel = kernel_file::with_symbols(&files.kernel);
                name_kernel(&mut symbols, &files.kernel, kernel, config.quiet);
            }
        }
        let kernel = KernelFiles::read(KernelConfig {
            initrd: Some(Initrd::Contents(files.initramfs()?)),
            image: files.kernel,
            append: String::new(),
        })?;
        let inputs = match recording {
            None => Inputs::default(),
            Some(recording) => {
                let tags = shares.iter().map(|share| share.tag.clone());
                let facts = GuestFacts {
                    kernel: kernel.path().display().to_string(),
                    kernel_sha256: None,
                    append: kernel.append().to_owned(),
                    program: name.display().to_string(),
                    is_32_bit: arch == Arch::I386,
                    run: facts(config, launch.accel(), &cwd, &job, &kernel),
                    shares: std::iter::once(ROOT_TAG.to_owned())
                        .chain(tags)
                        .chain((!streams.files.is_empty()).then(|| FILES_TAG.to_owned()))
                        .collect(),
                    streams: replayed,
                    is_machine: false,
                };
                let share_paths = shares.iter().map(|share| share.path.as_path());
                let files = ServedFiles {
                    directories: std::iter::once(config.root()).chain(share_paths).collect(),
                    open: &streams.files,
                };
                recording.begin(&config.machine, &facts, &kernel, &files)?
            }
        };
        launch.set_inputs(inputs.clone())?;
        // All threads start after this, and all other files are open.
        launch.restrict_files()?;
        let progress = progress_bar(config, &destination);
        destination.keep_clear_of(progress.clone());
        let options = Options {
            scope: config.scope,
            is_32_bit: arch == Arch::I386,
            reports: !config.quiet,
            format: format(config, launch.accel(), &cwd, &job, &kernel)?,
            symbols,
            filters,
            destination,
            merge_limit: config.merge_limit(),
        };
        options
            .destination
            .truncate()
            .map_err(OutputError::into_failure)?;
        let positions = Positions::new(&streams.files).context(STREAMS)?;
        let memory = launch.memory().clone();
        let is_kept = config.format == TraceFormat::Btrace && config.scope != Scope::User;
        let kernel_text = is_kept.then(|| KernelText::new(kernel.image(), &memory));
        if streams.terminal.is_some() {
            let watched = launch.alarm().watch_terminal();
            watched.context("Cannot watch the terminal")?;
        }
        let mut session = Session::start(memory, options, positions, launch.alarm())
            .context("Cannot start a thread for the trace")?;
        session.set_inputs(inputs.clone());
        if recording.is_some() {
            session.record_later();
        }
        let session = shared(session);

        // The agent's port is the first device: the order gives the devices their addresses.
        let port = launch.board.add_console(vec![ConsolePort::named(
            PORT_NAME,
            Box::new(session.clone()),
        )])?;
        launch.share_root()?;
        launch.share(&shares)?;
        launch.share_open_files(streams.files)?;
        Ok(Self {
            shared_writes: launch.shared_writes(),
            launch,
            kernel,
            session,
            port,
            job,
            inputs: streams.inputs,
            logged: inputs,
            terminal: streams.terminal,
            progress,
            reports: !config.quiet,
            kernel_text,
        })
    }

    /// Boots the guest and runs it to its end, and measures host time if `measured`. Returns why
    /// the run ended before the program did, if that was so.
    ///
    /// # Errors
    /// The guest cannot boot.
    pub(super) fn run(self, measured: bool) -> Result<(Machine, Option<Failure>), Failure> {
        let alarm = self.launch.alarm().clone();
        let rescue_alarm = alarm.clone();
        let console = self.launch.console().clone();
        let mut machine = self.launch.boot(&self.kernel)?;
        if measured {
            machine.measure_host_time();
        }
        let session = self.session.clone();
        let mut connection = AgentConnection::new(session, self.port, self.job, self.inputs, alarm);
        connection.record(self.logged);
        let restorer = self.terminal.as_ref().map(Terminal::restorer);
        if let Some(terminal) = self.terminal {
            connection.connect_terminal(terminal);
        }
        connection.show_progress(self.progress.clone());
        let (writer, limit) = (lock(&self.session).writer(), rescue_alarm.limit());
        let (terminal, reports) = (restorer.clone().unwrap_or_default(), self.reports);
        let console_alarm = rescue_alarm.clone();
        rescue_alarm.set_rescue(
            Box::new(move |event| {
                rescue::flush_console(&console, &console_alarm);
                let failure = rescue::failure(event, limit);
                rescue::finish_trace(&writer, &terminal, &failure, reports);
                rescue::end(&failure);
            }),
            rescue::give_up,
        );
        let outcome = machine.run(&mut connection);
        if let Some(restorer) = restorer {
            lock(&self.session).restore_terminal(restorer);
        }
        if let Some(text) = self.kernel_text {
            lock(&self.session).add_kernel(text.events());
        }
        self.progress.finish_and_clear();
        tracing::debug!(
            instructions = machine.instructions(),
            ns = machine.now(),
            handovers = ?machine.handovers(),
            "end"
        );
        let (has_started, has_ended) = {
            let session = lock(&self.session);
            (session.has_started(), session.ending().is_some())
        };
        // A program that has ended may still be in a guest that does not end.
        let cut = matches!(
            outcome,
            Err(Failure::Timeout { .. } | Failure::Interrupted | Failure::Signal(_))
        );
        let ended_by = connection.ended_by().filter(|_| cut || !has_ended);
        if let (Some(_), Err(Failure::Error(error))) = (ended_by, &outcome) {
            // What has ended the run decides the exit status.
            say(format_args!("{error:#}"));
        }
        let failure = match (ended_by, outcome) {
            (Some(EndedBy::Event(Event::Signal(signal))), _) => Some(Failure::Signal(signal)),
            (Some(EndedBy::Event(Event::Timeout)), _) => Some(machine.timed_out()),
            (Some(EndedBy::Deadlock), _) => Some(Failure::Deadlock),
            (_, Err(failure)) => Some(failure),
            (_, Ok(_)) if has_ended => None,
            (_, Ok(end)) => {
                let how = match end {
                    End::Status(status) => format!("with status {status}"),
                    End::Reset => "by a reset".into(),
                    End::Off => "by switching itself off".into(),
                    End::Stop => "at a probe".into(),
                    End::Recorded => "with its recording".into(),
                };
                let reason = format!("the guest ended {how} before the program did");
                Some(machine.crashed(&reason))
            }
        };
        // Once the program runs, a time limit says nothing about the kernel.
        let failure = failure.map(|failure| match has_started {
            true => failure.if_complaint(),
            false => failure,
        });
        Ok((machine, failure))
    }
}

/// The files that the options name.
fn file_uses(config: &TraceConfig, program: &Path, files: &GuestFiles) -> FileUses {
    let mut uses = FileUses::of_machine(&config.machine);
    uses.reads("the program", program);
    uses.reads("--kernel", &files.kernel);
    uses.reads("the agent", &files.agent);
    match &config.output {
        TraceTo::Stdout | TraceTo::Nowhere => {}
        TraceTo::File(path) => uses.writes("--output", path),
        TraceTo::Directory(path) => uses.writes("--output", &path.join(INDEX)),
    }
    for path in &config.report_outputs {
        uses.writes("--output", path);
    }
    uses
}

/// What the program's descriptors become in the guest.
fn streams(config: &TraceConfig) -> Result<Streams, Failure> {
    let inherited = Inherited::all().context(STREAMS)?;
    let streams = Streams::new(&inherited, config.stdout_use()).context(STREAMS)?;
    for (fd, kind) in &streams.left_out {
        tracing::info!(fd, kind, "the program does not get this descriptor");
    }
    Ok(streams)
}

/// Checks that this process has `/proc`, through which files are opened by their descriptors.
///
/// # Errors
/// `/proc` is not mounted, as in a chroot directory.
fn check_proc() -> Result<(), Failure> {
    if Path::new("/proc/self/fd").is_dir() {
        return Ok(());
    }
    Err(Failure::Host(
        "/proc is not mounted here, which vbts needs to share files with a guest \
         (mount -t proc proc /proc)"
            .into(),
    ))
}

/// Opens the directory that is the guest's root.
fn open_root(config: &TraceConfig) -> Result<Root, Failure> {
    let directory = config.root();
    Ok(Root::open(directory)
        .with_context(|| format!("--root: cannot open {}", directory.display()))?)
}

/// Progress on standard error, if that is a terminal and nothing else is known to draw there: not
/// the trace, nor the program, nor the program at the other end of a pipe.
fn progress_bar(config: &TraceConfig, destination: &Destination) -> ProgressBar {
    let stdout = rustix::fs::fstat(rustix::stdio::stdout());
    let is_piped = stdout.is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::Fifo | FileType::Socket)
    });
    let drawn = is_piped || io::stdout().is_terminal() || destination.trace_is_terminal();
    progress(
        "{spinner} {elapsed} {human_pos} records",
        config.output != TraceTo::Nowhere && !config.quiet && !drawn,
    )
}

/// Gives `symbols` the symbols of the kernel. A message says so if there are none, unless `quiet`.
fn name_kernel(symbols: &mut Symbolizer, kernel: &Path, file: Option<File>, quiet: bool) {
    match file {
        Some(file) => symbols.set_kernel(file, &kernel.display().to_string()),
        None if quiet => {}
        None => say(format_args!(
            "{} has no symbols, so the trace shows the kernel's addresses without names; \
             an uncompressed vmlinux has them, and a kept trace (--output FILE.btrace) takes them \
             from the kernel's memory",
            kernel.display()
        )),
    }
}
