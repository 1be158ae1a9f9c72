//! Durations in Go's format: `300ms`, `1h30m`, `1.5h`.

use std::time::Duration;

const UNITS: [(&str, u64); 8] = [
    // Units that begin with another unit come first.
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

/// Parses a duration; `None` if it is malformed, negative, or longer than 292 years.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos: u64 = 0;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let (unit, each) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit))?;
        nanos = nanos.checked_add(part(number, *each)?)?;
        rest = &tail[unit.len()..];
        if rest.is_empty() {
            return i64::try_from(nanos)
                .is_ok()
                .then(|| Duration::from_nanos(nanos));
        }
    }
}

/// `number` units of `each` nanoseconds. Fractions of a nanosecond are dropped.
fn part(number: &str, each: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut nanos = whole.checked_mul(each)?;
    let mut share = each;
    for digit in fraction.chars() {
        let digit = u64::from(digit.to_digit(10)?);
        nanos = nanos.checked_add(share / 10 * digit + share % 10 * digit / 10)?;
        share /= 10;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_parse_as_in_go() {
        for (text, millis) in [
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("300ms", 300),
            ("90s", 90_000),
            ("0", 0),
            ("0s", 0),
            ("+2s", 2_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("2000us", 2),
            ("2000µs", 2),
            ("3000000ns", 3),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_duration_is_none() {
        for text in [
            "",
            "5",
            "m",
            "5x",
            "-5m",
            ".",
            ".s",
            "5m3",
            "1.2.3s",
            "5 m",
            "3000000h",
            "99999999999999999999s",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_as_a_duration_or_none(text in "\\PC{0,12}|[0-9.hmsnµ]{0,12}") {
            let _ = parse(&text);
        }

        #[test]
        fn duration_units_add_up(hours in 0_u64..1000, minutes in 0_u64..60, seconds in 0_u64..60) {
            let text = format!("{hours}h{minutes}m{seconds}s");
            prop_assert_eq!(parse(&text), Some(Duration::from_secs(hours * 3600 + minutes * 60 + seconds)));
        }
    }
}
