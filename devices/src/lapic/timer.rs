//! The local APIC timer (SDM Vol. 3A 10.5.4): one-shot, periodic and TSC-deadline.
//!
//! The timer's input clock runs at 1 GHz, so one tick at divide-by-1 is one nanosecond of virtual
//! time, which is also one tick of the TSC.

use serde::{Deserialize, Serialize};

use crate::StateError;
use crate::state::check_bits;

/// The bits of the divide configuration register.
const DIVIDE_BITS: u32 = 0xB;

/// Bits 18:17 of LVT Timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    OneShot,
    Periodic,
    TscDeadline,
}

/// State of the timer. The count is not stored: it follows from the time at which it reaches zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TimerState {
    initial_count: u32,
    /// Bits 3, 1 and 0 of the divide configuration register.
    divide_configuration: u32,
    /// When the count reaches zero, or the TSC deadline. `None`: not counting.
    expiry: Option<u64>,
}

impl TimerState {
    pub(super) fn expiry(&self) -> Option<u64> {
        self.expiry
    }

    /// Refuses a state that the timer never has.
    pub(super) fn check(&self, device: &str) -> Result<(), StateError> {
        let divide = self.divide_configuration;
        check_bits(device, "divide configuration", divide, DIVIDE_BITS.into())
    }
}

/// The timer in one of its modes.
#[derive(Debug)]
pub(super) struct Timer<'a> {
    mode: Mode,
    state: &'a mut TimerState,
}

impl<'a> Timer<'a> {
    pub(super) fn new(mode: Mode, state: &'a mut TimerState) -> Self {
        Self { mode, state }
    }

    /// The divisor of the input clock: 0b0000 is 2, 0b1010 is 128, 0b1011 is 1 (SDM Vol. 3A figure
    /// 10-10).
    fn divisor(&self) -> u64 {
        let code =
            (self.state.divide_configuration & 3) | ((self.state.divide_configuration >> 1) & 4);
        1 << ((code + 1) & 7)
    }

    /// Sets the mode. Going into or out of TSC-deadline mode disarms the timer (SDM Vol. 3A
    /// 10.5.4.1).
    pub(super) fn set_mode(&mut self, mode: Mode) {
        if (mode == Mode::TscDeadline) != (self.mode == Mode::TscDeadline) {
            self.state.expiry = None;
            self.state.initial_count = 0;
        }
        self.mode = mode;
    }

    pub(super) fn initial_count(&self) -> u32 {
        self.state.initial_count
    }

    /// Starts counting down from `count`; zero stops. Ignored in TSC-deadline mode.
    pub(super) fn set_initial_count(&mut self, now: u64, count: u32) {
        if self.mode != Mode::TscDeadline {
            self.state.initial_count = count;
            self.state.expiry =
                (count != 0).then(|| now.saturating_add(u64::from(count) * self.divisor()));
        }
    }

    pub(super) fn current_count(&self, now: u64) -> u32 {
        match self.state.expiry {
            Some(at) if self.mode != Mode::TscDeadline => {
                u32::try_from(at.saturating_sub(now).div_ceil(self.divisor())).unwrap_or(u32::MAX)
            }
            _ => 0,
        }
    }

    pub(super) fn divide_configuration(&self) -> u32 {
        self.state.divide_configuration
    }

    /// Changes the divisor; a running count goes on from where it is.
    pub(super) fn set_divide_configuration(&mut self, now: u64, value: u32) {
        let count = self.current_count(now);
        self.state.divide_configuration = value & DIVIDE_BITS;
        if self.mode != Mode::TscDeadline && self.state.expiry.is_some() {
            self.state.expiry = Some(now.saturating_add(u64::from(count) * self.divisor()));
        }
    }

    /// IA32_TSC_DEADLINE: zero when disarmed or in another mode.
    pub(super) fn tsc_deadline(&self) -> u64 {
        if self.mode == Mode::TscDeadline {
            self.state.expiry.unwrap_or(0)
        } else {
            0
        }
    }

