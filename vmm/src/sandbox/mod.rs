//! Confines this process to the system calls that a running machine needs, so that a guest that
//! escapes from its machine can do little on the host.
//!
//! Everything that the run needs is opened first. Then [`Sandbox::enter`] leaves this process the
//! system calls of `calls::CALLS` and kills it (SIGSYS) at any other. `docs/security.md` says
//! what that is worth.

mod calls;

use std::collections::BTreeMap;
use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use vbts_devices::ninep::Access;

use crate::exit::Failure;
use calls::{CALLS, Call, Check, DISK_CALLS, KVM_CALLS, WRITING_CALLS};

/// What root keeps: its say over files, because the guest sees the files that whoever started the
/// VMM sees.
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// A sandbox for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    files: Access,
    kvm: bool,
    disks: bool,
}

impl Sandbox {
    /// A sandbox in which files can be opened for reading, or for writing as well if the guest may
    /// write to a directory of the host, and from which KVM can be used if it executes the guest.
    pub fn new(files: Access, kvm: bool) -> Self {
        Self {
            files,
            kvm,
            disks: false,
        }
    }

    /// One in which disks that are open can be written as well.
    #[must_use]
    pub fn with_writable_disks(self) -> Self {
        Self {
            disks: true,
            ..self
        }
    }

    /// Confines every thread of this process, for good. Threads cannot be started afterwards.
    ///
    /// # Errors
    /// [`Failure::Host`]: the host's kernel does not filter system calls.
    pub fn enter(self) -> Result<(), Failure> {
        let program = self.program()?;
        seccompiler::apply_filter_all_threads(&program).map_err(|error| {
            use seccompiler::Error::{Prctl, Seccomp, ThreadSync};
            let why = match error {
                Prctl(error) | Seccomp(error) => error.to_string(),
                ThreadSync(thread) => format!("thread {thread} has a filter of its own"),
                error => error.to_string(),
            };
            Failure::Host(format!(
                "this host cannot confine vbts to the system calls that it needs (seccomp: {why}); --no-sandbox runs \
                 without, which is for guests that you trust"
            ))
        })
    }

    fn calls(self) -> impl Iterator<Item = &'static Call> {
        let writing = match self.files {
            Access::ReadOnly => &[][..],
            Access::ReadWrite => WRITING_CALLS,
        };
        let kvm = if self.kvm { KVM_CALLS } else { &[] };
        let disks = if self.disks { DISK_CALLS } else { &[] };
        CALLS.iter().chain(kvm).chain(disks).chain(writing)
    }

    fn program(self) -> Result<BpfProgram, seccompiler::BackendError> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for call in self.calls() {
            // A later entry takes the place of an earlier one.
            rules.insert(call.number, rules_of(&call.check)?);
        }
        SeccompFilter::new(
            rules,
            SeccompAction::KillProcess,
            SeccompAction::Allow,
            TargetArch::x86_64,
        )?
        .try_into()
    }
}

/// The rules of which one has to hold; none if every call is allowed.
fn rules_of(check: &Check) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    use SeccompCmpArgLen::Dword;
    use SeccompCmpOp::{Eq, MaskedEq};
    let rule = |argument, length, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(
            argument, length, operator, value,
        )?])
    };
    match *check {
        Check::Any => Ok(Vec::new()),
        Check::Clear(argument, bits) => Ok(vec![rule(argument, Dword, MaskedEq(bits.into()), 0)?]),
        Check::OneOf(argument, values) => values
            .iter()
            .map(|&value| rule(argument, Dword, Eq, value.into()))
            .collect(),
        Check::OwnProcess(argument) => {
            Ok(vec![rule(argument, Dword, Eq, std::process::id().into())?])
        }
    }
}

/// Gives up what this process could do as root beyond files: modules, devices, the network, other
/// processes. Threads that are started afterwards have given it up as well.
///
/// # Errors
/// The host's kernel refuses.
pub fn drop_capabilities() -> io::Result<()> {
    let now = capabilities(None)?;
    let kept = now.permitted & KEPT_CAPABILITIES;
    set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective & kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests;
