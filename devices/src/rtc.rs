//! The MC146818 real-time clock and its CMOS memory (ports 0x70 and 0x71).
//!
//! The clock starts at a given epoch and runs on virtual time.

mod civil;

use serde::{Deserialize, Serialize};

use crate::bus::ByteDevice;
use crate::irqchip::IrqLine;
use crate::state::{check, check_bits};
use crate::{Effects, StateError};
use civil::Civil;

const DEVICE: &str = "the real-time clock";

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The update-in-progress bit is set this long before the registers change.
const UIP_NS: u64 = 244_000;
/// The end of the year 9999, the last that two pairs of digits can show.
const LAST_EPOCH: u64 = 253_402_300_799;
/// No calculation with seconds since 1970 up to this number, or down to its negative, overflows.
const MAX_EPOCH: u64 = 1 << 62;

const SECONDS: u8 = 0x00;
const SECONDS_ALARM: u8 = 0x01;
const MINUTES: u8 = 0x02;
const MINUTES_ALARM: u8 = 0x03;
const HOURS: u8 = 0x04;
const HOURS_ALARM: u8 = 0x05;
const DAY_OF_WEEK: u8 = 0x06;
const DAY_OF_MONTH: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0A;
const STATUS_B: u8 = 0x0B;
const STATUS_C: u8 = 0x0C;
const STATUS_D: u8 = 0x0D;
const CENTURY: u8 = 0x32;

const A_UIP: u8 = 0x80;
/// Divider on, periodic rate 1024 Hz.
const A_RESET: u8 = 0x26;
const B_24_HOURS: u8 = 0x02;
const B_BINARY: u8 = 0x04;
const B_SET: u8 = 0x80;
/// Interrupt bits of status B (enables) and C (flags): periodic, alarm, update ended.
const PERIODIC: u8 = 0x40;
const ALARM: u8 = 0x20;
const UPDATE: u8 = 0x10;
const FLAGS: u8 = PERIODIC | ALARM | UPDATE;
/// Bit of status C: an enabled interrupt flag is set.
const C_IRQF: u8 = 0x80;
const D_VALID: u8 = 0x80;

/// State of the clock and its memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtcState {
    index: u8,
    /// The registers that are memory, in rows of 16.
    memory: [[u8; 16]; 8],
    /// Seconds since 1970 at virtual time zero.
    epoch: i64,
    /// The time registers while status B has SET.
    stopped: Option<Civil>,
    status_a: u8,
    status_b: u8,
    /// The interrupt flags. IRQF follows from them and status B.
    status_c: u8,
    /// The virtual time in ns at which the interrupt flags were brought up to date.
    seen: u64,
}

impl RtcState {
    /// Refuses a state that the clock never has.
    fn check(&self) -> Result<(), StateError> {
        check_bits(DEVICE, "register index", self.index, 0x7F)?;
        check_bits(DEVICE, "status A", self.status_a, (!A_UIP).into())?;
        check_bits(DEVICE, "status C", self.status_c, FLAGS.into())?;
        let epoch = self.epoch;
        let possible = epoch.unsigned_abs() <= MAX_EPOCH;
        check(DEVICE, "epoch", epoch as u64, possible)?;
        let set = self.status_b & B_SET != 0;
        let consistent = set == self.stopped.is_some();
        check(DEVICE, "status B", self.status_b, consistent)?;
        match self.stopped {
            Some(time) if !time.is_possible() => Err(StateError::restore(
                DEVICE,
                format!("its time registers cannot be {time:?}"),
            )),
            _ => Ok(()),
        }
    }

    fn memory(&self, index: u8) -> u8 {
        let row = self.memory.get(usize::from(index >> 4));
        row.map_or(0, |row| row[usize::from(index & 0xF)])
    }

    fn set_memory(&mut self, index: u8, value: u8) {
        if let Some(row) = self.memory.get_mut(usize::from(index >> 4)) {
            row[usize::from(index & 0xF)] = value;
        }
    }

    /// Whether an enabled interrupt flag is set: the level of the interrupt line.
    fn interrupts(&self) -> bool {
        self.status_b & self.status_c & FLAGS != 0
    }
}

/// The clock and 114 bytes of memory.
#[derive(Debug)]
pub struct Rtc {
    state: RtcState,
    irq: IrqLine,
}

impl Rtc {
    /// A clock that shows `epoch` seconds since 1970 (no later than the year 9999) at virtual time
    /// zero. `irq` is IRQ 8.
    pub fn new(irq: IrqLine, epoch: u64) -> Self {
        Self {
            state: RtcState {
                index: 0,
                memory: [[0; 16]; 8],
                epoch: epoch.min(LAST_EPOCH) as i64,
                stopped: None,
                status_a: A_RESET,
                status_b: B_24_HOURS,
                status_c: 0,
                seen: 0,
            },
            irq,
        }
    }

