//! A virtual machine of KVM's: the guest's memory, and MSR accesses that exit.

use kvm_bindings::{
    KVM_CAP_EXIT_ON_EMULATION_FAILURE, kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{
    Cap, Kvm, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd,
    VmFd,
};
use vbts_cpu::state::msr::SYSTEM_CALL_MSRS;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::state::SREGS_MSRS;
use super::{KvmError, Named};
use crate::layout::{KVM_IDENTITY_MAP, KVM_TSS};
use crate::memory::GuestMemory;

/// MSRs from here on are filtered by a second range; below it by a first.
const EXTENDED: u32 = 0xC000_0000;
/// MSRs in each range: what differs from the default is below.
const RANGE: u32 = 0x800;

/// A virtual machine.
#[derive(Debug)]
pub struct Vm {
    /// Its processors, until somebody takes them.
    vcpus: Vec<VcpuFd>,
    tsc_khz: u32,
    passes_bts_through: bool,
    _vm: VmFd,
    /// KVM's memory slots lead to it.
    _memory: GuestMemory,
}

impl Vm {
    /// A virtual machine with `memory` and so many `processors`, in which the guest reads and
    /// writes natively only the MSRs that [`vbts_cpu::ArchState`] carries.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn new(kvm: &Kvm, memory: &GuestMemory, processors: u8) -> Result<Self, KvmError> {
        let vm = create(kvm, memory)?;
        filter_msrs(&vm)?;
        exit_on_emulation_failure(kvm, &vm)?;
        let vcpus = (0..processors)
            .map(|id| vm.create_vcpu(id.into()).named("KVM_CREATE_VCPU"))
            .collect::<Result<Vec<_>, _>>()?;
        let tsc_khz = vcpus
            .first()
            .map_or(Ok(0), VcpuFd::get_tsc_khz)
            .named("KVM_GET_TSC_KHZ")?;
        Ok(Self {
            vcpus,
            tsc_khz,
            passes_bts_through: false,
            _vm: vm,
            _memory: memory.clone(),
        })
    }

    /// Frequency of the processors' time-stamp counters, which is that of the host's, in kHz.
    pub fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    /// Has the guest use the Branch Trace Store of the host's processor, through KVM.
    pub fn pass_bts_through(&mut self) {
        self.passes_bts_through = true;
    }

    /// Whether it does.
    pub fn passes_bts_through(&self) -> bool {
        self.passes_bts_through
    }

    /// Hands out the processors, in the order of their numbers.
    pub fn take_vcpus(&mut self) -> Vec<VcpuFd> {
        std::mem::take(&mut self.vcpus)
    }
}

/// A virtual machine with `memory` and no processors. The caller keeps the memory as long as the
/// result.
pub(super) fn create(kvm: &Kvm, memory: &GuestMemory) -> Result<VmFd, KvmError> {
    let vm = kvm.create_vm().named("KVM_CREATE_VM")?;
    // Processors of Intel's without "unrestricted guest" run real mode with the help of these
    // pages.
    if kvm.check_extension(Cap::SetTssAddr) {
        vm.set_tss_address(KVM_TSS as usize)
            .named("KVM_SET_TSS_ADDR")?;
    }
    if kvm.check_extension(Cap::SetIdentityMapAddr) {
        vm.set_identity_map_address(KVM_IDENTITY_MAP)
            .named("KVM_SET_IDENTITY_MAP_ADDR")?;
    }
    for (slot, region) in (0..).zip(memory.iter()) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the region is a live mapping of that length, which the caller keeps.
        unsafe { vm.set_user_memory_region(region) }.named("KVM_SET_USER_MEMORY_REGION")?;
    }
    Ok(vm)
}

/// Lets an instruction that KVM cannot emulate exit at any CPL: at CPL 3 it would be #UD. KVMs
/// before Linux 5.14 have no choice.
fn exit_on_emulation_failure(kvm: &Kvm, vm: &VmFd) -> Result<(), KvmError> {
    let cap = KVM_CAP_EXIT_ON_EMULATION_FAILURE;
    if kvm.check_extension_raw(cap.into()) == 0 {
        return Ok(());
    }
    vm.enable_cap(&kvm_enable_cap {
        cap,
        args: [1, 0, 0, 0],
        ..Default::default()
    })
    .named("KVM_CAP_EXIT_ON_EMULATION_FAILURE")
}

/// Lets accesses to the MSRs exit that `ranges`, and `default` for the others, deny, or that KVM
/// does not know.
pub(super) fn exit_on_msrs(
    vm: &VmFd,
    default: MsrFilterDefaultAction,
    ranges: &[MsrFilterRange<'_>],
) -> Result<(), KvmError> {
    let exits = MsrExitReason::Filter | MsrExitReason::Unknown | MsrExitReason::Inval;
    vm.enable_cap(&kvm_enable_cap {
        cap: Cap::X86UserSpaceMsr as u32,
        args: [exits.bits().into(), 0, 0, 0],
        ..Default::default()
    })
    .named("KVM_CAP_X86_USER_SPACE_MSR")?;
    vm.set_msr_filter(default, ranges)
        .named("KVM_X86_SET_MSR_FILTER")
}

/// Lets the accesses to all MSRs exit that are not part of the state that is handed over.
fn filter_msrs(vm: &VmFd) -> Result<(), KvmError> {
    let mut bitmaps = [[0u8; RANGE as usize / 8]; 2];
    for number in SYSTEM_CALL_MSRS.iter().map(|m| m.0).chain(SREGS_MSRS) {
        let (bitmap, n) = match number.checked_sub(EXTENDED) {
            Some(n) => (1, n),
            None => (0, number),
        };
        if let Some(byte) = bitmaps[bitmap].get_mut(n as usize / 8) {
            *byte |= 1 << (n % 8);
        }
    }
    let ranges = [(0, &bitmaps[0]), (EXTENDED, &bitmaps[1])].map(|(base, bitmap)| MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base,
        msr_count: RANGE,
        bitmap,
    });
    exit_on_msrs(vm, MsrFilterDefaultAction::DENY, &ranges)
}
