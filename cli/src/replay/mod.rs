//! `vbts replay`: runs a recording again, without anything of the host.
//!
//! | module | contents |
//! |---|---|
//! | `records` | the branches of the run |

mod records;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;
use vbts_capture::format::Nothing;
use vbts_capture::output::{StdoutUse, StreamOutput, TraceTo};
use vbts_capture::program::Positions;
use vbts_capture::{Destination, Filters, Options, ReplayConnection, RunEnd, Session, TraceConfig};
use vbts_cpu::NativeOptions;
use vbts_devices::virtio::console::ConsolePort;
use vbts_devices::{Shared, lock, shared};
use vbts_host::exit::{Failure, say};
use vbts_host::root::Root;
use vbts_protocol::{PORT_NAME, Scope};
use vbts_symbols::Symbolizer;
use vbts_vmm::config::{Accelerator, JitMode, LogLevel, MachineConfig, SandboxMode};
use vbts_vmm::launch::Launch;
use vbts_vmm::machine::{End, Machine};

use crate::options::{EXIT_STATUS, default_of, is_btrace, named, seconds, start_logging, values};
use crate::recording::{OldRecording, ReplayedStreams};
use crate::trace::finish;
use records::{Opened, RecordFormat};

values! {
    RecordFormat {
        Raw: "raw", "Records of 24 bytes, of the program's first task";
        Btrace: "btrace", "Compressed, of the machine, for reports";
    }
}

/// Arguments of `vbts replay`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct ReplayArgs {
    /// Recording that vbts record has made
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print nothing that the program has printed, and only compare the run with the recorded one
    #[arg(long)]
    pub check: bool,
    /// Print no messages except errors
    #[arg(long)]
    pub quiet: bool,
    /// Write the branches of the run: raw records of the program's first task, or a btrace file of
    /// the machine (default: none, or btrace if the name of the output ends with .btrace)
    #[arg(long, value_parser = named::<RecordFormat>(), value_name = "FORMAT", conflicts_with = "check", help_heading = "Trace options")]
    pub format: Option<RecordFormat>,
    /// Write the branches to FILE. By default they go to standard output, and the output of the
    /// program to standard error
    #[arg(long, value_name = "FILE", help_heading = "Trace options")]
    pub output: Option<PathBuf>,
    /// Which branches to record
    #[arg(long, value_parser = named::<Scope>(), default_value = "user", help_heading = "Trace options")]
    pub scope: Scope,
    /// Whether the software CPU makes native code of what runs often
    #[arg(long, value_parser = named::<JitMode>(), value_name = "MODE", default_value = default_of::<JitMode>(), help_heading = "Machine options")]
    pub jit: JitMode,
    /// Runs of a block of code after which it becomes native code
    #[arg(long, hide = true, value_name = "N", default_value_t = NativeOptions::default().threshold)]
    pub jit_threshold: u32,
    /// End the replay after this much host time (fractions are allowed)
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = "Machine options")]
    pub timeout: Option<Duration>,
    /// What vbts reports about itself on standard error
    #[arg(long, value_parser = named::<LogLevel>(), value_name = "LEVEL", default_value = default_of::<LogLevel>(), help_heading = "Machine options")]
    pub log: LogLevel,
    /// How to confine vbts while the guest runs
    #[arg(long, value_parser = named::<SandboxMode>(), value_name = "MODE", default_value = default_of::<SandboxMode>(), help_heading = "Machine options")]
    pub sandbox: SandboxMode,
}

impl ReplayArgs {
    /// The branches to write.
    fn records(&self) -> Result<Option<Opened>, Failure> {
        let by_name = || {
            let output = self.output.as_deref()?;
            is_btrace(output).then_some(RecordFormat::Btrace)
        };
        let output = self.output.as_deref();
        match (self.format.or_else(by_name), output) {
            (Some(format), path) => Opened::new(format, self.scope, path).map(Some),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(anyhow!("--output: --format says what to write there, raw or btrace").into())
            }
        }
    }

    /// What becomes of the output of the program.
    fn streams(&self, streams: &ReplayedStreams) -> BTreeMap<u32, StreamOutput> {
        let to_stdout = self.format.is_some() && self.output.is_none();
        match (self.check, to_stdout) {
            (true, _) => BTreeMap::new(),
            (false, true) => streams.on_stderr(),
            (false, false) => streams.outputs(),
        }
    }

    /// The configuration of a replay of `machine`.
    fn machine(&self, machine: &MachineConfig) -> MachineConfig {
        MachineConfig {
            accelerator: Accelerator::Soft,
            jit: self.jit,
            jit_threshold: self.jit_threshold,
            time_limit: self.timeout,
            sandbox: self.sandbox,
            log: self.log,
            ..machine.clone()
        }
    }
}

