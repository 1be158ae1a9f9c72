//! The kinds of operations that fail most of the time, for `status` and `doctor`: pulls while a registry is away, starts while
//! the network cannot be set up.
//!
//! The outcomes of the last ten minutes are counted, minute by minute, for each kind of operation of each owner: the memory is
//! bounded by the number of kinds.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use switchyard_core::id::Owner;
use switchyard_core::operation::{ERROR_TEXT_MAX, EndedOperation, OperationKind, Outcome};
use switchyard_operator_api::TroubleView;

/// Number of minutes that are remembered.
const MINUTES: usize = 10;

/// Minimum number of failures in that time: one or two happen on a node in order.
const FAILURES_MIN: u64 = 3;

/// The outcomes of the operations that ended lately.
#[derive(Debug)]
pub(super) struct RecentOutcomes {
    began: Instant,
    kinds: Mutex<BTreeMap<(Option<Owner>, OperationKind), Outcomes>>,
}

/// The outcomes of the operations of one kind and owner.
#[derive(Debug, Default)]
struct Outcomes {
    /// A minute is at its number modulo the number of minutes.
    minutes: [Minute; MINUTES],
    /// The error of the last one that failed.
    last_error: String,
}

/// The outcomes in one minute.
#[derive(Debug, Default, Clone, Copy)]
struct Minute {
    /// The minutes from the start of the daemon on, from 1; 0 before anything was counted here.
    number: u64,
    succeeded: u64,
    failed: u64,
}

impl RecentOutcomes {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            kinds: Mutex::default(),
        }
    }

    /// Counts the end of an operation. One that was dropped has no outcome.
    pub(super) fn ended(&self, operation: &EndedOperation<'_>) {
        if !is_of_orchestrators(operation.kind) || matches!(operation.outcome, Outcome::Dropped) {
            return;
        }
        let error = operation.error_text(ERROR_TEXT_MAX);
        let now = self.minute(Instant::now());
        let mut kinds = self.kinds.lock();
        let key = (operation.owner, operation.kind);
        kinds.entry(key).or_default().count(now, error);
    }

    /// The kinds of operations that fail most of the time; `None` if there are none.
    pub(super) fn failing(&self) -> Option<TroubleView> {
        let now = self.minute(Instant::now());
        let kinds = self.kinds.lock();
        let objects: Vec<_> = kinds
            .iter()
            .filter_map(|((owner, kind), outcomes)| outcomes.failing(now, *owner, *kind))
            .collect();
        (!objects.is_empty()).then(|| TroubleView {
            kind: "failing_operations".to_owned(),
            count: objects.len(),
            objects,
        })
    }

    fn minute(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_secs() / 60 + 1
    }
}

impl Outcomes {
    fn count(&mut self, now: u64, error: Option<String>) {
        let count = u64::try_from(MINUTES).unwrap_or(u64::MAX);
        let place = usize::try_from(now % count).unwrap_or_default();
        let minute = &mut self.minutes[place];
        if minute.number != now {
            *minute = Minute {
                number: now,
                ..Minute::default()
            };
        }
        match error {
            None => minute.succeeded += 1,
            Some(error) => {
                minute.failed += 1;
                self.last_error = error;
            }
        }
    }

    /// The description, if at least half of the operations have failed, and more than a few.
    fn failing(&self, now: u64, owner: Option<Owner>, kind: OperationKind) -> Option<String> {
        let count = u64::try_from(MINUTES).unwrap_or(u64::MAX);
        let recent = self
            .minutes
            .iter()
            .filter(|minute| minute.number > 0 && minute.number + count > now);
        let (succeeded, failed) = recent.fold((0, 0), |(succeeded, failed), minute| {
            (succeeded + minute.succeeded, failed + minute.failed)
        });
        if failed < FAILURES_MIN || failed < succeeded {
            return None;
        }
        let of = owner.map_or_else(String::new, |owner| format!(" of {owner}"));
        let all = succeeded + failed;
        Some(format!(
            "{}{of}: {failed} of {all} in {MINUTES} minutes, the last one: {}",
            kind.as_str(),
            self.last_error
        ))
    }
}

