//! Where the processor's time comes from.

use std::time::Instant;

use crate::model::TSC_HZ;
use crate::processor::cpu::Cpu;

/// What advances the time of a processor.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// Retired instructions. Each takes a nanosecond, and the time-stamp counter counts
    /// nanoseconds. One thread of the host runs all processors, in turn.
    #[default]
    Instructions,
    /// The host's clock. Each processor has a thread of its own.
    Host(HostClock),
}

/// The host's clock, and a time-stamp counter that goes with it.
#[derive(Debug, Clone, Copy)]
pub struct HostClock {
    start: Instant,
    /// Frequency of the time-stamp counter in Hz.
    tsc_hz: u64,
    /// The time-stamp counter is that of the host's processor. Otherwise it is the clock's time.
    is_host_tsc: bool,
}

impl HostClock {
    /// A clock that begins now, for a processor that KVM executes at times. Its time-stamp counter
    /// is that of the host's processor, with a frequency of `tsc_khz`.
    pub fn new(tsc_khz: u32) -> Self {
        Self {
            start: Instant::now(),
            tsc_hz: u64::from(tsc_khz.max(1)) * 1000,
            is_host_tsc: true,
        }
    }

    /// A clock that begins now, for a processor that KVM never executes. Its time-stamp counter
    /// counts nanoseconds, as with [`Clock::Instructions`]: that of the host's processor may have
    /// an unknown frequency.
    pub fn in_nanoseconds() -> Self {
        Self {
            start: Instant::now(),
            tsc_hz: TSC_HZ.into(),
            is_host_tsc: false,
        }
    }

    /// Nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time-stamp counter.
    pub fn tsc(&self) -> u64 {
        match self.is_host_tsc {
            true => Self::host_tsc(),
            false => self.now(),
        }
    }

    /// The time-stamp counter of the host's processor.
    pub fn host_tsc() -> u64 {
        // SAFETY: every x86-64 processor has RDTSC.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// Frequency of the time-stamp counter in kHz.
    pub fn tsc_khz(&self) -> u32 {
        (self.tsc_hz / 1000) as u32
    }

    fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
        let product = u128::from(value) * u128::from(numerator) / u128::from(denominator);
        u64::try_from(product).unwrap_or(u64::MAX)
    }

    /// Converts ticks of the time-stamp counter to nanoseconds.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        Self::scaled(ticks, 1_000_000_000, self.tsc_hz)
    }

    /// Converts nanoseconds to ticks of the time-stamp counter.
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        Self::scaled(nanoseconds, self.tsc_hz, 1_000_000_000)
    }
}

impl Cpu {
    /// Takes the time from `clock`. The time-stamp counter restarts at the clock's value.
    /// Call it before the processor runs: native code has LOCK only if it needs that on this clock.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        self.tsc_offset = 0;
    }

    /// Time in nanoseconds. On [`Clock::Instructions`] it is that of the start of the current
    /// block, which is the instruction's own where anything observes it: see
    /// `decode::begins_block` and `Fault::Device`.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.clock {
            Clock::Instructions => self.icount + self.skipped,
            Clock::Host(clock) => clock.now(),
        }
    }

    /// The time-stamp counter, `ahead` instructions into the current block.
    pub(crate) fn tsc(&self, ahead: u8) -> u64 {
        match self.clock {
            Clock::Instructions => self.now() + u64::from(ahead),
            Clock::Host(clock) => clock.tsc(),
        }
        .wrapping_add(self.tsc_offset)
    }

    /// The time-stamp counter that the guest reads with [`Clock::Host`], minus the clock's.
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset
    }

    /// Sets [`Self::tsc_offset`].
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
    }

    /// Converts ticks of the time-stamp counter to nanoseconds.
    pub(crate) fn nanoseconds(&self, ticks: u64) -> u64 {
        match self.clock {
            Clock::Instructions => ticks,
            Clock::Host(clock) => clock.nanoseconds(ticks),
        }
    }

    /// Converts nanoseconds to ticks of the time-stamp counter.
    pub(crate) fn ticks(&self, nanoseconds: u64) -> u64 {
        match self.clock {
            Clock::Instructions => nanoseconds,
            Clock::Host(clock) => clock.ticks(nanoseconds),
        }
    }

    /// Instructions retired since the processor was made.
    pub fn instructions(&self) -> u64 {
        self.icount
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_nanoseconds() {
        let clock = HostClock::new(2_000_000);
        assert_eq!(clock.ticks(10), 20);
        assert_eq!(clock.nanoseconds(20), 10);
        assert_eq!(clock.nanoseconds(u64::MAX), u64::MAX / 2);
        assert_eq!(clock.ticks(u64::MAX), u64::MAX);
        assert!(HostClock::new(0).nanoseconds(1) > 0);
    }

    #[test]
    fn time_passes() {
        let clock = HostClock::new(1_000_000);
        let (now, tsc) = (clock.now(), clock.tsc());
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(clock.now() >= now + 1_000_000 && clock.tsc() > tsc);
    }

    #[test]
    fn a_time_stamp_counter_in_nanoseconds_is_the_time() {
        let clock = HostClock::in_nanoseconds();
        let (before, tsc, after) = (clock.now(), clock.tsc(), clock.now());
        assert!((before..=after).contains(&tsc), "{before} {tsc} {after}");
        assert_eq!(clock.ticks(10), 10);
        assert_eq!(clock.tsc_khz(), 1_000_000);
    }
}
