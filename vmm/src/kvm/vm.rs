//! A virtual machine of KVM: the guest's memory, and the MSR accesses that exit.

use kvm_bindings::{
    KVM_BUS_LOCK_DETECTION_EXIT, KVM_CAP_EXIT_ON_EMULATION_FAILURE, KVM_CAP_X86_BUS_LOCK_EXIT,
    kvm_enable_cap, kvm_userspace_memory_region,
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

/// The first MSR of the second range of the filter. The first range begins at 0.
const EXTENDED: u32 = 0xC000_0000;
/// Number of MSRs in each range. Accesses to MSRs outside the ranges exit.
const RANGE: u32 = 0x800;

/// A virtual machine.
#[derive(Debug)]
pub struct Vm {
    /// The processors, until [`Self::take_vcpus`].
    vcpus: Vec<VcpuFd>,
    tsc_khz: u32,
    passes_bts_through: bool,
    _vm: VmFd,
    /// KVM's memory slots refer to it.
    _memory: GuestMemory,
}

impl Vm {
    /// Creates a virtual machine with `memory` and `processors` vCPUs. Accesses to MSRs exit,
    /// except to those that a hand-over moves ([`SYSTEM_CALL_MSRS`], [`SREGS_MSRS`]).
    ///
    /// # Errors
    /// KVM rejects a setting.
    pub fn new(kvm: &Kvm, memory: &GuestMemory, processors: u8) -> Result<Self, KvmError> {
        let vm = create(kvm, memory)?;
        filter_msrs(&vm)?;
        exit_on_emulation_failure(kvm, &vm)?;
        exit_on_bus_locks(kvm, &vm)?;
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

    /// Frequency of the guest's time-stamp counters in kHz. It equals the host's.
    pub fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    /// Lets the guest use the host processor's Branch Trace Store through KVM.
    pub fn pass_bts_through(&mut self) {
        self.passes_bts_through = true;
    }

    /// Whether the guest uses the host processor's Branch Trace Store.
    pub fn passes_bts_through(&self) -> bool {
        self.passes_bts_through
    }

    /// Takes the processors, in the order of their numbers.
    pub fn take_vcpus(&mut self) -> Vec<VcpuFd> {
        std::mem::take(&mut self.vcpus)
    }
}

/// Creates a virtual machine with `memory` and no processors. The memory must outlive the result.
pub(super) fn create(kvm: &Kvm, memory: &GuestMemory) -> Result<VmFd, KvmError> {
    let vm = kvm.create_vm().named("KVM_CREATE_VM")?;
    // Intel processors without "unrestricted guest" need these pages in real mode.
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
        // SAFETY: the region is a mapping of that length, and the caller keeps it alive.
        unsafe { vm.set_user_memory_region(region) }.named("KVM_SET_USER_MEMORY_REGION")?;
    }
    Ok(vm)
}

/// Makes an instruction that KVM cannot emulate exit at any CPL. Otherwise it raises #UD at CPL 3,
/// as it does before Linux 5.14.
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

/// Makes an instruction exit that locks the bus of the host's processors: one with LOCK whose
/// operand crosses a cache line. Hosts without detection of bus locks do not have this.
fn exit_on_bus_locks(kvm: &Kvm, vm: &VmFd) -> Result<(), KvmError> {
    let cap = KVM_CAP_X86_BUS_LOCK_EXIT;
    let modes = kvm.check_extension_raw(cap.into());
    if modes & KVM_BUS_LOCK_DETECTION_EXIT.cast_signed() == 0 {
        return Ok(());
    }
    vm.enable_cap(&kvm_enable_cap {
        cap,
        args: [KVM_BUS_LOCK_DETECTION_EXIT.into(), 0, 0, 0],
        ..Default::default()
    })
    .named("KVM_CAP_X86_BUS_LOCK_EXIT")
}

/// Makes accesses to MSRs exit that `ranges` deny, or `default` for MSRs outside `ranges`. Accesses
/// to MSRs that KVM does not know exit too.
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

/// Makes accesses to all MSRs exit, except to those that a hand-over moves.
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
