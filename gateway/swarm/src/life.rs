//! The states of a task, and the agent's next step: pure, without clock and I/O.
//!
//! ```text
//!  ASSIGNED ─check─► ACCEPTED ─► PREPARING ─prepare─► READY ─► STARTING ─start─► RUNNING ─wait─► COMPLETE
//!     └───────────── fails: REJECTED ──────────────────┘           └───── fails ────┴──────────► FAILED
//!  any of them, if the desired state is SHUTDOWN or beyond ─stop─► SHUTDOWN
//! ```
//!
//! The manager's desired state of a task never decreases. From ACCEPTED and READY the task continues only if
//! the desired state is higher: a rolling update prepares a task, and starts it later.

use swarm::TaskState as Wire;
use switchyard_proto::docker::swarmkit::v1 as swarm;

/// A state of a task, in the order of SwarmKit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Given to this node. All earlier states are the manager's, and count as this one.
    Assigned,
    Accepted,
    Preparing,
    Ready,
    Starting,
    Running,
    Complete,
    Shutdown,
    Failed,
    Rejected,
    /// Only wanted: as SHUTDOWN, and the removal follows.
    Remove,
    /// Set by managers alone.
    Orphaned,
}

/// A step of a task's life that has effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make the plan.
    Check,
    /// Pull the image; create sandbox and task.
    Prepare,
    /// Start the task, unless it is started, and wait until it is healthy.
    Start,
    /// Wait for the exit, or until the task is unhealthy and stopped.
    Wait,
    /// Stop the task if it runs.
    Stop,
}

/// The next action for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A step with effects; [`after`] says what follows from its outcome.
    Do(Step),
    /// The task is in this state at once.
    Enter(State),
    /// Nothing, until it is wanted in another state.
    Idle,
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It succeeded; of a wait: the task has exited with 0.
    Done,
    /// It failed, and is tried again.
    Temporary(String),
    /// It failed for good; of a wait: the task has exited otherwise.
    Fatal(String),
}

/// A status to report for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) state: State,
    /// SwarmKit's word for the event that led to the state.
    pub(crate) message: &'static str,
    /// The reason for a failure, final or temporary.
    pub(crate) error: String,
}

/// The state of a task's object in the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    /// Created, and never started.
    Created,
    /// Being started.
    Starting,
    /// It runs, or has run and exited.
    Started,
    /// It could not be started.
    StartFailed,
}

/// The way to continue an assigned task that no worker knows yet, as after a restart of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// From this state on.
    From(State),
    /// It has ended: this is reported.
    Ended(Report),
    /// The manager knows its end: it is stopped, should it run, and nothing is reported.
    Quietly,
}

/// The error of a task whose container is gone.
pub(crate) const LOST: &str = "container lost";

/// Chooses the next action for a task in `state` whose desired state is `wanted`.
pub(crate) fn next(state: State, wanted: State) -> Next {
    if state.is_terminal() {
        return Next::Idle;
    }
    if wanted >= State::Shutdown {
        return Next::Do(Step::Stop);
    }
    match state {
        State::Assigned => Next::Do(Step::Check),
        State::Accepted if wanted > State::Accepted => Next::Enter(State::Preparing),
        State::Ready if wanted > State::Ready => Next::Enter(State::Starting),
        State::Accepted | State::Ready => Next::Idle,
        State::Preparing => Next::Do(Step::Prepare),
        State::Starting => Next::Do(Step::Start),
        State::Running => Next::Do(Step::Wait),
        State::Complete
        | State::Shutdown
        | State::Failed
        | State::Rejected
        | State::Remove
        | State::Orphaned => Next::Idle,
    }
}

