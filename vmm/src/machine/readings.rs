//! Counts and states that a machine's owner reads.

use std::time::Duration;

use vbts_cpu::{Cpu, NativeStats, Usage};

use super::Machine;
use crate::inputs::Progress;
use crate::vcpu::{HandoverStats, Vcpu};

/// Host time that the runs on the software CPU have taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostTime {
    /// Time for which the software CPU executed the guest.
    pub executing: Duration,
    /// Total time of the runs.
    pub total: Duration,
}

impl Machine {
    /// Counts of native code, of all processors.
    pub fn native_code(&self) -> NativeStats {
        let vcpus = self.vcpus.iter();
        vcpus.map(|vcpu| vcpu.soft().native_code()).sum()
    }

    /// The time, instructions and registers that a recording compares.
    pub(super) fn progress(&self) -> Progress {
        Progress {
            time: self.schedule.now,
            instructions: self.instructions(),
            registers: self.registers(),
        }
    }

    /// Checksum of the registers of all processors, and of their instruction counts.
    pub fn registers(&self) -> u32 {
        let mut registers = crc32fast::Hasher::new();
        for vcpu in &self.vcpus {
            let state = postcard::to_allocvec(&vcpu.soft().cpu.state());
            registers.update(&state.unwrap_or_default());
        }
        registers.finalize()
    }

    /// The processor that has its turn, with its number, on virtual time.
    pub fn current_processor(&self) -> Option<(usize, &Cpu)> {
        let number = self.schedule.cpu();
        self.vcpus
            .get(number)
            .map(|vcpu| (number, &vcpu.soft().cpu))
    }

    /// All processors, by their numbers.
    pub fn processors(&self) -> impl ExactSizeIterator<Item = &Cpu> {
        self.vcpus.iter().map(|vcpu| &vcpu.soft().cpu)
    }

    /// Number of instructions retired on the software CPU.
    pub fn instructions(&self) -> u64 {
        self.vcpus
            .iter()
            .map(|vcpu| vcpu.soft().cpu.instructions())
            .sum()
    }

    /// Instructions retired on the software CPU, by privilege level and tracing.
    pub fn usage(&self) -> Usage {
        let usages = self.vcpus.iter().map(|vcpu| vcpu.soft().cpu.usage());
        usages.sum()
    }

    /// How often the guest has begun to record branches with a malformed DS area.
    pub fn malformed_ds_areas(&self) -> u64 {
        self.vcpus.iter().map(Vcpu::malformed_ds_areas).sum()
    }

    /// Starts measuring host time.
    pub fn measure_host_time(&mut self) {
        self.host_time = Some(HostTime::default());
    }

    /// The measured host time; `None` if it is not measured, as on the host's time.
    pub fn host_time(&self) -> Option<HostTime> {
        self.host_time.filter(|_| self.host_clock.is_none())
    }

    /// Number of hand-overs between the accelerators, of all processors.
    pub fn handovers(&self) -> HandoverStats {
        self.vcpus.iter().map(Vcpu::handovers).sum()
    }

    /// The machine's time in ns, virtual or the host's.
    pub fn now(&self) -> u64 {
        self.host_clock
            .map_or(self.schedule.now, |clock| clock.now())
    }
}
