//! The exits of KVM_RUN (Documentation/virt/kvm/api.rst, 5), and the effect of each.

use kvm_bindings::{
    KVM_EXIT_IO_OUT, KVM_EXIT_X86_BUS_LOCK, KVM_INTERNAL_ERROR_EMULATION, KVM_RUN_X86_BUS_LOCK,
    kvm_run,
};
use kvm_ioctls::VcpuExit;
use vbts_cpu::state::msr::{IA32_APIC_BASE, IA32_DEBUGCTL, IA32_DS_AREA, IA32_TSC, IA32_TSC_AUX};
use vbts_cpu::{Cpu, Exit, Platform};

use super::{ExitReason, KvmVcpu, apic_base, run_error};
use crate::kvm::{KvmError, Named, msr};

/// The effect of an exit.
#[derive(Debug, Clone, Copy, Default)]
struct Effect {
    /// Why [`KvmVcpu::run`] returns. `None` if the guest is entered again.
    reason: Option<ExitReason>,
    /// The guest executed HLT.
    halted: bool,
    /// An MSR access was refused: the next entry delivers #GP.
    faulted: bool,
}

impl Effect {
    /// The guest accessed a device.
    const DEVICE_ACCESS: Self = Self::returning(ExitReason::Common(Exit::Bus));

    const fn returning(reason: ExitReason) -> Self {
        Self {
            reason: Some(reason),
            halted: false,
            faulted: false,
        }
    }

    /// Adds what the `flags` of `kvm_run` report: a bus lock, possibly together with another exit.
    /// After a bus lock, the software CPU executes the guest. If the other exit also hands over to
    /// the software CPU or ends the run, its reason is kept.
    fn with_flags(self, flags: u16) -> Self {
        let locked = u32::from(flags) & KVM_RUN_X86_BUS_LOCK != 0;
        match self.reason {
            None | Some(ExitReason::Common(Exit::Bus)) if locked => Self {
                reason: Some(ExitReason::BusLock),
                ..self
            },
            _ => self,
        }
    }
}

impl KvmVcpu {
    /// Enters the guest once, and handles its exit. Returns `None` if the guest can be entered
    /// again.
    pub(super) fn enter(&mut self, cpu: &mut Cpu) -> Result<Option<ExitReason>, KvmError> {
        let now = cpu.now();
        let effect = self.run_to_exit(cpu, now)?;
        let effect = effect.with_flags(self.fd.get_kvm_run().flags);
        self.halted = effect.halted && !self.has_wakeup_event()?;
        self.update_interrupt_state(cpu.platform(), now, effect.faulted);
        Ok(effect.reason)
    }

    fn run_to_exit(&mut self, cpu: &mut Cpu, now: u64) -> Result<Effect, KvmError> {
        let exit = match self.fd.run() {
            Ok(exit) => exit,
            Err(error) if error.errno() == libc::EINTR => return Ok(Effect::default()),
            Err(error) => return Err(error).named("KVM_RUN"),
        };
        match exit {
            VcpuExit::IoIn(..) | VcpuExit::IoOut(..) => {
                self.access_port(cpu.platform(), now);
                Ok(Effect::DEVICE_ACCESS)
            }
            VcpuExit::MmioRead(gpa, data) => {
                cpu.platform().mmio_read(now, gpa, data);
                Ok(Effect::DEVICE_ACCESS)
            }
            VcpuExit::MmioWrite(gpa, data) => {
                cpu.platform().mmio_write(now, gpa, data);
                Ok(Effect::DEVICE_ACCESS)
            }
            VcpuExit::X86Rdmsr(access) => {
                let value = cpu.read_msr(access.index);
                *access.data = value.unwrap_or(*access.data);
                *access.error = value.is_none().into();
                Ok(Effect {
                    faulted: value.is_none(),
                    ..Effect::default()
                })
            }
            VcpuExit::X86Wrmsr(access) => {
                let (index, value) = (access.index, access.data);
                let accepted = cpu.write_msr(index, value).is_some();
                *access.error = (!accepted).into();
                Ok(Effect {
                    reason: self.after_wrmsr(cpu, index, accepted.then_some(value))?,
                    faulted: !accepted,
                    ..Effect::default()
                })
            }
            VcpuExit::Hlt => Ok(Effect {
                halted: true,
                ..Effect::default()
            }),
            // The flags of `kvm_run` tell a bus lock.
            VcpuExit::IrqWindowOpen
            | VcpuExit::Intr
            | VcpuExit::SetTpr
            | VcpuExit::Unsupported(KVM_EXIT_X86_BUS_LOCK) => Ok(Effect::default()),
            VcpuExit::Shutdown => Ok(Effect::returning(ExitReason::Common(Exit::Shutdown))),
            VcpuExit::InternalError => self.internal_error(),
            VcpuExit::FailEntry(reason, _) => Err(run_error(format!(
                "the processor rejects the guest's state (reason {reason:#x})"
            ))),
            exit => Err(run_error(format!("unexpected exit {exit:?}"))),
        }
    }

