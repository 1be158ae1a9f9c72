//! Events of the gateway in words.

use std::time::SystemTime;

use switchyard_core::event::{Event, EventKind, TaskEnd};
use switchyard_core::object::Task;
use switchyard_core::operation::{Caller, ERROR_TEXT_MAX, EndedOperation, OperationKind};
use switchyard_core::state::{Exit, ExitCause, SandboxState, TaskState};
use switchyard_core::stop_request::StopReason;
use switchyard_operator_api::text::{duration, rfc3339};
use switchyard_operator_api::{EventView, ExitView, NODE_OWNER};

use crate::owners::Owners;

/// The view of an event that is recorded now. An exit has the time at which the process ended. Other events have the
/// time of the gateway, but never one to come: that of the gateway does not go back with the clock.
pub(super) fn view(event: &Event, owners: &Owners, now: SystemTime) -> EventView {
    let Event {
        at,
        owner,
        kind,
        sandbox,
        task,
    } = event;
    let names = if let EventKind::Unmet(work) = kind {
        Some(work.names.clone())
    } else {
        sandbox.as_deref().map(|sandbox| {
            owners.names_in_record(&sandbox.meta, task.as_deref().map(|task| &*task.meta))
        })
    };
    let mut at = (*at).min(now);
    let mut exit = None;
    let (word, detail) = match kind {
        EventKind::SandboxReady(_) => ("sandbox_ready", String::new()),
        EventKind::SandboxStopped(_) => match sandbox.as_deref().map(|sandbox| &sandbox.state) {
            Some(SandboxState::Unknown { reason }) => ("sandbox_failed", reason.clone()),
            Some(_) | None => ("sandbox_stopped", String::new()),
        },
        EventKind::SandboxRemoved(_) => ("sandbox_removed", String::new()),
        EventKind::TaskCreated(_) => ("task_created", String::new()),
        EventKind::TaskStarted(_) => ("task_started", String::new()),
        EventKind::TaskExited(_, ended, end) => {
            at = ended.finished_at;
            let view = exit_view(ended, end, task.as_deref());
            let text = exit_text(ended, end, &view);
            exit = Some(Box::new(view));
            ("task_exited", text)
        }
        EventKind::TaskRemoved(_) => ("task_removed", String::new()),
        EventKind::Refused(refusal) => ("refused", refusal.to_string()),
        EventKind::Conflict(refusal) => ("conflict", format!("given all the same: {refusal}")),
        EventKind::Unmet(work) if work.is_rejected => ("task_rejected", work.reason.clone()),
        EventKind::Unmet(work) => ("task_waits", work.reason.clone()),
    };
    EventView {
        number: 0,
        at: rfc3339(at),
        owner: owner.to_string(),
        event: word.to_owned(),
        sandbox: sandbox.as_deref().map(|sandbox| sandbox.id.to_string()),
        task: task.as_deref().map(|task| task.id.to_string()),
        name: names.as_ref().map(ToString::to_string).unwrap_or_default(),
        names: names.map(|names| names.to_map()).unwrap_or_default(),
        detail,
        exit,
    }
}

/// The view of an operation that has failed now.
pub(super) fn failure(
    operation: &EndedOperation<'_>,
    owners: &Owners,
    now: SystemTime,
) -> EventView {
    let subject = operation.subject;
    let error = operation.error_text(ERROR_TEXT_MAX).unwrap_or_default();
    let names = subject
        .sandbox_meta
        .as_deref()
        .map(|sandbox| owners.names_in_record(sandbox, subject.task_meta.as_deref()));
    EventView {
        at: rfc3339(now),
        owner: operation
            .owner
            .map_or_else(|| NODE_OWNER.to_owned(), |owner| owner.to_string()),
        event: "operation_failed".to_owned(),
        sandbox: subject.sandbox.map(|id| id.to_string()),
        task: subject.task.map(|id| id.to_string()),
        name: names.as_ref().map(ToString::to_string).unwrap_or_default(),
        names: names.map(|names| names.to_map()).unwrap_or_default(),
        detail: format!("{}: {error}", operation.kind.as_str()),
        ..EventView::default()
    }
}

