//! Counts instructions by privilege level and tracing.

use crate::processor::cpu::Cpu;
use crate::state::Usage;

/// Counts instructions for [`Usage`]. One that changes the privilege level counts for the new one.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Bit 0: CPL 3. Bit 1: branches are recorded.
    class: usize,
    /// Instructions retired when the class last changed.
    since: u64,
    counts: [u64; 4],
}

impl Cpu {
    /// Instructions retired so far, by privilege level and tracing.
    pub fn usage(&self) -> Usage {
        let mut counts = self.meter.counts;
        counts[self.meter.class] += self.icount - self.meter.since;
        let [kernel, user, traced_kernel, traced_user] = counts;
        Usage {
            traced_user,
            traced_kernel,
            user,
            kernel,
        }
    }

    /// Continues from `usage` at the current instruction count.
    pub(crate) fn load_usage(&mut self, usage: Usage) {
        let Usage {
            traced_user,
            traced_kernel,
            user,
            kernel,
        } = usage;
        self.meter = Meter {
            class: self.meter.class,
            since: self.icount,
            counts: [kernel, user, traced_kernel, traced_user],
        };
    }

    /// Starts to count for another class if CPL or DEBUGCTL has changed.
    pub(crate) fn update_meter(&mut self) {
        let class = usize::from(self.cpl == 3) | usize::from(self.recorder.tracing()) << 1;
        let meter = &mut self.meter;
        meter.counts[meter.class] += self.icount - meter.since;
        (meter.class, meter.since) = (class, self.icount);
    }
}
