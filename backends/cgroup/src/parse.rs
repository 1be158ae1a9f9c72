//! Parsers for the small files of cgroups: a number, `max`, lines of keys and numbers, and pressure.
//!
//! They accept any text and skip what they cannot parse.

use std::collections::BTreeMap;

use switchyard_core::stats::{Pressure, PressureLine};

/// The lines `key number` of a flat keyed file, for example `memory.stat`.
#[must_use]
pub fn flat_keyed(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key, value.trim().parse().ok()?))
        })
        .collect()
}

/// The lines `major:minor operation number` of the `blkio` files of v1, without the total over all devices at
/// the end.
pub fn device_operations(text: &str) -> impl Iterator<Item = ((u64, u64), &str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let device = words.next()?;
        let operation = words.next()?;
        let value = words.next()?;
        Some((device_number(device)?, operation, value.parse().ok()?))
    })
}

/// The lines `major:minor key=number …` of `io.stat`.
pub fn nested_keyed(text: &str) -> impl Iterator<Item = ((u64, u64), Vec<(&str, u64)>)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let device = device_number(words.next()?)?;
        let pairs = words.filter_map(|word| {
            let (key, value) = word.split_once('=')?;
            Some((key, value.parse().ok()?))
        });
        Some((device, pairs.collect()))
    })
}

fn device_number(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The number in a file; `None` for a negative one.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit of cgroup v2: `None` for `max` and for anything else that is not a number.
#[must_use]
pub fn limit_v2(text: &str) -> Option<u64> {
    number(text)
}

/// A memory limit of cgroup v1: `None` if unlimited, for which the file has the largest multiple of the page
/// size.
#[must_use]
pub fn limit_v1(text: &str) -> Option<u64> {
    const UNLIMITED: u64 = 1 << 62;
    number(text).filter(|limit| *limit < UNLIMITED)
}

/// A pressure file (for example `cpu.pressure`). `None` without a complete `some` line.
#[must_use]
pub fn pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))
            .and_then(pressure_line)
    };
    Some(Pressure {
        some: line("some")?,
        full: line("full"),
    })
}

/// The values of a pressure line, from the text after its kind; `None` if one of them is missing or is not a
/// finite number.
fn pressure_line(text: &str) -> Option<PressureLine> {
    let value = |key: &str| {
        text.split_whitespace()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let share = |key| {
        value(key)?
            .parse::<f64>()
            .ok()
            .filter(|share| share.is_finite())
    };
    Some(PressureLine {
        total_us: value("total")?.parse().ok()?,
        avg10: share("avg10")?,
        avg60: share("avg60")?,
        avg300: share("avg300")?,
    })
}

/// The process ids in a `cgroup.procs` file. Processes of another process namespace appear as 0 and are left
/// out.
#[must_use]
pub fn pids(text: &str) -> Vec<u32> {
    text.lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|pid| *pid != 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unlimited_parses_in_both_forms() {
        assert_eq!(limit_v2("max\n"), None);
        assert_eq!(limit_v2("4096\n"), Some(4096));
        assert_eq!(limit_v1("9223372036854771712\n"), None);
        assert_eq!(limit_v1("9223372036854710272\n"), None);
        assert_eq!(limit_v1("67108864\n"), Some(67_108_864));
        assert_eq!((limit_v1("-1\n"), number("-1\n")), (None, None));
    }

    #[test]
    fn incomplete_pressure_lines_are_absent() {
        let read = pressure("some avg10=1.50 avg60=0.25 avg300=0.00 total=12345\n").unwrap();
        assert_eq!(
            (read.some.avg10, read.some.avg60, read.some.total_us),
            (1.5, 0.25, 12_345)
        );
        assert_eq!(read.full, None);
        let line = "some avg10=1.50 avg60=0.25 avg300=0.00 total=12345\n";
        let shortened = line.replace("some", "full").replace("avg300=0.00 ", "");
        assert_eq!(pressure(&format!("{line}{shortened}")), Some(read));
        for bad in [
            "",
            &line.replace("some", "full"),
            &line.replace(" total=12345", ""),
            &line.replace("12345", "x"),
            &line.replace("0.25", "NaN"),
        ] {
            assert_eq!(pressure(bad), None, "{bad}");
        }
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let read = flat_keyed("a 1\nbroken\nb x\nc 3\n");
        assert_eq!(read.into_iter().collect::<Vec<_>>(), [("a", 1), ("c", 3)]);
        assert_eq!(pids("1\n0\nx\n22\n"), [1, 22]);
    }

    #[test]
    fn io_is_counted_by_device_and_operation() {
        let text = "254:0 Read 4096\n254:0 Total 4096\n8:16 Write 512\nTotal 4608\n";
        let read: Vec<_> = device_operations(text).collect();
        assert_eq!(
            read,
            [
                ((254, 0), "Read", 4096),
                ((254, 0), "Total", 4096),
                ((8, 16), "Write", 512)
            ]
        );
        let text = "254:0 rbytes=4096 wbytes=0 rios=1 bad wios=x\nnone rbytes=1\n8:16\n";
        let read: Vec<_> = nested_keyed(text).collect();
        assert_eq!(
            read,
            [
                ((254, 0), vec![("rbytes", 4096), ("wbytes", 0), ("rios", 1)]),
                ((8, 16), vec![])
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(text in "([a-z0-9= .\n-]|some |full |avg10=|total=|\\PC){0,80}") {
            let _ = (flat_keyed(&text), number(&text), limit_v1(&text), limit_v2(&text), pressure(&text), pids(&text));
            let _ = (device_operations(&text).count(), nested_keyed(&text).count());
        }
    }
}