/// Runs the command. The exit status is that of the recorded run.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &ReplayArgs) -> Result<u8, Failure> {
    let began = Instant::now();
    start_logging(args.log);
    let records = args.records()?;
    let recording = OldRecording::open(&args.file)?;
    let config = TraceConfig {
        machine: args.machine(&recording.machine),
        output: TraceTo::Nowhere,
        quiet: args.quiet || args.check,
        ..TraceConfig::new([&recording.facts.program])
    };
    let Replayed {
        machine,
        session,
        ended,
    } = run(args, &config, recording, records)?;
    let (failure, is_cut) = match ended {
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
    if let Err(failure) = &outcome
        && !matches!(failure, Failure::Guest { .. })
    {
        return outcome;
    }
    let recorded = machine.compare_end()?;
    let file = args.file.display();
    let Some(status) = recorded.status else {
        let seconds = machine.now() as f64 / 1e9;
        return Err(anyhow!(
            "{file} ends after {seconds:.6} s of virtual time: it was cut off there"
        )
        .into());
    };
    if let Some(reason) = recorded.reason {
        say(format_args!("the recorded run ended here: {reason}"));
    }
    if !args.check {
        return outcome.map(|_| status);
    }
    if !args.quiet {
        let instructions = machine.instructions();
        say(format_args!(
            "{file}: {instructions} instructions, as in the recorded run, whose status was {status}"
        ));
    }
    Ok(0)
}

/// A replay that has ended.
struct Replayed {
    machine: Machine,
    session: Shared<Session>,
    ended: Result<End, Failure>,
}

/// Replays `recording`, and writes `records`.
fn run(
    args: &ReplayArgs,
    config: &TraceConfig,
    recording: OldRecording,
    records: Option<Opened>,
) -> Result<Replayed, Failure> {
    let OldRecording { facts, inputs, .. } = &recording;
    let mut launch = Launch::new(&config.machine, false)?;
    launch.set_inputs(inputs.clone())?;
    let mut destination = Destination::new(&config.output, StdoutUse::Recorded)?;
    destination.connect(args.streams(&facts.streams), facts.streams.terminal);
    let root = Root::open(Path::new("/")).context("Cannot open /")?;
    let options = Options {
        scope: Scope::User,
        is_32_bit: facts.is_32_bit,
        reports: !config.quiet,
        format: Box::new(Nothing),
        symbols: Symbolizer::new(root, Path::new("/")),
        filters: Filters::default(),
        destination,
        merge_limit: config.merge_limit(),
    };
    // All threads start after this.
    launch.restrict_files()?;
    let memory = launch.memory().clone();
    let mut session = Session::start(memory, options, Positions::default(), launch.alarm())
        .context("Cannot start a thread for the output")?;
    session.set_inputs(inputs.clone());
    let program = session.program();
    let session = shared(session);
    // The order of the devices gives them their addresses.
    let port = launch.board.add_console(vec![ConsolePort::named(
        PORT_NAME,
        Box::new(session.clone()),
    )])?;
    launch.add_replayed_shares(&facts.shares)?;
    let start = |records: Opened| records.start(&recording, &launch, program);
    let mut records = records.map(start).transpose()?;
    let mut machine = launch.boot(&recording.kernel)?;
    if let Some(records) = &mut records {
        records.attach(&mut machine);
    }
    let mut connection = ReplayConnection::new(session.clone(), port, inputs.clone());
    let mut ended = machine.run(&mut connection);
    if let Some(records) = records {
        let end = match (&ended, lock(&session).ending()) {
            (_, Some(status)) => RunEnd::Program(status),
            (Err(failure), None) => RunEnd::of_failure(failure),
            (Ok(_), None) => RunEnd::Stopped,
        };
        let finished = records.finish(&mut machine, end, args.quiet);
        if let (Ok(_), Err(failure)) = (&ended, finished) {
            ended = Err(failure);
        }
    }
    Ok(Replayed {
        machine,
        session,
        ended,
    })
}
