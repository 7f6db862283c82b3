//! Stop points of a debugger in the processors of a machine, and steps of one of them.
//!
//! A step of a processor is one instruction, or one delivery of an event. Each takes a ns. Other
//! processors may have turns before, and the step ends with it: also at the end of a turn it is the
//! processor itself that says whether it has executed something, and when.

use vbts_cpu::{StopCause, StopPoints};

use super::Machine;

/// Steps of the processors on virtual time.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The processor whose next step ends the run.
    pub awaited: Option<usize>,
    /// The last two steps of each processor: the virtual times in ns at which they began, the
    /// latest first.
    last: Vec<[Option<u64>; 2]>,
}

impl Steps {
    /// Notes that `processor` has executed from virtual time `start` to `end`, in ns. Returns
    /// whether that was the awaited step.
    pub(super) fn note(&mut self, processor: usize, start: u64, end: u64) -> bool {
        let count = end.saturating_sub(start);
        if count == 0 {
            return false;
        }
        if self.last.len() <= processor {
            self.last.resize(processor + 1, [None; 2]);
        }
        if let Some(last) = self.last.get_mut(processor) {
            let before = match count {
                1 => last[0],
                _ => Some(end - 2),
            };
            *last = [Some(end - 1), before];
        }
        self.awaited == Some(processor)
    }

    /// Forgets the steps: time has moved.
    pub(super) fn forget(&mut self) {
        self.last.clear();
    }
}

impl Machine {
    /// Has each run end with [`End::Stop`](super::End::Stop) behind the next step of this
    /// processor, if nothing ends it before; `None` for no such end.
    pub fn set_step(&mut self, processor: Option<usize>) {
        self.steps.awaited = processor;
    }

    /// The last two steps of a processor since time has last gone back: the positions from which
    /// they began, as virtual times in ns, the latest first.
    pub fn last_steps(&self, processor: usize) -> [Option<u64>; 2] {
        self.steps.last.get(processor).copied().unwrap_or_default()
    }

    /// Returns whether the next step is certain to be one of this processor.
    pub fn has_turn(&self, processor: usize) -> bool {
        self.vcpus.len() == 1 || self.schedule.is_in_run_of(processor)
    }

    /// Replaces the places at which the software CPUs stop for a debugger. A run that stops there
    /// returns [`End::Stop`](super::End::Stop), and the next one continues as if it had not.
    pub fn set_stop_points(&mut self, points: &StopPoints) {
        for vcpu in &mut self.vcpus {
            vcpu.soft_mut().set_stop_points(points.clone());
        }
    }

    /// Has the next run not stop at the breakpoint at which this processor is. Another one that is
    /// at a breakpoint stops there when its turn begins.
    pub fn leave_stop(&mut self, processor: usize) {
        if let Some(vcpu) = self.vcpus.get_mut(processor) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_of_a_processor_need_not_follow_each_other() {
        let mut steps = Steps {
            awaited: Some(1),
            ..Steps::default()
        };
        assert!(!steps.note(0, 10, 12));
        assert!(steps.note(1, 12, 13));
        assert!(!steps.note(1, 20, 20));
        assert!(!steps.note(0, 13, 14));
        assert!(steps.note(1, 20, 21));
        assert_eq!(steps.last, [[Some(13), Some(11)], [Some(20), Some(12)]]);
        assert!(steps.note(1, 21, 24));
        assert_eq!(steps.last[1], [Some(23), Some(22)]);
        steps.forget();
        assert!(steps.note(1, 30, 31));
        assert_eq!(steps.last[1], [Some(30), None]);
    }
}
