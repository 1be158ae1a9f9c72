//! Durations in protocol messages.

use std::time::Duration;

/// The interval of a stream if the agent sets none, or an invalid one.
const USUAL: Duration = Duration::from_secs(1);

/// The bounds of the interval of a stream.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration; zero if it is negative or missing.
pub(crate) fn duration(time: Option<prost_types::Duration>) -> Duration {
    let prost_types::Duration { seconds, nanos } = time.unwrap_or_default();
    // The conversion of prost overflows for the smallest number.
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
        (Err(_), _) | (_, Err(_)) => Duration::ZERO,
    }
}

/// The interval of a stream: the requested one, within bounds.
pub(crate) fn interval(requested: Option<prost_types::Duration>) -> Duration {
    match duration(requested) {
        Duration::ZERO => USUAL,
        requested => requested.clamp(SHORTEST, LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos })
    }

    #[test]
    fn invalid_duration_is_none() {
        for none in [
            None,
            wire(0, 0),
            wire(-1, 0),
            wire(0, -5),
            wire(i64::MIN, i32::MIN),
        ] {
            assert_eq!(duration(none), Duration::ZERO, "{none:?}");
        }
        assert_eq!(duration(wire(2, 500_000_000)), Duration::from_millis(2500));
        assert!(duration(wire(i64::MAX, i32::MAX)) > LONGEST);
    }

    #[test]
    fn stream_intervals_are_clamped() {
        for usual in [None, wire(0, 0), wire(-3, 0)] {
            assert_eq!(interval(usual), USUAL, "{usual:?}");
        }
        assert_eq!(interval(wire(0, 1)), SHORTEST);
        assert_eq!(interval(wire(10, 0)), Duration::from_secs(10));
        assert_eq!(interval(wire(i64::MAX, 0)), LONGEST);
    }
}
