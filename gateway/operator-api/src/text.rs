//! Times, ages, sizes, ids and names as people read them.

use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};

/// Number of digits of a digest that are shown.
const DIGITS: usize = 12;

/// Registries and repositories that a reference need not name.
const IMPLIED: [&str; 2] = ["docker.io/library/", "docker.io/"];

/// A time as RFC 3339; empty if it is out of range.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    Timestamp::try_from(at)
        .map(|at| format!("{at:.3}"))
        .unwrap_or_default()
}

/// Text on one line: control characters become blanks, and characters that are invisible or change the order of others become U+FFFD.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        c if c.is_control() => ' ',
        c if is_invisible(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Returns whether a character is invisible or changes the direction of text: it can make names look alike.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// The first digits of an id, enough to be unique on a node; commands accept them as an id.
#[must_use]
pub fn short(id: &str) -> String {
    id.chars().take(13).collect()
}

/// The age of a time that is given as RFC 3339, in its largest unit, such as `5m`; the text itself if it is
/// no time.
#[must_use]
pub fn age(at: &str, now: Timestamp) -> String {
    let Ok(at) = at.parse::<Timestamp>() else {
        return at.to_owned();
    };
    // A clock that was set back makes the past the future.
    let seconds = (now.as_second() - at.as_second()).max(0);
    duration(seconds.unsigned_abs())
}

/// Parses a time such as `90s`, `10m`, `1h 30m` or `7d`, of a second or more.
///
/// # Errors
/// What is wrong with it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 3600;
    // A day of the calendar may have another length, so that the parser refuses it.
    let days = text
        .trim()
        .strip_suffix('d')
        .and_then(|days| days.parse::<u32>().ok());
    let time = match days {
        Some(days) => Duration::from_secs(DAY * u64::from(days)),
        None => {
            let time: SignedDuration = text
                .parse()
                .map_err(|error| format!("{error}; write it as 90s, 10m, 2h or 7d"))?;
            Duration::try_from(time).map_err(|_| "it is negative".to_owned())?
        }
    };
    if time < Duration::from_secs(1) {
        Err("it is less than a second".to_owned())
    } else {
        Ok(time)
    }
}

/// A number of seconds in its largest unit, such as `5m`.
#[must_use]
pub fn duration(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    // One of a unit is shown in the smaller one, as kubectl does: 119 seconds, not one minute.
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / MINUTE),
        7_200..172_800 => format!("{}h", seconds / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

/// Thousandths of a processor as a decimal, `1.50`.
#[must_use]
pub fn processors(milli: u64) -> String {
    format!("{}.{:02}", milli / 1000, milli % 1000 / 10)
}

/// A size in the largest unit in which it is at least 1.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut tenths = bytes.saturating_mul(10);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A reference as people write it: without the registry if that is the default one, and with the beginning of a
/// digest.
#[must_use]
pub fn short_reference(reference: &str) -> String {
    let implied = IMPLIED
        .iter()
        .find_map(|prefix| reference.strip_prefix(prefix));
    let reference = implied.unwrap_or(reference);
    match reference.split_once("@sha256:") {
        Some((name, digest)) => format!("{name}@{}", first_digits(digest)),
        None => short_digest(reference).to_owned(),
    }
}

/// The beginning of a digest; another text as it is.
#[must_use]
pub fn short_digest(digest: &str) -> &str {
    digest.strip_prefix("sha256:").map_or(digest, first_digits)
}

fn first_digits(digest: &str) -> &str {
    digest.get(..DIGITS).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_shown_as_people_write_them() {
        let digest = "0123456789abcdef".repeat(4);
        for (reference, expected) in [
            (
                "docker.io/library/busybox:latest",
                "busybox:latest".to_owned(),
            ),
            ("docker.io/acme/web:1", "acme/web:1".to_owned()),
            (
                "127.0.0.1:5000/library/busybox:1",
                "127.0.0.1:5000/library/busybox:1".to_owned(),
            ),
            (
                &format!("ghcr.io/a/b@sha256:{digest}"),
                "ghcr.io/a/b@0123456789ab".to_owned(),
            ),
            (&format!("sha256:{digest}"), "0123456789ab".to_owned()),
            ("sha256:ä", "ä".to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(short_reference(reference), expected, "{reference}");
        }
    }

    #[test]
    fn names_cannot_end_a_line_or_look_like_another_name() {
        assert_eq!(
            printable("a\u{202e}b\nc\u{200b}d\u{1b}[31m é"),
            "a\u{fffd}b c\u{fffd}d [31m é"
        );
    }

    #[test]
    fn a_time_needs_a_unit_and_a_second() {
        for (text, seconds) in [
            ("90s", 90),
            ("1h 30m", 5400),
            ("24h", 86_400),
            ("7d", 604_800),
            (" 2d", 172_800),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["10", "-5m", "-1d", "0d", "1.5d", "d", "200ms", "soon", ""] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_and_sizes_are_human_readable() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        for (at, expected) in [
            ("2026-11-26T12:00:00.500Z", "0s"),
            ("2026-11-26T13:00:00Z", "0s"),
            ("2026-11-26T11:58:01Z", "119s"),
            ("2026-11-26T11:58:00Z", "2m"),
            ("2026-11-26T10:00:01Z", "119m"),
            ("2026-11-26T10:00:00Z", "2h"),
            ("2026-11-24T12:00:00Z", "2d"),
            ("2025-11-26T12:00:00Z", "365d"),
            ("", ""),
            ("soon", "soon"),
        ] {
            assert_eq!(age(at, now), expected, "{at}");
        }
        assert_eq!(
            (processors(2_550), processors(9)),
            ("2.55".to_owned(), "0.00".to_owned())
        );
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
        ];
        for (bytes, expected) in sizes {
            assert_eq!(size(bytes), expected);
        }
    }
}
