//! A virtual machine for tiny guests: 256 KiB of RAM, and a processor that starts in 64-bit or
//! compatibility mode.

use std::time::Duration;

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SHADOW, kvm_debugregs, kvm_fpu, kvm_regs,
    kvm_segment, kvm_sregs, kvm_vcpu_events,
};
use kvm_ioctls::{
    Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuExit, VcpuFd, VmFd,
};
use vbts_cpu::state::{cr0, cr4, dr6, dr7, efer, msr, rflags};
use vm_memory::{Bytes, GuestAddress};

use super::exit::Exit;
use super::guest::Mode;
use super::tables::{
    DESCRIPTORS, GDT, IDT, KERNEL_STACK, PML4, RAM, SYSTEM_CALL, SYSTEM_CALL_PORT, TSS, VECTORS,
    image, page_entry_address, segment, selector,
};
use super::time_limit::TimeLimit;
use crate::kvm::vcpu::cpuid;
use crate::kvm::{KvmError, Named, vm};
use crate::memory::GuestMemory;

/// A virtual machine with one processor.
#[derive(Debug)]
pub struct Scratch {
    vcpu: VcpuFd,
    _vm: VmFd,
    memory: GuestMemory,
    limit: TimeLimit,
    /// The special registers as KVM initialises them.
    reset: kvm_sregs,
}

