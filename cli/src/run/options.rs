//! The options of `vbts run`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use vbts_protocol::Scope;

use super::RunConfig;
use super::record::RecordConfig;
use crate::options::{self, EXIT_STATUS, MachineArgs, default_of, named, one_of};
use vbts_capture::Point;
use vbts_vmm::config::{
    Accelerator, DEFAULT_MODEL, DiskConfig, GuestConfig, Initrd, KernelConfig, MachineConfig,
    NetworkConfig, RandomSource,
};

/// Arguments of `vbts run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct RunArgs {
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

impl RunArgs {
    /// The configuration of these options.
    pub(crate) fn config(&self) -> RunConfig {
        let mut machine = MachineConfig {
            disks: self.disk.clone(),
            networks: self.net.clone(),
            random: self.rng,
            ..self.machine.config(DEFAULT_MODEL)
        };
        let recording = self.record.config();
        // Only the software CPU sees branches.
        if recording.is_some() && machine.accelerator == Accelerator::Auto {
            machine.accelerator = Accelerator::Soft;
        }
        RunConfig {
            guest: GuestConfig {
                machine,
                kernel: KernelConfig {
                    image: self.kernel.clone(),
                    initrd: self.initrd.clone().map(Initrd::File),
                    append: self.append.clone(),
                },
            },
            recording,
            inputs: None,
        }
    }
}

/// Options of a recording.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Record every branch of the machine in FILE, for `vbts report`. --accel auto then is soft
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Which branches to record
    #[arg(
        long,
        value_parser = record_scope(),
        value_name = "SCOPE",
        default_value = "all",
        requires = "record"
    )]
    pub record_scope: Scope,
    /// Record from the first branch to POINT on, in the kernel FUNCTION, FUNCTION+0xOFFSET or
    /// FILE:LINE, or 0xADDRESS; with #N at its end from the Nth branch on
    #[arg(long, value_name = "POINT", requires = "record")]
    pub record_from: Option<Point>,
    /// End the run at the first branch to POINT after the recording has begun; with #N at its end
    /// at the Nth one
    #[arg(long, value_name = "POINT", requires = "record")]
    pub record_until: Option<Point>,
    /// Keep only the last N branches
    #[arg(long, value_name = "N", requires = "record",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub record_last: Option<u64>,
}

impl RecordArgs {
    fn config(&self) -> Option<RecordConfig> {
        Some(RecordConfig {
            file: self.record.clone()?,
            scope: self.record_scope,
            from: self.record_from.clone(),
            until: self.record_until.clone(),
            last: self.record_last,
        })
    }
}

/// The parser of `--record-scope`: branches by the privilege level that they lead to.
fn record_scope() -> impl TypedValueParser<Value = Scope> {
    one_of(vec![
        (
            Scope::User,
            "user",
            "Those of programs, without the kernel's returns to them",
        ),
        (Scope::Kernel, "kernel", "Those into and inside the kernel"),
        (Scope::All, "all", "All branches"),
    ])
}
