//! A vCPU of KVM's: entering the guest, and what its exits come to.
//!
//! An exit for the machine is what the software CPU would have done in its place: the same call of
//! [`Platform`], the same row of the MSR table. So the two differ in nothing that the guest could
//! see.

use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_EXIT_IO_OUT, KVM_INTERNAL_ERROR_EMULATION,
    kvm_cpuid_entry2, kvm_run,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vbts_cpu::state::msr::{IA32_APIC_BASE, IA32_DEBUGCTL, IA32_DS_AREA, IA32_TSC};
use vbts_cpu::{Activity, ArchState, Cpu, Exit, HostClock, Leaf, Platform, Signals};

use super::kick::{ThreadRegistration, VcpuKick};
use super::{KvmError, Named, ioctl, msr, state};

/// Why [`KvmVcpu::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// For a reason that the software CPU might have had.
    Exit(Exit),
    /// IA32_DEBUGCTL was written: the branches that follow may have to be recorded.
    DebugCtl,
    /// KVM cannot emulate the instruction at RIP.
    Unemulated,
}

/// A vCPU.
#[derive(Debug)]
pub struct KvmVcpu {
    fd: VcpuFd,
    signals: Arc<Signals>,
    kick: Arc<VcpuKick>,
    /// An interrupt can be injected: IF is set, and nothing is in its way.
    injectable: bool,
    /// IF, as of the last exit.
    interrupts_on: bool,
    /// IA32_DEBUGCTL and IA32_DS_AREA are KVM's to act on.
    passes_bts_through: bool,
    /// In HLT. KVM does not know: without interrupt controllers in the kernel HLT is an exit.
    halted: bool,
}

impl KvmVcpu {
    /// The vCPU `fd`, with the lines into it. What the guest writes to IA32_DEBUGCTL and
    /// IA32_DS_AREA is forwarded to KVM if `passes_bts_through`.
    pub fn new(fd: VcpuFd, signals: Arc<Signals>, passes_bts_through: bool) -> Self {
        Self {
            fd,
            kick: VcpuKick::new(&signals),
            signals,
            injectable: false,
            interrupts_on: false,
            passes_bts_through,
            halted: false,
        }
    }

    /// Whether KVM acts on IA32_DEBUGCTL and IA32_DS_AREA.
    pub fn passes_bts_through(&self) -> bool {
        self.passes_bts_through
    }

