//! `vbts record`: runs a program in a guest, or a machine, and keeps what comes in from outside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use vbts_capture::output::TraceTo;
use vbts_capture::{TraceConfig, TraceFormat};
use vbts_host::exit::Failure;
use vbts_vmm::config::{
    Accelerator, DEFAULT_MODEL, GuestConfig, Initrd, KernelConfig, MachineConfig, RandomSource,
};
use vbts_vmm::memory::Size;

use crate::options::{EXIT_STATUS, MachineArgs};
use crate::recording::NewRecording;
use crate::run::{self, RunConfig};
use crate::trace::{parse_date, run_recorded, wait_all};

/// Default maximum size of a recording.
const DEFAULT_MAX_SIZE: Size = Size(4 << 30);

/// Arguments of `vbts record`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "vbts record [OPTIONS] -- PROGRAM [ARG]...\n       vbts record [OPTIONS] --kernel FILE")]
pub(crate) struct RecordArgs {
    /// Machine options.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Guest kernel (default: $VBTS_KERNEL, else the one that was built with vbts). Without a
    /// program, its machine is recorded as vbts run runs it
    #[arg(long, value_name = "FILE", help_heading = "Machine options")]
    pub kernel: Option<PathBuf>,
    /// Without a program: initial RAM disk
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "program",
        help_heading = "Machine options"
    )]
    pub initrd: Option<PathBuf>,
    /// Without a program: words to add to the kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        allow_hyphen_values = true,
        conflicts_with = "program",
        help_heading = "Machine options"
    )]
    pub append: Option<String>,
    /// Write the recording to FILE (default: the name of the program, with .vbts)
    #[arg(short, long, value_name = "FILE", help_heading = "Recording options")]
    pub output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, help_heading = "Recording options")]
    pub force: bool,
    /// End the run when the recording has SIZE bytes
    #[arg(
        long,
        value_name = "SIZE",
        default_value_t = DEFAULT_MAX_SIZE,
        help_heading = "Recording options"
    )]
    pub max_size: Size,
    /// Keep the contents of the files at and below PATH out of the recording, which ends where they
    /// are read. Can be repeated
    #[arg(long, value_name = "PATH", help_heading = "Recording options")]
    pub exclude: Vec<PathBuf>,
    /// Record a hash of the guest's kernel, and not its contents. A replay needs the same kernel:
    /// the installed one, the one at the same path, or $VBTS_KERNEL
    #[arg(long, help_heading = "Recording options")]
    pub refer_kernel: bool,
    /// Whose end ends the run. The exit status is that of the first process
    #[arg(
        long = "wait",
        action = ArgAction::Set,
        value_parser = wait_all(),
        value_name = "PROCESSES",
        default_value = "all",
        help_heading = "Recording options"
    )]
    pub wait_all: bool,
    /// Wait on if all tasks of the program wait for each other for ever (default: end the run)
    #[arg(long, help_heading = "Recording options")]
    pub wait_forever: bool,
    /// Date of the guest at its boot: seconds since 1970, or a date such as 2026-01-31 or
    /// 2026-01-31T12:00:00Z (default: $SOURCE_DATE_EPOCH, else the host's date)
    #[arg(
        long,
        value_name = "TIME",
        allow_negative_numbers = true,
        value_parser = parse_date,
        help_heading = "Recording options"
    )]
    pub epoch: Option<i64>,
    /// Print no messages except errors
    #[arg(long, help_heading = "Recording options")]
    pub quiet: bool,
    /// Program to run, and its arguments
    #[arg(
        required_unless_present = "kernel",
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

impl RecordArgs {
    /// The configuration of the run, which is not traced.
    fn config(&self) -> TraceConfig {
        TraceConfig {
            machine: virtual_time(self.machine.config_of_trace()),
            kernel: self.kernel.clone(),
            format: TraceFormat::Raw,
            output: TraceTo::Nowhere,
            wait_all: self.wait_all,
            ends_at_deadlock: !self.wait_forever,
            epoch: self.epoch,
            quiet: self.quiet,
            ..TraceConfig::new(&self.program)
        }
    }

    /// The configuration of the run of a machine.
    fn machine(&self, kernel: &Path) -> RunConfig {
        RunConfig {
            guest: GuestConfig {
                machine: MachineConfig {
                    random: RandomSource::Fixed,
                    start_date: self.epoch.and_then(|date| u64::try_from(date).ok()),
                    ..virtual_time(self.machine.config(DEFAULT_MODEL))
                },
                kernel: KernelConfig {
                    image: kernel.to_path_buf(),
                    initrd: self.initrd.clone().map(Initrd::File),
                    append: self.append.clone().unwrap_or_default(),
                },
            },
            recording: None,
            inputs: Some(self.recording()),
        }
    }

    fn recording(&self) -> NewRecording {
        let path = self.output.clone().unwrap_or_else(|| {
            let program = self.program.first().map(Path::new);
            let program = program.or(self.kernel.as_deref());
            let name = program.and_then(Path::file_name).unwrap_or_default();
            let mut name = name.to_owned();
            name.push(".vbts");
            name.into()
        });
        NewRecording {
            path,
            force: self.force,
            max_size: self.max_size.0,
            exclude: self.exclude.clone(),
            refer_kernel: self.refer_kernel,
            quiet: self.quiet,
        }
    }
}

/// The configuration, with virtual time unless it names an accelerator. Only the software CPU has
/// virtual time.
fn virtual_time(machine: MachineConfig) -> MachineConfig {
    MachineConfig {
        accelerator: match machine.accelerator {
            Accelerator::Auto => Accelerator::Soft,
            named => named,
        },
        ..machine
    }
}

/// Runs the command. The exit status is that of the program.
///
/// # Errors
/// See [`Failure`].
pub(crate) fn main(args: &RecordArgs) -> Result<u8, Failure> {
    let recording = args.recording();
    recording.check()?;
    if let (true, Some(kernel)) = (args.program.is_empty(), &args.kernel) {
        return run::run(&args.machine(kernel));
    }
    run_recorded(&args.config(), Some(&recording))
}