    /// The state of the clock and its memory.
    pub fn state(&self) -> RtcState {
        self.state.clone()
    }

    /// Puts the clock and its memory into `state`.
    ///
    /// # Errors
    /// The clock never has such a state.
    pub fn restore(&mut self, state: &RtcState) -> Result<(), StateError> {
        state.check()?;
        self.state = state.clone();
        self.irq.restore(self.state.interrupts());
        Ok(())
    }

    fn civil(&self, now: u64) -> Civil {
        let seconds = i64::try_from(now / NS_PER_SECOND).unwrap_or(0);
        self.state
            .stopped
            .unwrap_or_else(|| Civil::from_epoch(self.state.epoch.saturating_add(seconds)))
    }

    /// The period of the periodic interrupt in ns (MC146818A table 5).
    fn period(&self) -> Option<u64> {
        let rate = match self.state.status_a & 0xF {
            0 => return None,
            // The first two selections repeat 256 and 128 Hz.
            low @ 1..=2 => low + 7,
            rate => rate,
        };
        Some((NS_PER_SECOND << (rate - 1)) / 32_768)
    }

    fn encode(&self, value: i64) -> u8 {
        let value = value as u8;
        if self.state.status_b & B_BINARY != 0 {
            value
        } else {
            ((value / 10) << 4) | (value % 10)
        }
    }

    fn decode(&self, value: u8) -> i64 {
        if self.state.status_b & B_BINARY != 0 {
            i64::from(value)
        } else {
            i64::from(value >> 4) * 10 + i64::from(value & 0xF)
        }
    }

    fn encode_hour(&self, hour: i64) -> u8 {
        if self.state.status_b & B_24_HOURS != 0 {
            return self.encode(hour);
        }
        let pm = if hour >= 12 { 0x80 } else { 0 };
        self.encode((hour + 11) % 12 + 1) | pm
    }

    fn decode_hour(&self, value: u8) -> i64 {
        if self.state.status_b & B_24_HOURS != 0 {
            return self.decode(value);
        }
        let pm = if value & 0x80 != 0 { 12 } else { 0 };
        self.decode(value & 0x7F) % 12 + pm
    }

    fn read_register(&mut self, now: u64) -> (u8, Effects) {
        let mut effects = Effects::empty();
        let t = self.civil(now);
        let value = match self.state.index {
            SECONDS => self.encode(t.second),
            MINUTES => self.encode(t.minute),
            HOURS => self.encode_hour(t.hour),
            DAY_OF_WEEK => self.encode(t.day_of_week()),
            DAY_OF_MONTH => self.encode(t.day),
            MONTH => self.encode(t.month),
            YEAR => self.encode(t.year.rem_euclid(100)),
            CENTURY => self.encode(t.year.div_euclid(100).rem_euclid(100)),
            STATUS_A => {
                let updating =
                    now % NS_PER_SECOND >= NS_PER_SECOND - UIP_NS && self.state.stopped.is_none();
                self.state.status_a | if updating { A_UIP } else { 0 }
            }
            STATUS_B => self.state.status_b,
            STATUS_C => {
                let irqf = if self.state.interrupts() { C_IRQF } else { 0 };
                effects = self.irq.set(false);
                std::mem::take(&mut self.state.status_c) | irqf
            }
            STATUS_D => D_VALID,
            index => self.state.memory(index),
        };
        (value, effects)
    }

    fn write_register(&mut self, now: u64, value: u8) -> Effects {
        match self.state.index {
            SECONDS | MINUTES | HOURS | DAY_OF_WEEK | DAY_OF_MONTH | MONTH | YEAR | CENTURY => {
                self.write_time(now, value);
            }
            STATUS_A => self.state.status_a = value & !A_UIP,
            STATUS_B => return self.write_status_b(now, value),
            STATUS_C | STATUS_D => {}
            index => self.state.set_memory(index, value),
        }
        Effects::empty()
    }

    fn write_time(&mut self, now: u64, value: u8) {
        let mut t = self.civil(now);
        let n = self.decode(value);
        match self.state.index {
            SECONDS => t.second = n,
            MINUTES => t.minute = n,
            HOURS => t.hour = self.decode_hour(value),
            DAY_OF_MONTH => t.day = n,
            MONTH => t.month = n,
            YEAR => t.year += n - t.year.rem_euclid(100),
            CENTURY => t.year = n * 100 + t.year.rem_euclid(100),
            // The day of the week follows from the date.
            _ => {}
        }
        if self.state.stopped.is_some() {
            self.state.stopped = Some(t);
        } else {
            self.set_time(now, t);
        }
    }

