//! `vbts run`: boots a guest, with its console on standard input and output.
//!
//! | module | contents |
//! |---|---|
//! | `options` | the options, and the configuration that they make |
//! | `frontend` | the guest's console and networks |
//! | `record` | the recording of the machine's branches |

mod frontend;
mod options;
mod record;

use std::collections::BTreeMap;
use std::io::IsTerminal;

use vbts_guest_files::arch::Arch;
use vbts_protocol::{ExitStatus, ROOT_TAG, Scope};

use super::file_uses::FileUses;
use super::options::start_logging;
use super::rescue;
use crate::recording::{GuestFacts, NewRecording, ReplayedStreams, ServedFiles};
use crate::run_facts::{command, of_machine};
use frontend::ConsoleFrontend;
pub(crate) use options::RunArgs;
use record::RecordConfig;
pub(crate) use record::log_scope;
use vbts_capture::RunEnd;
use vbts_capture::kernel_code::KernelText;
use vbts_capture::machine::Recording;
use vbts_capture::program::Restorer;
use vbts_host::exit::Failure;
use vbts_host::{Input, RawTerminal};
use vbts_vmm::accel::Accel;
use vbts_vmm::config::{GuestConfig, Initrd};
use vbts_vmm::inputs::Inputs;
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::machine::End;

/// A run of a guest.
#[derive(Debug, Clone)]
pub(crate) struct RunConfig {
    /// The guest.
    pub guest: GuestConfig,
    /// The recording of its branches, if there is one.
    pub recording: Option<RecordConfig>,
    /// The recording of its inputs, if there is one.
    pub inputs: Option<NewRecording>,
}

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &RunArgs) -> Result<u8, Failure> {
    run(&args.config())
}

/// Boots the guest of `config` and runs it to its end, with its console on standard input and
/// output. Returns its exit status.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn run(config: &RunConfig) -> Result<u8, Failure> {
    let RunConfig {
        guest,
        recording,
        inputs,
    } = config;
    start_logging(guest.machine.log);
    let mut uses = FileUses::of_machine(&guest.machine);
    if let Some(recording) = recording {
        uses.writes("--record", &recording.file);
    }
    uses.reads("--kernel", &guest.kernel.image);
    if let Some(Initrd::File(path)) = &guest.kernel.initrd {
        uses.reads("--initrd", path);
    }
    if let Some(inputs) = inputs {
        uses.writes("-o", &inputs.path);
    }
    uses.check()?;
    let mut launch = Launch::new(&guest.machine, true)?;
    let kernel = KernelFiles::read(guest.kernel.clone())?;
    let mut frontend = ConsoleFrontend::new(Input::stdin()?, std::io::stdin().is_terminal());
    if let Some(inputs) = inputs {
        launch.check_recordable()?;
        frontend.log = begin(inputs, guest, &kernel, &launch)?;
        launch.set_inputs(frontend.log.clone())?;
    }
    launch.add_disks()?;
    launch.share_root()?;
    launch.share(&launch.shares()?)?;
    launch.add_entropy()?;
    let networks = launch.add_networks()?;
    let opened = match recording {
        Some(recording) => Some(recording.open(guest, &kernel, launch.is_confined())?),
        None => None,
    };
    // All threads start after this, and all other files are open.
    launch.restrict_files()?;
    if let Some(opened) = opened {
        frontend.recording = Some(opened.start(guest, &kernel, &launch)?);
    }
    let kernel_text = recording
        .is_some()
        .then(|| KernelText::new(kernel.image(), launch.memory()));
    let (alarm, limit) = (launch.alarm().clone(), guest.machine.time_limit);
    let (shared_writes, console) = (launch.shared_writes(), launch.console().clone());
    let mut machine = launch.boot(&kernel)?;
    drop(kernel);
    if let Some(recording) = &frontend.recording {
        machine.record(|| recording.log());
    }

    frontend.networks = networks;
    let terminal = Restorer::of(RawTerminal::enter()?);
    let (restorer, rescue_alarm) = (terminal.clone(), alarm.clone());
    let finisher = frontend.recording.as_ref().map(Recording::finisher);
    let rescued = recording.clone().zip(finisher);
    alarm.set_rescue(
        Box::new(move |event| {
            restorer.restore();
            rescue::flush_console(&console, &rescue_alarm);
            let failure = rescue::failure(event, limit);
            if let Some((config, recording)) = rescued {
                // The stuck thread may change the code of the kernel.
                let end = RunEnd::of_failure(&failure);
                let ended = config.finish(&recording, end, true, Vec::new());
                ended.unwrap_or_else(|failure| failure.report());
            }
            rescue::end(&failure);
        }),
        rescue::give_up,
    );
    let ended = machine.run(&mut frontend);
    let is_stopped = matches!(ended, Ok(End::Stop));
    let mut outcome = ended.map(|end| match end {
        End::Status(status) => status,
        End::Reset | End::Off | End::Stop | End::Recorded => 0,
    });
    terminal.restore();
    if let Some((config, recording)) = recording.as_ref().zip(frontend.recording.take()) {
        machine.end_recording();
        let changes = kernel_text.map(|text| text.events()).unwrap_or_default();
        let end = match &outcome {
            Ok(_) if is_stopped => RunEnd::Stopped,
            Ok(status) => RunEnd::Program(ExitStatus::Code(*status)),
            Err(failure) => RunEnd::of_failure(failure),
        };
        let ended = config.finish(&recording.finisher(), end, outcome.is_err(), changes);
        recording.join();
        if let (Ok(_), Err(failure)) = (&outcome, ended) {
            outcome = Err(machine.name_interrupted_trace(failure));
        }
    }
    tracing::debug!(
        instructions = machine.instructions(),
        ns = machine.now(),
        handovers = ?machine.handovers(),
        malformed_ds_areas = machine.malformed_ds_areas(),
        "end"
    );
    let outcome = shared_writes.conclude(outcome);
    match inputs {
        Some(inputs) => inputs.end(&machine, outcome),
        None => outcome,
    }
}

/// Begins to record the inputs of the machine of `launch`, which is to boot `kernel`.
fn begin(
    inputs: &NewRecording,
    guest: &GuestConfig,
    kernel: &KernelFiles,
    launch: &Launch,
) -> Result<Inputs, Failure> {
    let machine = &guest.machine;
    let (root, shares) = (machine.root.as_deref(), launch.shares()?);
    let share_paths = shares.iter().map(|share| share.path.as_path());
    let root_tag = root.map(|_| ROOT_TAG.to_owned());
    let tags = shares.iter().map(|share| share.tag.clone());
    let facts = GuestFacts {
        kernel: kernel.path().display().to_string(),
        kernel_sha256: None,
        append: kernel.append().to_owned(),
        program: String::new(),
        is_32_bit: vbts_guest_files::arch_of(&guest.kernel.image) == Arch::I386,
        run: of_machine(machine, kernel, Scope::All, Accel::Soft, command()),
        shares: root_tag.into_iter().chain(tags).collect(),
        streams: ReplayedStreams::default(),
        is_machine: true,
    };
    let files = ServedFiles {
        directories: root.into_iter().chain(share_paths).collect(),
        open: &BTreeMap::new(),
    };
    inputs.begin(machine, &facts, kernel, &files)
}
