//! Makes a machine of its configuration: memory and board first, then devices, then the kernel.

mod devices;
mod kernel_files;
mod shared_writes;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, anyhow};
use vbts_cpu::state::efer;
use vbts_cpu::{Model, NativeListener, NativeOptions, Signals};
use vbts_devices::ninep::Access;
use vbts_devices::{Shared, lock, shared};

use crate::accel::{self, Accel, Bts, native_code};
use crate::board::Board;
use crate::boot::params::{FIXED_RNG_SEED, RngSeed};
use crate::boot::{self, BootSource, cmdline};
use crate::config::{JitMode, MachineConfig, SandboxMode, ShareConfig};
use crate::console::Console;
use crate::inputs::Inputs;
use crate::kvm::{Vm, device};
use crate::layout::VIRTIO_GSI;
use crate::machine::Machine;
use crate::memory::{self, GuestMemory};
use crate::perf_map::PerfMap;
pub use devices::SharedDirectory;
pub use kernel_files::KernelFiles;
pub use shared_writes::SharedWrites;
use vbts_host::exit::Failure;
use vbts_host::sandbox::{self, FileRules, Reach, Sandbox};
use vbts_host::{Alarm, Output};

/// The guest's real-time clock at its start, in seconds since 1970, unless the configuration or
/// `SOURCE_DATE_EPOCH` sets another: 2026-01-01 00:00:00 UTC. It is constant, so that two runs are
/// the same.
const EPOCH: u64 = 1_767_225_600;

/// CPUID.1:ECX.TSC_DEADLINE.
const CPUID_1_ECX_TSC_DEADLINE: u32 = 1 << 24;

/// A machine whose devices are being added.
#[derive(Debug)]
pub struct Launch {
    model: &'static Model,
    memory: GuestMemory,
    console: Shared<Console>,
    /// The board.
    pub board: Board,
    alarm: Arc<Alarm>,
    /// The KVM virtual machine, if KVM executes the processors.
    vm: Option<Vm>,
    /// The guest's time is the host's.
    uses_host_clock: bool,
    config: MachineConfig,
    rng_seed: RngSeed,
    /// The directory in which the run creates files.
    creates_files: Option<PathBuf>,
    /// The files that this process can open are restricted.
    files_are_restricted: bool,
    /// The guest has files that this process has open.
    shares_open_files: bool,
    /// The run reads symbols.
    reads_symbols: bool,
    /// The writes to shares.
    shared_writes: SharedWrites,
    /// Names native code.
    perf_map: Option<PerfMap<File>>,
    inputs: Inputs,
}

