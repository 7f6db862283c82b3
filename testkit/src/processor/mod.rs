//! A processor under test. The environment variable VBTS_ACCEL selects what executes it:
//!
//! | value | executed by |
//! |---|---|
//! | `soft`, or none | the software CPU |
//! | `kvm` | the host's KVM |
//! | `both` | the software CPU, with round trips of the state through KVM |
//!
//! With `kvm` the software CPU executes the guest while it traces, as in the VMM, and the first
//! VBTS_SOFT_STEPS instructions of each run. With `both` there is a round trip before each of the
//! first hundreds of instructions, and later before one of many.
//!
//! The last two need the feature `kvm`, which `cargo test --workspace` enables. On a KVM that fails
//! the checks of vbts, every test fails with `kvm`.

#[cfg(feature = "kvm")]
mod kvm;

use std::fmt;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vbts_cpu::{Exit, Model, SoftCpu};

use crate::{Environment, Ram, TestPlatform, skips};

/// The accelerator of the processors of this test program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The software CPU.
    Soft,
    /// KVM.
    Kvm {
        /// Instructions of each run that the software CPU executes first.
        after: u32,
    },
    /// The software CPU, with round trips of the state through KVM.
    Both,
}

/// The value of VBTS_ACCEL.
///
/// # Panics
/// The value is unknown, or it needs the feature `kvm`.
pub fn accel() -> Accel {
    static ACCEL: OnceLock<Accel> = OnceLock::new();
    let variable = |name| std::env::var(name).unwrap_or_default();
    *ACCEL.get_or_init(|| {
        let accel = match variable("VBTS_ACCEL").as_str() {
            "" | "soft" => Accel::Soft,
            "kvm" => Accel::Kvm {
                after: match variable("VBTS_SOFT_STEPS").as_str() {
                    "" => 0,
                    steps => steps.parse().unwrap(),
                },
            },
            "both" => Accel::Both,
            other => panic!("VBTS_ACCEL={other} instead of soft, kvm or both"),
        };
        assert!(
            accel == Accel::Soft || cfg!(feature = "kvm"),
            "VBTS_ACCEL={} needs the VMM: run cargo test --workspace --test cpu",
            variable("VBTS_ACCEL")
        );
        accel
    })
}

/// A kind of host on which KVM behaves differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Any host.
    Any,
    /// A processor with AMD's virtualization, SVM.
    Svm,
    /// A processor with SVM that QEMU emulates.
    EmulatedSvm,
    /// A host without virtualization (kvm_pvm).
    Paravirtual,
}

impl Host {
    /// Whether the tests run on this kind of host.
    pub fn is_here(self) -> bool {
        let cpuid = |leaf| std::arch::x86_64::__cpuid(leaf);
        let svm = || cpuid(0x8000_0001).ecx & 1 << 2 != 0;
        match self {
            Self::Any => true,
            Self::Svm => svm(),
            Self::Paravirtual => std::path::Path::new("/sys/module/kvm_pvm").exists(),
            // "TCGTCGTCGTCG"
            Self::EmulatedSvm => svm() && cpuid(0x4000_0000).ebx == 0x5447_4354,
        }
    }
}

/// How often a processor has changed between KVM and the software CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handovers {
    /// Single instructions that KVM could not emulate.
    pub emulated: u64,
}

/// The processor of a small machine. Between two runs the software CPU has its state.
pub struct Processor {
    kind: Kind,
    platform: Arc<TestPlatform>,
    ram: Arc<Ram>,
    soft_only: bool,
}

enum Kind {
    Soft(Box<SoftCpu>),
    #[cfg(feature = "kvm")]
    Kvm(Box<kvm::Accelerated>),
}

