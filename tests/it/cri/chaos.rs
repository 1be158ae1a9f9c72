//! A short run of kills at random moments; `tests/chaos` does long ones.

use switchyard_tests::chaos::{Drivers, Settings, run};
use switchyard_tests::host::random_bytes;

#[test]
fn random_kills_lose_no_acknowledged_state_and_leave_nothing_behind() {
    let seed = u64::from(u32::from_be_bytes(random_bytes()));
    let outcome = run(Settings {
        kills: 12,
        external: false,
        seed,
        clients: 4,
        drivers: Drivers::Both,
        pauses_ms: (50, 1500),
        config: String::new(),
        logs: None,
    });
    assert!(
        outcome.violations.is_empty(),
        "repeat it with {}\n{outcome}",
        outcome.command()
    );
    assert_eq!(
        outcome.refused_starting,
        0,
        "repeat it with {}\n{outcome}",
        outcome.command()
    );
}
