//! Selects the accelerator that runs a guest and the implementation of its Branch Trace Store, from
//! the configuration and from what the host offers.
//!
//! `auto` takes KVM only if KVM passes every check and is faster than the software CPU, at CPL 0
//! and at CPL 3: a guest spends its time in both. An accelerator that is named is used, or the run
//! fails; it is never replaced by another.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use vbts_cpu::Model;

use crate::config::{Accelerator, BtsMode, ClockSource, JitMode, MachineConfig};
use crate::kvm::check::Report;
use crate::kvm::check::speed::{Millions, Speed};
use crate::kvm::device;
use crate::kvm::passthrough::NoPassThrough;
use crate::layout;
use vbts_host::exit::Failure;

mod host;
pub mod native_code;

pub use host::ThisHost;

/// An accelerator: what executes the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The host's KVM, and the software CPU while branches are recorded.
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

/// The selected accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The accelerator.
    pub accel: Accel,
    /// The Branch Trace Store.
    pub bts: Bts,
    /// Why this accelerator, in one line.
    pub why: String,
}

impl Choice {
    /// Whether the guest's time is the host's, in the machine of `config`.
    pub fn uses_host_clock(&self, config: &MachineConfig) -> bool {
        self.accel == Accel::Kvm || config.clock == ClockSource::Host
    }
}

/// The capabilities of a host. [`choose`] calls a function only if the choice depends on it.
pub trait Host {
    /// The results of the checks of the host's KVM.
    ///
    /// # Errors
    /// Why the host has no usable KVM.
    fn kvm(&mut self) -> Result<&Report, String>;

    /// Probes whether KVM gives a guest the host's Branch Trace Store.
    ///
    /// # Errors
    /// Why it does not.
    fn pass_through(&mut self) -> Result<(), NoPassThrough>;

    /// Measures the software CPU, in instructions a second.
    ///
    /// # Errors
    /// The software CPU cannot run.
    fn soft_speed(&mut self) -> Result<Speed, Failure>;
}

/// Host time for which [`resolve`] measures the software CPU, if its speed matters.
const MEASURE: Duration = Duration::from_millis(5);

/// Checks that this build of vbts can run the machine of `config` on this host. Returns the
/// processor model and the accelerator.
///
/// # Errors
/// [`Failure::Host`] if this host lacks something, [`Failure::Error`] if no host can run such a
/// machine.
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
            "--cpu {name}: the software CPU needs {what}, which the host's processor does not have"
        )));
    }
    let mut host = ThisHost::new(Path::new(device::DEVICE), MEASURE);
    let choice = choose(
        executes(config)?,
        config.bts,
        config.kvm_unchecked,
        &model.missing_on_host(),
        &mut host,
    )?;
    tracing::info!("accelerator: {} ({})", choice.accel, choice.why);
    if config.jit == JitMode::Check && config.processors > 1 && choice.uses_host_clock(config) {
        return Err(anyhow::anyhow!(
            "--jit check: processors that run at the same time cannot be checked (--accel soft --clock virtual)"
        )
        .into());
    }
    Ok((model, choice))
}

/// What executes the guest as far as the options say.
///
/// # Errors
/// They contradict each other.
fn executes(config: &MachineConfig) -> Result<Accelerator, Failure> {
    match (config.clock, config.accelerator) {
        (ClockSource::Virtual, Accelerator::Kvm) => Err(anyhow::anyhow!(
            "--clock virtual: KVM does not count the guest's instructions (--accel soft does)"
        )
        .into()),
        (ClockSource::Virtual, Accelerator::Auto) => Ok(Accelerator::Soft),
        (_, accelerator) => Ok(accelerator),
    }
}

/// Chooses the accelerator and the Branch Trace Store. If `unchecked`, `--accel kvm` takes a KVM
/// that has failed its checks. `lacks` lists the instruction-set extensions of the guest's
/// processor that the host's processor does not have: the host's processor executes the guest under
/// KVM.
///
/// # Errors
/// [`Failure::Host`]: the host does not have the accelerator, or no Branch Trace Store for it.
pub fn choose(
    accel: Accelerator,
    bts: BtsMode,
    unchecked: bool,
    lacks: &[String],
    host: &mut dyn Host,
) -> Result<Choice, Failure> {
    let (accel, why) = match accel {
        Accelerator::Soft => (Accel::Soft, "selected by an option".to_owned()),
        Accelerator::Kvm if !lacks.is_empty() => {
            return Err(Failure::Host(format!(
                "--accel kvm: {}, which this processor model needs (--accel soft runs it, --cpu selects another model)",
                lacking(lacks)
            )));
        }
        Accelerator::Kvm => {
            require_kvm(host, unchecked)?;
            (Accel::Kvm, "selected by an option".to_owned())
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
                "it needs KVM, and the accelerator is soft ({why})"
            )));
        }
    };
    Ok(Choice { accel, bts, why })
}

fn lacking(what: &[String]) -> String {
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
             --kvm-unchecked runs the guest on this KVM regardless)"
        ))),
        _ => Ok(()),
    }
}

/// The accelerator that `auto` takes, with the reason.
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

#[cfg(test)]
mod tests;
