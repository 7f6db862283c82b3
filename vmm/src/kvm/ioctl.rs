//! The ioctls of a vCPU that kvm-ioctls has no method for (Documentation/virt/kvm/api.rst).

use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_device_attr, kvm_interrupt};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;
use vmm_sys_util::ioctl::ioctl_with_ref;

use number::{KVM_GET_DEVICE_ATTR, KVM_INTERRUPT, KVM_SET_DEVICE_ATTR};

#[allow(missing_docs, reason = "named as in the kernel")]
mod number {
    use super::{KVMIO, kvm_device_attr, kvm_interrupt};
    use vmm_sys_util::ioctl_iow_nr;

    ioctl_iow_nr!(KVM_INTERRUPT, KVMIO, 0x86, kvm_interrupt);
    ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xE1, kvm_device_attr);
    ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xE2, kvm_device_attr);
}

fn checked(result: i32) -> Result<(), errno::Error> {
    if result < 0 {
        Err(errno::Error::last())
    } else {
        Ok(())
    }
}

/// KVM_INTERRUPT: queues an interrupt, whose vector has been acknowledged, for the next entry into
/// the guest.
///
/// # Errors
/// An interrupt is queued already, or the virtual machine has interrupt controllers in the kernel.
pub fn interrupt(vcpu: &VcpuFd, vector: u8) -> Result<(), errno::Error> {
    let irq = kvm_interrupt { irq: vector.into() };
    // SAFETY: the kernel reads a `kvm_interrupt`.
    checked(unsafe { ioctl_with_ref(vcpu, KVM_INTERRUPT(), &irq) })
}

fn tsc_offset_attr(offset: *const u64) -> kvm_device_attr {
    kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: offset as u64,
        flags: 0,
    }
}

/// KVM_VCPU_TSC_OFFSET: the guest's time-stamp counter minus the host's.
///
/// # Errors
/// Linux before 5.16 does not report it.
pub fn tsc_offset(vcpu: &VcpuFd) -> Result<u64, errno::Error> {
    let mut offset = 0u64;
    let attr = tsc_offset_attr(&raw mut offset);
    // SAFETY: the kernel reads the attribute, and writes eight bytes where it points.
    checked(unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &attr) })?;
    Ok(offset)
}

/// Sets the offset that [`tsc_offset`] returns.
///
/// # Errors
/// Linux before 5.16 does not have it.
pub fn set_tsc_offset(vcpu: &VcpuFd, offset: u64) -> Result<(), errno::Error> {
    let attr = tsc_offset_attr(&raw const offset);
    // SAFETY: the kernel reads the attribute, and eight bytes where it points.
    checked(unsafe { ioctl_with_ref(vcpu, KVM_SET_DEVICE_ATTR(), &attr) })
}
