//! The timetable of renewals.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::{PAUSE_MAX, PAUSE_MIN, due, pause};
use crate::certificates::ValidityPeriod;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn period(whole: Duration) -> ValidityPeriod {
    let not_before = SystemTime::UNIX_EPOCH + DAY * 20_000;
    ValidityPeriod {
        not_before,
        not_after: not_before + whole,
    }
}

#[test]
fn certificate_of_90_days_is_renewed_between_45_and_72_days() {
    let period = period(DAY * 90);
    assert_eq!(due(period, 0), period.not_before + DAY * 45);
    let last = due(period, (DAY * 27).as_secs() - 1);
    assert!(last < period.not_before + DAY * 72 && last > period.not_before + DAY * 71);
}

#[test]
fn pauses_grow_and_stay_short_while_little_is_left() {
    let pauses: Vec<u64> = (1..5)
        .map(|failures| pause(failures, DAY * 30).as_secs())
        .collect();
    assert_eq!(pauses, [5, 10, 20, 40]);
    assert_eq!(pause(u32::MAX, DAY * 30), PAUSE_MAX);
    assert_eq!(
        pause(100, Duration::from_secs(600)),
        Duration::from_secs(60)
    );
    assert_eq!(pause(100, Duration::ZERO), PAUSE_MIN);
}

proptest! {
    #[test]
    fn renewal_is_always_within_the_certificates_time(seconds in 0_u64..10_000_000_000, random: u64) {
        let period = period(Duration::from_secs(seconds));
        let due = due(period, random);
        prop_assert!(due >= period.not_before && due <= period.not_after);
        prop_assert!(due <= period.not_before + Duration::from_secs(seconds / 100 * 80 + 1));
    }
}

#[test]
fn certificate_that_ends_before_it_begins_is_due_at_once() {
    let reversed = ValidityPeriod {
        not_after: SystemTime::UNIX_EPOCH,
        ..period(DAY)
    };
    assert_eq!(due(reversed, 7), reversed.not_before);
}
