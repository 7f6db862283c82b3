//! The ioctls of a vCPU that kvm-ioctls has no method for (Documentation/virt/kvm/api.rst).

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_debugregs, kvm_device_attr, kvm_interrupt,
    kvm_msrs, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr, ioctl_with_ref};

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

/// The number of an ioctl that reads or writes a `T`.
const fn number<T>(direction: u32, nr: u32) -> u32 {
    ioctl_expr(direction, KVMIO, nr, size_of::<T>() as u32) as u32
}

/// The numbers of all ioctls that are used while a guest runs.
pub const WHILE_RUNNING: [u32; 18] = [
    // KVM_RUN, KVM_NMI
    number::<()>(_IOC_NONE, 0x80),
    number::<()>(_IOC_NONE, 0x9A),
    // KVM_GET_REGS, KVM_SET_REGS
    number::<kvm_regs>(_IOC_READ, 0x81),
    number::<kvm_regs>(_IOC_WRITE, 0x82),
    // KVM_GET_SREGS, KVM_SET_SREGS
    number::<kvm_sregs>(_IOC_READ, 0x83),
    number::<kvm_sregs>(_IOC_WRITE, 0x84),
    // KVM_INTERRUPT
    number::<kvm_interrupt>(_IOC_WRITE, 0x86),
    // KVM_GET_MSRS, KVM_SET_MSRS
    number::<kvm_msrs>(_IOC_READ | _IOC_WRITE, 0x88),
    number::<kvm_msrs>(_IOC_WRITE, 0x89),
    // KVM_GET_XSAVE, KVM_SET_XSAVE
    number::<kvm_xsave>(_IOC_READ, 0xA4),
    number::<kvm_xsave>(_IOC_WRITE, 0xA5),
    // KVM_GET_XCRS, KVM_SET_XCRS
    number::<kvm_xcrs>(_IOC_READ, 0xA6),
    number::<kvm_xcrs>(_IOC_WRITE, 0xA7),
    // KVM_GET_VCPU_EVENTS, KVM_SET_VCPU_EVENTS
    number::<kvm_vcpu_events>(_IOC_READ, 0x9F),
    number::<kvm_vcpu_events>(_IOC_WRITE, 0xA0),
    // KVM_GET_DEBUGREGS, KVM_SET_DEBUGREGS
    number::<kvm_debugregs>(_IOC_READ, 0xA1),
    number::<kvm_debugregs>(_IOC_WRITE, 0xA2),
    // KVM_SET_DEVICE_ATTR
    number::<kvm_device_attr>(_IOC_WRITE, 0xE1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_equal_those_of_the_kernel() {
        // Values that strace prints and <linux/kvm.h> defines.
        let known = [
            0xAE80,
            0xAE9A,
            0x8090_AE81,
            0x4090_AE82,
            0x8138_AE83,
            0x4138_AE84,
            0x4004_AE86,
            0xC008_AE88,
            0x4008_AE89,
            0x9000_AEA4,
            0x5000_AEA5,
            0x8188_AEA6,
            0x4188_AEA7,
            0x8040_AE9F,
            0x4040_AEA0,
            0x8080_AEA1,
            0x4080_AEA2,
            0x4018_AEE1,
        ];
        assert_eq!(WHILE_RUNNING, known);
    }
}
