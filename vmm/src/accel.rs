//! Selects the accelerator that runs a guest and the implementation of its Branch Trace Store, from
//! the configuration and from what the host offers.
//!
//! `auto` takes KVM only if every check of it has passed and it is faster than the software CPU, at
//! CPL 0 and at CPL 3: a guest spends its time in both. What was asked for by name is done or
//! refused, never replaced.

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use vbts_cpu::{Cpu, Exit, Model, Signals, SoftCpu};
use vbts_devices::{OutputBuffer, shared};
use vm_memory::{Bytes, GuestAddress};

use crate::board::{Board, VcpuPlatform};
use crate::boot::registers;
use crate::config::{Accelerator, BtsMode, MachineConfig};
use crate::exit::Failure;
use crate::kvm::check::speed::{LOOP, Speed};
use crate::kvm::check::{self, Report};
use crate::kvm::device::{self, NoKvm};
use crate::kvm::passthrough::{self, NoPassThrough};
use crate::layout;
use crate::memory::{self, MIN_MEMORY, Size};

/// What runs the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The host's KVM, with the software CPU for what is traced.
    Kvm,
    /// The software CPU.
    Soft,
}

impl From<Accel> for Accelerator {
    fn from(accel: Accel) -> Self {
        match accel {
            Accel::Kvm => Self::Kvm,
            Accel::Soft => Self::Soft,
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Soft => "soft",
        })
    }
}

/// The implementation of the Branch Trace Store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bts {
    /// The software CPU of vbts.
    Emulate,
    /// The host's processor.
    PassThrough,
    /// The guest's processor has no Branch Trace Store.
    Off,
}

impl fmt::Display for Bts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulate => "emulate",
            Self::PassThrough => "passthrough",
            Self::Off => "off",
        })
    }
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The accelerator.
    pub accel: Accel,
    /// The Branch Trace Store.
    pub bts: Bts,
    /// Why this accelerator, in one line.
    pub why: String,
}

/// What there is to choose from. Each question is asked only if the answer matters.
pub trait Host {
    /// What the checks of the host's KVM have shown, or why there is none.
    ///
    /// # Errors
    /// Why there is none.
    fn kvm(&mut self) -> Result<&Report, String>;

    /// Whether a guest can have the host's Branch Trace Store.
    ///
    /// # Errors
    /// Why not.
    fn pass_through(&mut self) -> Result<(), NoPassThrough>;

    /// Speed of the software CPU.
    ///
    /// # Errors
    /// It cannot run.
    fn soft_speed(&mut self) -> Result<Speed, Failure>;
}

/// Host time for which [`resolve`] measures the software CPU, if its speed matters.
const MEASURE: Duration = Duration::from_millis(5);

/// Checks that this build on this host can be the machine of `config`. Returns its processor model
/// and what executes it.
///
/// # Errors
/// [`Failure::Host`] for what this host cannot do, [`Failure::Error`] for a machine that no host
/// can be.
pub fn resolve(config: &MachineConfig) -> Result<(&'static Model, Choice), Failure> {
    let most = layout::MAX_PROCESSORS;
    if !(1..=most.into()).contains(&config.processors) {
        let n = config.processors;
        return Err(anyhow::anyhow!("--smp {n}: a machine has 1 to {most} processors").into());
    }
    let name = &config.model;
    let find = if config.bts == BtsMode::Off {
        vbts_cpu::model_without_bts
    } else {
        vbts_cpu::model
    };
    let model = find(name).ok_or_else(|| {
        let known = vbts_cpu::MODELS.join(", ");
        anyhow::anyhow!("--cpu {name}: unknown model; the models are: {known}")
    })?;
    if let Some(what) = model.unsupported() {
        return Err(Failure::Host(format!(
            "--cpu {name}: the software CPU has the host's processor compute for it, and that has no {what}"
        )));
    }
    let mut host = ThisHost::new(Path::new(device::DEVICE), MEASURE);
    let choice = choose(
        config.accelerator,
        config.bts,
        config.kvm_unchecked,
        &model.missing_on_host(),
        &mut host,
    )?;
    tracing::info!("accelerator: {} ({})", choice.accel, choice.why);
    Ok((model, choice))
}

