//! Property tests of the state machines against models that list the transitions.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn task_event() -> impl Strategy<Value = TaskEvent> {
    let exit = (0..256i32, 0..100u64).prop_map(|(code, t)| Exit {
        code,
        finished_at: at(t),
        cause: ExitCause::Exited,
    });
    prop_oneof![
        Just(TaskEvent::StartRequested),
        Just(TaskEvent::StartWithdrawn),
        Just(TaskEvent::StartRefused),
        (1..9u32, 0..100u64).prop_map(|(pid, t)| TaskEvent::Started { pid, at: at(t) }),
        Just(TaskEvent::StartFailed(Exit::start_failed(
            at(1),
            "no such file"
        ))),
        Just(TaskEvent::StopRequested),
        exit.prop_map(TaskEvent::Exited),
        Just(TaskEvent::RemoveRequested),
        Just(TaskEvent::RemoveFailed),
    ]
}

/// The model: the state after an event, according to the diagram; `None` if it is refused.
fn model(state: &str, event: &TaskEvent, ran: bool) -> Option<&'static str> {
    use TaskEvent as E;
    Some(match (state, event) {
        ("created", E::StartRequested) => "starting",
        ("starting" | "unattended", E::StartWithdrawn) => "unattended",
        ("starting" | "unattended", E::Started { .. }) => "running",
        ("starting" | "unattended", E::StartFailed(_)) => "exited",
        ("starting" | "unattended", E::StartRefused) => "created",
        ("running" | "stopping", E::StopRequested) => "stopping",
        ("running" | "stopping" | "exited", E::Exited(_)) => "exited",
        ("exited", E::StopRequested) => "exited",
        ("created" | "exited", E::RemoveRequested) => "removing",
        ("removing", E::RemoveRequested | E::StopRequested | E::Exited(_)) => "removing",
        ("removing", E::RemoveFailed) if ran => "exited",
        ("removing", E::RemoveFailed) => "created",
        _ => return None,
    })
}

proptest! {
    #[test]
    fn task_transitions_match_the_state_diagram(events in prop::collection::vec(task_event(), 0..40)) {
        let mut state = TaskState::Created;
        for event in events {
            let ran = matches!(&state, TaskState::Removing { exit: Some(_), .. });
            let wanted = model(state.as_str(), &event, ran);
            let next = state.clone().apply(event);
            prop_assert_eq!(next.as_ref().ok().map(TaskState::as_str), wanted);
            if let Ok(next) = next {
                state = next;
            }
        }
    }

    #[test]
    fn first_recorded_exit_is_kept(events in prop::collection::vec(task_event(), 0..40)) {
        let first = Exit { code: 3, finished_at: at(9), cause: ExitCause::OomKilled };
        let mut state = TaskState::Running { pid: 1, started_at: at(1) }.apply(TaskEvent::Exited(first.clone())).unwrap();
        for event in events {
            if let Ok(next) = state.clone().apply(event) {
                state = next;
            }
            match &state {
                TaskState::Exited { exit, started_at } => {
                    prop_assert_eq!(exit, &first);
                    prop_assert_eq!(started_at, &Some(at(1)));
                }
                TaskState::Removing { exit, .. } => prop_assert_eq!(exit.as_ref(), Some(&first)),
                TaskState::Created | TaskState::Starting | TaskState::Unattended | TaskState::Running { .. } | TaskState::Stopping { .. } => {
                    prop_assert!(false, "an exited task became {:?}", state);
                }
            }
        }
    }

    #[test]
    fn stop_keeps_pid_and_start_time(stops in 1..5usize, pid in 1..u32::MAX) {
        let mut state = TaskState::Running { pid, started_at: at(5) };
        for _ in 0..stops {
            state = state.apply(TaskEvent::StopRequested).unwrap();
        }
        prop_assert_eq!(state, TaskState::Stopping { pid, started_at: at(5) });
    }

    #[test]
    fn sandbox_transitions_match_the_state_diagram(events in prop::collection::vec(0..7u8, 0..40)) {
        let mut state = SandboxState::Ready;
        for event in events {
            let (event, wanted) = match event {
                0 => (SandboxEvent::StopRequested, match state.as_str() {
                    "ready" | "stopping" | "starting" | "unknown" => Some("stopping"),
                    "stopped" => Some("stopped"),
                    "removing" => Some("removing"),
                    _ => None,
                }),
                1 => (SandboxEvent::Stopped, match state.as_str() {
                    "stopping" | "stopped" => Some("stopped"),
                    _ => None,
                }),
                2 => (SandboxEvent::RemoveRequested, match state.as_str() {
                    "stopped" | "removing" => Some("removing"),
                    _ => None,
                }),
                3 => (SandboxEvent::StartRequested, (state.as_str() == "stopped").then_some("starting")),
                4 => (SandboxEvent::Started, match state.as_str() {
                    "starting" => Some("ready"),
                    "stopping" => Some("stopping"),
                    _ => None,
                }),
                5 => (SandboxEvent::StartFailed, match state.as_str() {
                    "starting" => Some("stopped"),
                    "stopping" => Some("stopping"),
                    _ => None,
                }),
                _ => (SandboxEvent::Lost { reason: "r".into() }, match state.as_str() {
                    "removing" => Some("stopped"),
                    "stopped" => None,
                    _ => Some("unknown"),
                }),
            };
            let next = state.clone().apply(event);
            prop_assert_eq!(next.as_ref().ok().map(SandboxState::as_str), wanted);
            if let Ok(next) = next {
                state = next;
            }
        }
    }
}

#[test]
fn invalid_transition_names_state_and_event() {
    let refused = TaskState::Created
        .apply(TaskEvent::StopRequested)
        .unwrap_err();
    assert_eq!(refused.to_string(), "it is created: cannot stop");
}
