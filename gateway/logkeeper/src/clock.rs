//! Formats times as RFC 3339 text with nine decimals, in UTC; the calendar part is computed once per second.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The length of a timestamp, in bytes. It is constant, so that log lines can be split by column.
pub const STAMP_LEN: usize = 30;

/// The bytes of a timestamp that contain the nanoseconds.
pub(crate) const FRACTION: std::ops::Range<usize> = 20..29;

/// A timestamp in a log line, `2016-10-06T00:17:09.669794202Z`.
pub type Stamp = [u8; STAMP_LEN];

/// Formats times for log lines, and caches the text of the last second.
#[derive(Debug)]
pub(crate) struct Clock {
    second: Option<u64>,
    text: Stamp,
}

// === impl Clock ===

impl Clock {
    pub(crate) const fn new() -> Self {
        Self {
            second: None,
            text: *b"0000-00-00T00:00:00.000000000Z",
        }
    }

    /// The wall clock's time since 1970; zero if the clock is set to an earlier time.
    pub(crate) fn now() -> Duration {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }

    /// Formats a time since 1970; correct up to the year 9999.
    pub(crate) fn format(&mut self, time: Duration) -> &Stamp {
        if self.second != Some(time.as_secs()) {
            self.set_second(time.as_secs());
            self.second = Some(time.as_secs());
        }
        digits(&mut self.text[FRACTION], time.subsec_nanos().into());
        &self.text
    }

    fn set_second(&mut self, second: u64) {
        let (year, month, day) = civil_from_days(second / 86_400);
        let of_day = second % 86_400;
        for (place, value) in [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, of_day / 3600),
            (14..16, of_day / 60 % 60),
            (17..19, of_day % 60),
        ] {
            digits(&mut self.text[place], value);
        }
    }
}

/// Converts days since 1970-01-01 to year, month and day, by eras of 400 years that start in March.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days from 0000-03-01 to 1970-01-01
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Writes `value` in decimal into all of `place`, padded with zeros.
fn digits(place: &mut [u8], mut value: u64) {
    for slot in place.iter_mut().rev() {
        *slot = b'0' + u8::try_from(value % 10).expect("a decimal digit fits a byte");
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(clock: &mut Clock, seconds: i64, nanos: i32) {
        let expected = format!("{:.9}", jiff::Timestamp::new(seconds, nanos).unwrap());
        let time = Duration::new(seconds.try_into().unwrap(), nanos.try_into().unwrap());
        assert_eq!(std::str::from_utf8(clock.format(time)).unwrap(), expected);
    }

    #[test]
    fn leap_days_and_year_ends_agree_with_a_calendar_library() {
        let mut clock = Clock::new();
        for seconds in [
            0,
            951_782_399,
            951_782_400,
            951_868_799,
            951_868_800,
            1_709_164_800,
            4_107_542_399,
        ] {
            check(&mut clock, seconds, 0);
            check(&mut clock, seconds, 999_999_999);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_times_agree_with_a_calendar_library(
            times in proptest::collection::vec((0_i64..253_402_207_200, 0..1_000_000_000), 1..20),
        ) {
            let mut clock = Clock::new();
            for (seconds, nanos) in times {
                check(&mut clock, seconds, nanos);
                check(&mut clock, seconds, 7);
            }
        }
    }
}
