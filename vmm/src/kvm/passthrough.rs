//! Probes whether the host's KVM gives guests the host processor's own Branch Trace Store.
//!
//! Upstream KVM does not: on Intel it refuses the bits, on other processors it refuses or ignores
//! them. The probe passes if KVM accepts a DS area and TR and BTS, keeps them, and stores the
//! branches of a small guest.

use kvm_ioctls::Kvm;
use thiserror::Error;

use super::KvmError;
use vbts_cpu::DebugCtl;
use vbts_cpu::state::msr;

use super::check::exit::Exit;
use super::check::guest::Mode;
use super::check::scratch::Scratch;
use super::check::tables::KERNEL_DATA;

/// TR and BTS in IA32_DEBUGCTL (SDM Vol. 3B 17.4.1).
pub const TR_BTS: u64 = DebugCtl::TR.union(DebugCtl::BTS).bits();

/// Linear address of the scratch guest's DS area. A buffer for 64 records follows it.
const DS_AREA: u64 = KERNEL_DATA;
const BUFFER: u64 = KERNEL_DATA + 0x100;
const RECORD: u64 = 24;

/// Why the host's Branch Trace Store cannot be passed through.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum NoPassThrough {
    /// No scratch virtual machine could be created or run.
    #[error("the probe cannot run: {0}")]
    Untried(String),
    /// KVM rejects the value.
    #[error("KVM rejects {value:#x} in {}: {why}", name(*.index))]
    Refused {
        /// The MSR.
        index: u32,
        /// Value written.
        value: u64,
        /// KVM's error.
        why: String,
    },
    /// KVM accepts the value and keeps another one.
    #[error("KVM accepts {value:#x} in {}, but keeps {kept:#x}", name(*.index))]
    NotKept {
        /// The MSR.
        index: u32,
        /// Value written.
        value: u64,
        /// Value read back.
        kept: u64,
    },
    /// KVM keeps the bits, but no record is stored.
    #[error("KVM accepts and keeps the bits, but no branch is stored")]
    NothingStored,
}

fn name(index: u32) -> &'static str {
    match index {
        msr::IA32_DEBUGCTL => "IA32_DEBUGCTL",
        _ => "IA32_DS_AREA",
    }
}

/// The operations of KVM that the probe uses.
pub trait HostKvm {
    /// Sets an MSR of the scratch processor.
    ///
    /// # Errors
    /// KVM's error.
    fn set_msr(&mut self, index: u32, value: u64) -> Result<(), String>;

    /// Reads an MSR of the scratch processor.
    ///
    /// # Errors
    /// KVM's error.
    fn msr(&mut self, index: u32) -> Result<u64, String>;

    /// Runs a guest that takes branches. Returns the number of records in the DS buffer after it.
    ///
    /// # Errors
    /// The guest does not reach its HLT.
    fn run_branches(&mut self) -> Result<u64, String>;
}

/// Probes with the operations of `host`.
///
/// # Errors
/// Why pass-through is not possible.
pub fn probe(host: &mut dyn HostKvm) -> Result<(), NoPassThrough> {
    keep(host, msr::IA32_DEBUGCTL, TR_BTS)?;
    keep(host, msr::IA32_DS_AREA, DS_AREA)?;
    match host.run_branches().map_err(NoPassThrough::Untried)? {
        0 => Err(NoPassThrough::NothingStored),
        _ => Ok(()),
    }
}

fn keep(host: &mut dyn HostKvm, index: u32, value: u64) -> Result<(), NoPassThrough> {
    let refused = |why| NoPassThrough::Refused { index, value, why };
    host.set_msr(index, value).map_err(refused)?;
    let kept = host.msr(index).map_err(refused)?;
    if kept == value {
        Ok(())
    } else {
        Err(NoPassThrough::NotKept { index, value, kept })
    }
}

