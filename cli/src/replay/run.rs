//! The run of a replay.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use vbts_capture::format::{Btrace, Format, Nothing};
use vbts_capture::kernel_code::KernelText;
use vbts_capture::machine::kernel::Kernel;
use vbts_capture::output::{StdoutUse, StreamOutput, TraceTo};
use vbts_capture::program::Positions;
use vbts_capture::{
    Destination, Filters, HostRecording, Options, ReplayConnection, RunEnd, Session, TraceConfig,
    TraceFormat,
};
use vbts_devices::virtio::console::ConsolePort;
use vbts_devices::{Shared, lock, shared};
use vbts_host::OutputError;
use vbts_host::exit::{Failure, say};
use vbts_host::root::Root;
use vbts_protocol::{Follow, PORT_NAME, Scope};
use vbts_symbols::Symbolizer;
use vbts_vmm::config::MachineConfig;
use vbts_vmm::inputs::{InputError, RecordedEnd};
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::machine::{End, Machine};

use super::records::{Opened, Records};
use super::{machine, place};
use crate::kernel_file;
use crate::options::name_of;
use crate::recording::{OldRecording, ReplayedStreams};
use crate::run::log_scope;
use crate::trace::finish;

/// The trace of a replay, as a btrace file: that of `vbts trace`.
#[derive(Debug, Clone)]
pub(super) struct TaskTrace {
    /// The file; `None` is standard output.
    pub path: Option<PathBuf>,
    pub scope: Scope,
    pub follow: Follow,
    /// The trace shows when tasks arrive and depart.
    pub sched: bool,
    /// The signal to tasks that is reported, if one is.
    pub signal: Option<u32>,
}

/// The branches that a replay writes.
#[derive(Debug)]
pub(super) enum Branches {
    None,
    Tasks(TaskTrace),
    Machine(Opened),
}

/// Where the streams of the program go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramOutput {
    Nowhere,
    /// As in the recorded run.
    Streams,
    /// All to standard error.
    Stderr,
}

/// A replay.
#[derive(Debug)]
pub(super) struct Replay {
    /// The recording's file.
    pub file: PathBuf,
    /// What is not in the recording, of its machine.
    pub machine: MachineConfig,
    pub branches: Branches,
    pub program_output: ProgramOutput,
    pub quiet: bool,
}

/// The end of a replay that was as the recorded run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replayed {
    /// The exit status of the recorded run; `None` if the recording ends before it.
    pub status: Option<u8>,
    /// Why it does, if that is known.
    reason: Option<String>,
    /// Virtual time in ns.
    pub time: u64,
    /// Instructions of all processors.
    pub instructions: u64,
}

impl Replayed {
    /// Compares the end of `machine` with that of the recorded run, and says why that ended if the
    /// guest did not end it.
    ///
    /// # Errors
    /// They differ.
    pub(super) fn compare(machine: &Machine) -> Result<Self, Failure> {
        let RecordedEnd { status, reason } = machine.compare_end()?;
        if let (Some(_), Some(reason)) = (status, &reason) {
            say(format_args!("the recorded run ended here: {reason}"));
        }
        Ok(Self {
            status,
            reason,
            time: machine.now(),
            instructions: machine.instructions(),
        })
    }

    /// The exit status of the recorded run.
    ///
    /// # Errors
    /// The recording in `file` ends before the run.
    pub(super) fn status(&self, file: &Path) -> Result<u8, Failure> {
        let seconds = self.time as f64 / 1e9;
        let file = file.display();
        self.status.ok_or_else(|| {
            let reason = self.reason.as_deref().unwrap_or("it was cut off there");
            anyhow!("{file} ends after {seconds:.6} s of virtual time: {reason}").into()
        })
    }
}

impl ProgramOutput {
    fn outputs(self, streams: &ReplayedStreams) -> BTreeMap<u32, StreamOutput> {
        match self {
            Self::Nowhere => BTreeMap::new(),
            Self::Streams => streams.outputs(),
            Self::Stderr => streams.on_stderr(),
        }
    }
}

