//! The options of `vbts run` that record the machine.

use std::io::{IsTerminal, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vbts_cpu::{LogScope, Probe, ProbeAction};
use vbts_protocol::ExitStatus;
use vbts_trace::{Run, Streams, Summary};

use super::trace::end_of;
use crate::accel::Accel;
use crate::config::GuestConfig;
use crate::exit::{Failure, say};
use crate::host::output::Output;
use crate::launch::{KernelFiles, Launch};
use crate::machine::End;
use crate::trace::RunEnd;
use crate::trace::kernel_code::CodeChange;
use crate::trace::machine::kernel::Kernel;
use crate::trace::machine::{Options, Recording};

/// Which branches of the machine to record, by the privilege level that they lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RecordScope {
    /// Those of programs, without the kernel's returns to them
    User,
    /// Those into and inside the kernel
    Kernel,
    /// All branches
    #[default]
    All,
}

impl RecordScope {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().into())
    }
}

impl From<RecordScope> for LogScope {
    fn from(scope: RecordScope) -> Self {
        match scope {
            RecordScope::User => Self::USER,
            RecordScope::Kernel => Self::KERNEL,
            RecordScope::All => Self::all(),
        }
    }
}

/// Options of a recording.
#[derive(Debug, Clone, Default, Args)]
pub struct RecordArgs {
    /// Record every branch of the machine in FILE, for `vbts report`. --accel auto then is soft
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Which branches to record
    #[arg(
        long,
        value_enum,
        value_name = "SCOPE",
        default_value_t,
        requires = "record"
    )]
    pub record_scope: RecordScope,
    /// Record from the first branch to POINT on: a function of the kernel, or an address (0x…)
    #[arg(long, value_name = "POINT", requires = "record")]
    pub record_from: Option<String>,
    /// Keep only the last N branches
    #[arg(long, value_name = "N", requires = "record",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub record_last: Option<u64>,
}

impl RecordArgs {
    /// Opens the file, which keeps its contents until [`Self::start`].
    ///
    /// # Errors
    /// It cannot be created, or is a terminal.
    pub fn open(&self) -> Result<Option<Output>, Failure> {
        let Some(path) = &self.record else {
            return Ok(None);
        };
        let output = Recording::open(path)?;
        if output.is_terminal() {
            return Err(anyhow!("--record: a btrace file is not written to a terminal").into());
        }
        Ok(Some(output))
    }

    /// Starts to record the machine of `launch`, which is to boot `kernel`, to `output`.
    ///
    /// # Errors
    /// The kernel has no such function, or the file cannot be written.
    pub fn start(
        &self,
        output: Output,
        guest: &GuestConfig,
        kernel: &KernelFiles,
        launch: &Launch,
    ) -> Result<Recording, Failure> {
        if launch.accel() == Accel::Kvm {
            say(
                "--record: KVM executes the guest except while it traces, and only the branches \
                 that the software CPU executes are recorded; --accel soft records all",
            );
        }
        let options = Options {
            output,
            run: self.run(guest, launch.accel()),
            scope: self.record_scope.into(),
            probes: self.probes(kernel)?,
            last: self.record_last,
            progress: progress(),
        };
        Recording::start(options, launch.alarm().clone())
    }

    /// Where the recording begins, and where it notes tasks.
    fn probes(&self, kernel: &KernelFiles) -> Result<Vec<Probe>, Failure> {
        let symbols = Kernel::parse(kernel.image());
        let task = symbols.as_ref().and_then(Kernel::task_probe);
        if task.is_none() {
            tracing::info!("the kernel's file does not tell where it has the names of its tasks");
        }
        let mut probes: Vec<Probe> = task.into_iter().collect();
        if let Some(point) = &self.record_from {
            let address = match point.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => symbols.as_ref().and_then(|kernel| kernel.symbol(point)),
            };
            let Some(address) = address else {
                let why = match (&symbols, point.starts_with("0x")) {
                    (_, true) => "is no address",
                    (None, _) => {
                        "is a name, and the kernel's file has no symbols: an uncompressed vmlinux \
                         has them"
                    }
                    (Some(_), _) => "is no function of the kernel",
                };
                return Err(anyhow!("--record-from: {point:?} {why}").into());
            };
            probes.push(Probe {
                address,
                action: ProbeAction::Start,
            });
        }
        Ok(probes)
    }

    /// The facts about the run.
    fn run(&self, guest: &GuestConfig, accel: Accel) -> Run {
        let image = &guest.kernel.image;
        let kernel = std::path::absolute(image).unwrap_or_else(|_| image.clone());
        let words = std::env::args_os().map(|word| word.display().to_string());
        let directory = std::env::current_dir().unwrap_or_default();
        let mut run = Run {
            writer: concat!("vbts ", env!("CARGO_PKG_VERSION")).into(),
            command: words.collect(),
            directory: directory.display().to_string(),
            scope: self.record_scope.name(),
            accel: accel.to_string(),
            streams: Streams::Processors,
            kernel: Some(kernel.display().to_string()),
            ..Run::default()
        };
        let machine = &guest.machine;
        for (name, value) in [
            ("memory", machine.memory.0.into()),
            ("processors", machine.processors.into()),
            ("cpu", machine.model.clone().into()),
        ] {
            run.other.insert(name.into(), value);
        }
        run
    }

    /// Writes the end of the file, of a run with this outcome, and reports its size. `kernel_code`
    /// differs from the kernel's file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(
        &self,
        recording: Recording,
        outcome: &Result<End, Failure>,
        kernel_code: Vec<CodeChange>,
    ) -> Result<(), Failure> {
        let end = match outcome {
            Ok(End::Status(status)) => RunEnd::Program(ExitStatus::Code(*status)),
            Ok(End::Reset | End::Off) => RunEnd::Program(ExitStatus::Code(0)),
            Err(failure) => end_of(failure).0,
        };
        let summary = Summary {
            end: end.name().into(),
            exit: end.exit(),
            ..Summary::default()
        };
        let statistics = recording.finish(summary, kernel_code, outcome.is_err())?;
        let (records, bytes) = (statistics.records, statistics.bytes);
        let path = self.record.as_deref().unwrap_or(Path::new(""));
        if let (Some(point), 0) = (&self.record_from, records) {
            say(format_args!(
                "--record-from {point}: no branch has led there, so nothing was recorded"
            ));
        }
        say(format_args!(
            "{records} branches recorded in {}: {bytes} bytes, {:.3} each",
            path.display(),
            bytes as f64 / records.max(1) as f64
        ));
        Ok(())
    }
}

/// Progress on standard error, if that is a terminal and the guest's console is not.
fn progress() -> ProgressBar {
    if !stderr().is_terminal() || stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
