//! The MC146818 real-time clock and its CMOS memory (ports 0x70 and 0x71).
//!
//! The clock starts at a given epoch and runs on virtual time.

use crate::Effects;
use crate::bus::ByteDevice;
use crate::irqchip::IrqLine;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The update-in-progress bit is set this long before the registers change.
const UIP_NS: u64 = 244_000;
const DAY: i64 = 86_400;
/// The end of the year 9999, the last that two pairs of digits can show.
const LAST_EPOCH: u64 = 253_402_300_799;

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
const C_IRQ: u8 = 0x80;
const D_VALID: u8 = 0x80;

/// A civil date and time (UTC, proleptic Gregorian calendar).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    /// Seconds since 1970-01-01. Fields out of range carry over, as they do on the chip.
    fn epoch(self) -> i64 {
        // Years begin in March here, so that the leap day is the last one.
        let months = self.year * 12 + self.month - 3;
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12));
        let days = year * 365 + year.div_euclid(4) - year.div_euclid(100)
            + year.div_euclid(400)
            + (month * 153 + 2) / 5
            + self.day
            - 1
            - 719_468;
        days * DAY + self.hour * 3600 + self.minute * 60 + self.second
    }

    fn from_epoch(epoch: i64) -> Self {
        let (days, second) = (epoch.div_euclid(DAY) + 719_468, epoch.rem_euclid(DAY));
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let month = (march_month + 2) % 12 + 1;
        Self {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * march_month + 2) / 5 + 1,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// 1 for Sunday to 7 for Saturday.
    fn day_of_week(self) -> i64 {
        (self.epoch().div_euclid(DAY) + 4).rem_euclid(7) + 1
    }
}

/// The clock and 114 bytes of memory.
#[derive(Debug)]
pub struct Rtc {
    irq: IrqLine,
    index: u8,
    memory: [u8; 128],
    /// Seconds since 1970 at virtual time zero.
    epoch: i64,
    /// The time registers while status B has SET.
    stopped: Option<Civil>,
    status_a: u8,
    status_b: u8,
    status_c: u8,
    /// Up to when `status_c` is right.
    seen: u64,
}

impl Rtc {
    /// A clock that shows `epoch` seconds since 1970 (no later than the year 9999) at virtual time
    /// zero. `irq` is IRQ 8.
    pub fn new(irq: IrqLine, epoch: u64) -> Self {
        Self {
            irq,
            index: 0,
            memory: [0; 128],
            epoch: epoch.min(LAST_EPOCH) as i64,
            stopped: None,
            status_a: A_RESET,
            status_b: B_24_HOURS,
            status_c: 0,
            seen: 0,
        }
    }

    fn civil(&self, now: u64) -> Civil {
        let seconds = i64::try_from(now / NS_PER_SECOND).unwrap_or(0);
        self.stopped
            .unwrap_or_else(|| Civil::from_epoch(self.epoch.saturating_add(seconds)))
    }

    /// The period of the periodic interrupt in ns (MC146818A table 5).
    fn period(&self) -> Option<u64> {
        let rate = match self.status_a & 0xF {
            0 => return None,
            // The first two selections repeat 256 and 128 Hz.
            low @ 1..=2 => low + 7,
            rate => rate,
        };
        Some((NS_PER_SECOND << (rate - 1)) / 32_768)
    }

    fn encode(&self, value: i64) -> u8 {
        let value = value as u8;
        if self.status_b & B_BINARY != 0 {
            value
        } else {
            ((value / 10) << 4) | (value % 10)
        }
    }

    fn decode(&self, value: u8) -> i64 {
        if self.status_b & B_BINARY != 0 {
            i64::from(value)
        } else {
            i64::from(value >> 4) * 10 + i64::from(value & 0xF)
        }
    }

    fn encode_hour(&self, hour: i64) -> u8 {
        if self.status_b & B_24_HOURS != 0 {
            return self.encode(hour);
        }
        let pm = if hour >= 12 { 0x80 } else { 0 };
        self.encode((hour + 11) % 12 + 1) | pm
    }

    fn decode_hour(&self, value: u8) -> i64 {
        if self.status_b & B_24_HOURS != 0 {
            return self.decode(value);
        }
        let pm = if value & 0x80 != 0 { 12 } else { 0 };
        self.decode(value & 0x7F) % 12 + pm
    }