/// A machine that has run.
struct Ended {
    machine: Machine,
    session: Shared<Session>,
    outcome: Result<End, Failure>,
}

impl Replay {
    /// Runs the replay, and compares it with the recorded run.
    ///
    /// # Errors
    /// The file is no recording, the run differs, or its branches cannot be written.
    pub(super) fn run(self) -> Result<Replayed, Failure> {
        let began = Instant::now();
        let recording = OldRecording::open(&self.file)?;
        if recording.facts.is_machine {
            return machine::run(self, &recording);
        }
        let config = self.config(&recording);
        let Ended {
            machine,
            session,
            outcome,
        } = self.run_machine(&config, recording)?;
        let (failure, is_cut) = match outcome {
            Ok(End::Recorded) => (None, true),
            Ok(_) if lock(&session).ending().is_some() => (None, false),
            Ok(_) => (
                Some(machine.crashed("the guest ended before the program did")),
                false,
            ),
            Err(failure) => (Some(failure), false),
        };
        // A failure of the guest is one of the recorded run, too; another one ends the replay.
        let outcome = match failure {
            None if is_cut => {
                let end = Failure::Interrupted;
                let _ = finish(&config, &machine, &session, Some(end), began);
                Ok(0)
            }
            failure => finish(&config, &machine, &session, failure, began),
        };
        match outcome {
            Err(failure) if !matches!(failure, Failure::Guest { .. }) => return Err(failure),
            _ => {}
        }
        Replayed::compare(&machine)
    }

    fn config(&self, recording: &OldRecording) -> TraceConfig {
        let config = TraceConfig {
            machine: recording.machine_as(&self.machine),
            output: TraceTo::Nowhere,
            format: TraceFormat::Btrace,
            quiet: self.quiet,
            ..TraceConfig::new([&recording.facts.program])
        };
        let Branches::Tasks(trace) = &self.branches else {
            return config;
        };
        TraceConfig {
            output: trace.path.clone().map_or(TraceTo::Stdout, TraceTo::File),
            scope: trace.scope,
            follow: trace.follow,
            sched: trace.sched,
            ..config
        }
    }

    fn run_machine(self, config: &TraceConfig, recording: OldRecording) -> Result<Ended, Failure> {
        let OldRecording {
            facts,
            inputs,
            kernel,
            ..
        } = &recording;
        let mut launch = Launch::new(&config.machine, false)?;
        launch.set_inputs(inputs.clone())?;
        let mut destination = Destination::new(&config.output, StdoutUse::Recorded)?;
        if destination.trace_is_terminal() {
            return Err(
                anyhow!("branches are not written to a terminal: use --output FILE").into(),
            );
        }
        let outputs = self.program_output.outputs(&facts.streams);
        destination.connect(outputs, facts.streams.terminal);
        let root = Root::open(Path::new("/")).context("Cannot open /")?;
        let options = Options {
            scope: config.scope,
            is_32_bit: facts.is_32_bit,
            // They would lack names: a replay reads no files.
            reports: false,
            format: format(config, &recording)?,
            symbols: Symbolizer::new(root, Path::new("/")),
            filters: Filters::default(),
            destination,
            merge_limit: config.merge_limit(),
        };
        // All threads start after this.
        launch.restrict_files()?;
        let truncated = options.destination.truncate();
        truncated.map_err(OutputError::into_failure)?;
        let memory = launch.memory().clone();
        let traced = matches!(self.branches, Branches::Tasks(_));
        let kernel_text = (traced && config.scope != Scope::User)
            .then(|| KernelText::new(kernel.image(), &memory));
        let mut session = Session::start(memory, options, Positions::default(), launch.alarm())
            .context("Cannot start a thread for the output")?;
        session.set_inputs(inputs.clone());
        let log = match &self.branches {
            Branches::Tasks(trace) => Some(session.record(host_recording(trace, &recording)?)),
            _ => {
                session.record_later();
                None
            }
        };
        let session = shared(session);
        // The order of the devices gives them their addresses.
        let port = launch.board.add_console(vec![ConsolePort::named(
            PORT_NAME,
            Box::new(session.clone()),
        )])?;
        launch.add_replayed_shares(&facts.shares)?;
        let records = match self.branches {
            Branches::Machine(opened) => Some(opened.start(&recording, &launch)?),
            _ => None,
        };
        let mut machine = launch.boot(kernel)?;
        if let Some(log) = log {
            // The processors of a replay take turns, and share one log.
            machine.record_in(log);
        }
        if let Some(records) = &records {
            records.attach(&mut machine);
        }
        let mut connection = ReplayConnection::new(session.clone(), port, inputs.clone());
        let outcome = machine.run(&mut connection);
        let mut outcome = outcome.map_err(|failure| with_place(failure, &machine, kernel));
        machine.end_recording();
        {
            let mut session = lock(&session);
            session.end_log(machine.now());
            if let Some(text) = kernel_text {
                session.add_kernel(text.events());
            }
        }
        if let Some(records) = records {
            let finished = finish_records(records, &outcome, &session, config.quiet);
            if let (Ok(_), Err(failure)) = (&outcome, finished) {
                outcome = Err(failure);
            }
        }
        Ok(Ended {
            machine,
            session,
            outcome,
        })
    }
}

