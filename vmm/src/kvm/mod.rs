//! The host's KVM as an accelerator: it executes the guest at the speed of the host's processor, as
//! long as nothing that only the software CPU can do is asked of it.
//!
//! | module | what it is |
//! |---|---|
//! | [`device`] | /dev/kvm: is it there, may it be opened, can it do what is needed |
//! | [`check`] | does it do that: tiny guests, before a real one runs |
//! | [`passthrough`] | does it let a guest have the host's Branch Trace Store |
//! | [`vm`] | a virtual machine: memory, and which MSRs exit |
//! | [`vcpu`] | a processor, and what happens when it exits |
//! | [`state`] | its state, as [`vbts_cpu::CpuState`] has it |
//! | [`doorbell`] | how other threads get its attention |
//! | [`msr`] | one MSR of a vCPU |
//! | [`ioctl`] | the ioctls that kvm-ioctls lacks |
//!
//! Interrupt controllers and timers are the board's, as for the software CPU: KVM's are not
//! created, and so there is nothing of theirs to hand over. An MSR that is not part of
//! [`vbts_cpu::CpuState`] is filtered: its accesses exit, and the software CPU's table answers
//! them.

pub mod check;
pub mod device;
pub mod doorbell;
pub mod ioctl;
pub mod msr;
pub mod passthrough;
pub mod state;
pub mod vcpu;
pub mod vm;

pub use vcpu::{KvmVcpu, Left};
pub use vm::Vm;

/// A request to KVM that failed.
#[derive(Debug, thiserror::Error)]
#[error("KVM: {what}: {source}")]
pub struct KvmError {
    /// The ioctl, by its name in the kernel's documentation.
    pub what: &'static str,
    /// Why.
    pub source: std::io::Error,
}

/// Names the ioctl in an error.
pub(crate) trait Named<T> {
    /// What was asked for failed.
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