/// Probes on a scratch processor of `kvm`.
///
/// # Errors
/// Why pass-through is not possible.
pub fn probe_kvm(kvm: &Kvm) -> Result<(), NoPassThrough> {
    let untried = |error: KvmError| NoPassThrough::Untried(error.to_string());
    let mut scratch = Scratch::new(kvm, false).map_err(untried)?;
    let mut code = [0xEB, 0x00].repeat(16); // jmp to the next instruction
    code.push(0xF4); // hlt
    scratch.start(Mode::Kernel, &code).map_err(untried)?;
    // Management area of the DS area, 64-bit format (SDM Vol. 3B 17.4.9.2): base, index, absolute
    // maximum, threshold.
    let end = BUFFER + 64 * RECORD;
    for (i, field) in (0..).zip([BUFFER, BUFFER, end + 1, end + RECORD]) {
        scratch.write(DS_AREA + i * 8, field).map_err(untried)?;
    }
    probe(&mut scratch)
}

impl HostKvm for Scratch {
    fn set_msr(&mut self, index: u32, value: u64) -> Result<(), String> {
        super::msr::set(self.vcpu(), index, value).map_err(|e| e.to_string())
    }

    fn msr(&mut self, index: u32) -> Result<u64, String> {
        super::msr::get(self.vcpu(), index).map_err(|e| e.to_string())
    }

    fn run_branches(&mut self) -> Result<u64, String> {
        match self.run(None).map_err(|e| e.to_string())? {
            Exit::Halt => Ok(self.read(DS_AREA + 8).saturating_sub(BUFFER) / RECORD),
            exit => Err(format!("{exit} instead of HLT")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A KVM with the behaviour that a test chooses.
    #[derive(Default)]
    struct Fake {
        msrs: BTreeMap<u32, u64>,
        refuses: Option<u32>,
        forgets: Option<u32>,
        stores: bool,
    }

    impl HostKvm for Fake {
        fn set_msr(&mut self, index: u32, value: u64) -> Result<(), String> {
            if self.refuses == Some(index) && value != 0 {
                return Err("no".into());
            }
            if self.forgets != Some(index) {
                self.msrs.insert(index, value);
            }
            Ok(())
        }

        fn msr(&mut self, index: u32) -> Result<u64, String> {
            Ok(self.msrs.get(&index).copied().unwrap_or_default())
        }

        fn run_branches(&mut self) -> Result<u64, String> {
            let tracing =
                self.msr(msr::IA32_DEBUGCTL)? == TR_BTS && self.msr(msr::IA32_DS_AREA)? == DS_AREA;
            Ok(if self.stores && tracing { 17 } else { 0 })
        }
    }

    #[test]
    fn a_kvm_that_stores_branches_passes() {
        let mut fake = Fake {
            stores: true,
            ..Fake::default()
        };
        assert_eq!(probe(&mut fake), Ok(()));
        assert_eq!(fake.msr(msr::IA32_DEBUGCTL), Ok(TR_BTS));
    }

    #[test]
    fn a_kvm_that_rejects_a_value_fails() {
        for (index, value) in [(msr::IA32_DEBUGCTL, TR_BTS), (msr::IA32_DS_AREA, DS_AREA)] {
            let mut fake = Fake {
                refuses: Some(index),
                stores: true,
                ..Fake::default()
            };
            let refused = NoPassThrough::Refused {
                index,
                value,
                why: "no".into(),
            };
            assert_eq!(probe(&mut fake), Err(refused));
        }
    }

    #[test]
    fn a_kvm_that_ignores_the_bits_fails() {
        let mut fake = Fake {
            forgets: Some(msr::IA32_DEBUGCTL),
            stores: true,
            ..Fake::default()
        };
        let not_kept = NoPassThrough::NotKept {
            index: msr::IA32_DEBUGCTL,
            value: TR_BTS,
            kept: 0,
        };
        assert_eq!(probe(&mut fake), Err(not_kept));
    }

    #[test]
    fn a_kvm_that_keeps_the_bits_but_stores_no_branch_fails() {
        assert_eq!(
            probe(&mut Fake::default()),
            Err(NoPassThrough::NothingStored)
        );
    }
}
