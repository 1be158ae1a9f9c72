//! Kills during requests of one kind, and how they are run.

use std::panic::Location;

use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_tests::shards;

use super::fixture::{KillFixture, KillPoint};

/// Kills during one kind of request, one after the other.
pub(super) struct KillCase {
    run: fn(&KillFixture, KillPoint),
    /// One kill at each of its steps, when that is reached first.
    operation: Option<Operation>,
    /// More kills: at which step, and when it is reached for which time.
    further: &'static [(CrashPoint, u32)],
    /// The source file that it is in, from the root of the repository.
    file: &'static str,
}

impl KillCase {
    /// One kill at each step of an operation.
    #[track_caller]
    pub(super) const fn of(run: fn(&KillFixture, KillPoint), operation: Operation) -> Self {
        Self {
            run,
            operation: Some(operation),
            further: &[],
            file: Location::caller().file(),
        }
    }

    /// The same, and more kills during the same request.
    pub(super) const fn and(self, further: &'static [(CrashPoint, u32)]) -> Self {
        Self { further, ..self }
    }

    /// Kills at these steps alone.
    #[track_caller]
    pub(super) const fn at(
        run: fn(&KillFixture, KillPoint),
        points: &'static [(CrashPoint, u32)],
    ) -> Self {
        Self {
            run,
            operation: None,
            further: points,
            file: Location::caller().file(),
        }
    }

    /// The points of the kills.
    pub(super) fn points(&self) -> impl Iterator<Item = (CrashPoint, u32)> {
        let steps = self.operation.into_iter().flat_map(Operation::crash_points);
        steps
            .map(|step| (*step, 1))
            .chain(self.further.iter().copied())
    }
}

/// Runs each n-th kill of these lists on a node with bad disks: of those the ones that this run of the tests takes.
pub(super) fn run_on_bad_disks(lists: &[&[KillCase]], nth: usize) {
    let cases = lists.iter().copied().flatten();
    let points = cases.flat_map(|case| {
        let points = case.points().step_by(nth);
        points.map(move |(step, time)| (case, KillPoint { step, nth: time }))
    });
    run_points(
        KillFixture::with_bad_disks,
        &shards::own_points_of_this_run(points),
    );
}

/// Runs kills on a node of their own, one after the other: those that this run of the tests takes.
pub(super) fn run_cases(amids: &[KillCase]) {
    run_cases_on(KillFixture::new, amids);
}

pub(super) fn run_cases_on(fixture: impl FnOnce() -> KillFixture, amids: &[KillCase]) {
    run_every_nth(fixture, amids, 1);
}

/// Runs each n-th kill during the same request.
pub(super) fn run_every_nth(fixture: impl FnOnce() -> KillFixture, amids: &[KillCase], nth: usize) {
    let points = amids.iter().flat_map(|amid| {
        let points = amid.points().step_by(nth);
        points.map(move |(step, time)| (amid.file, (amid, KillPoint { step, nth: time })))
    });
    run_points(fixture, &shards::points_of_this_run(points));
}

fn run_points(fixture: impl FnOnce() -> KillFixture, points: &[(&KillCase, KillPoint)]) {
    if points.is_empty() {
        return;
    }
    let fixture = fixture();
    for (case, point) in points {
        (case.run)(&fixture, *point);
    }
    fixture.finish();
}

/// Returns whether all variants are run in full: `SWITCHYARD_KILLS=all`.
pub(super) fn all_variants() -> bool {
    std::env::var_os("SWITCHYARD_KILLS").is_some_and(|kills| kills == "all")
}
