//! Times as people type them: of the day, of the node's time zone, or how long ago.

use std::env;
use std::path::{Path, PathBuf};

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use switchyard_node_files as node_files;

/// The time zone of the node.
const LOCAL: &str = "/etc/localtime";

/// The directory of time zones by name.
const ZONES: &str = "/usr/share/zoneinfo";

/// Maximum size of the file of a time zone, in bytes.
const ZONE_MAX: u64 = 64 << 10;

/// A time as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeArg {
    /// A moment.
    At(Timestamp),
    /// A time before now.
    Ago(SignedDuration),
    /// A time of the day.
    OfDay(Time),
    /// The beginning of a day.
    Day(Date),
}

/// Parses a time of the day, a day, a moment, or how long ago.
pub(super) fn parse(text: &str) -> Result<TimeArg, String> {
    if let Ok(at) = text.parse() {
        return Ok(TimeArg::At(at));
    }
    let is_of_digits = |apart: char| text.chars().all(|c| c.is_ascii_digit() || c == apart);
    if text.contains(':')
        && is_of_digits(':')
        && let Ok(time) = text.parse()
    {
        return Ok(TimeArg::OfDay(time));
    }
    if text.contains('-')
        && is_of_digits('-')
        && let Ok(day) = text.parse()
    {
        return Ok(TimeArg::Day(day));
    }
    let ago = text.parse::<SignedDuration>().ok();
    ago.filter(|ago| !ago.is_negative())
        .map(TimeArg::Ago)
        .ok_or_else(|| {
            "write it as 03:00, as 2026-11-26, as 2026-11-26T10:00:00Z, or as 90s, 10m or 2h ago"
                .to_owned()
        })
}

/// The time zone of the node, or of `TZ`; UTC if neither can be read.
pub(super) fn zone() -> TimeZone {
    let named = env::var("TZ").ok().filter(|name| !name.is_empty());
    let zone = match named.as_deref() {
        None => zone_in(Path::new(LOCAL)),
        Some(name) => {
            let name = name.trim_start_matches(':');
            zone_in(&PathBuf::from(ZONES).join(name)).or_else(|| TimeZone::posix(name).ok())
        }
    };
    zone.unwrap_or(TimeZone::UTC)
}

fn zone_in(file: &Path) -> Option<TimeZone> {
    let data = node_files::read(file, ZONE_MAX).ok()?;
    TimeZone::tzif("local", &data).ok()
}

// === impl TimeArg ===

impl TimeArg {
    /// The moment; of a time of the day the last one before now. Pure.
    pub(super) fn last_before(self, now: Timestamp, zone: &TimeZone) -> Timestamp {
        self.moment(now, zone, |time| {
            let today = now.to_zoned(zone.clone()).date();
            let yesterday = today.saturating_sub(1.day());
            moment(today, time, zone)
                .filter(|at| *at <= now)
                .or_else(|| moment(yesterday, time, zone))
        })
    }

    /// The moment; of a time of the day the first one after another moment. Pure.
    pub(super) fn first_after(
        self,
        begin: Timestamp,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Timestamp {
        self.moment(now, zone, |time| {
            let day = begin.to_zoned(zone.clone()).date();
            let next = day.saturating_add(1.day());
            moment(day, time, zone)
                .filter(|at| *at > begin)
                .or_else(|| moment(next, time, zone))
        })
    }

    fn moment(
        self,
        now: Timestamp,
        zone: &TimeZone,
        of_day: impl FnOnce(Time) -> Option<Timestamp>,
    ) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
            Self::Day(day) => moment(day, Time::midnight(), zone).unwrap_or(now),
            Self::OfDay(time) => of_day(time).unwrap_or(now),
        }
    }
}

/// The moment of a time on a day; one that the change to summer time leaves out is an hour later.
fn moment(day: Date, time: Time, zone: &TimeZone) -> Option<Timestamp> {
    let zoned = zone.to_zoned(day.to_datetime(time)).ok()?;
    Some(zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cet() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    #[track_caller]
    fn check_since(text: &str, now: &str, expected: &str) {
        let since = parse(text).unwrap().last_before(at(now), &cet());
        assert_eq!(since, at(expected), "{text} at {now}");
    }

    #[test]
    fn time_of_the_day_is_the_last_one_in_the_zone_of_the_node() {
        check_since("03:00", "2026-11-29T08:00:00Z", "2026-11-29T02:00:00Z");
        check_since("22:30:15", "2026-11-29T08:00:00Z", "2026-11-28T21:30:15Z");
        check_since("00:10", "2026-11-28T23:05:00Z", "2026-11-27T23:10:00Z");
        // Summer time begins: 02:30 does not exist.
        check_since("02:30", "2026-03-29T08:00:00Z", "2026-03-29T01:30:00Z");
        check_since("2026-11-26", "2026-11-29T08:00:00Z", "2026-11-25T23:00:00Z");
        check_since("90m", "2026-11-29T08:00:00Z", "2026-11-29T06:30:00Z");
        let moment = "2026-11-26T10:00:00Z";
        check_since(moment, "2026-11-29T08:00:00Z", moment);
    }

    #[test]
    fn end_of_a_range_is_the_first_one_after_its_begin() {
        let until = |begin: &str, text: &str| {
            let now = at("2026-11-29T23:30:00Z");
            let time = parse(text).unwrap();
            time.first_after(at(begin), now, &cet())
        };
        let begin = "2026-11-28T22:00:00Z";
        assert_eq!(until(begin, "23:30"), at("2026-11-28T22:30:00Z"));
        assert_eq!(until(begin, "01:00"), at("2026-11-29T00:00:00Z"));
        assert_eq!(until(begin, "10m"), at("2026-11-29T23:20:00Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "soon",
            "25:00",
            "03",
            "3:0",
            "2026-13-01",
            "-5m",
            "5",
            "T03:00",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