    /// Makes it the twin of `cpu`: with its CPUID, and a time-stamp counter that goes with its own.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn attach(&mut self, cpu: &mut Cpu) -> Result<(), KvmError> {
        self.fd
            .set_cpuid2(&cpuid(cpu.cpuid_leaves())?)
            .named("KVM_SET_CPUID2")?;
        self.set_tsc(cpu)
    }

    /// Gives the guest the time-stamp counter that `cpu` shows it, and lets `cpu` go on with what
    /// KVM made of that.
    fn set_tsc(&self, cpu: &mut Cpu) -> Result<(), KvmError> {
        let offset = cpu.tsc_offset();
        if ioctl::set_tsc_offset(&self.fd, offset).is_ok() {
            return Ok(());
        }
        msr::set(&self.fd, IA32_TSC, HostClock::tsc().wrapping_add(offset))?;
        // KVM has its own ideas of what counters of several processors should be: take what it
        // shows, when it took the least time to say so. Whoever loses the processor while asking
        // has asked in vain.
        const TRIES: usize = 16;
        let mut shortest = u64::MAX;
        for _ in 0..TRIES {
            let before = HostClock::tsc();
            let value = msr::get(&self.fd, IA32_TSC)?;
            let took = HostClock::tsc().wrapping_sub(before);
            if took < shortest {
                shortest = took;
                cpu.set_tsc_offset(value.wrapping_sub(before.wrapping_add(took / 2)));
            }
        }
        Ok(())
    }

    /// The calling thread is the one that [`Self::run`] is called from, until the result is
    /// dropped.
    pub fn register_thread(&mut self) -> ThreadRegistration {
        let flag = &raw mut self.fd.get_kvm_run().immediate_exit;
        self.kick.register_thread(flag)
    }

    /// Takes the processor over from `cpu`.
    ///
    /// # Errors
    /// KVM refuses a part of its state.
    pub fn load(&mut self, cpu: &Cpu) -> Result<(), KvmError> {
        let s = &cpu.state();
        let platform = cpu.platform();
        state::load(&self.fd, s, apic_base(platform), platform.cr8())?;
        self.halted = s.activity == Activity::Halted && s.pending.is_none();
        self.interrupts_on = s.rflags & vbts_cpu::state::rflags::IF != 0;
        self.injectable = self.interrupts_on && !s.interrupt_shadow && s.pending.is_none();
        Ok(())
    }

    /// Completes the instruction that has exited, and writes the state to `s`, but for what KVM's
    /// processor does not hold. `platform` takes back what it does hold and the state does not.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn save(&mut self, platform: &dyn Platform, s: &mut ArchState) -> Result<(), KvmError> {
        // The register that an access to the machine loads, and RIP, are written on the way back
        // into the guest.
        self.fd.set_kvm_immediate_exit(1);
        let outcome = self.fd.run().map(drop);
        self.fd.set_kvm_immediate_exit(0);
        match outcome {
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return Err(error).named("KVM_RUN"),
            Ok(()) => return Err(failed("an instruction is not complete".into())),
        }
        if state::save(&self.fd, s)?.nmi_waits {
            platform.give_back_nmi();
        }
        s.activity = if self.halted {
            Activity::Halted
        } else {
            Activity::Active
        };
        Ok(())
    }

    /// Runs the guest until something needs the caller. `cpu` answers for the MSRs that KVM's
    /// processor does not hold.
    ///
    /// # Errors
    /// KVM cannot go on.
    pub fn run(&mut self, cpu: &mut Cpu) -> Result<Left, KvmError> {
        loop {
            let lines = self.signals.get();
            if lines & Signals::KICK != 0 {
                self.signals.lower(Signals::KICK);
                return Ok(Left::Exit(Exit::Kick));
            }
            if lines & Signals::INIT != 0 {
                return Ok(Left::Exit(Exit::Init));
            }
            if self.halted {
                let wakes = if self.interrupts_on {
                    Signals::INTR | Signals::NMI
                } else {
                    Signals::NMI
                };
                if lines & wakes == 0 {
                    let interrupts_off = !self.interrupts_on;
                    return Ok(Left::Exit(Exit::Halt { interrupts_off }));
                }
                self.halted = false;
            }
            let seen_to = self.inject(cpu.platform(), lines)?;
            self.kick.enter();
            // What was raised since has rung no bell, and will ring none while it stays raised.
            if self.signals.get() & !seen_to != 0 {
                self.kick.leave();
                continue;
            }
            let left = self.enter(cpu);
            self.kick.leave();
            if let Some(left) = left? {
                return Ok(left);
            }
        }
    }

    /// Hands the interrupt controllers' offers to KVM, or asks for an exit as soon as it can take
    /// one. Returns the lines that may be raised now without anybody having to do more.
    fn inject(&mut self, platform: &dyn Platform, lines: u32) -> Result<u32, KvmError> {
        // Memory under KVM is coherent with devices.
        let mut seen_to = Signals::DMA;
        if lines & Signals::NMI != 0 {
            // While one is serviced KVM keeps the next, and what comes then waits in the local
            // APIC. There is no exit for the end of the service: the next one for any reason has to
            // do.
            let events = self.fd.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
            if events.nmi.pending != 0 {
                seen_to |= Signals::NMI;
            } else if platform.take_nmi() {
                self.fd.nmi().named("KVM_NMI")?;
            }
        }
        if lines & Signals::INTR != 0 && self.injectable {
            if let Some(vector) = platform.acknowledge_interrupt(0) {
                ioctl::interrupt(&self.fd, vector).named("KVM_INTERRUPT")?;
            }
            self.injectable = false;
        }
        let more = self.signals.get() & Signals::INTR != 0;
        let cr8 = platform.cr8();
        let run = self.fd.get_kvm_run();
        run.request_interrupt_window = more.into();
        run.cr8 = cr8;
        if more {
            seen_to |= Signals::INTR;
        }
        Ok(seen_to)
    }

    /// Enters the guest once.
    fn enter(&mut self, cpu: &mut Cpu) -> Result<Option<Left>, KvmError> {
        let mut halted = false;
        let mut unemulated = false;
        let mut faults = false;
        let now = cpu.now();
        let left = match self.fd.run() {
            Ok(exit) => match exit {
                VcpuExit::IoIn(..) | VcpuExit::IoOut(..) => {
                    self.port_io(cpu.platform(), now);
                    Some(Left::Exit(Exit::Bus))
                }
                VcpuExit::MmioRead(gpa, data) => {
                    cpu.platform().mmio_read(now, gpa, data);
                    Some(Left::Exit(Exit::Bus))
                }
                VcpuExit::MmioWrite(gpa, data) => {
                    cpu.platform().mmio_write(now, gpa, data);
                    Some(Left::Exit(Exit::Bus))
                }
                VcpuExit::X86Rdmsr(access) => {
                    match cpu.read_msr(access.index) {
                        Some(value) => {
                            *access.data = value;
                            *access.error = 0;
                        }
                        None => *access.error = 1,
                    }
                    faults = *access.error != 0;
                    None
                }
                VcpuExit::X86Wrmsr(access) => {
                    let index = access.index;
                    let value = access.data;
                    let done = cpu.write_msr(index, value);
                    *access.error = done.is_none().into();
                    faults = done.is_none();
                    match index {
                        IA32_DEBUGCTL | IA32_DS_AREA if self.passes_bts_through => {
                            if done.is_some() {
                                msr::set(&self.fd, index, value)?;
                            }
                            None
                        }
                        IA32_TSC => {
                            self.set_tsc(cpu)?;
                            None
                        }
                        IA32_APIC_BASE => {
                            self.update_apic_base(cpu.platform())?;
                            None
                        }
                        IA32_DEBUGCTL => Some(Left::DebugCtl),
                        _ => Some(Left::Exit(Exit::Bus)),
                    }
                }
                VcpuExit::Hlt => {
                    halted = true;
                    None
                }
                VcpuExit::IrqWindowOpen | VcpuExit::Intr | VcpuExit::SetTpr => None,
                VcpuExit::Shutdown => Some(Left::Exit(Exit::Shutdown)),
                VcpuExit::InternalError => {
                    unemulated = true;
                    None
                }
                VcpuExit::FailEntry(reason, _) => {
                    return Err(failed(format!(
                        "the processor refuses the guest's state (reason {reason:#x})"
                    )));
                }
                exit => return Err(failed(format!("unexpected exit {exit:?}"))),
            },
            Err(error) if error.errno() == libc::EINTR => None,
            Err(error) => return Err(error).named("KVM_RUN"),
        };
        self.halted = halted && !self.is_woken()?;
        let cr8 = cpu.platform().cr8();
        let run = self.fd.get_kvm_run();
        run.immediate_exit = 0;
        // An access to an MSR that is refused ends in #GP when the guest is entered again: KVM
        // would lose one of two events.
        self.injectable = run.ready_for_interrupt_injection != 0 && run.if_flag != 0 && !faults;
        self.interrupts_on = run.if_flag != 0;
        let new_cr8 = run.cr8;
        if unemulated {
            // SAFETY: KVM_EXIT_INTERNAL_ERROR fills this member.
            let suberror = unsafe { run.__bindgen_anon_1.internal.suberror };
            if suberror != KVM_INTERNAL_ERROR_EMULATION {
                return Err(failed(format!("internal error {suberror}")));
            }
            return Ok(Some(Left::Unemulated));
        }
        if new_cr8 != cr8 {
            cpu.platform().set_cr8(now, new_cr8 & 15);
        }
        Ok(left)
    }

    /// Whether KVM has an event of its own that ends HLT: the debug trap after it, or a
    /// non-maskable interrupt.
    fn is_woken(&self) -> Result<bool, KvmError> {
        let events = self.fd.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
        let exception = events.exception.pending | events.exception.injected;
        let nmi = events.nmi.injected | events.nmi.pending & !events.nmi.masked;
        Ok((exception | nmi) & 1 != 0)
    }

    /// An access to an I/O port, or the repeated ones of INS and OUTS.
    fn port_io(&mut self, platform: &dyn Platform, now: u64) {
        let run = self.fd.get_kvm_run();
        // SAFETY: KVM_EXIT_IO fills this member.
        let io = unsafe { run.__bindgen_anon_1.io };
        let size = usize::from(io.size).max(1);
        let start = (run as *mut kvm_run).cast::<u8>();
        // SAFETY: KVM keeps so many bytes there, in the mapping that begins with `run`, until the
        // next KVM_RUN.
        let data = unsafe {
            std::slice::from_raw_parts_mut(
                start.add(io.data_offset as usize),
                size * io.count as usize,
            )
        };
        for element in data.chunks_exact_mut(size) {
            if u32::from(io.direction) == KVM_EXIT_IO_OUT {
                platform.pio_write(now, io.port, element);
            } else {
                platform.pio_read(now, io.port, element);
            }
        }
    }

    /// CPUID shows a local APIC if it is enabled.
    fn update_apic_base(&self, platform: &dyn Platform) -> Result<(), KvmError> {
        let mut sregs = self.fd.get_sregs().named("KVM_GET_SREGS")?;
        sregs.apic_base = apic_base(platform);
        self.fd.set_sregs(&sregs).named("KVM_SET_SREGS")
    }
}

fn apic_base(platform: &dyn Platform) -> u64 {
    platform.apic_rdmsr(0, IA32_APIC_BASE).unwrap_or_default()
}

/// What CPUID returns, as KVM wants it.
///
/// # Errors
/// There are more leaves than KVM takes.
pub(super) fn cpuid(leaves: impl Iterator<Item = Leaf>) -> Result<CpuId, KvmError> {
    let entries: Vec<_> = leaves
        .map(|l| kvm_cpuid_entry2 {
            function: l.leaf,
            index: l.subleaf,
            // A leaf with sub-leaves answers by index.
            flags: if matches!(l.leaf, 4 | 7) {
                KVM_CPUID_FLAG_SIGNIFCANT_INDEX
            } else {
                0
            },
            eax: l.eax,
            ebx: l.ebx,
            ecx: l.ecx,
            edx: l.edx,
            ..Default::default()
        })
        .collect();
    CpuId::from_entries(&entries).map_err(|_| KvmError {
        what: "a list of CPUID leaves",
        source: std::io::ErrorKind::InvalidInput.into(),
    })
}

fn failed(why: String) -> KvmError {
    KvmError {
        what: "KVM_RUN",
        source: std::io::Error::other(why),
    }
}
