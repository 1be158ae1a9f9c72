//! Tests of the health of a task: docker's rules one by one, and a model for any sequence of results.

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(30);
const START_INTERVAL: Duration = Duration::from_secs(5);

fn schedule(retries: u32, start_period: u64) -> CheckSchedule {
    CheckSchedule {
        interval: INTERVAL,
        retries,
        start_period: Duration::from_secs(start_period),
        start_interval: START_INTERVAL,
    }
}

/// Applies the result of a check that takes no time.
fn check(health: &mut Health, result: CheckResult) -> HealthState {
    let at = health.due();
    health.apply(result, at, at);
    health.state()
}

#[test]
fn task_is_healthy_by_its_first_check_that_passes() {
    let mut health = Health::starting(schedule(3, 0), Duration::ZERO);
    assert_eq!(
        (health.due(), health.state()),
        (INTERVAL, HealthState::Starting)
    );
    assert_eq!(
        check(&mut health, CheckResult::Failed),
        HealthState::Starting
    );
    assert_eq!(health.due(), 2 * INTERVAL);
    assert_eq!(
        check(&mut health, CheckResult::Passed),
        HealthState::Healthy
    );
    assert_eq!(health.due(), 3 * INTERVAL);
}

#[test]
fn failures_count_only_in_a_row() {
    use CheckResult::{Failed, Passed, Unknown};
    let mut health = Health::starting(schedule(2, 0), Duration::ZERO);
    for result in [Failed, Passed, Failed, Passed, Failed, Unknown] {
        assert_ne!(check(&mut health, result), HealthState::Unhealthy);
    }
    assert_eq!(check(&mut health, Failed), HealthState::Unhealthy);
    assert_eq!(
        check(&mut health, Passed),
        HealthState::Unhealthy,
        "it is stopped by then"
    );
}

#[test]
fn failures_do_not_count_in_the_start_period_and_a_success_ends_it() {
    let mut health = Health::starting(schedule(1, 12), Duration::ZERO);
    // After 5 and 10 seconds.
    for _ in 0..2 {
        assert_eq!(health.due().as_secs() % 5, 0);
        assert_eq!(
            check(&mut health, CheckResult::Failed),
            HealthState::Starting
        );
    }
    assert_eq!(health.due(), 3 * START_INTERVAL);
    assert_eq!(
        check(&mut health, CheckResult::Failed),
        HealthState::Unhealthy
    );

    let mut health = Health::starting(schedule(1, 3600), Duration::ZERO);
    assert_eq!(
        check(&mut health, CheckResult::Passed),
        HealthState::Healthy
    );
    assert_eq!(health.due(), START_INTERVAL + INTERVAL);
    assert_eq!(
        check(&mut health, CheckResult::Failed),
        HealthState::Unhealthy
    );
}

#[test]
fn check_that_began_in_the_start_period_belongs_to_it() {
    let mut health = Health::starting(schedule(1, 6), Duration::ZERO);
    let ended = Duration::from_secs(20);
    health.apply(CheckResult::Failed, START_INTERVAL, ended);
    assert_eq!(
        (health.state(), health.due()),
        (HealthState::Starting, ended + INTERVAL)
    );
}

#[test]
fn check_without_a_result_is_repeated_after_growing_pauses() {
    let mut health = Health::running(schedule(1, 0), Duration::ZERO, 0);
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let before = health.due();
        assert_eq!(
            check(&mut health, CheckResult::Unknown),
            HealthState::Healthy
        );
        pauses.push((health.due() - before).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 8]);
    check(&mut health, CheckResult::Passed);
    let before = health.due();
    check(&mut health, CheckResult::Unknown);
    assert_eq!(health.due() - before, RETRY_MIN);
}

#[test]
fn tasks_that_run_already_are_spread_over_one_interval() {
    let now = Duration::from_secs(1000);
    let due = |place| Health::running(schedule(3, 0), now, place).due() - now;
    assert!(due(0) > Duration::ZERO && due(0) < Duration::from_millis(1));
    assert!(due(u16::MAX / 2).abs_diff(INTERVAL / 2) < Duration::from_millis(1));
    assert!(INTERVAL - due(u16::MAX) < Duration::from_millis(1));
}

fn result() -> impl Strategy<Value = CheckResult> {
    prop_oneof![
        Just(CheckResult::Passed),
        Just(CheckResult::Failed),
        Just(CheckResult::Unknown)
    ]
}

proptest! {
    #[test]
    fn state_is_that_of_a_person_who_counts(
        interval in 1..u64::MAX, start_interval in 1..u64::MAX, start_period in any::<u64>(), retries in 1..6_u32,
        is_running in any::<bool>(), place in any::<u16>(), began in any::<u64>(),
        results in proptest::collection::vec((result(), 0..1_000_000_000_u64), 0..30),
    ) {
        let time = Duration::from_millis;
        let schedule = CheckSchedule {
            interval: time(interval),
            retries,
            start_period: time(start_period),
            start_interval: time(start_interval),
        };
        let mut health = if is_running {
            Health::running(schedule, time(began), place)
        } else {
            Health::starting(schedule, time(began))
        };
        prop_assert!(health.due() > time(began));
        let mut counted = Vec::new();
        let mut was_healthy = is_running;
        for (result, took) in results {
            let before = health.state();
            let start = health.due();
            let end = start.saturating_add(time(took));
            health.apply(result, start, end);
            match result {
                CheckResult::Passed => counted.clear(),
                CheckResult::Failed if was_healthy || start >= time(start_period) => counted.push(start),
                CheckResult::Failed | CheckResult::Unknown => {}
            }
            was_healthy |= result == CheckResult::Passed;
            let expected = match (counted.len() >= retries as usize, was_healthy) {
                (true, _) => HealthState::Unhealthy,
                (false, true) => HealthState::Healthy,
                (false, false) => HealthState::Starting,
            };
            prop_assert_eq!(health.state(), expected);
            if expected == HealthState::Unhealthy {
                break;
            }
            if result == CheckResult::Unknown {
                prop_assert_eq!(health.state(), before);
                prop_assert!(health.due() <= end.saturating_add(RETRY_MAX));
            }
            prop_assert!(health.due() > end);
        }
    }
}
