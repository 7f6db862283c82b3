//! The calendar of the clock.

use serde::{Deserialize, Serialize};

pub(super) const DAY: i64 = 86_400;
/// The largest value of a register, with half a day added to an hour.
const MAX_FIELD: i64 = 255 + 12;
/// No calculation with a year up to this one overflows.
const MAX_YEAR: u64 = 1 << 37;

/// A civil date and time (UTC, proleptic Gregorian calendar).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Civil {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
}

impl Civil {
    /// Whether the other functions can compute with the fields. A guest can write more than a date
    /// has: 255 to each register, and with a century each carry adds a hundred years.
    pub(super) fn is_possible(self) -> bool {
        let fields = [self.month, self.day, self.hour, self.minute, self.second];
        fields.iter().all(|field| (0..=MAX_FIELD).contains(field))
            && self.year.unsigned_abs() <= MAX_YEAR
    }

    /// Seconds since 1970-01-01. Fields out of range carry over, as they do on the chip.
    pub(super) fn epoch(self) -> i64 {
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

    pub(super) fn from_epoch(epoch: i64) -> Self {
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
    pub(super) fn day_of_week(self) -> i64 {
        (self.epoch().div_euclid(DAY) + 4).rem_euclid(7) + 1
    }
}