    /// Writes IA32_TSC_DEADLINE: zero disarms; ignored in the other modes.
    pub(super) fn set_tsc_deadline(&mut self, value: u64) {
        if self.mode == Mode::TscDeadline {
            self.state.expiry = (value != 0).then_some(value);
        }
    }

    /// True if the count reached zero since the last call. A periodic timer goes on from the exact
    /// expiry; periods missed altogether are one expiry.
    pub(super) fn expired(&mut self, now: u64) -> bool {
        let Some(at) = self.state.expiry.filter(|at| *at <= now) else {
            return false;
        };
        self.state.expiry = match self.mode {
            Mode::Periodic if self.state.initial_count != 0 => {
                let period = u64::from(self.state.initial_count) * self.divisor();
                at.checked_add(((now - at) / period + 1).saturating_mul(period))
            }
            _ => None,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_divides_by_its_value() {
        let table = [
            (0, 2),
            (1, 4),
            (2, 8),
            (3, 16),
            (8, 32),
            (9, 64),
            (10, 128),
            (11, 1),
        ];
        for (configuration, divisor) in table {
            let mut state = TimerState::default();
            let mut t = Timer::new(Mode::OneShot, &mut state);
            t.set_divide_configuration(0, configuration | 0xFFFF_FFF4);
            assert_eq!(t.divide_configuration(), configuration);
            t.set_initial_count(1000, 10);
            assert_eq!(t.state.expiry(), Some(1000 + 10 * divisor));
            assert_eq!(t.current_count(1000), 10);
            assert_eq!(t.current_count(1000 + 9 * divisor), 1);
            assert_eq!(t.current_count(1000 + 11 * divisor), 0);
        }
    }

    #[test]
    fn a_one_shot_fires_once() {
        let mut state = TimerState::default();
        let mut t = Timer::new(Mode::OneShot, &mut state);
        t.set_initial_count(0, 100);
        assert!(!t.expired(199));
        assert!(t.expired(200));
        assert!(!t.expired(10_000));
        assert_eq!(t.state.expiry(), None);
    }

    #[test]
    fn a_periodic_timer_does_not_drift_and_coalesces() {
        let mut state = TimerState::default();
        let mut t = Timer::new(Mode::OneShot, &mut state);
        t.set_mode(Mode::Periodic);
        t.set_initial_count(7, 50);
        assert!(t.expired(110));
        assert_eq!(t.state.expiry(), Some(207));
        assert!(t.expired(1_000_000_003));
        assert!(!t.expired(1_000_000_003));
        assert_eq!((t.state.expiry().unwrap() - 7) % 100, 0);
    }

    #[test]
    fn a_new_divisor_keeps_the_count() {
        let mut state = TimerState::default();
        let mut t = Timer::new(Mode::OneShot, &mut state);
        t.set_initial_count(0, 100);
        t.set_divide_configuration(100, 0xA);
        assert_eq!(t.current_count(100), 50);
        assert_eq!(t.state.expiry(), Some(100 + 50 * 128));
    }

    #[test]
    fn the_tsc_deadline_is_one_shot_and_ignores_the_counter() {
        let mut state = TimerState::default();
        let mut t = Timer::new(Mode::OneShot, &mut state);
        t.set_tsc_deadline(5);
        assert_eq!(t.tsc_deadline(), 0, "not in TSC-deadline mode");
        t.set_initial_count(0, 100);
        t.set_mode(Mode::TscDeadline);
        assert_eq!(t.state.expiry(), None, "disarmed by the mode change");
        t.set_tsc_deadline(5000);
        t.set_initial_count(0, 1);
        assert_eq!((t.tsc_deadline(), t.current_count(0)), (5000, 0));
        assert!(t.expired(6000));
        assert_eq!(t.tsc_deadline(), 0);
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let mut state = TimerState::default();
        let mut t = Timer::new(Mode::OneShot, &mut state);
        t.set_mode(Mode::Periodic);
        t.set_divide_configuration(0, 0xA);
        t.set_initial_count(u64::MAX - 1, u32::MAX);
        assert_eq!(t.state.expiry(), Some(u64::MAX));
        assert!(t.expired(u64::MAX));
        assert_eq!(t.state.expiry(), None);
    }
}
