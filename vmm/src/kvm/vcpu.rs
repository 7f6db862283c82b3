//! A vCPU of KVM: its state, and the loop that enters the guest.
//!
//! An exit has the same effect as the instruction would have on the software CPU: it calls the same
//! function of [`Platform`], or accesses the same row of the MSR table. So the guest observes no
//! difference.

use std::sync::Arc;

use iced_x86::CpuidFeature;
use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use kvm_ioctls::VcpuFd;
use vbts_cpu::state::msr::{IA32_APIC_BASE, IA32_TSC, IA32_TSC_AUX};
use vbts_cpu::state::rflags;
use vbts_cpu::{Activity, ArchState, Cpu, Exit, HostClock, Leaf, Platform, Signals};

use super::kick::VcpuKick;
use super::{KvmError, Named, ioctl, msr, state};

mod exits;

/// Why [`KvmVcpu::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// A reason that the software CPU has too.
    Common(Exit),
    /// IA32_DEBUGCTL was written: the software CPU may have to record the branches that follow.
    DebugCtl,
    /// KVM cannot emulate the instruction at RIP.
    EmulationFailure,
    /// The guest has locked the bus of the host's processors, or is about to.
    BusLock,
}

/// A vCPU.
#[derive(Debug)]
pub struct KvmVcpu {
    fd: VcpuFd,
    signals: Arc<Signals>,
    kick: Arc<VcpuKick>,
    /// An interrupt can be injected: IF is set, and no other event blocks it.
    injectable: bool,
    /// IF, as of the last exit.
    interrupts_enabled: bool,
    /// KVM implements IA32_DEBUGCTL and IA32_DS_AREA.
    passes_bts_through: bool,
    /// The guest's processor has XCR0.
    has_xcr0: bool,
    /// The processor is in HLT. KVM has no such state: without interrupt controllers in the kernel,
    /// HLT exits.
    halted: bool,
}

impl KvmVcpu {
    /// The vCPU `fd`, with the lines into it. If `passes_bts_through`, the guest's writes to
    /// IA32_DEBUGCTL and IA32_DS_AREA are forwarded to KVM.
    pub fn new(fd: VcpuFd, signals: Arc<Signals>, passes_bts_through: bool) -> Self {
        Self {
            fd,
            kick: VcpuKick::new(&signals),
            signals,
            injectable: false,
            interrupts_enabled: false,
            passes_bts_through,
            has_xcr0: false,
            halted: false,
        }
    }

    /// Whether KVM implements IA32_DEBUGCTL and IA32_DS_AREA.
    pub fn passes_bts_through(&self) -> bool {
        self.passes_bts_through
    }

    /// Gives the vCPU the CPUID of `cpu`, and synchronises the time-stamp counters of both.
    ///
    /// # Errors
    /// KVM rejects a setting.
    pub fn attach(&mut self, cpu: &mut Cpu) -> Result<(), KvmError> {
        self.fd
            .set_cpuid2(&cpuid(cpu.cpuid_leaves())?)
            .named("KVM_SET_CPUID2")?;
        self.has_xcr0 = cpu.model().executes(CpuidFeature::XSAVE);
        self.set_tsc(cpu)
    }

    /// Sets the guest's time-stamp counter to that of `cpu`. If KVM does not take the exact offset,
    /// `cpu` takes the counter that KVM then shows.
    fn set_tsc(&self, cpu: &mut Cpu) -> Result<(), KvmError> {
        let offset = cpu.tsc_offset();
        if ioctl::set_tsc_offset(&self.fd, offset).is_ok() {
            return Ok(());
        }
        msr::set(
            &self.fd,
            IA32_TSC,
            HostClock::host_tsc().wrapping_add(offset),
        )?;
        // KVM may have synchronised the counter with those of other processors. The read that took
        // the least time shows its value best: the host may preempt this thread during a read.
        const TRIES: usize = 16;
        let mut shortest = u64::MAX;
        for _ in 0..TRIES {
            let before = HostClock::host_tsc();
            let value = msr::get(&self.fd, IA32_TSC)?;
            let took = HostClock::host_tsc().wrapping_sub(before);
            if took < shortest {
                shortest = took;
                cpu.set_tsc_offset(value.wrapping_sub(before.wrapping_add(took / 2)));
            }
        }
        Ok(())
    }

    /// The kick of the thread that calls [`Self::run`].
    pub(crate) fn kick(&self) -> &Arc<VcpuKick> {
        &self.kick
    }

    /// `immediate_exit` of the vCPU's `kvm_run`, which is mapped as long as the vCPU exists.
    pub(crate) fn immediate_exit(&mut self) -> *mut u8 {
        &raw mut self.fd.get_kvm_run().immediate_exit
    }

