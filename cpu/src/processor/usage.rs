//! For whom instructions are executed.

use crate::processor::cpu::Cpu;

/// Instructions by privilege level, and by whether IA32_DEBUGCTL asks for branches to be recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// At CPL 3, while branches are recorded.
    pub traced_user: u64,
    /// At CPL 0 to 2 meanwhile.
    pub traced_kernel: u64,
    /// At CPL 3 otherwise.
    pub user: u64,
    /// At CPL 0 to 2 otherwise.
    pub kernel: u64,
}

impl Usage {
    /// All of them.
    pub fn instructions(&self) -> u64 {
        self.traced_user + self.traced_kernel + self.user + self.kernel
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            traced_user: a.traced_user + b.traced_user,
            traced_kernel: a.traced_kernel + b.traced_kernel,
            user: a.user + b.user,
            kernel: a.kernel + b.kernel,
        })
    }
}

/// Counts them. A block that ends with a change of privilege counts for the level that it has led
/// to.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Bit 0: CPL 3. Bit 1: branches are recorded.
    class: usize,
    /// Instructions retired when the class last changed.
    since: u64,
    counts: [u64; 4],
}

impl Cpu {
    /// For whom the instructions so far were executed.
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

    /// CPL or DEBUGCTL may have changed.
    pub(crate) fn update_meter(&mut self) {
        let class = usize::from(self.cpl == 3) | usize::from(self.recorder.tracing()) << 1;
        let meter = &mut self.meter;
        meter.counts[meter.class] += self.icount - meter.since;
        (meter.class, meter.since) = (class, self.icount);
    }
}