impl Scratch {
    /// Creates a machine. If `filter`, accesses to IA32_DEBUGCTL and IA32_DS_AREA exit.
    ///
    /// # Errors
    /// KVM rejects a setting.
    pub fn new(kvm: &Kvm, filter: bool) -> Result<Self, KvmError> {
        let host = |what, source| KvmError { what, source };
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), RAM as usize)])
            .map_err(|e| host("guest memory", std::io::Error::other(e.to_string())))?;
        let vm = vm::create(kvm, &memory)?;
        if filter {
            filter_msrs(&vm)?;
        }
        let vcpu = vm.create_vcpu(0).named("KVM_CREATE_VCPU")?;
        // The CPUID of a real guest.
        let leaves = vbts_cpu::model(vbts_cpu::MODELS[0]).map_or(&[][..], |m| m.leaves);
        vcpu.set_cpuid2(&cpuid(leaves.iter().copied())?)
            .named("KVM_SET_CPUID2")?;
        let reset = vcpu.get_sregs().named("KVM_GET_SREGS")?;
        let limit = TimeLimit::new().map_err(|e| host("watchdog", e))?;
        let scratch = Self {
            vcpu,
            _vm: vm,
            memory,
            limit,
            reset,
        };
        for (address, bytes) in image() {
            scratch.write_memory(address, &bytes)?;
        }
        Ok(scratch)
    }

    /// KVM's handle of the processor.
    pub fn vcpu(&self) -> &VcpuFd {
        &self.vcpu
    }

    /// Puts the machine into its initial state, with `code` to run next in `mode`. The guest's time
    /// starts now.
    ///
    /// # Errors
    /// KVM rejects the state.
    pub fn start(&mut self, mode: Mode, code: &[u8]) -> Result<(), KvmError> {
        // Events that the last guest left pending must not reach this one.
        self.limit.stop();
        self.vcpu.set_kvm_immediate_exit(1);
        let _ = self.vcpu.run().map(drop);
        self.vcpu.set_kvm_immediate_exit(0);
        self.vcpu.get_kvm_run().request_interrupt_window = 0;
        self.vcpu.get_kvm_run().cr8 = 0;

        let (place, stack, cs, ss) = mode.layout();
        self.write_memory(place, code)?;
        self.set_state(cs, ss)?;
        let regs = kvm_regs {
            rip: place,
            rsp: stack,
            rflags: mode.flags(),
            // An interrupt before the first instruction comes from there.
            r14: place,
            ..Default::default()
        };
        self.set_regs(&regs)?;
        self.resume();
        Ok(())
    }

    /// Starts the guest's time limit again. After it, [`Self::run`] returns [`Exit::Stuck`].
    pub fn resume(&mut self) {
        self.limit.start();
    }

    /// Interrupts the guest after `time` from now: [`Self::run`] then returns [`Exit::Stuck`].
    pub fn interrupt_after(&mut self, time: Duration) {
        self.limit.start_for(time);
    }

    /// Sets the processor's state except its general registers.
    fn set_state(&mut self, cs: u16, ss: u16) -> Result<(), KvmError> {
        self.vcpu
            .set_sregs(&self.initial_sregs(cs, ss))
            .named("KVM_SET_SREGS")?;
        let msrs = [
            (msr::IA32_STAR, 0x0023_0010_0000_0000),
            (msr::IA32_LSTAR, SYSTEM_CALL),
            (msr::IA32_FMASK, rflags::IF | rflags::TF),
            (msr::IA32_SYSENTER_CS, selector::KERNEL_CS.into()),
            (msr::IA32_SYSENTER_ESP, KERNEL_STACK),
            (msr::IA32_SYSENTER_EIP, SYSTEM_CALL),
        ];
        for (index, value) in msrs {
            crate::kvm::msr::set(&self.vcpu, index, value)?;
        }
        let fpu = kvm_fpu {
            fcw: 0x37F,
            mxcsr: 0x1F80,
            ..Default::default()
        };
        self.vcpu.set_fpu(&fpu).named("KVM_SET_FPU")?;
        let debug = kvm_debugregs {
            dr6: dr6::FIXED,
            dr7: dr7::FIXED,
            ..Default::default()
        };
        self.vcpu
            .set_debug_regs(&debug)
            .named("KVM_SET_DEBUGREGS")?;
        let events = kvm_vcpu_events {
            flags: KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SHADOW,
            ..Default::default()
        };
        self.vcpu
            .set_vcpu_events(&events)
            .named("KVM_SET_VCPU_EVENTS")
    }

    fn initial_sregs(&self, cs: u16, ss: u16) -> kvm_sregs {
        let mut sregs = self.reset;
        let flat = |selector: u16| segment(selector, DESCRIPTORS[usize::from(selector >> 3)]);
        sregs.cs = flat(cs);
        sregs.ss = flat(ss);
        [sregs.ds, sregs.es, sregs.fs, sregs.gs] = [flat(ss); 4];
        sregs.tr = segment(selector::TSS, DESCRIPTORS[8]);
        sregs.tr.base = TSS;
        sregs.ldt = kvm_segment {
            unusable: 1,
            ..Default::default()
        };
        sregs.gdt.base = GDT;
        sregs.gdt.limit = size_of_val(&DESCRIPTORS) as u16 - 1;
        sregs.idt.base = IDT;
        sregs.idt.limit = (VECTORS * 16 - 1) as u16;
        sregs.cr0 = cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::PG;
        sregs.cr3 = PML4;
        sregs.cr4 = cr4::PAE | cr4::OSFXSR | cr4::OSXMMEXCPT;
        sregs.efer = efer::LME | efer::LMA | efer::SCE | efer::NXE;
        sregs.cr8 = 0;
        sregs
    }

    /// Runs until the next exit. A read returns `answer`. Without an answer, an access to an MSR is
    /// refused.
    ///
    /// # Errors
    /// KVM_RUN failed.
    pub fn run(&mut self, answer: Option<u64>) -> Result<Exit, KvmError> {
        loop {
            let exit = match self.vcpu.run() {
                Ok(exit) => exit,
                Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                    if self.limit.is_over() {
                        return Ok(Exit::Stuck);
                    }
                    continue;
                }
                Err(error) => return Err(error).named("KVM_RUN"),
            };
            let bytes = answer.unwrap_or_default().to_le_bytes();
            let exit = match exit {
                VcpuExit::Hlt => Exit::Halt,
                VcpuExit::IoOut(SYSTEM_CALL_PORT, _) => Exit::SystemCall,
                VcpuExit::IoOut(port, data) => match u8::try_from(port) {
                    Ok(vector) if u64::from(vector) < VECTORS => Exit::Event(vector),
                    _ => Exit::Out(port, number(data)),
                },
                VcpuExit::IoIn(port, data) => {
                    fill(data, &bytes);
                    Exit::In(port)
                }
                VcpuExit::MmioWrite(gpa, data) => Exit::MmioWrite(gpa, data.len(), number(data)),
                VcpuExit::MmioRead(gpa, data) => {
                    fill(data, &bytes);
                    Exit::MmioRead(gpa, data.len())
                }
                VcpuExit::X86Wrmsr(access) => {
                    *access.error = answer.is_none().into();
                    Exit::Wrmsr(access.index, access.data)
                }
                VcpuExit::X86Rdmsr(access) => {
                    *access.error = answer.is_none().into();
                    *access.data = answer.unwrap_or_default();
                    Exit::Rdmsr(access.index)
                }
                VcpuExit::IrqWindowOpen => Exit::Window,
                VcpuExit::Intr => continue,
                VcpuExit::Debug(debug) => Exit::Debug(debug.dr6),
                VcpuExit::Shutdown => Exit::Shutdown,
                VcpuExit::InternalError => Exit::EmulationFailure,
                VcpuExit::SetTpr => Exit::TaskPriority((self.vcpu.get_kvm_run().cr8 & 0xFF) as u8),
                other => Exit::Other(format!("KVM's exit {other:x?}")),
            };
            return Ok(exit);
        }
    }

    /// Requests [`Exit::Window`] as soon as an interrupt can be injected, or cancels the request.
    pub fn request_window(&mut self, wanted: bool) {
        self.vcpu.get_kvm_run().request_interrupt_window = wanted.into();
    }

    /// The general registers.
    ///
    /// # Errors
    /// KVM fails.
    pub fn regs(&self) -> Result<kvm_regs, KvmError> {
        self.vcpu.get_regs().named("KVM_GET_REGS")
    }

    /// Sets the general registers.
    ///
    /// # Errors
    /// KVM rejects a value.
    pub fn set_regs(&self, regs: &kvm_regs) -> Result<(), KvmError> {
        self.vcpu.set_regs(regs).named("KVM_SET_REGS")
    }

    /// The segment and control registers.
    ///
    /// # Errors
    /// KVM fails.
    pub fn sregs(&self) -> Result<kvm_sregs, KvmError> {
        self.vcpu.get_sregs().named("KVM_GET_SREGS")
    }

    /// Reads eight bytes of memory. Outside RAM it returns zero.
    pub fn read(&self, address: u64) -> u64 {
        self.memory
            .read_obj(GuestAddress(address))
            .map_or(0, u64::from_le)
    }

    /// Writes eight bytes of memory.
    ///
    /// # Errors
    /// The address is outside RAM.
    pub fn write(&self, address: u64, value: u64) -> Result<(), KvmError> {
        self.write_memory(address, &value.to_le_bytes())
    }

    fn write_memory(&self, address: u64, bytes: &[u8]) -> Result<(), KvmError> {
        self.memory
            .write_slice(bytes, GuestAddress(address))
            .map_err(|e| KvmError {
                what: "guest memory",
                source: std::io::Error::other(e.to_string()),
            })
    }

    /// The page-table entry of a linear address.
    pub fn page_entry(&self, address: u64) -> u64 {
        self.read(page_entry_address(address))
    }
}

fn number(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes, data);
    u64::from_le_bytes(bytes)
}

fn fill(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

fn filter_msrs(vm: &VmFd) -> Result<(), KvmError> {
    let ranges = [msr::IA32_DEBUGCTL, msr::IA32_DS_AREA].map(|base| MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base,
        msr_count: 1,
        bitmap: &[0],
    });
    vm::exit_on_msrs(vm, MsrFilterDefaultAction::ALLOW, &ranges)
}
