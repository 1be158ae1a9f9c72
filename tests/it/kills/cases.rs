//! Kills during requests of one kind, and how they are run.

use switchyard_steps::Step;

use super::fixture::{KillFixture, KillPoint};

/// Kills during one kind of request.
pub(super) struct KillCase {
    pub(super) run: fn(&KillFixture, KillPoint),
    pub(super) points: &'static [(Step, u32)],
}

/// Runs kills on one node, one after the other.
pub(super) fn run_cases(amids: &[KillCase]) {
    run_cases_on(KillFixture::new(), amids);
}

pub(super) fn run_cases_on(fixture: KillFixture, amids: &[KillCase]) {
    run_every_nth(fixture, amids, 1);
}

/// Runs each n-th kill during the same request.
pub(super) fn run_every_nth(fixture: KillFixture, amids: &[KillCase], nth: usize) {
    for amid in amids {
        for &(step, time) in amid.points.iter().step_by(nth) {
            (amid.run)(&fixture, KillPoint { step, nth: time });
        }
    }
    fixture.finish();
}

/// Whether all variants are run in full: `SWITCHYARD_KILLS=all`.
pub(super) fn all_variants() -> bool {
    std::env::var_os("SWITCHYARD_KILLS").is_some_and(|kills| kills == "all")
}