/// Chooses. `unchecked`: `--accel kvm` takes a KVM that has failed its checks. `lacks`:
/// instruction-set extensions that the guest's processor has and the host's has not, for KVM has
/// the host's execute what the guest does.
///
/// # Errors
/// [`Failure::Host`]: the host does not offer what was asked for.
pub fn choose(
    accel: Accelerator,
    bts: BtsMode,
    unchecked: bool,
    lacks: &[&str],
    host: &mut dyn Host,
) -> Result<Choice, Failure> {
    let (accel, why) = match accel {
        Accelerator::Soft => (Accel::Soft, "asked for".to_owned()),
        Accelerator::Kvm if !lacks.is_empty() => {
            return Err(Failure::Host(format!(
                "--accel kvm: {}, which this model of processor has (--accel soft runs it, --cpu chooses another)",
                lacking(lacks)
            )));
        }
        Accelerator::Kvm => {
            require_kvm(host, unchecked)?;
            (Accel::Kvm, "asked for".to_owned())
        }
        Accelerator::Auto if !lacks.is_empty() => (Accel::Soft, lacking(lacks)),
        Accelerator::Auto => automatic(host)?,
    };
    let bts = match (bts, accel) {
        (BtsMode::Off, _) => Bts::Off,
        (BtsMode::Emulate, _) | (BtsMode::Auto, Accel::Soft) => Bts::Emulate,
        (BtsMode::Auto, Accel::Kvm) => match host.pass_through() {
            Ok(()) => Bts::PassThrough,
            Err(_) => Bts::Emulate,
        },
        (BtsMode::Passthrough, Accel::Kvm) => match host.pass_through() {
            Ok(()) => Bts::PassThrough,
            Err(no) => return Err(no_pass_through(&no.to_string())),
        },
        (BtsMode::Passthrough, Accel::Soft) => {
            return Err(no_pass_through(&format!(
                "it needs KVM, and the accelerator is soft: {why}"
            )));
        }
    };
    Ok(Choice { accel, bts, why })
}

fn lacking(what: &[&str]) -> String {
    format!("the host's processor has no {}", what.join(", "))
}

fn no_pass_through(why: &str) -> Failure {
    Failure::Host(format!(
        "--bts passthrough: {why}; --bts emulate works everywhere"
    ))
}

fn require_kvm(host: &mut dyn Host, unchecked: bool) -> Result<(), Failure> {
    let refuse = |why: String| Failure::Host(format!("--accel kvm: {why}"));
    let report = host
        .kvm()
        .map_err(|why| refuse(format!("{why} (--accel soft runs everywhere)")))?;
    match report.failure() {
        Some((name, why)) if !unchecked => Err(refuse(format!(
            "this KVM would run guests wrongly; the check '{name}' failed: {why} (--accel soft runs everywhere; \
             --kvm-unchecked tries nevertheless)"
        ))),
        _ => Ok(()),
    }
}

/// What `auto` takes, and why.
fn automatic(host: &mut dyn Host) -> Result<(Accel, String), Failure> {
    let (cpl0, cpl3) = match host.kvm() {
        Err(why) => return Ok((Accel::Soft, format!("no KVM: {why}"))),
        Ok(report) => match (report.failure(), report.cpl0, report.cpl3) {
            (Some((name, _)), ..) => {
                let why =
                    format!("this KVM would run guests wrongly; it failed the check '{name}'");
                return Ok((Accel::Soft, why));
            }
            (None, Some(cpl0), Some(cpl3)) => (cpl0, cpl3),
            (None, ..) => return Ok((Accel::Soft, "the speed of KVM cannot be measured".into())),
        },
    };
    let soft = host.soft_speed()?;
    let kvm = cpl0.min(cpl3);
    let figures = format!(
        "{} million instructions a second against {}",
        Millions(kvm),
        Millions(soft)
    );
    Ok(if kvm > soft {
        (
            Accel::Kvm,
            format!("KVM passed its checks and is faster than soft: {figures}"),
        )
    } else {
        let cpl = if cpl0 < cpl3 { 0 } else { 3 };
        (
            Accel::Soft,
            format!("KVM is slower than soft at CPL {cpl}: {figures}"),
        )
    })
}