/// Returns whether operations of this kind hold up what an orchestrator does, so that it repeats those that fail. The commands
/// of probes, and what people ask for, fail for reasons in containers or requests; reloads and the membership in a swarm are
/// reported as parts of the node.
const fn is_of_orchestrators(kind: OperationKind) -> bool {
    match kind {
        OperationKind::CreateSandbox
        | OperationKind::StartSandbox
        | OperationKind::StopSandbox
        | OperationKind::RemoveSandbox
        | OperationKind::CreateTask
        | OperationKind::StartTask
        | OperationKind::StopTask
        | OperationKind::UpdateTask
        | OperationKind::RemoveTask
        | OperationKind::PullImage
        | OperationKind::LoadImage
        | OperationKind::RemoveImage
        | OperationKind::RemoveVolume
        | OperationKind::LeaseDevices => true,
        OperationKind::SignalTask
        | OperationKind::Exec
        | OperationKind::ExecSync
        | OperationKind::Attach
        | OperationKind::PortForward
        | OperationKind::ShowSecrets
        | OperationKind::OpenPage
        | OperationKind::Checkpoint
        | OperationKind::ReleaseLease
        | OperationKind::SetRanges
        | OperationKind::ReloadConfig
        | OperationKind::SetLogLevel
        | OperationKind::RestartProcess
        | OperationKind::JoinSwarm
        | OperationKind::LeaveSwarm => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use switchyard_core::Error;
    use switchyard_core::operation::{OperationId, Subject};

    use super::*;

    /// The description after so many successes and failures in each of these minutes, seen in minute `now`.
    fn described(minutes: &[(u64, u64, u64)], now: u64) -> Option<String> {
        let mut outcomes = Outcomes::default();
        for &(minute, succeeded, failed) in minutes {
            for _ in 0..succeeded {
                outcomes.count(minute, None);
            }
            for number in 0..failed {
                outcomes.count(minute, Some(format!("fault {minute}.{number}")));
            }
        }
        outcomes.failing(now, Some(Owner::Nomad), OperationKind::PullImage)
    }

    #[test]
    fn kind_fails_if_half_of_its_operations_in_ten_minutes_do_and_at_least_three() {
        let of = |text: &str| Some(format!("pull_image of nomad: {text}"));
        for (minutes, now, expected) in [
            (&[][..], 1, None),
            (&[(1, 0, 2)][..], 1, None),
            (
                &[(1, 0, 3)][..],
                1,
                of("3 of 3 in 10 minutes, the last one: fault 1.2"),
            ),
            (
                &[(1, 2, 1), (2, 1, 2)][..],
                2,
                of("3 of 6 in 10 minutes, the last one: fault 2.1"),
            ),
            (&[(1, 4, 3)][..], 1, None),
            // The failures are still among the last ten minutes, then no more.
            (
                &[(1, 0, 3)][..],
                10,
                of("3 of 3 in 10 minutes, the last one: fault 1.2"),
            ),
            (&[(1, 0, 3)][..], 11, None),
            // The place of minute 1 is taken by minute 11.
            (&[(1, 0, 9), (11, 0, 2)][..], 11, None),
        ] {
            assert_eq!(described(minutes, now), expected, "{minutes:?} at {now}");
        }
    }

    #[test]
    fn what_people_and_probes_ask_for_does_not_count() {
        let error = Error::unavailable("there is no shell in the container");
        for (kind, counts) in [
            (OperationKind::PullImage, true),
            (OperationKind::StartTask, true),
            (OperationKind::RemoveSandbox, true),
            (OperationKind::ExecSync, false),
            (OperationKind::PortForward, false),
            (OperationKind::OpenPage, false),
            (OperationKind::ReloadConfig, false),
        ] {
            let outcomes = RecentOutcomes::new();
            for _ in 0..FAILURES_MIN {
                outcomes.ended(&EndedOperation {
                    id: OperationId::default(),
                    trace: None,
                    kind,
                    owner: Some(Owner::Kubernetes),
                    subject: &Subject::default(),
                    caller: None,
                    began_at: SystemTime::UNIX_EPOCH,
                    took: Duration::ZERO,
                    outcome: Outcome::Failed(&error),
                });
            }
            assert_eq!(outcomes.failing().is_some(), counts, "{kind}");
        }
    }
}
