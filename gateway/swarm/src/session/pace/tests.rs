//! The pauses between sessions.

use std::time::Duration;

use tokio::time::Instant;

use super::{Cause, Pace};
use crate::status::Reaction;

const LONG: u64 = u64::MAX;

#[test]
fn pauses_grow_to_eight_seconds_and_begin_anew_after_a_session() {
    let now = Instant::now();
    let mut pace = Pace::default();
    let mut limits = || {
        let pause = pace.next(Cause::Failed(Reaction::OtherManager), now, LONG);
        assert!(pause < pace.limit);
        pace.limit.as_millis()
    };
    let grown: Vec<u128> = (0..9).map(|_| limits()).collect();
    assert_eq!(grown, [100, 300, 700, 1500, 3100, 6300, 8000, 8000, 8000]);
    pace.registered(now);
    pace.next(Cause::Failed(Reaction::OtherManager), now, LONG);
    assert_eq!(pace.limit.as_millis(), 100);
}

#[test]
fn third_registration_within_eight_seconds_waits() {
    let start = Instant::now();
    let mut pace = Pace::default();
    pace.registered(start);
    pace.registered(start + Duration::from_secs(1));
    let now = start + Duration::from_secs(2);
    assert_eq!(
        pace.next(Cause::Failed(Reaction::NewSession), now, 0),
        Duration::from_secs(6)
    );
    let later = start + Duration::from_secs(9);
    assert_eq!(
        pace.next(Cause::Failed(Reaction::NewSession), later, 0),
        Duration::ZERO
    );
}

#[test]
fn new_certificate_waits_a_second() {
    let mut pace = Pace::default();
    let now = Instant::now();
    assert_eq!(
        pace.next(Cause::Certificate, now, 0),
        Duration::from_secs(1)
    );
}

#[test]
fn refused_registration_is_tried_each_second_until_the_manager_counts_from_zero() {
    let mut pace = Pace::default();
    let now = Instant::now();
    let refused = Cause::Failed(Reaction::SlowDown);
    for seconds in 0..20 {
        // The daemon before this one has registered three times; this one is refused from its first try on.
        let now = now + Duration::from_secs(seconds);
        assert_eq!(pace.next(refused, now, LONG), Duration::from_secs(1));
    }
    // The refusals do not count as failures of the manager.
    assert!(
        pace.next(Cause::Failed(Reaction::OtherManager), now, LONG) < Duration::from_millis(100)
    );
}

#[test]
fn three_displacements_in_five_minutes_are_another_node_with_the_same_identity() {
    let mut pace = Pace::default();
    let start = Instant::now();
    let displaced = Cause::Failed(Reaction::Displaced);
    for seconds in [0, 10] {
        let now = start + Duration::from_secs(seconds);
        assert!(pace.next(displaced, now, LONG) < Duration::from_secs(8));
        assert!(!pace.is_duplicate(now));
    }
    let now = start + Duration::from_secs(20);
    assert_eq!(pace.next(displaced, now, 0), Duration::from_secs(30));
    assert!(pace.is_duplicate(now));
    let until = pace.duplicate_until().expect("there is another one");
    assert_eq!(until, start + Duration::from_secs(300));
    assert!(!pace.is_duplicate(until));
    let mut rare = Pace::default();
    for hours in 0..10 {
        let now = start + Duration::from_secs(3600 * hours);
        let _ = rare.next(displaced, now, 0);
        assert!(!rare.is_duplicate(now));
    }
}
