//! Tests of the life of tasks: the table of SwarmKit row by row, and a model for any sequence of desired states and
//! outcomes.

use proptest::prelude::*;

use super::*;

const ALL: [State; 12] = [
    State::Assigned,
    State::Accepted,
    State::Preparing,
    State::Ready,
    State::Starting,
    State::Running,
    State::Complete,
    State::Shutdown,
    State::Failed,
    State::Rejected,
    State::Remove,
    State::Orphaned,
];

#[test]
fn each_state_has_the_next_step_of_swarmkit() {
    use State::{
        Accepted, Assigned, Complete, Preparing, Ready, Remove, Running, Shutdown, Starting,
    };
    for (state, wanted, expected) in [
        (Assigned, Ready, Next::Do(Step::Check)),
        (Assigned, Assigned, Next::Do(Step::Check)),
        (Accepted, Accepted, Next::Idle),
        (Accepted, Ready, Next::Enter(Preparing)),
        (Preparing, Ready, Next::Do(Step::Prepare)),
        // Steps that were begun may pass the wanted state.
        (Preparing, Accepted, Next::Do(Step::Prepare)),
        (Ready, Ready, Next::Idle),
        (Ready, Running, Next::Enter(Starting)),
        // A job.
        (Ready, Complete, Next::Enter(Starting)),
        (Starting, Running, Next::Do(Step::Start)),
        (Running, Running, Next::Do(Step::Wait)),
        (Running, Complete, Next::Do(Step::Wait)),
        (Running, Remove, Next::Do(Step::Stop)),
        (Assigned, Shutdown, Next::Do(Step::Stop)),
    ] {
        assert_eq!(next(state, wanted), expected, "{state:?} wanted {wanted:?}");
    }
    for state in ALL.into_iter().filter(|state| *state >= Complete) {
        for wanted in ALL {
            assert_eq!(
                next(state, wanted),
                Next::Idle,
                "{state:?} wanted {wanted:?}"
            );
        }
    }
}

#[test]
fn failure_before_the_start_is_a_rejection() {
    let fatal = |state, step| after(state, step, Outcome::Fatal("why".to_owned())).state;
    assert_eq!(fatal(State::Assigned, Step::Check), State::Rejected);
    assert_eq!(fatal(State::Preparing, Step::Prepare), State::Rejected);
    assert_eq!(fatal(State::Starting, Step::Start), State::Failed);
    assert_eq!(fatal(State::Running, Step::Wait), State::Failed);
    assert_eq!(
        fatal(State::Running, Step::Stop),
        State::Running,
        "the task may run"
    );
    let temporary = after(
        State::Preparing,
        Step::Prepare,
        Outcome::Temporary("why".to_owned()),
    );
    assert_eq!(
        (temporary.state, temporary.error.as_str()),
        (State::Preparing, "why")
    );
}

#[test]
fn task_without_an_object_is_never_run_a_second_time() {
    use State::{
        Accepted, Assigned, Complete, Failed, Orphaned, Preparing, Ready, Running, Shutdown,
        Starting,
    };
    let lost = || {
        Resume::Ended(Report {
            state: Failed,
            message: "failed",
            error: "container lost".to_owned(),
        })
    };
    for (known, wanted, expected) in [
        (Complete, Complete, Resume::Quietly),
        (Shutdown, Shutdown, Resume::Quietly),
        (Failed, Running, Resume::Quietly),
        (Orphaned, Shutdown, Resume::Quietly),
        (Running, Shutdown, Resume::Ended(Report::of(Shutdown))),
        (Assigned, State::Remove, Resume::Ended(Report::of(Shutdown))),
        (Assigned, Running, Resume::From(Assigned)),
        (Accepted, Running, Resume::From(Assigned)),
        (Preparing, Ready, Resume::From(Assigned)),
        (Ready, Running, Resume::From(Assigned)),
        (Starting, Running, lost()),
        (Running, Running, lost()),
        (Running, Complete, lost()),
    ] {
        assert_eq!(
            resume(None, known, wanted),
            expected,
            "{known:?} wanted {wanted:?}"
        );
    }
}