/// Returns the status to report for a task in `state` after a step.
pub(crate) fn after(state: State, step: Step, outcome: Outcome) -> Report {
    match outcome {
        Outcome::Temporary(error) => Report {
            state,
            message: state.message(),
            error,
        },
        // A stop that fails is tried again: the task may run.
        Outcome::Fatal(error) if step == Step::Stop => Report {
            state,
            message: state.message(),
            error,
        },
        Outcome::Fatal(error) => {
            let state = if state < State::Starting {
                State::Rejected
            } else {
                State::Failed
            };
            Report {
                state,
                message: state.message(),
                error,
            }
        }
        Outcome::Done => Report::of(match step {
            Step::Check => State::Accepted,
            Step::Prepare => State::Ready,
            Step::Start => State::Running,
            Step::Wait => State::Complete,
            Step::Stop => State::Shutdown,
        }),
    }
}

/// Chooses how to continue a task from its object in the gateway, the state that the manager knows, and the
/// desired state. A task that may have run is never run again.
pub(crate) fn resume(object: Option<Object>, known: State, wanted: State) -> Resume {
    if known.is_terminal() {
        return Resume::Quietly;
    }
    match object {
        None if wanted >= State::Shutdown => Resume::Ended(Report::of(State::Shutdown)),
        None if known < State::Starting => Resume::From(State::Assigned),
        None => Resume::Ended(Report::lost()),
        // It ran, and nothing of that is left: as after a restore of the node's disk.
        Some(Object::Created) if known == State::Running && wanted < State::Shutdown => {
            Resume::Ended(Report::lost())
        }
        Some(Object::Created) => Resume::From(State::Ready),
        Some(Object::Starting | Object::StartFailed) => Resume::From(State::Starting),
        // It may not have been healthy yet.
        Some(Object::Started) if known < State::Running => Resume::From(State::Starting),
        Some(Object::Started) => Resume::From(State::Running),
    }
}

// === impl Report ===

impl Report {
    /// The report of a state that was reached without an error.
    pub(crate) const fn of(state: State) -> Self {
        Self {
            state,
            message: state.message(),
            error: String::new(),
        }
    }

    fn lost() -> Self {
        Self {
            state: State::Failed,
            message: State::Failed.message(),
            error: LOST.to_owned(),
        }
    }
}

// === impl State ===

impl State {
    /// Returns whether the task has ended.
    pub(crate) fn is_terminal(self) -> bool {
        self >= Self::Complete
    }

    /// SwarmKit's word for what led to it.
    const fn message(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Accepted => "accepted",
            Self::Preparing => "preparing",
            Self::Ready => "prepared",
            Self::Starting => "starting",
            Self::Running => "started",
            Self::Complete => "finished",
            Self::Shutdown => "shutdown",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Remove => "remove",
            Self::Orphaned => "orphaned",
        }
    }

    /// The highest known state up to a number of the wire: managers may have states between those of today.
    pub(crate) fn from_wire(number: i32) -> Self {
        let known = [
            Self::Orphaned,
            Self::Remove,
            Self::Rejected,
            Self::Failed,
            Self::Shutdown,
            Self::Complete,
            Self::Running,
            Self::Starting,
            Self::Ready,
            Self::Preparing,
            Self::Accepted,
        ];
        known
            .into_iter()
            .find(|state| state.to_wire() as i32 <= number)
            .unwrap_or(Self::Assigned)
    }

    /// On the wire.
    pub(crate) const fn to_wire(self) -> Wire {
        match self {
            Self::Assigned => Wire::Assigned,
            Self::Accepted => Wire::Accepted,
            Self::Preparing => Wire::Preparing,
            Self::Ready => Wire::Ready,
            Self::Starting => Wire::Starting,
            Self::Running => Wire::Running,
            Self::Complete => Wire::Complete,
            Self::Shutdown => Wire::Shutdown,
            Self::Failed => Wire::Failed,
            Self::Rejected => Wire::Rejected,
            Self::Remove => Wire::Remove,
            Self::Orphaned => Wire::Orphaned,
        }
    }
}

#[cfg(test)]
mod tests;
