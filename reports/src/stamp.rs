//! A point in time, as RFC 3339 text in UTC with milliseconds: `2026-03-01T12:00:00.250Z`.
//!
//! Time zones, leap seconds and years beyond 9999 are absent. The text has one fixed width, so
//! that the order of the texts is the order of the times.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

const DAY_MS: u64 = 86_400_000;
const LAST_MS: u64 = 253_402_300_799_999; // 9999-12-31T23:59:59.999Z

/// An RFC 3339 UTC time of fixed width, ordered by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Stamp(String);

impl Stamp {
    /// The clock's time, rounded down to the millisecond.
    pub fn now() -> Stamp {
        Stamp::from(SystemTime::now())
    }

    /// The text, 24 bytes of ASCII.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The day alone, `2026-03-01`.
    pub fn date(&self) -> &str {
        &self.0[..10]
    }

    /// Time from `earlier` to this stamp; zero if `earlier` is later.
    pub fn since(&self, earlier: &Stamp) -> Duration {
        let ms = |stamp: &Stamp| parse_ms(&stamp.0).expect("a stamp was parsed when it was made");
        Duration::from_millis(ms(self).saturating_sub(ms(earlier)))
    }
}

impl From<SystemTime> for Stamp {
    /// Times before 1970 or after 9999 become the nearest of these.
    fn from(time: SystemTime) -> Stamp {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = u64::try_from(since.as_millis()).unwrap_or(LAST_MS);
        Stamp(format_ms(ms.min(LAST_MS)))
    }
}

impl TryFrom<String> for Stamp {
    type Error = String;

    fn try_from(text: String) -> Result<Stamp, String> {
        match parse_ms(&text) {
            Some(ms) if format_ms(ms) == text => Ok(Stamp(text)),
            _ => Err(format!("not a UTC time like 2026-03-01T12:00:00.250Z: {text:?}")),
        }
    }
}

impl From<Stamp> for String {
    fn from(stamp: Stamp) -> String {
        stamp.0
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn format_ms(ms: u64) -> String {
    let (year, month, day) = civil_from_days(ms / DAY_MS);
    let of_day = ms % DAY_MS;
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Fields are read where they must stand; the caller rejects all else by formatting the result.
fn parse_ms(text: &str) -> Option<u64> {
    let field = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let seconds = field(11, 13)? * 3600 + field(14, 16)? * 60 + field(17, 19)?;
    let days = days_from_civil(year, month, day);
    Some(days * DAY_MS + seconds * 1000 + field(20, 23)?)
}

/// Days since 1970-01-01 to (year, month, day). A year starts in March, so that the leap day is
/// its last, and 400 of them are 146,097 days.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// The inverse of `civil_from_days`, for years from 1970.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every day of four centuries, forth and back, against a calendar that only counts.
    #[test]
    fn every_day_until_2370() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(civil_from_days(days), (year, month, day), "day {days}");
            assert_eq!(days_from_civil(year, month, day), days, "{year}-{month}-{day}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (2370, 1, 1));
    }
}
