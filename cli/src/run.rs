//! `vbts run`: boots a guest, with its console on standard input and output.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use clap::Args;
use signal_hook::consts::SIGTERM;
use vbts_protocol::ExitStatus;

use super::file_uses::FileUses;
use super::options::{self, EXIT_STATUS, MachineArgs, default_of, named};
use super::record::RecordArgs;
use super::rescue;
use super::trace::end_of;
use vbts_capture::RunEnd;
use vbts_capture::kernel_code::KernelText;
use vbts_capture::machine::Recording;
use vbts_capture::terminal::Restorer;
use vbts_host::exit::Failure;
use vbts_host::input::ReadOutcome;
use vbts_host::{Event, Input, RawTerminal};
use vbts_vmm::board::Board;
use vbts_vmm::config::{
    Accelerator, DEFAULT_MODEL, DiskConfig, GuestConfig, Initrd, KernelConfig, MachineConfig,
    NetworkConfig, RandomSource,
};
use vbts_vmm::launch::{KernelFiles, Launch};
use vbts_vmm::machine::{End, RunObserver};
use vbts_vmm::network::Network;

/// Ctrl-A: the next key is a command to vbts.
const ESCAPE: u8 = 0x01;
/// Command after [`ESCAPE`]: ends the guest.
const QUIT: u8 = b'x';
/// Command after [`ESCAPE`]: sends Ctrl-A to the guest, as a second Ctrl-A does.
const SEND: u8 = b'a';
/// Maximum number of bytes that are read from standard input at a time.
const PIECE: usize = 4096;
/// Interval in virtual time, in ns, at which input that was not available and frames from networks
/// are read.
const INPUT_CHECK_INTERVAL: u64 = 1_000_000;

/// Arguments of `vbts run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub struct RunArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Kernel: an uncompressed vmlinux or a bzImage
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Words to add to the kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub append: String,
    /// Add a disk (/dev/vda and so on in the guest): a file or block device of the host, read-only
    /// with ,ro
    #[arg(long, value_name = "FILE[,ro]", value_parser = options::disk)]
    pub disk: Vec<DiskConfig>,
    /// Add a network device that is connected to the TAP device NAME of the host
    #[arg(long, value_name = "tap=NAME[,mac=ADDRESS]", value_parser = options::network)]
    pub net: Vec<NetworkConfig>,
    /// Options of a recording.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Source of the guest's random numbers
    #[arg(long, value_parser = named::<RandomSource>(), value_name = "SOURCE", default_value = default_of::<RandomSource>())]
    pub rng: RandomSource,
}

impl From<&RunArgs> for GuestConfig {
    fn from(args: &RunArgs) -> Self {
        let mut machine = MachineConfig {
            disks: args.disk.clone(),
            networks: args.net.clone(),
            random: args.rng,
            ..args.machine.config(DEFAULT_MODEL)
        };
        // Only the software CPU sees branches.
        if args.record.record.is_some() && machine.accelerator == Accelerator::Auto {
            machine.accelerator = Accelerator::Soft;
        }
        Self {
            machine,
            kernel: KernelConfig {
                image: args.kernel.clone(),
                initrd: args.initrd.clone().map(Initrd::File),
                append: args.append.clone(),
            },
        }
    }
}

/// Runs the command.
///
/// # Errors
/// See [`Failure`].
pub fn main(args: &RunArgs) -> Result<u8, Failure> {
    run(&GuestConfig::from(args), &args.record)
}