impl Processor {
    /// Creates a processor of `model` in its own machine, which starts in `environment`. On KVM,
    /// the processor also has the instructions of the host's. It is the software CPU alone if the
    /// host does not have those of the model.
    ///
    /// # Panics
    /// KVM fails, or fails the checks of vbts.
    pub fn new(environment: &Environment, model: &'static Model) -> Self {
        #[cfg(feature = "kvm")]
        if accel() != Accel::Soft {
            let lacks = model.missing_on_host();
            if lacks.is_empty() {
                return Self::on_kvm(environment, model);
            }
            say(&format!("not on KVM: the host lacks {}", lacks.join(", ")));
        }
        let machine = environment.machine(model);
        Self {
            kind: Kind::Soft(Box::new(machine.soft)),
            platform: machine.platform,
            ram: machine.ram,
            soft_only: false,
        }
    }

    #[cfg(feature = "kvm")]
    fn on_kvm(environment: &Environment, model: &'static Model) -> Self {
        // The software CPU in its place would pass, and say nothing of KVM.
        if let Accel::Kvm { .. } = accel()
            && let Some(why) = kvm::unfaithful()
        {
            panic!("VBTS_ACCEL=kvm: {why}");
        }
        let machine = kvm::Accelerated::new(environment, model);
        Self {
            platform: machine.platform.clone(),
            ram: machine.ram.clone(),
            kind: Kind::Kvm(Box::new(machine)),
            soft_only: false,
        }
    }

    /// The platform of its machine.
    pub fn platform(&self) -> &Arc<TestPlatform> {
        &self.platform
    }

    /// Its memory.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Runs this guest on the software CPU, also if VBTS_ACCEL selects KVM. Prints the reason.
    pub fn soft_only(&mut self, why: &str) {
        self.soft_only = true;
        if accel() != Accel::Soft {
            say(&format!("not on KVM: {why}"));
        }
    }

    /// The number of changes between accelerators, or `None` if only the software CPU executes it.
    pub fn handovers(&self) -> Option<Handovers> {
        match &self.kind {
            Kind::Soft(_) => None,
            #[cfg(feature = "kvm")]
            Kind::Kvm(machine) => {
                let kvm = matches!(accel(), Accel::Kvm { .. }) && !self.soft_only;
                kvm.then(|| machine.handovers())
            }
        }
    }

    /// Runs until the processor halts or shuts down.
    ///
    /// # Panics
    /// It does neither.
    pub fn run_to_end(&mut self) -> Exit {
        match &mut self.kind {
            #[cfg(feature = "kvm")]
            Kind::Kvm(machine) if !self.soft_only => machine.run(),
            _ => run_soft(self),
        }
    }
}

fn run_soft(soft: &mut SoftCpu) -> Exit {
    for _ in 0..100_000 {
        match soft.run(1_000_000) {
            Exit::Bus | Exit::Kick => {}
            exit => return exit,
        }
    }
    panic!("the guest does not stop: {:?}", soft.cpu);
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl Deref for Processor {
    type Target = SoftCpu;
    fn deref(&self) -> &SoftCpu {
        match &self.kind {
            Kind::Soft(soft) => soft,
            #[cfg(feature = "kvm")]
            Kind::Kvm(machine) => machine.soft(),
        }
    }
}

impl DerefMut for Processor {
    fn deref_mut(&mut self) -> &mut SoftCpu {
        match &mut self.kind {
            Kind::Soft(soft) => soft,
            #[cfg(feature = "kvm")]
            Kind::Kvm(machine) => machine.soft_mut(),
        }
    }
}

/// Says once that the running test, or a part of it, is left out. It writes to standard error
/// directly, because the test harness hides the output of tests that pass.
pub fn say(what: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let said = format!("{test}: {what}");
    let mut before = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !before.contains(&said) {
        let _ = writeln!(std::io::stderr(), "{said}");
        skips::note(test, what);
        before.push(said);
    }
}

/// Distance between the rows of a long table that are run: 1 on the software CPU, `n` on KVM.
pub fn stride(n: usize) -> usize {
    if accel() == Accel::Soft { 1 } else { n }
}
