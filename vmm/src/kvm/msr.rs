//! One MSR of a vCPU, as the VMM reads and writes it.

use std::io;

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use super::{KvmError, Named};

const GET: &str = "KVM_GET_MSRS";
const SET: &str = "KVM_SET_MSRS";

fn refused(what: &'static str, index: u32) -> KvmError {
    KvmError {
        what,
        source: io::Error::other(format!("not for MSR {index:#x}")),
    }
}

fn list(what: &'static str, index: u32, data: u64) -> Result<Msrs, KvmError> {
    let entry = kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    Msrs::from_entries(&[entry]).map_err(|_| refused(what, index))
}

/// Reads an MSR.
///
/// # Errors
/// KVM does not have it.
pub fn get(vcpu: &VcpuFd, index: u32) -> Result<u64, KvmError> {
    let mut msrs = list(GET, index, 0)?;
    match (vcpu.get_msrs(&mut msrs).named(GET)?, msrs.as_slice()) {
        (1, [entry]) => Ok(entry.data),
        _ => Err(refused(GET, index)),
    }
}

/// Writes an MSR.
///
/// # Errors
/// KVM does not have it, or does not take the value.
pub fn set(vcpu: &VcpuFd, index: u32, data: u64) -> Result<(), KvmError> {
    match vcpu.set_msrs(&list(SET, index, data)?).named(SET)? {
        1 => Ok(()),
        _ => Err(refused(SET, index)),
    }
}
