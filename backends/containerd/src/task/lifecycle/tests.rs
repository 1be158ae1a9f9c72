//! Tests that compare the lifecycle with a model, and what it holds at each state.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use switchyard_core::state::ExitCause;

use super::*;

/// An event without what is held by it.
#[derive(Debug, Clone, Copy)]
enum Step {
    Launched,
    FifosHeld,
    ProcessCreated,
    Started(u32),
    Killed,
    ExitObserved(i32),
    ExitPersisted(i32),
    ProcessDeleted,
    ExitReported,
    StartFailed(i32),
}

fn exit(code: i32) -> Exit {
    let finished_at = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    Exit {
        code,
        finished_at,
        cause: ExitCause::Exited,
    }
}

fn started(pid: u32) -> Started {
    Started {
        pid,
        at: SystemTime::UNIX_EPOCH,
    }
}

/// A handle of the process of this test.
fn handle() -> ProcessHandle {
    // Every cgroup path contains a slash.
    ProcessHandle::open(std::process::id(), "/").unwrap()
}

fn event(step: Step) -> LifecycleEvent {
    match step {
        Step::Launched => LifecycleEvent::Launched,
        Step::FifosHeld => LifecycleEvent::FifosHeld(vec![File::open("/dev/null").unwrap()]),
        Step::ProcessCreated => LifecycleEvent::ProcessCreated(Some(handle())),
        Step::Started(pid) => LifecycleEvent::Started(started(pid), Instant::now()),
        Step::Killed => LifecycleEvent::Killed,
        Step::ExitObserved(code) => LifecycleEvent::ExitObserved(exit(code)),
        Step::ExitPersisted(code) => LifecycleEvent::ExitPersisted(exit(code)),
        Step::ProcessDeleted => LifecycleEvent::ProcessDeleted,
        Step::ExitReported => LifecycleEvent::ExitReported,
        Step::StartFailed(code) => LifecycleEvent::StartFailed(exit(code)),
    }
}

fn after(steps: &[Step]) -> TaskLifecycle {
    steps.iter().fold(TaskLifecycle::default(), |state, step| {
        state.after(event(*step))
    })
}

fn code(exit: Option<&Exit>) -> Option<i32> {
    exit.map(|exit| exit.code)
}

/// Each fact as a value of its own, changed by each event that applies.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Facts {
    launched: bool,
    ended_before: bool,
    handle: bool,
    started: Option<u32>,
    killed: bool,
    exit: Option<i32>,
    persisted: bool,
    reported: bool,
}

impl Facts {
    /// The facts after a step; `None` if it cannot happen then.
    fn after(self, step: Step) -> Option<Self> {
        let alive = self.exit.is_none();
        let begun = self.launched || self.started.is_some();
        Some(match step {
            Step::Launched if alive && !begun => Self {
                launched: true,
                ..self
            },
            Step::FifosHeld if alive && self.started.is_none() => self,
            Step::ProcessCreated if alive && self.launched => Self {
                handle: true,
                ..self
            },
            Step::Started(pid) if self.launched && self.started.is_none() && !self.reported => {
                Self {
                    started: Some(pid),
                    ended_before: false,
                    ..self
                }
            }
            Step::Killed if alive && begun => Self {
                killed: true,
                ..self
            },
            Step::ExitObserved(code) if alive && begun => self.exited(code),
            Step::ExitPersisted(code) if begun && !self.persisted => Self {
                persisted: true,
                ..self.exited(code)
            },
            Step::ProcessDeleted if alive && self.launched && self.started.is_none() => Self {
                ended_before: true,
                ..Self::default()
            },
            Step::ProcessDeleted if self.launched && !alive => Self {
                launched: false,
                handle: false,
                ..self
            },
            Step::ExitReported if !alive => Self {
                reported: true,
                ..self
            },
            Step::StartFailed(code) if alive && !begun => Self {
                exit: Some(code),
                persisted: true,
                reported: true,
                ..Self::default()
            },
            Step::Launched
            | Step::FifosHeld
            | Step::ProcessCreated
            | Step::Started(_)
            | Step::Killed
            | Step::ExitObserved(_)
            | Step::ExitPersisted(_)
            | Step::ProcessDeleted
            | Step::ExitReported
            | Step::StartFailed(_) => return None,
        })
    }

    fn exited(self, code: i32) -> Self {
        Self {
            exit: Some(code),
            killed: false,
            ended_before: false,
            ..self
        }
    }

