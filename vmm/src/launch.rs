//! What every command that starts a guest does: the board from the machine options, then the kernel
//! into it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use vbts_cpu::{Model, Signals};
use vbts_devices::disk::Disk;
use vbts_devices::ninep::Access;
use vbts_devices::tap::{Tap, TapError};
use vbts_devices::virtio::entropy::Source;
use vbts_devices::{Shared, shared};
use vbts_protocol::ROOT_TAG;

use crate::accel::{Accel, Bts};
use crate::board::Board;
use crate::boot::params::{FIXED_RNG_SEED, RngSeed};
use crate::boot::{self, BootError, BootSource, cmdline};
use crate::cli::options::{DiskArg, MachineArgs, NetArg, Rng, ShareArg};
use crate::console::Console;
use crate::exit::Failure;
use crate::host::{Alarm, Output};
use crate::kvm::{Vm, device};
use crate::layout::VIRTIO_GSI;
use crate::machine::Machine;
use crate::memory::{self, GuestMemory};
use crate::network::Network;
use crate::sandbox::{self, Sandbox};

/// The guest's clock at its start, in seconds since 1970, unless `SOURCE_DATE_EPOCH` says
/// otherwise: the same on every run (2026-01-01 00:00:00 UTC).
const EPOCH: u64 = 1_767_225_600;

/// Seed of [`Rng::Fixed`]: any number will do.
const FIXED_SEED: u64 = 1;

/// CPUID.1:ECX.TSC_DEADLINE.
const CPUID_1_ECX_TSC_DEADLINE: u32 = 1 << 24;

/// A machine that is still being put together.
#[derive(Debug)]
pub struct Launch {
    model: &'static Model,
    memory: GuestMemory,
    console: Shared<Console>,
    /// The board.
    pub board: Board,
    alarm: Arc<Alarm>,
    /// What executes the processors, if it is not the software CPU.
    vm: Option<Vm>,
    options: MachineArgs,
    writable_disks: bool,
    rng_seed: RngSeed,
}

/// A directory that is shared with the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDirectory {
    /// 9P mount tag.
    pub tag: String,
    /// Absolute path on the host.
    pub path: PathBuf,
    /// The guest may write.
    pub writable: bool,
}

impl Launch {
    /// Checks the options and puts a board together. The guest's serial console is copied to
    /// standard output if `echo`.
    ///
    /// # Errors
    /// An option cannot be satisfied.
    pub fn new(options: &MachineArgs, echo: bool) -> Result<Self, Failure> {
        options.start_logging();
        let (model, choice) = options.check()?;
        if !options.no_sandbox {
            sandbox::drop_capabilities().context("Cannot give up capabilities")?;
        }
        let memory = memory::allocate(options.memory).context("--memory")?;
        // The alarm needs the board's lines to the processor, the board needs the console, and that
        // the alarm.
        let processors = u8::try_from(options.smp).unwrap_or(u8::MAX);
        let signals: Vec<Arc<Signals>> = (0..processors).map(|_| Arc::default()).collect();
        let vm = match choice.accel {
            Accel::Kvm => {
                let kvm = device::open(Path::new(device::DEVICE))?;
                let mut vm = Vm::new(&kvm, &memory, processors)?;
                if choice.bts == Bts::PassThrough {
                    vm.pass_bts_through();
                }
                Some(vm)
            }
            Accel::Soft => None,
        };
        // On the host's time another thread than the processor's waits for the alarm.
        let kick = match vm {
            Some(_) => Arc::default(),
            None => signals.first().cloned().unwrap_or_default(),
        };
        let limit = options.timeout.map(|seconds| seconds.0);
        let alarm = Arc::new(Alarm::new(kick, limit)?);
        let mut copies = Vec::new();
        if echo {
            copies.push(Output::stdout()?.interruptible(alarm.clone()));
        }
        if let Some(path) = &options.console {
            let file = Output::create(path).context("--console")?;
            copies.push(file.interruptible(alarm.clone()));
        }
        let console = shared(Console::new(copies));
        let tsc_deadline = model
            .leaves
            .iter()
            .any(|l| l.leaf == 1 && l.ecx & CPUID_1_ECX_TSC_DEADLINE != 0);
        let board = Board::new(
            memory.clone(),
            signals,
            tsc_deadline,
            epoch()?,
            Box::new(console.clone()),
        )?;
        Ok(Self {
            model,
            memory,
            console,
            board,
            alarm,
            vm,
            options: options.clone(),
            writable_disks: false,
            rng_seed: FIXED_RNG_SEED,
        })
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// What executes the guest.
    pub fn accel(&self) -> Accel {
        match self.vm {
            Some(_) => Accel::Kvm,
            None => Accel::Soft,
        }
    }

    /// What may interrupt the run.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Shares `directory` as the guest's root, read-only.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn share_root(&mut self, directory: &Path) -> Result<(), Failure> {
        Ok(self
            .board
            .add_share(ROOT_TAG, directory, Access::ReadOnly)?)
    }

