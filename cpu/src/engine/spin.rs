//! Loops that wait for another processor, which PAUSE tells of (SDM Vol. 2B, PAUSE).

/// So many PAUSEs make a loop that waits for longer than any processor would that runs.
const PAUSES: u32 = 256;
/// If they are executed among no more instructions than that: a loop around PAUSE has a handful.
const WITHIN: u64 = 16 * PAUSES as u64;

/// Looks out for such a loop. It goes by instructions alone, so that it is the same in each run.
#[derive(Debug, Default)]
pub(crate) struct SpinDetector {
    pauses: u32,
    /// Instructions retired when the count began.
    since: u64,
}

impl SpinDetector {
    /// PAUSE is executed, with `icount` instructions retired before. Whether the processor seems to
    /// spin.
    pub fn pause(&mut self, icount: u64) -> bool {
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

    /// How often a loop of `length` instructions around PAUSE, run 1024 times, seems to spin.
    fn spins(length: u64) -> usize {
        let mut detector = SpinDetector::default();
        (0..1024).filter(|i| detector.pause(i * length)).count()
    }

    #[test]
    fn a_short_loop_spins() {
        assert_eq!(spins(1), 4);
        assert_eq!(spins(4), 4);
        assert_eq!(spins(100), 0);
    }
}
