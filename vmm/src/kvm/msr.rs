//! Reads and writes one MSR of a vCPU.

use std::io;

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use super::{KvmError, Named};

const GET: &str = "KVM_GET_MSRS";
const SET: &str = "KVM_SET_MSRS";

fn rejected(what: &'static str, index: u32) -> KvmError {
    KvmError {
        what,
        source: io::Error::other(format!("MSR {index:#x} was rejected")),
    }
}

fn list(what: &'static str, index: u32, data: u64) -> Result<Msrs, KvmError> {
    let entry = kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    Msrs::from_entries(&[entry]).map_err(|_| rejected(what, index))
}

/// Reads an MSR.
///
/// # Errors
/// KVM does not have the MSR.
pub fn get(vcpu: &VcpuFd, index: u32) -> Result<u64, KvmError> {
    let mut msrs = list(GET, index, 0)?;
    match (vcpu.get_msrs(&mut msrs).named(GET)?, msrs.as_slice()) {
        (1, [entry]) => Ok(entry.data),
        _ => Err(rejected(GET, index)),
    }
}

/// Writes an MSR.
///
/// # Errors
/// KVM does not have the MSR, or rejects the value.
pub fn set(vcpu: &VcpuFd, index: u32, data: u64) -> Result<(), KvmError> {
    match vcpu.set_msrs(&list(SET, index, data)?).named(SET)? {
        1 => Ok(()),
        _ => Err(rejected(SET, index)),
    }
}
