//! Detects loops that wait for another processor by their PAUSE instructions (SDM Vol. 2B, PAUSE).

use crate::state::SpinCount;

/// PAUSE instructions after which a loop counts as waiting: more than a wait for a processor that
/// runs usually takes.
pub(crate) const PAUSES: u32 = 256;
/// Instructions within which they must retire. A loop around PAUSE has few instructions.
const WITHIN: u64 = 16 * PAUSES as u64;

// Only instructions are counted, so that the result is the same in each run.
impl SpinCount {
    /// Counts a PAUSE, executed after `icount` retired instructions. Returns whether the processor
    /// spins.
    pub(crate) fn pause(&mut self, icount: u64) -> bool {
        self.pauses += 1;
        if self.pauses < PAUSES {
            return false;
        }
        let spins = icount.wrapping_sub(self.since) <= WITHIN;
        *self = Self {
            pauses: 0,
            since: icount,
        };
        spins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of reports for 1024 iterations of a loop of `length` instructions around PAUSE.
    fn spins(length: u64) -> usize {
        let mut detector = SpinCount::default();
        (0..1024).filter(|i| detector.pause(i * length)).count()
    }

    #[test]
    fn a_short_loop_spins() {
        assert_eq!(spins(1), 4);
        assert_eq!(spins(4), 4);
        assert_eq!(spins(100), 0);
    }
}
