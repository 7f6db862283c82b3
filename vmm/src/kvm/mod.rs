//! The host's KVM as an accelerator: it executes the guest at the speed of the host's processor
//! while the guest neither traces branches nor counts events.
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | opening /dev/kvm, and its capabilities |
//! | [`check`] | conformance checks by tiny guests |
//! | [`passthrough`] | probe of Branch Trace Store pass-through |
//! | [`vm`] | a virtual machine: memory, and which MSRs exit |
//! | [`vcpu`] | a processor and its exits |
//! | [`state`], [`xsave`] | conversion of its state from and to [`vbts_cpu::ArchState`] |
//! | [`kick`] | ending KVM_RUN from other threads |
//! | [`msr`] | one MSR of a vCPU |
//! | [`ioctl`] | the ioctls that kvm-ioctls lacks |
//!
//! The board's interrupt controllers and timers serve both accelerators. KVM's own are not created,
//! so a hand-over does not move any of their state. An MSR that is not part of
//! [`vbts_cpu::ArchState`] is filtered: its accesses exit, and the software CPU's table answers
//! them.

pub mod check;
pub mod device;
pub mod ioctl;
pub mod kick;
pub mod msr;
pub mod passthrough;
pub mod state;
pub mod vcpu;
pub mod vm;
pub mod xsave;

pub use vcpu::{ExitReason, KvmVcpu};
pub use vm::Vm;

/// A request to KVM that failed.
#[derive(Debug, thiserror::Error)]
#[error("KVM: {what}: {source}")]
pub struct KvmError {
    /// The ioctl, by its name in the kernel's documentation.
    pub what: &'static str,
    /// The error that the host's kernel returned.
    pub source: std::io::Error,
}

/// Names the ioctl in an error.
pub(crate) trait Named<T> {
    /// Names the ioctl that failed.
    fn named(self, what: &'static str) -> Result<T, KvmError>;
}

impl<T> Named<T> for Result<T, kvm_ioctls::Error> {
    fn named(self, what: &'static str) -> Result<T, KvmError> {
        self.map_err(|error| KvmError {
            what,
            source: std::io::Error::from_raw_os_error(error.errno()),
        })
    }
}