impl Launch {
    /// The processor model.
    pub fn model(&self) -> &'static Model {
        self.model
    }

    /// Checks `config` and builds the board. The guest's serial console is copied to standard
    /// output if `echo`.
    ///
    /// # Errors
    /// The configuration or this host does not allow the machine.
    pub fn new(config: &MachineConfig, echo: bool) -> Result<Self, Failure> {
        if config.perf_map && config.jit == JitMode::Off {
            return Err(anyhow!("--perf-map names native code: --jit off makes none").into());
        }
        let (model, choice) = accel::resolve(config)?;
        match config.sandbox {
            SandboxMode::Off => sandbox::drop_fsetid(),
            _ => sandbox::drop_capabilities(),
        }
        .context("Cannot give up capabilities")?;
        let memory = memory::allocate(config.memory).context("--memory")?;
        let processors = u8::try_from(config.processors).unwrap_or(u8::MAX);
        let vm = match choice.accel {
            Accel::Kvm => Some(virtual_machine(&memory, processors, choice.bts)?),
            Accel::Soft => None,
        };
        // The board needs the console, the console needs the alarm, and the alarm needs the signals
        // of the processor that it interrupts.
        let signals: Vec<Arc<Signals>> = (0..processors).map(|_| Arc::default()).collect();
        let uses_host_clock = choice.uses_host_clock(config);
        // On host time the machine's thread waits for the alarm, and no processor is interrupted.
        let interrupted = match uses_host_clock {
            true => Arc::default(),
            false => signals.first().cloned().unwrap_or_default(),
        };
        let alarm = Arc::new(Alarm::new(interrupted, config.time_limit)?);
        let console = shared(console(config, echo, &alarm)?);
        let board = Board::new(
            memory.clone(),
            signals,
            has_tsc_deadline(model),
            start_date(config)?,
            Box::new(console.clone()),
        )?;
        let perf_map = config.perf_map.then(PerfMap::create).transpose()?;
        Ok(Self {
            model,
            memory,
            console,
            board,
            alarm,
            vm,
            uses_host_clock,
            config: config.clone(),
            rng_seed: FIXED_RNG_SEED,
            creates_files: None,
            files_are_restricted: false,
            shares_open_files: false,
            reads_symbols: false,
            shared_writes: SharedWrites::default(),
            perf_map,
            inputs: Inputs::default(),
        })
    }

    /// Checks that inputs have a virtual time, so that they can be recorded.
    ///
    /// # Errors
    /// The guest runs on the host's time.
    pub fn check_recordable(&self) -> Result<(), Failure> {
        if self.uses_host_clock {
            let message = "a run on the host's time cannot be recorded, because its inputs have no \
                virtual time; use --accel soft and --clock virtual";
            return Err(Failure::Host(message.into()));
        }
        Ok(())
    }

    /// Records the inputs of the run, or takes them out of a recording. It precedes the devices.
    ///
    /// # Errors
    /// As [`Self::check_recordable`].
    pub fn set_inputs(&mut self, inputs: Inputs) -> Result<(), Failure> {
        if inputs.is_logged() {
            self.check_recordable()?;
        }
        self.board.set_inputs(inputs.clone());
        self.inputs = inputs;
        Ok(())
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The accelerator.
    pub fn accel(&self) -> Accel {
        match self.vm {
            Some(_) => Accel::Kvm,
            None => Accel::Soft,
        }
    }

    /// Lets the process create files in `directory` while the guest runs.
    pub fn create_files(&mut self, directory: &Path) {
        self.creates_files = Some(directory.into());
    }

    /// Restricts this thread, and those that it starts from now on, to files below the root, the
    /// shares and [`Self::create_files`], where the host can do that. All else that the run needs
    /// must be open. [`Self::boot`] does it if it was not done.
    ///
    /// # Errors
    /// A directory cannot be opened, or the host cannot restrict files as the configuration wants.
    pub fn restrict_files(&mut self) -> Result<(), Failure> {
        let mode = self.config.sandbox;
        if std::mem::replace(&mut self.files_are_restricted, true) || mode == SandboxMode::Off {
            return Ok(());
        }
        let mut rules = FileRules::default();
        if let Some(root) = &self.config.root {
            rules.allow(root, Reach::Read)?;
        }
        for ShareConfig {
            directory,
            writable,
        } in &self.config.shares
        {
            let reach = if *writable { Reach::Write } else { Reach::Read };
            rules.allow(directory, reach)?;
        }
        if let Some(directory) = &self.creates_files {
            rules.allow(directory, Reach::Create)?;
        }
        sandbox::restrict_files(rules, mode == SandboxMode::Strict)
    }

    /// Lets the process pass files to one that reads symbols.
    pub fn read_symbols(&mut self) {
        self.reads_symbols = true;
    }

    /// Whether the process will be in a sandbox.
    pub fn is_confined(&self) -> bool {
        self.config.sandbox != SandboxMode::Off
    }

    /// The guest's serial console on the host's side.
    pub fn console(&self) -> &Shared<Console> {
        &self.console
    }

    /// The writes to the shares so far, and to come.
    pub fn shared_writes(&self) -> SharedWrites {
        self.shared_writes.clone()
    }

    /// The signals and the time limit that interrupt the run.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Loads `kernel`. The machine is then ready to run.
    ///
    /// # Errors
    /// The kernel, the initrd or the command line is unsuitable, or see [`Self::restrict_files`].
    pub fn boot(mut self, kernel: &KernelFiles) -> Result<Machine, Failure> {
        self.restrict_files()?;
        let name = kernel.path().display();
        let devices = self.board.virtio_devices();
        let tsc_khz = self
            .vm
            .as_ref()
            .map_or(vbts_cpu::TSC_HZ / 1000, Vm::tsc_khz);
        let cmdline =
            cmdline::build(devices, tsc_khz, kernel.append()).map_err(anyhow::Error::from)?;
        tracing::debug!(kernel = %name, memory = %self.config.memory, cmdline, "boot");
        let source = BootSource {
            kernel: kernel.image(),
            initrd: kernel.initrd(),
            cmdline: &cmdline,
            processors: self.board.signals().len() as u8,
            level_gsis: VIRTIO_GSI.get(..devices).unwrap_or_default(),
            rng_seed: self.rng_seed,
        };
        let state =
            boot::load(&self.memory, &source).with_context(|| format!("Cannot boot {name}"))?;
        let sandbox = self.sandbox();
        if state.sys.efer & efer::LMA != 0 && !self.model.has_intel_64() {
            let model = self.model.name;
            let why = anyhow!("it is a 64-bit kernel, and --cpu {model} has no 64-bit mode");
            return Err(why.context(format!("Cannot boot {name}")).into());
        }
        // Everything else is open now.
        lock(&self.console).truncate().context("--console")?;
        let mut machine = Machine::new(
            self.model,
            self.board,
            self.memory,
            &state,
            self.console,
            self.alarm,
            sandbox,
        )?;
        if translate_blocks(&mut machine, &self.config)?
            && let Some(map) = self.perf_map
        {
            let listener: Arc<Mutex<dyn NativeListener>> = Arc::new(Mutex::new(map));
            machine.listen_to_native_code(&listener);
        }
        machine.set_inputs(self.inputs);
        match self.vm {
            Some(vm) => machine.accelerate(vm)?,
            None if self.uses_host_clock => machine.use_host_clock(),
            None => {}
        }
        Ok(machine)
    }

    /// The sandbox that allows the system calls of the configured devices.
    fn sandbox(&self) -> Option<Sandbox> {
        let writable = self.config.shares.iter().any(|share| share.writable);
        let files = if writable {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        };
        let mut sandbox = match self.inputs.is_replay() {
            true => Sandbox::for_replays(),
            false => Sandbox::new(files, self.vm.is_some()),
        };
        if self.creates_files.is_some() {
            sandbox = sandbox.with_new_files();
        }
        if self.shares_open_files {
            sandbox = sandbox.with_open_files();
        }
        if self.reads_symbols {
            sandbox = sandbox.with_symbols();
        }
        let writable_disks = self.config.disks.iter().any(|disk| disk.writable);
        (self.config.sandbox != SandboxMode::Off).then(|| match writable_disks {
            true => sandbox.with_writable_disks(),
            false => sandbox,
        })
    }
}