/// Adds to the failure of a run that differs from the recorded one where that was.
pub(super) fn with_place(failure: Failure, machine: &Machine, kernel: &KernelFiles) -> Failure {
    match failure {
        Failure::Error(error) if is_divergence(&error) => {
            let place = place::describe(machine, kernel.image());
            Failure::Error(anyhow!("{error:#}; this is {place}"))
        }
        failure => failure,
    }
}

fn is_divergence(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<InputError>();
    matches!(cause, Some(InputError::Divergence { .. }))
}

fn finish_records(
    records: Records,
    outcome: &Result<End, Failure>,
    session: &Shared<Session>,
    quiet: bool,
) -> Result<(), Failure> {
    let end = match (outcome, lock(session).ending()) {
        (_, Some(status)) => RunEnd::Program(status),
        (Err(failure), None) => RunEnd::of_failure(failure),
        (Ok(_), None) => RunEnd::Stopped,
    };
    records.finish(end, quiet)
}

/// The format of the trace.
///
/// # Errors
/// The trace cannot be begun.
fn format(config: &TraceConfig, recording: &OldRecording) -> Result<Box<dyn Format>, Failure> {
    if config.output == TraceTo::Nowhere {
        return Ok(Box::new(Nothing));
    }
    let mut run = recording.facts.run.clone();
    run.scope = name_of(&config.scope).into();
    run.sched = config.sched;
    if config.scope != Scope::User {
        kernel_file::identify(&recording.kernel, &mut run);
    }
    if let Some(environment) = run.other.get_mut("environment") {
        environment["follow"] = name_of(&config.follow).into();
    }
    let format = Btrace::new(&run).context("Cannot begin the trace")?;
    Ok(Box::new(format))
}

/// What the host records of the tasks of a recording.
///
/// # Errors
/// The kernel of the recording does not tell about its tasks.
fn host_recording(trace: &TaskTrace, recording: &OldRecording) -> Result<HostRecording, Failure> {
    let kernel = Kernel::parse(recording.kernel.image());
    let Some(probe) = kernel.and_then(|kernel| kernel.task_probe()) else {
        return Err(anyhow!(
            "the kernel of the recording does not tell about its tasks, so the branches of the \
             program cannot be told from others; --record writes those of the whole machine"
        )
        .into());
    };
    Ok(HostRecording {
        scope: log_scope(trace.scope),
        probes: vec![probe],
        is_32_bit: recording.facts.is_32_bit,
        follow: trace.follow,
        signal: trace.signal,
    })
}
