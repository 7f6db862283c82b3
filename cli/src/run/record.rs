//! Records the branches of the machine of `vbts run`.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use vbts_cpu::{LogScope, Probe, ProbeAction};
use vbts_protocol::Scope;

use crate::kernel_file;
use crate::own_program;
use crate::progress::progress;
use crate::run_facts::{command, of_machine, summary};
use vbts_capture::machine::kernel::Kernel;
use vbts_capture::machine::{Finisher, Options, Recording};
use vbts_capture::{Point, PointPlace, RunEnd};
use vbts_guest_files::arch::Arch;
use vbts_host::exit::{Failure, say};
use vbts_host::output::Output;
use vbts_host::root::Root;
use vbts_symbols::Symbolizer;
use vbts_vmm::accel::Accel;
use vbts_vmm::config::GuestConfig;
use vbts_vmm::launch::{KernelFiles, Launch};

/// A recording of a machine's branches.
#[derive(Debug, Clone)]
pub(crate) struct RecordConfig {
    /// The file that receives them.
    pub file: PathBuf,
    /// Privilege levels that the branches lead to.
    pub scope: Scope,
    /// Where the recording begins. `None` is at once.
    pub from: Option<Point>,
    /// Where it ends, and the run with it. `None` is at the end of the run.
    pub until: Option<Point>,
    /// Only the last branches are kept: so many.
    pub last: Option<u64>,
}

/// The files and addresses of a recording, which cannot be opened once the process is restricted.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    config: &'a RecordConfig,
    output: Output,
    /// The probes at which it begins and ends.
    ends: Vec<Probe>,
    arch: Arch,
}

impl Opened<'_> {
    /// Starts to record the machine of `launch`, which is to boot `kernel`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start(
        self,
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
            output: self.output,
            run: of_machine(
                &guest.machine,
                kernel,
                self.config.scope,
                launch.accel(),
                command(),
            ),
            scope: log_scope(self.config.scope),
            is_32_bit: self.arch == Arch::I386,
            probes: with_task_probe(kernel, self.ends),
            last: self.config.last,
            // The guest's console is on standard output.
            progress: progress("{spinner} {elapsed} {msg}", !stdout().is_terminal()),
        };
        Recording::start(options, launch.alarm().clone())
    }
}

impl RecordConfig {
    /// Opens the file, which keeps its contents until [`Opened::start`], and finds where to begin
    /// and end in `kernel`. The process that reads symbols is in a sandbox if `confined`.
    ///
    /// # Errors
    /// The file cannot be created, or is a terminal; or the kernel has no such code.
    pub(crate) fn open(
        &self,
        guest: &GuestConfig,
        kernel: &KernelFiles,
        confined: bool,
    ) -> Result<Opened<'_>, Failure> {
        let arch = vbts_guest_files::arch_of(&guest.kernel.image);
        let ends = self.ends(guest, kernel, arch, confined)?;
        let output = Recording::open(&self.file)?;
        if output.is_terminal() {
            return Err(anyhow!("--record: a btrace file is not written to a terminal").into());
        }
        Ok(Opened {
            config: self,
            output,
            ends,
            arch,
        })
    }

    /// The probes at which the recording begins and ends.
    fn ends(
        &self,
        guest: &GuestConfig,
        kernel: &KernelFiles,
        arch: Arch,
        confined: bool,
    ) -> Result<Vec<Probe>, Failure> {
        type Action = fn(u64) -> ProbeAction;
        let points: [(_, _, Action); 2] = [
            ("--record-from", &self.from, |nth| ProbeAction::Start {
                nth,
            }),
            ("--record-until", &self.until, |nth| ProbeAction::Stop {
                nth,
            }),
        ];
        let mut symbols = None;
        let mut probes = Vec::new();
        for (option, point, action) in points {
            let Some(point) = point else {
                continue;
            };
            let addresses = match point.place {
                PointPlace::Address(address) => vec![address],
                _ => {
                    if symbols.is_none() {
                        symbols = KernelSymbols::read(guest, kernel, confined)?;
                    }
                    let found = match &mut symbols {
                        Some(symbols) => symbols.addresses(point, arch),
                        None => Err("the kernel's file has no symbols: an uncompressed vmlinux \
                             has them, and an address (0x…) needs none"),
                    };
                    found.map_err(|why| anyhow!("{option} {point}: {why}"))?
                }
            };
            probes.extend(addresses.into_iter().map(|address| Probe {
                address,
                action: action(point.nth),
            }));
        }
        Ok(probes)
    }

    /// Writes the end of the file, of a run that ended so, and reports its size. `kernel` has
    /// what the kernel's file lacks. If the run was `interrupted`, a reader that does not read is
    /// not waited for.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(
        &self,
        recording: &Finisher,
        end: RunEnd,
        interrupted: bool,
        kernel: Vec<vbts_trace::Event>,
    ) -> Result<(), Failure> {
        let statistics = recording.finish(summary(end), kernel, interrupted)?;
        let (records, bytes) = (statistics.records, statistics.bytes);
        if let (Some(point), 0) = (&self.from, records) {
            say(format_args!(
                "--record-from {point}: no branch has led there{}, so nothing was recorded",
                if point.nth > 1 { " so often" } else { "" }
            ));
        } else if let Some(point) = &self.until
            && end != RunEnd::Stopped
        {
            say(format_args!(
                "--record-until {point}: no branch has led there{} before the end of the run",
                if point.nth > 1 { " so often" } else { "" }
            ));
        }
        say(format_args!(
            "{records} branches recorded in {}: {bytes} bytes, {:.3} each",
            self.file.display(),
            bytes as f64 / records.max(1) as f64
        ));
        Ok(())
    }
}