    /// Updates the vCPU after a WRMSR to MSR `index`, which `cpu` has executed. `accepted` is the
    /// value, or `None` if the write raises #GP.
    fn after_wrmsr(
        &self,
        cpu: &mut Cpu,
        index: u32,
        accepted: Option<u64>,
    ) -> Result<Option<ExitReason>, KvmError> {
        match index {
            IA32_DEBUGCTL | IA32_DS_AREA if self.passes_bts_through => {
                if let Some(value) = accepted {
                    msr::set(&self.fd, index, value)?;
                }
                Ok(None)
            }
            // Only RDTSCP reads it: RDMSR exits.
            IA32_TSC_AUX => {
                if let Some(value) = accepted {
                    msr::set(&self.fd, index, value)?;
                }
                Ok(None)
            }
            IA32_TSC => self.set_tsc(cpu).map(|()| None),
            IA32_APIC_BASE => self.update_apic_base(cpu.platform()).map(|()| None),
            IA32_DEBUGCTL => Ok(Some(ExitReason::DebugCtl)),
            _ => Ok(Some(ExitReason::Common(Exit::Bus))),
        }
    }

    /// Reads what KVM reports of the interrupt state at each exit.
    fn update_interrupt_state(&mut self, platform: &dyn Platform, now: u64, faulted: bool) {
        let run = self.fd.get_kvm_run();
        run.immediate_exit = 0;
        self.interrupts_enabled = run.if_flag != 0;
        // The next entry delivers the #GP of a refused MSR access. KVM would lose one of two
        // events.
        self.injectable =
            run.ready_for_interrupt_injection != 0 && self.interrupts_enabled && !faulted;
        let cr8 = run.cr8;
        if cr8 != platform.cr8() {
            platform.set_cr8(now, cr8 & 15);
        }
    }

    /// Whether KVM has an event that ends HLT: a debug trap of the HLT itself, or an NMI.
    fn has_wakeup_event(&self) -> Result<bool, KvmError> {
        let events = self.fd.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
        let exception = events.exception.pending | events.exception.injected;
        let nmi = events.nmi.injected | events.nmi.pending & !events.nmi.masked;
        Ok((exception | nmi) & 1 != 0)
    }

    /// An access to an I/O port, or the accesses of a repeated INS or OUTS.
    fn access_port(&mut self, platform: &dyn Platform, now: u64) {
        let run = self.fd.get_kvm_run();
        // SAFETY: KVM_EXIT_IO fills this member.
        let io = unsafe { run.__bindgen_anon_1.io };
        let size = usize::from(io.size).max(1);
        let start = (run as *mut kvm_run).cast::<u8>();
        // SAFETY: KVM keeps that many bytes there, in the mapping that begins with `run`, until the
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

    /// KVM_EXIT_INTERNAL_ERROR: the software CPU can execute an instruction that KVM cannot
    /// emulate. Other errors are fatal.
    fn internal_error(&mut self) -> Result<Effect, KvmError> {
        // SAFETY: KVM_EXIT_INTERNAL_ERROR fills this member.
        let suberror = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal.suberror };
        match suberror {
            KVM_INTERNAL_ERROR_EMULATION => Ok(Effect::returning(ExitReason::EmulationFailure)),
            other => Err(run_error(format!("internal error {other}"))),
        }
    }

    /// Gives KVM the guest's IA32_APIC_BASE, on which CPUID depends.
    fn update_apic_base(&self, platform: &dyn Platform) -> Result<(), KvmError> {
        let mut sregs = self.fd.get_sregs().named("KVM_GET_SREGS")?;
        sregs.apic_base = apic_base(platform);
        self.fd.set_sregs(&sregs).named("KVM_SET_SREGS")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_lock_adds_to_another_exit() {
        let flag = KVM_RUN_X86_BUS_LOCK as u16;
        let locked = Some(ExitReason::BusLock);
        let kick = Effect::returning(ExitReason::Common(Exit::Kick));
        let failure = Effect::returning(ExitReason::EmulationFailure);
        for (effect, expected) in [
            (Effect::default(), locked),
            (Effect::DEVICE_ACCESS, locked),
            (kick, kick.reason),
            (failure, failure.reason),
        ] {
            assert_eq!(effect.with_flags(flag | 1).reason, expected);
            assert_eq!(effect.with_flags(!flag).reason, effect.reason);
        }
        let faulted = Effect {
            faulted: true,
            ..Effect::default()
        };
        assert!(faulted.with_flags(flag).faulted);
    }
}