    fn read_register(&mut self, now: u64) -> (u8, Effects) {
        let mut effects = Effects::empty();
        let t = self.civil(now);
        let value = match self.index {
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
                    now % NS_PER_SECOND >= NS_PER_SECOND - UIP_NS && self.stopped.is_none();
                self.status_a | if updating { A_UIP } else { 0 }
            }
            STATUS_B => self.status_b,
            STATUS_C => {
                effects = self.irq.set(false);
                std::mem::take(&mut self.status_c)
            }
            STATUS_D => D_VALID,
            index => self.memory[usize::from(index)],
        };
        (value, effects)
    }

    fn write_register(&mut self, now: u64, value: u8) -> Effects {
        match self.index {
            SECONDS | MINUTES | HOURS | DAY_OF_WEEK | DAY_OF_MONTH | MONTH | YEAR | CENTURY => {
                self.write_time(now, value);
            }
            STATUS_A => self.status_a = value & !A_UIP,
            STATUS_B => return self.write_status_b(now, value),
            STATUS_C | STATUS_D => {}
            index => self.memory[usize::from(index)] = value,
        }
        Effects::empty()
    }

    fn write_time(&mut self, now: u64, value: u8) {
        let mut t = self.civil(now);
        let n = self.decode(value);
        match self.index {
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
        if self.stopped.is_some() {
            self.stopped = Some(t);
        } else {
            self.set_time(now, t);
        }
    }

    fn set_time(&mut self, now: u64, t: Civil) {
        self.epoch = t.epoch() - i64::try_from(now / NS_PER_SECOND).unwrap_or(0);
    }

    fn write_status_b(&mut self, now: u64, value: u8) -> Effects {
        let set = value & B_SET != 0;
        if set && self.stopped.is_none() {
            self.stopped = Some(self.civil(now));
        } else if !set && let Some(t) = self.stopped.take() {
            self.set_time(now, t);
        }
        // SET clears the update-ended interrupt enable.
        self.status_b = if set { value & !UPDATE } else { value };
        self.update_irq()
    }

    fn update_irq(&mut self) -> Effects {
        let pending = self.status_b & self.status_c & (PERIODIC | ALARM | UPDATE) != 0;
        if pending {
            self.status_c |= C_IRQ;
        } else {
            self.status_c &= !C_IRQ;
        }
        self.irq.set(pending)
    }

    /// The seconds since 1970 of the next alarm after `epoch`. 0xC0 and above in an alarm register
    /// matches anything.
    fn next_alarm(&self, epoch: i64) -> Option<i64> {
        let fields =
            [SECONDS_ALARM, MINUTES_ALARM, HOURS_ALARM].map(|i| self.memory[usize::from(i)]);
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

    /// When each interrupt flag rises next after `self.seen`, in ns.
    fn next_events(&self) -> [(u8, Option<u64>); 3] {
        let running = self.stopped.is_none();
        let second = self.seen / NS_PER_SECOND;
        let update = (second + 1).checked_mul(NS_PER_SECOND).filter(|_| running);
        let alarm = || {
            let base = self.epoch.checked_add(i64::try_from(second).ok()?)?;
            let at = self.next_alarm(base)?.checked_sub(self.epoch)?;
            u64::try_from(at).ok()?.checked_mul(NS_PER_SECOND)
        };
        let periodic = self
            .period()
            .and_then(|p| (self.seen / p + 1).checked_mul(p));
        [
            (PERIODIC, periodic),
            (
                ALARM,
                if running && self.status_b & ALARM != 0 {
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
        if self.status_b & (PERIODIC | ALARM | UPDATE) == 0 {
            return None;
        }
        let enabled = |(flag, at): (u8, Option<u64>)| {
            at.filter(|_| self.status_b & flag != 0 && self.status_c & flag == 0)
        };
        self.next_events().into_iter().filter_map(enabled).min()
    }

    /// Brings the interrupt flags up to `now`.
    pub fn tick(&mut self, now: u64) -> Effects {
        if now <= self.seen {
            return Effects::empty();
        }
        for (flag, at) in self.next_events() {
            if at.is_some_and(|at| at <= now) {
                self.status_c |= flag;
            }
        }
        self.seen = now;
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
            self.index = value & 0x7F;
            Effects::empty()
        } else {
            self.tick(now) | self.write_register(now, value)
        }
    }
}

#[cfg(test)]
mod tests;
