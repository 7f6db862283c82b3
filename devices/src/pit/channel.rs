//! One channel of the 8254: its counter, gate and output.
//!
//! The count is not stored: it follows from the input clock at which it was loaded.

use serde::{Deserialize, Serialize};

use super::DEVICE;
use crate::StateError;
use crate::state::check;

/// Bits 5:4 of the control word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Access {
    Low,
    High,
    LowHigh,
}

/// One channel of the timer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Channel {
    /// 0 to 5.
    pub(super) mode: u8,
    access: Access,
    bcd: bool,
    /// The count register: 0 stands for 65536, or 10000 in BCD.
    reload: u16,
    /// Low byte of a two-byte write under way.
    low: Option<u8>,
    /// The next read of a two-byte read gives the high byte.
    read_high: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
    pub(super) gate: bool,
    /// The input clock at which counting began. `None`: waiting for a count or a trigger.
    start: Option<u64>,
    /// Clocks counted when the gate went low.
    paused: Option<u64>,
}

impl Channel {
    /// Refuses a state that a channel never has.
    pub(super) fn check(&self) -> Result<(), StateError> {
        check(DEVICE, "counter mode", self.mode, self.mode <= 5)
    }

    pub(super) fn new(gate: bool) -> Self {
        Self {
            mode: 0,
            access: Access::LowHigh,
            bcd: false,
            reload: 0,
            low: None,
            read_high: false,
            latched_count: None,
            latched_status: None,
            gate,
            start: None,
            paused: None,
        }
    }

    /// True for the modes in which a rising gate loads the counter and starts it.
    fn gate_triggers(&self) -> bool {
        matches!(self.mode, 1 | 5)
    }

    fn periodic(&self) -> bool {
        matches!(self.mode, 2 | 3)
    }

    /// The initial count, 1 to 65536.
    fn period(&self) -> u64 {
        let count = if self.bcd {
            (0..4).rev().fold(0, |n, digit| {
                n * 10 + u64::from(self.reload >> (digit * 4) & 0xF)
            })
        } else {
            u64::from(self.reload)
        };
        match count {
            0 if self.bcd => 10_000,
            0 => 65_536,
            // A count of 1 is illegal in modes 2 and 3; 2 is the least that divides.
            1 if self.periodic() => 2,
            n => n,
        }
    }

    fn elapsed(&self, clock: u64) -> Option<u64> {
        self.paused
            .or_else(|| Some(clock.saturating_sub(self.start?)))
    }

    /// The counting element as a read shows it.
    pub(super) fn count(&self, clock: u64) -> u16 {
        let Some(elapsed) = self.elapsed(clock) else {
            return self.reload;
        };
        let period = self.period();
        let modulus = if self.bcd { 10_000 } else { 65_536 };
        let count = match self.mode {
            2 => period - elapsed % period,
            // Counts down by two, twice a period.
            3 => {
                let phase = elapsed % period;
                let half = period.div_ceil(2);
                let into = if phase < half { phase } else { phase - half };
                (period & !1).saturating_sub(into * 2)
            }
            _ => (period + modulus - elapsed % modulus) % modulus,
        } % modulus;
        if self.bcd {
            (0..4).fold(0, |bcd, digit| {
                bcd | ((count / 10u64.pow(digit) % 10) as u16) << (digit * 4)
            })
        } else {
            count as u16
        }
    }

    /// The OUT pin.
    pub(super) fn out(&self, clock: u64) -> bool {
        let Some(elapsed) = self.elapsed(clock) else {
            // Mode 0 starts low, the others idle high.
            return self.mode != 0;
        };
        let period = self.period();
        if self.periodic() && !self.gate {
            return true;
        }
        match self.mode {
            0 | 1 => elapsed >= period,
            2 => elapsed % period != period - 1,
            3 => elapsed % period < period.div_ceil(2),
            _ => elapsed != period,
        }
    }

    /// The next clock after `clock` at which OUT rises.
    pub(super) fn next_rise(&self, clock: u64) -> Option<u64> {
        let start = self.start.filter(|_| self.paused.is_none())?;
        let period = self.period();
        let rise = match self.mode {
            0 | 1 => start.checked_add(period)?,
            2 | 3 => start
                .checked_add((clock.saturating_sub(start) / period + 1).checked_mul(period)?)?,
            _ => start.checked_add(period + 1)?,
        };
        (rise > clock).then_some(rise)
    }

    pub(super) fn set_control(&mut self, value: u8) {
        self.access = match value >> 4 & 3 {
            1 => Access::Low,
            2 => Access::High,
            _ => Access::LowHigh,
        };
        self.mode = match value >> 1 & 7 {
            mode @ 0..=5 => mode,
            // Bit 2 is "don't care" in modes 2 and 3.
            mode => mode & 3,
        };
        self.bcd = value & 1 != 0;
        self.reload = 0;
        self.low = None;
        self.read_high = false;
        self.latched_count = None;
        self.latched_status = None;
        self.start = None;
        self.paused = None;
    }

    pub(super) fn write(&mut self, clock: u64, value: u8) {
        self.reload = match (self.access, self.low.take()) {
            (Access::Low, _) => u16::from(value),
            (Access::High, _) => u16::from(value) << 8,
            (Access::LowHigh, Some(low)) => u16::from_le_bytes([low, value]),
            (Access::LowHigh, None) => {
                self.low = Some(value);
                if self.mode == 0 {
                    // The first byte stops the count.
                    self.start = None;
                    self.paused = None;
                }
                return;
            }
        };
        if !self.gate_triggers() {
            self.start = Some(clock);
            self.paused = (!self.gate).then_some(0);
        }
    }

    pub(super) fn read(&mut self, clock: u64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let [low, high] = self
            .latched_count
            .unwrap_or_else(|| self.count(clock))
            .to_le_bytes();
        let (value, done) = match self.access {
            Access::Low => (low, true),
            Access::High => (high, true),
            Access::LowHigh if self.read_high => (high, true),
            Access::LowHigh => (low, false),
        };
        self.read_high = !done;
        if done {
            self.latched_count = None;
        }
        value
    }

    pub(super) fn latch_count(&mut self, clock: u64) {
        if self.latched_count.is_none() {
            self.latched_count = Some(self.count(clock));
        }
    }

    /// Latches the status byte: OUT, null count, and the control word (8254 data sheet, "Read-Back
    /// Command").
    pub(super) fn latch_status(&mut self, clock: u64) {
        let access = match self.access {
            Access::Low => 1,
            Access::High => 2,
            Access::LowHigh => 3,
        };
        let null_count = self.start.is_none();
        let status = u8::from(self.out(clock)) << 7
            | u8::from(null_count) << 6
            | access << 4
            | self.mode << 1
            | u8::from(self.bcd);
        self.latched_status.get_or_insert(status);
    }

    pub(super) fn set_gate(&mut self, clock: u64, gate: bool) {
        if gate == self.gate {
            return;
        }
        self.gate = gate;
        if !gate {
            if !self.gate_triggers() {
                self.paused = self.elapsed(clock);
            }
        } else if self.gate_triggers() || (self.periodic() && self.start.is_some()) {
            self.start = Some(clock);
            self.paused = None;
        } else if let Some(counted) = self.paused.take() {
            self.start = Some(clock.saturating_sub(counted));
        }
    }
}
