//! The date at which a traced program starts.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, NaiveDate, NaiveTime};

use vbts_host::exit::Failure;
use vbts_vmm::launch::source_date_epoch;

/// The latest date that Linux accepts for its clock, in seconds since 1970: 30 years, which it
/// reserves for the machine's uptime, before the last one that 64 bits of nanoseconds can show.
const LATEST: i64 = 8_277_292_035;

/// Parses seconds since 1970, or a date of RFC 3339 with or without a time.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let seconds = if let Ok(seconds) = text.parse::<i64>() {
        seconds
    } else if let Ok(date) = text.parse::<NaiveDate>() {
        date.and_time(NaiveTime::MIN).and_utc().timestamp()
    } else {
        // The guest's seconds begin when those of its uptime do: virtual time is the same for each
        // date.
        DateTime::parse_from_rfc3339(text)
            .ok()
            .filter(|date| date.timestamp_subsec_nanos() == 0)
            .map(|date| date.timestamp())
            .ok_or("write whole seconds since 1970, or a date such as 2026-01-31T12:00:00Z")?
    };
    if (0..=LATEST).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("Linux has dates from 1970 to April 2232".into())
    }
}

/// The date of the guest at its boot, in seconds since 1970: `given`, else `SOURCE_DATE_EPOCH`,
/// else the host's, rounded up so that no file of the host is from the future.
///
/// # Errors
/// `SOURCE_DATE_EPOCH` is not a date.
pub(super) fn date(given: Option<i64>) -> Result<i64, Failure> {
    let date = match (given, source_date_epoch()?) {
        (Some(date), _) => return Ok(date),
        (None, Some(date)) => date,
        (None, None) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            rounded_up(now.unwrap_or_default())
        }
    };
    Ok(i64::try_from(date).unwrap_or(LATEST).min(LATEST))
}

fn rounded_up(time: Duration) -> u64 {
    let seconds = time.as_secs();
    seconds.saturating_add(u64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_several_forms() {
        for (text, seconds) in [
            ("0", 0),
            ("1767225600", 1_767_225_600),
            ("2026-01-01", 1_767_225_600),
            ("2026-01-01T00:00:00Z", 1_767_225_600),
            ("2026-01-01T01:30:00+01:30", 1_767_225_600),
            ("2026-01-01 00:00:01.000Z", 1_767_225_601),
            ("8277292035", LATEST),
        ] {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "now",
            "-1",
            "1969-12-31",
            "8277292036",
            "99999999999999999999",
            "2026-02-30",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.5Z",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_file_of_the_host_is_from_the_future() {
        assert_eq!(rounded_up(Duration::new(5, 0)), 5);
        assert_eq!(rounded_up(Duration::new(5, 1)), 6);
        let now = SystemTime::now();
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(date(Some(7)).unwrap(), 7);
        if std::env::var_os("SOURCE_DATE_EPOCH").is_none() {
            let date = Duration::from_secs(date(None).unwrap().unsigned_abs());
            assert!(date >= now && date < now + Duration::from_secs(60));
        }
    }
}