    /// Loads the state of `cpu` into the vCPU.
    ///
    /// # Errors
    /// KVM rejects a part of it.
    pub fn load(&mut self, cpu: &Cpu) -> Result<(), KvmError> {
        let s = &cpu.state();
        let platform = cpu.platform();
        state::load(&self.fd, s, apic_base(platform), platform.cr8())?;
        if self.has_xcr0 {
            state::load_xcr0(&self.fd, s)?;
        }
        if cpu.model().executes(CpuidFeature::RDTSCP) {
            msr::set(&self.fd, IA32_TSC_AUX, s.msr.tsc_aux)?;
        }
        self.halted = s.activity == Activity::Halted && s.pending.is_none();
        self.interrupts_enabled = s.rflags & rflags::IF != 0;
        self.injectable = self.interrupts_enabled && !s.interrupt_shadow && s.pending.is_none();
        Ok(())
    }

    /// Completes the instruction that has exited, and updates `s` with the vCPU's state. State that
    /// the vCPU does not have stays as it is in `s`. State that `s` does not have goes to
    /// `platform`.
    ///
    /// # Errors
    /// KVM fails.
    pub fn save(&mut self, platform: &dyn Platform, s: &mut ArchState) -> Result<(), KvmError> {
        // The next entry into the guest writes RIP, and the register that an access to a device
        // loads. With `immediate_exit` KVM_RUN does no more than that.
        self.fd.set_kvm_immediate_exit(1);
        let outcome = self.fd.run().map(drop);
        self.fd.set_kvm_immediate_exit(0);
        match outcome {
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return Err(error).named("KVM_RUN"),
            Ok(()) => return Err(run_error("an instruction is not complete".into())),
        }
        if state::save(&self.fd, s)?.nmi_pending {
            platform.give_back_nmi();
        }
        if self.has_xcr0 {
            state::save_xcr0(&self.fd, s)?;
        }
        s.activity = if self.halted {
            Activity::Halted
        } else {
            Activity::Active
        };
        Ok(())
    }

    /// Runs the guest until an exit that the caller has to handle. `cpu` has the MSRs that the vCPU
    /// does not have.
    ///
    /// # Errors
    /// KVM cannot continue.
    pub fn run(&mut self, cpu: &mut Cpu) -> Result<ExitReason, KvmError> {
        loop {
            let lines = self.signals.get();
            if let Some(exit) = self.exit_before_entry(lines) {
                return Ok(ExitReason::Common(exit));
            }
            let handled = self.inject(cpu.platform(), lines)?;
            self.kick.enter();
            // A line that was raised before `enter` has sent no kick, and sends none while it stays
            // raised.
            if self.signals.get() & !handled != 0 {
                self.kick.leave();
                continue;
            }
            let reason = self.enter(cpu);
            self.kick.leave();
            if let Some(reason) = reason? {
                return Ok(reason);
            }
        }
    }

    /// Returns the exit that `lines` or HLT cause before the guest is entered. Ends HLT if a line
    /// wakes the processor.
    fn exit_before_entry(&mut self, lines: u32) -> Option<Exit> {
        if lines & Signals::KICK != 0 {
            self.signals.lower(Signals::KICK);
            return Some(Exit::Kick);
        }
        if lines & Signals::INIT != 0 {
            return Some(Exit::Init);
        }
        if self.halted {
            let wakes = if self.interrupts_enabled {
                Signals::INTR | Signals::NMI
            } else {
                Signals::NMI
            };
            if lines & wakes == 0 {
                return Some(Exit::Halt {
                    interrupts_off: !self.interrupts_enabled,
                });
            }
            self.halted = false;
        }
        None
    }

    /// Injects the interrupts that the interrupt controllers offer, or requests an exit for the
    /// time when KVM can take one. Returns the lines that may be raised now without further work.
    fn inject(&mut self, platform: &dyn Platform, lines: u32) -> Result<u32, KvmError> {
        // Memory under KVM is coherent with devices.
        let mut handled = Signals::DMA;
        if lines & Signals::NMI != 0 {
            // While the guest handles an NMI, KVM holds the next one, and the local APIC holds a
            // third. The end of the handler does not exit, so the third waits for the next exit.
            let events = self.fd.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
            if events.nmi.pending != 0 {
                handled |= Signals::NMI;
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
            handled |= Signals::INTR;
        }
        Ok(handled)
    }
}

/// IA32_APIC_BASE. CPUID reports a local APIC only if it is enabled there.
fn apic_base(platform: &dyn Platform) -> u64 {
    platform.apic_rdmsr(0, IA32_APIC_BASE).unwrap_or_default()
}

/// CPUID leaves in KVM's format.
///
/// # Errors
/// There are more leaves than KVM takes.
pub(super) fn cpuid(leaves: impl Iterator<Item = Leaf>) -> Result<CpuId, KvmError> {
    let entries: Vec<_> = leaves
        .map(|l| kvm_cpuid_entry2 {
            function: l.leaf,
            index: l.subleaf,
            // These leaves have sub-leaves, selected by ECX.
            flags: if matches!(l.leaf, 4 | 7 | 0xD) {
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

/// An error of KVM_RUN that its return value does not report.
fn run_error(why: String) -> KvmError {
    KvmError {
        what: "KVM_RUN",
        source: std::io::Error::other(why),
    }
}