/// The cause of an exit in one word. What is known of the exit itself comes before the request that it end. Pure.
pub(super) const fn cause(exit: &Exit, end: &TaskEnd) -> &'static str {
    match (&exit.cause, &end.stop) {
        (ExitCause::OomKilled, _) => "oom_killed",
        (ExitCause::StartFailed(_), _) => "start_failed",
        (ExitCause::Lost, _) => "lost",
        (ExitCause::Exited, None) => "exited",
        (ExitCause::Exited, Some(stop)) => match stop.reason {
            StopReason::Requested => "stopped",
            StopReason::Unhealthy => "unhealthy",
            StopReason::StartWithdrawn => "withdrawn",
        },
    }
}

fn exit_view(exit: &Exit, end: &TaskEnd, task: Option<&Task>) -> ExitView {
    let started_at = task.and_then(|task| match &task.state {
        TaskState::Exited { started_at, .. } => *started_at,
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. }
        | TaskState::Removing { .. } => None,
    });
    // Nobody knows when a task ended whose exit was not observed.
    let ran = started_at
        .filter(|_| exit.cause != ExitCause::Lost)
        .and_then(|at| exit.finished_at.duration_since(at).ok());
    let stop = end.stop.as_ref();
    let caller = stop.and_then(|stop| stop.caller.as_ref());
    ExitView {
        code: exit.code,
        cause: cause(exit, end).to_owned(),
        ran_ms: ran.map(|ran| u64::try_from(ran.as_millis()).unwrap_or(u64::MAX)),
        operation: stop
            .and_then(|stop| stop.operation)
            .map(|kind| kind.as_str().to_owned()),
        operation_id: stop
            .and_then(|stop| stop.operation_id)
            .map(|id| id.to_string()),
        listener: caller.map(|caller| caller.listener.to_owned()),
        uid: caller.and_then(|caller| caller.uid),
        pid: caller.and_then(|caller| caller.pid),
        is_found: end.is_found,
    }
}

fn exit_text(exit: &Exit, end: &TaskEnd, view: &ExitView) -> String {
    let Exit {
        code,
        finished_at: _,
        cause,
    } = exit;
    let mut text = match cause {
        ExitCause::Exited => format!("code {code}"),
        ExitCause::OomKilled => format!("code {code}, killed because it ran out of memory"),
        ExitCause::StartFailed(why) => format!("never started: {why}"),
        ExitCause::Lost => "its exit was not observed".to_owned(),
    };
    if let Some(stop) = &end.stop {
        text.push_str(&match stop.reason {
            StopReason::Requested => request_text(stop.operation, stop.caller.as_ref()),
            StopReason::Unhealthy => "; stopped because its health check failed".to_owned(),
            StopReason::StartWithdrawn => {
                "; ended because nobody waited for its start any more".to_owned()
            }
        });
    }
    if let Some(ran) = view.ran_ms {
        text.push_str(&format!("; ran for {}", duration(ran / 1000)));
    }
    if end.is_found {
        text.push_str("; found at the start of the daemon");
    }
    text
}

