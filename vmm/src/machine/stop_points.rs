//! Stop points of a debugger in the processors of a machine.

use vbts_cpu::{StopCause, StopPoints};

use super::Machine;

impl Machine {
    /// Replaces the places at which the software CPUs stop for a debugger. A run that stops there
    /// returns [`End::Stop`](super::End::Stop), and the next one continues as if it had not.
    pub fn set_stop_points(&mut self, points: &StopPoints) {
        for vcpu in &mut self.vcpus {
            vcpu.soft_mut().set_stop_points(points.clone());
        }
    }

    /// Has the next run not stop at the breakpoint at which the processor that has its turn is.
    /// Another processor that is at one stops there when its turn begins.
    pub fn leave_stop(&mut self) {
        if let Some(vcpu) = self.vcpus.get_mut(self.schedule.cpu()) {
            vcpu.soft_mut().cpu.leave_stop();
        }
    }

    /// Forgets which instructions have faulted at breakpoints: the program does not repeat them.
    pub fn forget_faults(&mut self) {
        for vcpu in &mut self.vcpus {
            vcpu.soft_mut().cpu.forget_faults();
        }
    }

    /// Takes the causes of the last stop. Empty if a probe of a log has stopped the processor.
    pub fn take_stop_causes(&mut self) -> Vec<StopCause> {
        let vcpu = self.vcpus.get_mut(self.schedule.cpu());
        vcpu.map_or_else(Vec::new, |vcpu| vcpu.soft_mut().cpu.take_stop_causes())
    }
}