/// Boots `guest` and runs it to its end, with its console on standard input and output. Returns its
/// exit status.
///
/// # Errors
/// See [`Failure`].
pub(super) fn run(guest: &GuestConfig, record: &RecordArgs) -> Result<u8, Failure> {
    options::start_logging(guest.machine.log);
    let mut uses = FileUses::of_machine(&guest.machine);
    if let Some(path) = &record.record {
        uses.writes("--record", path);
    }
    uses.reads("--kernel", &guest.kernel.image);
    if let Some(Initrd::File(path)) = &guest.kernel.initrd {
        uses.reads("--initrd", path);
    }
    uses.check()?;
    let mut launch = Launch::new(&guest.machine, true)?;
    launch.add_disks()?;
    launch.share_root()?;
    launch.share(&launch.shares()?)?;
    launch.add_entropy()?;
    let networks = launch.add_networks()?;
    let kernel = KernelFiles::read(guest.kernel.clone())?;
    let mut frontend = ConsoleFrontend::new(Input::stdin()?, std::io::stdin().is_terminal());
    let opened = record.open(guest, &kernel, launch.is_confined())?;
    // All threads start after this, and all other files are open.
    launch.restrict_files()?;
    if let Some(opened) = opened {
        frontend.recording = Some(record.start(opened, guest, &kernel, &launch)?);
    }
    let recorded = frontend.recording.is_some();
    let kernel_text = recorded.then(|| KernelText::new(kernel.image(), launch.memory()));
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
    let rescued =
        (frontend.recording.as_ref()).map(|recording| (record.clone(), recording.finisher()));
    alarm.set_rescue(
        Box::new(move |event| {
            restorer.restore();
            rescue::flush_console(&console, &rescue_alarm);
            let failure = rescue::failure(event, limit);
            if let Some((record, recording)) = rescued {
                // The stuck thread may change the code of the kernel.
                let ended = record.finish(&recording, end_of(&failure).0, true, Vec::new());
                ended.unwrap_or_else(|failure| failure.report());
            }
            rescue::end(&failure);
        }),
        rescue::give_up,
    );
    let mut outcome = machine.run(&mut frontend).map(|end| match end {
        End::Status(status) => status,
        End::Reset | End::Off => 0,
    });
    terminal.restore();
    if let Some(recording) = frontend.recording.take() {
        machine.end_recording();
        let changes = kernel_text.map(|text| text.changes()).unwrap_or_default();
        let end = match &outcome {
            Ok(status) => RunEnd::Program(ExitStatus::Code(*status)),
            Err(failure) => end_of(failure).0,
        };
        let ended = record.finish(&recording.finisher(), end, outcome.is_err(), changes);
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
    shared_writes.conclude(outcome)
}

/// Connects the guest's serial console to standard input, and its networks to TAP devices.
#[derive(Debug)]
struct ConsoleFrontend {
    /// Takes the branches of the processors.
    recording: Option<Recording>,
    networks: Vec<Network>,
    next_poll: u64,
    input: Input,
    /// Ctrl-A is a command to vbts: standard input is a terminal.
    interactive: bool,
    escaped: bool,
    /// Input for which the serial port had no room yet.
    pending: VecDeque<u8>,
    /// The guest has read all input and its receiver is on.
    wanted: bool,
    next_check: u64,
    button_pressed: bool,
}

impl ConsoleFrontend {
    fn new(input: Input, interactive: bool) -> Self {
        Self {
            recording: None,
            networks: Vec::new(),
            next_poll: 0,
            input,
            interactive,
            escaped: false,
            pending: VecDeque::new(),
            wanted: false,
            next_check: 0,
            button_pressed: false,
        }
    }

    /// Queues input for the guest, except Ctrl-A and the command after it.
    fn type_in(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for &byte in bytes {
            match byte {
                QUIT if self.escaped => return Err(Failure::Quit),
                SEND if self.escaped => self.pending.push_back(ESCAPE),
                ESCAPE if self.interactive && !self.escaped => {
                    self.escaped = true;
                    continue;
                }
                byte => self.pending.push_back(byte),
            }
            self.escaped = false;
        }
        Ok(())
    }
}

impl RunObserver for ConsoleFrontend {
    fn after_exit(&mut self, board: &Board, now: u64) -> Result<(), Failure> {
        if let Some(recording) = &self.recording {
            recording.check()?;
        }
        let wanted = board.serial_wants_input();
        let due = !self.wanted || now >= self.next_check;
        self.wanted = wanted;
        if wanted && due && self.pending.is_empty() {
            self.next_check = now.saturating_add(INPUT_CHECK_INTERVAL);
            let mut bytes = [0; PIECE];
            if let ReadOutcome::Bytes(n) = self.input.read(&mut bytes) {
                self.type_in(bytes.get(..n).unwrap_or_default())?;
            }
        }
        if wanted && !self.pending.is_empty() {
            let taken = board.push_serial_input(self.pending.make_contiguous());
            self.pending.drain(..taken);
        }
        if !self.networks.is_empty() && now >= self.next_poll {
            self.next_poll = now.saturating_add(INPUT_CHECK_INTERVAL);
            self.networks.iter().for_each(|network| network.poll(board));
        }
        Ok(())
    }

    fn event(&mut self, board: &Board, event: Event) -> Result<(), Failure> {
        match event {
            // The first SIGTERM lets the guest shut itself down. The second one ends it.
            Event::Signal(SIGTERM) if !self.button_pressed && board.press_power_button() => {
                self.button_pressed = true;
                Ok(())
            }
            Event::Signal(signal) => Err(Failure::Signal(signal)),
            Event::Timeout => Ok(()),
        }
    }

    fn awaited_inputs(&self) -> Vec<BorrowedFd<'_>> {
        let input = (self.wanted && self.input.is_open()).then(|| self.input.fd());
        let frames = self.networks.iter().filter_map(Network::awaited);
        input.into_iter().chain(frames).collect()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.next_check = 0;
        self.next_poll = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn frontend(interactive: bool) -> ConsoleFrontend {
        ConsoleFrontend::new(Input::new(File::open("/dev/null").unwrap()), interactive)
    }

    #[test]
    fn control_a_x_ends_the_guest() {
        let mut o = frontend(true);
        o.type_in(b"ab\x01").unwrap();
        assert!(matches!(o.type_in(b"x"), Err(Failure::Quit)));
        assert_eq!(o.pending, b"ab");
    }

    #[test]
    fn control_a_twice_sends_one_to_the_guest() {
        let mut o = frontend(true);
        o.type_in(b"\x01\x01x\x01ab\x01b").unwrap();
        assert_eq!(o.pending, b"\x01x\x01bb");
    }

    #[test]
    fn a_file_is_passed_unchanged() {
        let mut o = frontend(false);
        o.type_in(b"\x01x").unwrap();
        assert_eq!(o.pending, b"\x01x");
    }
}