#[test]
fn object_says_where_a_task_goes_on() {
    let from = |object, known| resume(Some(object), known, State::Running);
    assert_eq!(
        from(Object::Created, State::Preparing),
        Resume::From(State::Ready)
    );
    assert_eq!(
        from(Object::Created, State::Starting),
        Resume::From(State::Ready)
    );
    assert!(matches!(
        from(Object::Created, State::Running),
        Resume::Ended(_)
    ));
    assert_eq!(
        from(Object::Starting, State::Starting),
        Resume::From(State::Starting)
    );
    assert_eq!(
        from(Object::Started, State::Starting),
        Resume::From(State::Starting),
        "is it healthy?"
    );
    assert_eq!(
        from(Object::Started, State::Running),
        Resume::From(State::Running)
    );
    assert_eq!(
        from(Object::StartFailed, State::Starting),
        Resume::From(State::Starting)
    );
    assert_eq!(from(Object::Started, State::Complete), Resume::Quietly);
}

#[test]
fn states_of_the_wire_are_rounded_down() {
    for state in ALL {
        assert_eq!(State::from_wire(state.to_wire() as i32), state);
    }
    for (number, expected) in [
        (i32::MIN, State::Assigned),
        (0, State::Assigned),
        (64, State::Assigned),
        (513, State::Running),
        (700, State::Shutdown),
        (i32::MAX, State::Orphaned),
    ] {
        assert_eq!(State::from_wire(number), expected, "{number}");
    }
}

/// A task as a person would follow it: what was done for it, and in which state it is.
#[derive(Debug, Default)]
struct Model {
    prepared: bool,
    starts: usize,
    stopped: bool,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Done),
        1 => Just(Outcome::Temporary("t".to_owned())),
        1 => Just(Outcome::Fatal("f".to_owned())),
    ]
}

proptest! {
    #[test]
    fn task_goes_forward_alone_and_starts_once(
        states in proptest::collection::vec((0..ALL.len(), proptest::collection::vec(outcome(), 0..6)), 1..8),
    ) {
        let mut state = State::Assigned;
        let mut wanted = State::Assigned;
        let mut model = Model::default();
        for (number, outcomes) in states {
            // The wanted state never goes down.
            wanted = wanted.max(ALL[number]);
            let mut outcomes = outcomes.into_iter();
            loop {
                let was = state;
                match next(state, wanted) {
                    Next::Idle => break,
                    Next::Enter(entered) => {
                        prop_assert!(entered > state && entered <= wanted.max(State::Preparing));
                        state = entered;
                    }
                    Next::Do(step) => {
                        let Some(outcome) = outcomes.next() else { break };
                        let failed = !matches!(outcome, Outcome::Done);
                        let report = after(state, step, outcome);
                        prop_assert_eq!(report.error.is_empty(), !failed);
                        state = report.state;
                        match step {
                            Step::Prepare if !failed => model.prepared = true,
                            Step::Start if !failed => {
                                prop_assert!(model.prepared && !model.stopped && wanted > State::Ready);
                                model.starts += 1;
                            }
                            Step::Wait => prop_assert_eq!(model.starts, 1),
                            Step::Stop => {
                                prop_assert!(wanted >= State::Shutdown);
                                model.stopped |= !failed;
                            }
                            Step::Check | Step::Prepare | Step::Start => {}
                        }
                    }
                }
                prop_assert!(state >= was, "{:?} after {:?}", state, was);
                prop_assert!(!matches!(state, State::Remove | State::Orphaned));
            }
            prop_assert!(model.starts <= 1);
            if model.stopped {
                prop_assert_eq!(state, State::Shutdown);
            }
        }
    }

    #[test]
    fn what_may_have_run_is_not_begun_anew(object in 0..5_usize, known in 0..ALL.len(), wanted in 0..ALL.len()) {
        let objects =
            [None, Some(Object::Created), Some(Object::Starting), Some(Object::Started), Some(Object::StartFailed)];
        let object = objects[object];
        let (known, wanted) = (ALL[known], ALL[wanted]);
        let resumed = resume(object, known, wanted);
        let may_have_run = known >= State::Starting || matches!(object, Some(Object::Started));
        if may_have_run {
            prop_assert_ne!(&resumed, &Resume::From(State::Assigned));
        }
        if matches!(resumed, Resume::Ended(_)) {
            prop_assert!(!known.is_terminal());
        }
    }
}
