//! The numbers of the ioctls of KVM that the sandbox allows (Documentation/virt/kvm/api.rst).

use kvm_bindings::{
    KVMIO, kvm_debugregs, kvm_device_attr, kvm_interrupt, kvm_msrs, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// The number of an ioctl that reads or writes a `T`.
const fn number<T>(direction: u32, nr: u32) -> u32 {
    ioctl_expr(direction, KVMIO, nr, size_of::<T>() as u32) as u32
}

/// The numbers of all ioctls that are used while a guest runs.
pub(crate) const WHILE_RUNNING: [u32; 18] = [
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