/// Has the software CPU of `machine` make native code, if the configuration and the host allow it.
/// Returns whether it does.
///
/// # Errors
/// The configuration demands it, and the host does not allow it.
fn translate_blocks(machine: &mut Machine, config: &MachineConfig) -> Result<bool, Failure> {
    if config.jit == JitMode::Off {
        return Ok(false);
    }
    let options = NativeOptions {
        threshold: config.jit_threshold,
        check: config.jit == JitMode::Check,
        ..NativeOptions::default()
    };
    let translated = native_code::check().and_then(|()| {
        let translated = machine.translate_blocks(options);
        translated.map_err(|error| Failure::Host(error.to_string()))
    });
    match translated {
        Ok(()) => Ok(true),
        Err(error) if config.jit == JitMode::Auto && !config.perf_map => {
            tracing::info!("native code: no ({error})");
            Ok(false)
        }
        Err(error) => Err(Failure::Host(format!(
            "No native code: {error}; use --jit auto"
        ))),
    }
}

/// Creates the KVM virtual machine that executes the processors.
fn virtual_machine(memory: &GuestMemory, processors: u8, bts: Bts) -> Result<Vm, Failure> {
    let kvm = device::open(Path::new(device::DEVICE))?;
    let mut vm = Vm::new(&kvm, memory, processors)?;
    if bts == Bts::PassThrough {
        vm.pass_bts_through();
    }
    Ok(vm)
}

/// Creates the host's side of the serial console, with its copies.
fn console(config: &MachineConfig, echo: bool, alarm: &Arc<Alarm>) -> Result<Console, Failure> {
    let mut copies = Vec::new();
    if echo {
        copies.push(Output::stdout()?.interruptible(alarm.clone()));
    }
    if let Some(path) = &config.console {
        let file = Output::open(path).context("--console")?;
        copies.push(file.interruptible(alarm.clone()));
    }
    Ok(Console::new(copies))
}

fn has_tsc_deadline(model: &Model) -> bool {
    let leaf = model.leaves.iter().find(|l| l.leaf == 1);
    leaf.is_some_and(|l| l.ecx & CPUID_1_ECX_TSC_DEADLINE != 0)
}

/// The guest's real-time clock at its start, in seconds since 1970.
///
/// # Errors
/// The environment sets one that is not a number.
pub fn start_date(config: &MachineConfig) -> anyhow::Result<u64> {
    match config.start_date {
        Some(date) => Ok(date),
        None => Ok(source_date_epoch()?.unwrap_or(EPOCH)),
    }
}

/// The date in seconds since 1970 that the environment sets for reproducible results.
///
/// # Errors
/// It is not a number.
pub fn source_date_epoch() -> anyhow::Result<Option<u64>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text
            .parse()
            .map(Some)
            .with_context(|| format!("SOURCE_DATE_EPOCH={text:?} is not a number of seconds")),
        Err(_) => Ok(None),
    }
}