    /// The directories of `--share`.
    ///
    /// # Errors
    /// One is not there.
    pub fn shares(&self) -> Result<Vec<SharedDirectory>, Failure> {
        let share = |(
            n,
            ShareArg {
                directory,
                writable,
            },
        ): (usize, &ShareArg)| {
            let path = directory
                .canonicalize()
                .with_context(|| format!("--share: cannot open {}", directory.display()))?;
            Ok(SharedDirectory {
                tag: format!("share{n}"),
                path,
                writable: *writable,
            })
        };
        self.options.share.iter().enumerate().map(share).collect()
    }

    /// Shares `directories`.
    ///
    /// # Errors
    /// One cannot be opened, or they are too many.
    pub fn share(&mut self, directories: &[SharedDirectory]) -> Result<(), Failure> {
        for SharedDirectory {
            tag,
            path,
            writable,
        } in directories
        {
            let access = if *writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            };
            self.board.add_share(tag, path, access)?;
        }
        Ok(())
    }

    /// Adds the disks of `--disk`.
    ///
    /// # Errors
    /// One cannot be opened, or they are too many.
    pub fn add_disks(&mut self, disks: &[DiskArg]) -> Result<(), Failure> {
        for (n, DiskArg { file, writable }) in disks.iter().enumerate() {
            let disk = Disk::open(file, *writable)
                .with_context(|| format!("--disk {}", file.display()))?;
            self.board.add_disk(disk, &format!("vbts-disk{n}"))?;
            self.writable_disks |= writable;
        }
        Ok(())
    }

    /// Connects the networks of `--net`.
    ///
    /// # Errors
    /// A TAP device cannot be had, or they are too many.
    pub fn add_networks(&mut self, networks: &[NetArg]) -> Result<Vec<Network>, Failure> {
        let connect = |NetArg { tap, address }: &NetArg| {
            let option = format!("--net tap={tap}");
            let opened = match Tap::open(tap) {
                Err(error @ TapError::Unsupported(_)) => {
                    return Err(Failure::Host(format!("{option}: {error}")));
                }
                opened => opened.context(option.clone())?,
            };
            Ok(Network::attach(&mut self.board, opened, *address).context(option)?)
        };
        networks.iter().map(connect).collect()
    }

    /// Adds a source of random numbers, from which the kernel's seed comes as well.
    ///
    /// # Errors
    /// There is no room, or the host has no random numbers.
    pub fn add_entropy(&mut self, rng: Rng) -> Result<(), Failure> {
        let mut source = match (rng, self.accel()) {
            (Rng::Host, _) | (Rng::Auto, Accel::Kvm) => Source::Host,
            (Rng::Fixed, _) | (Rng::Auto, Accel::Soft) => Source::Fixed(FIXED_SEED),
        };
        if source == Source::Host && source.fill(&mut self.rng_seed) != self.rng_seed.len() {
            return Err(Failure::Host("this host gives no random numbers".into()));
        }
        Ok(self.board.add_entropy(source)?)
    }

    /// Loads the kernel; the machine is then ready to run.
    ///
    /// # Errors
    /// The kernel, the initrd or the command line is unsuitable.
    pub fn boot(
        self,
        kernel: &Path,
        initrd: Option<&[u8]>,
        append: &str,
    ) -> Result<Machine, Failure> {
        let image = read(kernel)?;
        let devices = self.board.virtio_devices();
        let tsc_khz = self
            .vm
            .as_ref()
            .map_or(vbts_cpu::TSC_HZ / 1000, Vm::tsc_khz);
        let cmdline = cmdline::build(devices, tsc_khz, append).map_err(anyhow::Error::from)?;
        tracing::debug!(kernel = %kernel.display(), memory = %self.options.memory, cmdline, "boot");
        let source = BootSource {
            kernel: &image,
            initrd,
            cmdline: &cmdline,
            processors: self.board.signals().len() as u8,
            level_gsis: VIRTIO_GSI.get(..devices).unwrap_or_default(),
            rng_seed: self.rng_seed,
        };
        let state = boot::load(&self.memory, &source)
            .with_context(|| format!("Cannot boot {}", kernel.display()))?;
        let writable = self.options.share.iter().any(|share| share.writable);
        let sandbox = (!self.options.no_sandbox).then(|| {
            let files = if writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            };
            let sandbox = Sandbox::new(files, self.vm.is_some());
            if self.writable_disks {
                sandbox.with_writable_disks()
            } else {
                sandbox
            }
        });
        let mut machine = Machine::new(
            self.model,
            self.board,
            self.memory,
            &state,
            self.console,
            self.alarm,
            sandbox,
        );
        if let Some(vm) = self.vm {
            machine.accelerate(vm)?;
        }
        Ok(machine)
    }
}

/// The contents of a file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, BootError> {
    std::fs::read(path).map_err(|source| BootError::Read {
        path: path.into(),
        source,
    })
}

fn epoch() -> anyhow::Result<u64> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH={text:?} is not a number of seconds")),
        Err(_) => Ok(EPOCH),
    }
}