/// A speed in millions of instructions a second.
#[derive(Debug, Clone, Copy)]
pub struct Millions(pub Speed);

impl fmt::Display for Millions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 as f64 / 1e6 {
            millions if millions < 10.0 => write!(f, "{millions:.1}"),
            millions => write!(f, "{millions:.0}"),
        }
    }
}

/// This host. Each finding is made once and kept.
#[derive(Debug)]
pub struct ThisHost {
    path: PathBuf,
    kvm: OnceCell<Result<Kvm, NoKvm>>,
    report: Option<Report>,
    pass_through: Option<Result<(), NoPassThrough>>,
    soft_speed: Option<Speed>,
    /// How long the software CPU is measured.
    measure: Duration,
}

impl ThisHost {
    /// With the KVM at `path`, and this long to measure the software CPU.
    pub fn new(path: &Path, measure: Duration) -> Self {
        Self {
            path: path.into(),
            kvm: OnceCell::new(),
            report: None,
            pass_through: None,
            soft_speed: None,
            measure,
        }
    }
}

impl Host for ThisHost {
    fn kvm(&mut self) -> Result<&Report, String> {
        let kvm = self.kvm.get_or_init(|| device::open(&self.path));
        let kvm = kvm.as_ref().map_err(ToString::to_string)?;
        Ok(self.report.get_or_insert_with(|| check::run(kvm)))
    }

    fn pass_through(&mut self) -> Result<(), NoPassThrough> {
        let kvm = match self.kvm.get_or_init(|| device::open(&self.path)) {
            Ok(kvm) => kvm,
            Err(why) => return Err(NoPassThrough::Untried(why.to_string())),
        };
        self.pass_through
            .get_or_insert_with(|| passthrough::probe_kvm(kvm))
            .clone()
    }

    fn soft_speed(&mut self) -> Result<Speed, Failure> {
        if let Some(speed) = self.soft_speed {
            return Ok(speed);
        }
        let speed = measure_soft(self.measure)?;
        self.soft_speed = Some(speed);
        Ok(speed)
    }
}

/// Virtual time between two looks at the host's clock, in ns.
const SLICE: u64 = 100_000;

/// Instructions a second that the software CPU retires in the loop in which KVM is measured.
fn measure_soft(long: Duration) -> Result<Speed, Failure> {
    let memory = memory::allocate(Size(MIN_MEMORY))?;
    registers::write_tables(&memory)?;
    let back = [0xEB, (-(LOOP.len() as i8) - 2) as u8];
    memory.write_slice(
        &[LOOP, &back].concat(),
        GuestAddress(layout::EXTENDED_MEMORY),
    )?;
    let signals = Arc::<Signals>::default();
    let board = Board::new(
        memory.clone(),
        vec![signals.clone()],
        false,
        0,
        Box::new(shared(OutputBuffer::new(0))),
    )?;
    let model =
        vbts_cpu::model(vbts_cpu::MODELS[0]).ok_or_else(|| anyhow::anyhow!("no CPU model"))?;
    let mut cpu = Cpu::new(
        model,
        // SAFETY: it lives to the end of this function.
        unsafe { memory::cpu_view(&memory) },
        Arc::new(VcpuPlatform::new(Arc::new(board), 0)),
        signals,
    );
    cpu.load_state(&registers::initial_state(layout::EXTENDED_MEMORY));
    let mut soft = SoftCpu::new(cpu);
    let began = Instant::now();
    while began.elapsed() < long {
        let exit = soft.run(soft.cpu.now() + SLICE);
        if exit != Exit::Deadline {
            return Err(anyhow::anyhow!("the software CPU left a plain loop: {exit:?}").into());
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok((soft.cpu.instructions() as f64 / seconds) as Speed)
}

#[cfg(test)]
mod tests;