/// `probes`, and the one at which the recording notes tasks, if the kernel's file tells where.
fn with_task_probe(kernel: &KernelFiles, mut probes: Vec<Probe>) -> Vec<Probe> {
    let symbols = Kernel::parse(kernel.image());
    let task = symbols.as_ref().and_then(Kernel::task_probe);
    if task.is_none() {
        tracing::info!("the kernel's file does not tell where it has the names of its tasks");
    }
    probes.extend(task);
    probes
}

/// The symbols of the guest's kernel, to find a point of the user in it.
struct KernelSymbols<'a> {
    known: Kernel<'a>,
    symbols: Symbolizer,
}

impl<'a> KernelSymbols<'a> {
    /// Reads the symbols of `kernel`. `None` if its file has none. The process that reads them is
    /// in a sandbox if `confined`.
    ///
    /// # Errors
    /// That process cannot be started.
    fn read(
        guest: &GuestConfig,
        kernel: &'a KernelFiles,
        confined: bool,
    ) -> Result<Option<Self>, Failure> {
        let image = &guest.kernel.image;
        let (Some(known), Some(file)) = (
            Kernel::parse(kernel.image()),
            kernel_file::with_symbols(image),
        ) else {
            return Ok(None);
        };
        let root = Root::open(Path::new("/")).context("Cannot open /")?;
        let mut symbols = Symbolizer::new(root, Path::new("/"));
        let started = symbols.start_reader(&mut own_program(), confined);
        started.context("Cannot start the process that reads symbols")?;
        symbols.set_kernel(file, &image.display().to_string());
        Ok(Some(Self { known, symbols }))
    }

    /// The linear addresses of `point`.
    ///
    /// # Errors
    /// There is no such code: the reason.
    fn addresses(&mut self, point: &Point, arch: Arch) -> Result<Vec<u64>, &'static str> {
        let places = point.place.find(None, &mut self.symbols);
        if !places.is_empty() {
            // In a 32-bit kernel, the processor has the lower half of the addresses of a trace.
            let half = match arch {
                Arch::X86_64 => u64::MAX,
                Arch::I386 => u32::MAX.into(),
            };
            return Ok(places.iter().map(|place| place.at & half).collect());
        }
        match &point.place {
            // Code in assembly language may have names that are no functions.
            PointPlace::Named { name, offset } => match self.known.symbol(name) {
                Some(address) => Ok(vec![address.wrapping_add(*offset)]),
                None => Err("the kernel has no such function"),
            },
            _ => Err("the kernel's file has no code of this line, or no source lines"),
        }
    }
}

/// The branches of `scope`.
pub(crate) fn log_scope(scope: Scope) -> LogScope {
    match scope {
        Scope::User => LogScope::USER,
        Scope::Kernel => LogScope::KERNEL,
        Scope::All => LogScope::all(),
    }
}