    fn set_time(&mut self, now: u64, t: Civil) {
        self.state.epoch = t.epoch() - i64::try_from(now / NS_PER_SECOND).unwrap_or(0);
    }

    fn write_status_b(&mut self, now: u64, value: u8) -> Effects {
        let set = value & B_SET != 0;
        if set && self.state.stopped.is_none() {
            self.state.stopped = Some(self.civil(now));
        } else if !set && let Some(t) = self.state.stopped.take() {
            self.set_time(now, t);
        }
        // SET clears the update-ended interrupt enable.
        self.state.status_b = if set { value & !UPDATE } else { value };
        self.update_irq()
    }

    fn update_irq(&mut self) -> Effects {
        self.irq.set(self.state.interrupts())
    }

    /// The seconds since 1970 of the next alarm after `epoch`. 0xC0 and above in an alarm register
    /// matches anything.
    fn next_alarm(&self, epoch: i64) -> Option<i64> {
        let fields = [SECONDS_ALARM, MINUTES_ALARM, HOURS_ALARM].map(|i| self.state.memory(i));
        let matches = |field: u8, value: i64| field >= 0xC0 || self.decode(field) == value;
        let hour_matches = |hour: i64| fields[2] >= 0xC0 || self.decode_hour(fields[2]) == hour;
        let second = (0..60).find(|s| matches(fields[0], *s))?;
        let same_minute = (epoch + 1..epoch + 61)
            .find(|e| matches(fields[0], e.rem_euclid(60)) && self.alarm_minute(*e, &fields));
        if same_minute.is_some() {
            return same_minute;
        }
        let first = epoch.div_euclid(60) + 1;
        (first..=first + 1440)
            .find(|m| {
                matches(fields[1], m.rem_euclid(60))
                    && hour_matches(m.div_euclid(60).rem_euclid(24))
            })
            .map(|m| m * 60 + second)
    }

    fn alarm_minute(&self, epoch: i64, fields: &[u8; 3]) -> bool {
        let (minute, hour) = (
            epoch.div_euclid(60).rem_euclid(60),
            epoch.div_euclid(3600).rem_euclid(24),
        );
        (fields[1] >= 0xC0 || self.decode(fields[1]) == minute)
            && (fields[2] >= 0xC0 || self.decode_hour(fields[2]) == hour)
    }

    /// When each interrupt flag rises next after `self.state.seen`, in ns.
    fn next_events(&self) -> [(u8, Option<u64>); 3] {
        let running = self.state.stopped.is_none();
        let second = self.state.seen / NS_PER_SECOND;
        let update = (second + 1).checked_mul(NS_PER_SECOND).filter(|_| running);
        let alarm = || {
            let base = self.state.epoch.checked_add(i64::try_from(second).ok()?)?;
            let at = self.next_alarm(base)?.checked_sub(self.state.epoch)?;
            u64::try_from(at).ok()?.checked_mul(NS_PER_SECOND)
        };
        let periodic = self
            .period()
            .and_then(|p| (self.state.seen / p + 1).checked_mul(p));
        [
            (PERIODIC, periodic),
            (
                ALARM,
                if running && self.state.status_b & ALARM != 0 {
                    alarm()
                } else {
                    None
                },
            ),
            (UPDATE, update),
        ]
    }

    /// When [`tick`](Self::tick) has to be called next, in ns: the next enabled interrupt.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.state.status_b & FLAGS == 0 {
            return None;
        }
        let enabled = |(flag, at): (u8, Option<u64>)| {
            at.filter(|_| self.state.status_b & flag != 0 && self.state.status_c & flag == 0)
        };
        self.next_events().into_iter().filter_map(enabled).min()
    }

    /// Brings the interrupt flags up to `now`.
    pub fn tick(&mut self, now: u64) -> Effects {
        if now <= self.state.seen {
            return Effects::empty();
        }
        for (flag, at) in self.next_events() {
            if at.is_some_and(|at| at <= now) {
                self.state.status_c |= flag;
            }
        }
        self.state.seen = now;
        self.update_irq()
    }
}

impl ByteDevice for Rtc {
    fn read_byte(&mut self, now: u64, offset: u64) -> (u8, Effects) {
        // The index register is write-only.
        if offset == 0 {
            return (0xFF, Effects::empty());
        }
        let ticked = self.tick(now);
        let (value, effects) = self.read_register(now);
        (value, ticked | effects)
    }

    fn write_byte(&mut self, now: u64, offset: u64, value: u8) -> Effects {
        if offset == 0 {
            // Bit 7 would mask NMIs at the chip set; this one has no such source.
            self.state.index = value & 0x7F;
            Effects::empty()
        } else {
            self.tick(now) | self.write_register(now, value)
        }
    }
}

#[cfg(test)]
mod tests;