    fn of(state: &TaskLifecycle) -> Self {
        Self {
            launched: state.may_have_process(),
            ended_before: state.process_ended_before(),
            handle: state.process().is_some(),
            started: state.start().map(|known| known.start.pid),
            killed: state.was_killed(),
            exit: code(state.exit()),
            persisted: state.persisted_exit().is_some(),
            reported: state.reported_exit().is_some(),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Launched),
        Just(Step::FifosHeld),
        Just(Step::ProcessCreated),
        (1..4_u32).prop_map(Step::Started),
        Just(Step::Killed),
        (0..4_i32).prop_map(Step::ExitObserved),
        (0..4_i32).prop_map(Step::ExitPersisted),
        Just(Step::ProcessDeleted),
        Just(Step::ExitReported),
        (0..4_i32).prop_map(Step::StartFailed),
    ]
}

proptest! {
    #[test]
    fn the_state_is_the_sum_of_what_has_happened(steps in prop::collection::vec(step(), 0..40)) {
        let mut state = TaskLifecycle::default();
        let mut facts = Facts::default();
        for step in steps {
            let Some(next) = facts.after(step) else { continue };
            state = state.after(event(step));
            facts = next;
            prop_assert_eq!(Facts::of(&state), facts, "after {:?}", step);
            prop_assert_eq!(state.runs(), facts.started.is_some() && !facts.reported);
        }
    }

    #[test]
    fn no_event_takes_back_what_clients_were_told(steps in prop::collection::vec(step(), 0..40)) {
        let mut state = TaskLifecycle::default();
        for step in steps {
            let (start, reported) = (state.start().map(|known| known.start.pid), code(state.reported_exit()));
            let persisted = state.persisted_exit().is_some();
            let exited = state.exit().is_some();
            state = state.after(event(step));
            prop_assert!(start.is_none() || state.start().map(|known| known.start.pid) == start);
            prop_assert!(reported.is_none() || state.reported_exit().is_some());
            prop_assert!(!persisted || state.persisted_exit().is_some());
            prop_assert!(!exited || (state.exit().is_some() && !state.was_killed() && state.oom().is_none()));
            let told = [state.persisted_exit(), state.unpersisted_exit()].into_iter().flatten().count();
            prop_assert_eq!(told, usize::from(state.exit().is_some()));
        }
    }
}

#[test]
fn the_persisted_exit_replaces_the_observed_one_and_not_the_reverse() {
    let run = [Step::Launched, Step::Started(7)];
    let state = after(&[&run[..], &[Step::ExitObserved(1), Step::ExitPersisted(2)]].concat());
    assert_eq!(code(state.exit()), Some(2));
    let state = after(&[&run[..], &[Step::ExitPersisted(2), Step::ExitObserved(1)]].concat());
    assert_eq!(
        (code(state.exit()), code(state.unpersisted_exit())),
        (Some(2), None)
    );
}

#[test]
fn an_exit_that_another_observer_persists_during_the_start_keeps_the_start_time() {
    let state = after(&[
        Step::Launched,
        Step::ProcessCreated,
        Step::ExitPersisted(3),
        Step::Started(7),
    ]);
    assert_eq!(state.start().map(|known| known.start.pid), Some(7));
    assert!(
        state.runs(),
        "callers learn of the exit once it is reported"
    );
    assert!(!state.after(LifecycleEvent::ExitReported).runs());
}

#[test]
fn a_task_whose_interrupted_start_was_undone_can_be_started_again() {
    let undone = after(&[
        Step::Launched,
        Step::FifosHeld,
        Step::ProcessCreated,
        Step::ProcessDeleted,
    ]);
    assert!(!undone.may_have_process() && undone.process_ended_before() && undone.exit().is_none());
    assert!(matches!(&undone, TaskLifecycle::Created(state) if !state.client_fifos.is_empty()));
    let again = undone.after(LifecycleEvent::Launched);
    assert!(again.may_have_process() && again.process_ended_before());
    assert!(
        matches!(&again, TaskLifecycle::Launching(state) if !state.before.client_fifos.is_empty())
    );
}

#[test]
fn the_handle_of_the_process_is_dropped_with_the_process() {
    let state = after(&[
        Step::Launched,
        Step::ProcessCreated,
        Step::Started(7),
        Step::ExitObserved(0),
    ]);
    let process = state.process().unwrap();
    let state = state.after(LifecycleEvent::ProcessDeleted);
    assert!(state.process().is_none());
    assert_eq!(Arc::strong_count(&process), 1);
}