fn request_text(operation: Option<OperationKind>, caller: Option<&Caller>) -> String {
    let operation = operation.map_or("stop", OperationKind::as_str);
    match caller {
        Some(Caller {
            listener,
            uid: _,
            pid: Some(pid),
        }) => format!("; asked for by {listener} ({pid}), {operation}"),
        Some(Caller { listener, .. }) => format!("; asked for by {listener}, {operation}"),
        None => format!("; asked for by its owner, {operation}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use switchyard_core::event::UnmetWork;
    use switchyard_core::id::Owner;
    use switchyard_core::names::Names;
    use switchyard_core::stop_request::StopRequest;

    use super::*;

    const BEGIN: SystemTime = SystemTime::UNIX_EPOCH;

    fn exit(code: i32, cause: ExitCause) -> Exit {
        Exit {
            code,
            finished_at: BEGIN + Duration::from_secs(7200),
            cause,
        }
    }

    fn asked(reason: StopReason) -> TaskEnd {
        TaskEnd {
            stop: Some(StopRequest {
                at: Instant::now(),
                reason,
                operation: Some(OperationKind::RemoveSandbox),
                operation_id: None,
                caller: Some(Caller {
                    listener: "cri",
                    uid: Some(0),
                    pid: Some(812),
                }),
            }),
            is_found: false,
        }
    }

    #[track_caller]
    fn check(exit: &Exit, end: &TaskEnd, expected: (&str, &str)) {
        let view = exit_view(exit, end, None);
        let text = exit_text(exit, end, &view);
        assert_eq!((view.cause.as_str(), text.as_str()), expected);
    }

    #[test]
    fn exits_are_described_with_their_cause() {
        let none = TaskEnd::default();
        check(&exit(3, ExitCause::Exited), &none, ("exited", "code 3"));
        let oom = "code 137, killed because it ran out of memory";
        check(&exit(137, ExitCause::OomKilled), &none, ("oom_killed", oom));
        let failed = ExitCause::StartFailed("no such program".into());
        let text = "never started: no such program";
        check(&exit(128, failed), &none, ("start_failed", text));
        let text = "its exit was not observed";
        check(&exit(255, ExitCause::Lost), &none, ("lost", text));
        let found = TaskEnd {
            stop: None,
            is_found: true,
        };
        let text = "code 1; found at the start of the daemon";
        check(&exit(1, ExitCause::Exited), &found, ("exited", text));
    }

    #[test]
    fn exits_are_described_with_who_asked_for_them() {
        let exited = exit(143, ExitCause::Exited);
        let by_client = asked(StopReason::Requested);
        let text = "code 143; asked for by cri (812), remove_sandbox";
        check(&exited, &by_client, ("stopped", text));
        let view = exit_view(&exited, &by_client, None);
        assert_eq!(view.operation.as_deref(), Some("remove_sandbox"));
        assert_eq!(view.listener.as_deref(), Some("cri"));
        assert_eq!((view.uid, view.pid), (Some(0), Some(812)));
        let text = "code 143; stopped because its health check failed";
        check(&exited, &asked(StopReason::Unhealthy), ("unhealthy", text));
        let text = "code 143; ended because nobody waited for its start any more";
        check(
            &exited,
            &asked(StopReason::StartWithdrawn),
            ("withdrawn", text),
        );
        let by_owner = TaskEnd {
            stop: Some(StopRequest {
                at: Instant::now(),
                reason: StopReason::Requested,
                operation: None,
                operation_id: None,
                caller: None,
            }),
            is_found: false,
        };
        check(
            &exited,
            &by_owner,
            ("stopped", "code 143; asked for by its owner, stop"),
        );
        // A task that runs out of memory while it stops.
        let oom = exit(137, ExitCause::OomKilled);
        assert_eq!(cause(&oom, &by_client), "oom_killed");
    }

    #[test]
    fn work_that_cannot_begin_is_named_with_its_reason() {
        for (is_rejected, expected) in [(true, "task_rejected"), (false, "task_waits")] {
            let work = UnmetWork {
                names: Names::new("web.1").with("swarm_service", "web"),
                reason: "there is no network \"storage\"".to_owned(),
                is_rejected,
            };
            let event = Event {
                at: BEGIN,
                owner: Owner::Swarm,
                kind: EventKind::Unmet(Arc::new(work)),
                sandbox: None,
                task: None,
            };
            let view = view(&event, &Owners::default(), BEGIN);
            assert_eq!(
                (view.event.as_str(), view.name.as_str()),
                (expected, "web.1")
            );
            assert_eq!(view.names["swarm_service"], "web");
            assert!(view.detail.contains("storage"), "{}", view.detail);
        }
    }

    #[test]
    fn events_of_a_clock_that_was_set_back_have_its_time() {
        let now = BEGIN + Duration::from_secs(60);
        let event = |at| Event {
            at,
            owner: Owner::Nomad,
            kind: EventKind::SandboxReady(switchyard_core::id::SandboxId::from_bytes([1; 32])),
            sandbox: None,
            task: None,
        };
        let shown = |at| view(&event(at), &Owners::default(), now).at;
        assert_eq!(shown(now + Duration::from_secs(3600)), rfc3339(now));
        assert_eq!(shown(BEGIN), rfc3339(BEGIN));
    }
}
