//! What to make of what is found: pure decisions.

use std::time::{Duration, SystemTime};

use switchyard_core::backend::Started;
use switchyard_core::state::{Exit, SandboxState};

use crate::record::SandboxPhase;

/// How a process has ended, as its shim says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessExit {
    /// Its exit code.
    pub(crate) code: i32,
    /// When; `None` if that is not said.
    pub(crate) at: Option<SystemTime>,
}

/// What is known of a task's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// There is none.
    None,
    /// Made, not started.
    Created,
    /// It runs (or is paused).
    Running {
        /// Process id on the host.
        pid: u32,
    },
    /// It has ended and waits to be deleted.
    Stopped(ProcessExit),
    /// Its shim did not answer: it may well run.
    Unanswered {
        /// Process id on the host, as far as containerd knows.
        pid: u32,
    },
}

/// What is found of a task.
#[derive(Debug, Clone)]
pub(super) struct TaskFacts {
    /// Its sandbox's container object is there and was finished.
    pub(super) sandbox: bool,
    /// Its snapshot is there, and limits on what that may take are in force, if any were asked for.
    pub(super) finished: bool,
    /// It was made in this boot of the node.
    pub(super) this_boot: bool,
    /// How it ended, if that is on record.
    pub(super) exit: Option<(Exit, Option<SystemTime>)>,
    /// When it was started, by the file that a start leaves.
    pub(super) started_at: Option<SystemTime>,
    /// A start was begun: its directory of this boot is there.
    pub(super) begun: bool,
    /// What containerd says of its process; not asked where the answer could change nothing.
    pub(super) process: ProcessState,
}

/// What becomes of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TaskFate {
    /// It was never finished, or has no sandbox: remove all of it.
    Destroy,
    /// It can be started.
    Created,
    /// It was being started, and containerd may still be at it: it counts as created until that has settled.
    StartPending,
    /// It runs.
    Running(Started),
    /// It has ended, and nobody has put on record how.
    Reap {
        /// When it was started.
        started_at: Option<SystemTime>,
        /// How it ended.
        end: ProcessExit,
    },
    /// It has ended, and nobody can say how.
    Lost(Option<SystemTime>),
    /// It has ended, as is on record.
    Exited(Exit, Option<SystemTime>),
}

/// Decides about a task. `now` stands for a start time that nobody wrote down.
pub(super) fn task_fate(facts: &TaskFacts, now: SystemTime) -> TaskFate {
    if !facts.sandbox {
        return TaskFate::Destroy;
    }
    if let Some((exit, started_at)) = &facts.exit {
        return TaskFate::Exited(exit.clone(), *started_at);
    }
    match facts.process {
        // One that does not answer is watched like one that runs: its end is seen once it answers again.
        ProcessState::Running { pid } | ProcessState::Unanswered { pid } => {
            TaskFate::Running(Started { pid, at: facts.started_at.unwrap_or(now) })
        }
        ProcessState::Stopped(end) => TaskFate::Reap { started_at: facts.started_at, end },
        ProcessState::Created => TaskFate::StartPending,
        ProcessState::None if !facts.finished => TaskFate::Destroy,
        // After a reboot the file that a start leaves is gone as well, so that the task may have run.
        ProcessState::None if !facts.this_boot => TaskFate::Lost(None),
        ProcessState::None => match facts.started_at {
            Some(at) => TaskFate::Lost(Some(at)),
            None if facts.begun => TaskFate::StartPending,
            None => TaskFate::Created,
        },
    }
}

/// Whether containerd has to be asked about a task's process: a start that was begun and not finished is not asked about, for its shim
/// may take long to answer, and what it says changes nothing yet.
pub(super) const fn needs_shim_query(exit_on_record: bool, begun: bool, started: bool) -> bool {
    !exit_on_record && begun && started
}

/// What is seen of a container that a predecessor was at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observation {
    /// What containerd says of its process.
    pub(super) process: ProcessState,
    /// Whether it has a bundle, or somebody is seen at work on it; `None` if that cannot be known.
    pub(super) active: Option<bool>,
}

impl Observation {
    /// Whether nobody is seen at work where nothing else could tell of it.
    pub(super) fn nothing_seen(self) -> bool {
        self.active.is_none() && self.process == ProcessState::None
    }
}

/// For how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    /// This is seen.
    pub(super) unchanged: Duration,
    /// Nothing is seen where bundles cannot be, by us and by those of our predecessors that were killed as they looked.
    pub(super) quiet: Duration,
    /// It is looked, by all of us.
    pub(super) waited: Duration,
}

/// How long a sight must last to be believed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTimeouts {
    /// A process that was made and that nobody starts; no process, and nobody seen at work on one, where bundles cannot be seen.
    pub(super) grace: Duration,
    /// A process in the making.
    pub(super) limit: Duration,
}

/// What came of a predecessor's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Nothing.
    NoEffect,
    /// Less than a process that runs: it has to be ended.
    Incomplete,
    /// Work on a process of which nothing has come for as long as could be waited.
    Stuck,
    /// A process that runs, or did.
    Started {
        /// Process id on the host; 0 if it has ended already.
        pid: u32,
    },
}

impl CallOutcome {
    /// Whether nothing has to be ended.
    pub(super) const fn needs_no_cleanup(self) -> bool {
        match self {
            Self::NoEffect | Self::Started { .. } => true,
            Self::Incomplete | Self::Stuck => false,
        }
    }
}

/// How long nothing must be seen of a container where its bundle would be, or by one daemon where bundles cannot be seen: longer than
/// containerd leaves a call unread.
const QUIET_PERIOD: Duration = Duration::from_millis(200);

/// Decides whether a predecessor's call has settled, from what is seen, and for how long.
///
/// A process that is made and not started is at rest as soon as it has been looked for so long: only a daemon that was answered about
/// its making asks for its start, so that call, if any, is older than the first look.
pub(super) fn call_outcome(
    observation: Observation,
    durations: Durations,
    timeouts: CallTimeouts,
) -> Option<CallOutcome> {
    let Durations { unchanged: seen, quiet, waited: looked } = durations;
    let after = |wait: Duration, outcome| (seen >= wait).then_some(outcome);
    match (observation.process, observation.active) {
        (ProcessState::Running { pid }, _) => Some(CallOutcome::Started { pid }),
        (ProcessState::Stopped(_), _) => Some(CallOutcome::Started { pid: 0 }),
        (ProcessState::Unanswered { .. }, _) => (looked >= timeouts.limit).then_some(CallOutcome::Incomplete),
        (ProcessState::None, Some(true)) => (looked >= timeouts.limit).then_some(CallOutcome::Stuck),
        (ProcessState::Created, _) => (looked >= timeouts.grace).then_some(CallOutcome::Incomplete),
        (ProcessState::None, None) if quiet < timeouts.grace => None,
        (ProcessState::None, Some(false) | None) => after(QUIET_PERIOD, CallOutcome::NoEffect),
    }
}

/// What is found of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxFacts {
    /// How far its making or stopping had come.
    pub(super) phase: SandboxPhase,
    /// The namespaces that it should have are there.
    pub(super) pinned: bool,
    /// Its infra process runs, or it needs none.
    pub(super) infra: bool,
}

/// The state of a sandbox; `None` if it was never finished: remove all of it.
pub(super) fn sandbox_fate(facts: SandboxFacts) -> Option<SandboxState> {
    let broken = |reason: &str| Some(SandboxState::Unknown { reason: reason.to_owned() });
    match facts.phase {
        SandboxPhase::Creating => None,
        SandboxPhase::Stopped => Some(SandboxState::Stopped),
        SandboxPhase::Starting => broken("its start was cut off"),
        SandboxPhase::Removing => broken("its removal was cut off"),
        SandboxPhase::Ready if !facts.pinned => broken("its namespaces are gone, as after a reboot"),
        SandboxPhase::Ready if !facts.infra => broken("its infra process has ended"),
        SandboxPhase::Ready => Some(SandboxState::Ready),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn stopped(code: i32) -> ProcessState {
        ProcessState::Stopped(ProcessExit { code, at: Some(at(8)) })
    }

    fn facts(process: ProcessState) -> TaskFacts {
        let exit = None;
        let started_at = None;
        TaskFacts { sandbox: true, finished: true, this_boot: true, exit, started_at, begun: false, process }
    }

    #[test]
    fn a_running_process_is_adopted_with_the_start_time_on_file() {
        let running = TaskFacts { started_at: Some(at(5)), ..facts(ProcessState::Running { pid: 7 }) };
        assert_eq!(task_fate(&running, at(9)), TaskFate::Running(Started { pid: 7, at: at(5) }));
        let cut = facts(ProcessState::Running { pid: 7 });
        assert_eq!(task_fate(&cut, at(9)), TaskFate::Running(Started { pid: 7, at: at(9) }));
    }

    #[test]
    fn a_task_whose_shim_does_not_answer_counts_as_running() {
        let silent = TaskFacts { started_at: Some(at(5)), ..facts(ProcessState::Unanswered { pid: 7 }) };
        assert_eq!(task_fate(&silent, at(9)), TaskFate::Running(Started { pid: 7, at: at(5) }));
    }

    #[test]
    fn what_was_never_finished_or_has_no_sandbox_goes() {
        let half = TaskFacts { finished: false, ..facts(ProcessState::None) };
        assert_eq!(task_fate(&half, at(9)), TaskFate::Destroy);
        let orphan = TaskFacts { sandbox: false, ..facts(ProcessState::Running { pid: 7 }) };
        assert_eq!(task_fate(&orphan, at(9)), TaskFate::Destroy);
    }

    #[test]
    fn an_exit_on_record_stands_whatever_else_is_found() {
        let exit = Exit { code: 3, finished_at: at(8), cause: switchyard_core::state::ExitCause::Exited };
        for process in [ProcessState::None, stopped(0), ProcessState::Created] {
            let ended =
                TaskFacts { exit: Some((exit.clone(), Some(at(5)))), finished: false, ..facts(process) };
            assert_eq!(task_fate(&ended, at(9)), TaskFate::Exited(exit.clone(), Some(at(5))));
        }
    }

    #[test]
    fn an_end_that_nobody_saw_is_looked_at_while_it_can_be() {
        let ended = TaskFacts { started_at: Some(at(5)), ..facts(stopped(3)) };
        let end = ProcessExit { code: 3, at: Some(at(8)) };
        assert_eq!(task_fate(&ended, at(9)), TaskFate::Reap { started_at: Some(at(5)), end });
        let gone = TaskFacts { started_at: Some(at(5)), ..facts(ProcessState::None) };
        assert_eq!(task_fate(&gone, at(9)), TaskFate::Lost(Some(at(5))));
        let rebooted = TaskFacts { this_boot: false, ..facts(ProcessState::None) };
        assert_eq!(task_fate(&rebooted, at(9)), TaskFate::Lost(None));
    }

    #[test]
    fn a_task_that_was_not_started_can_still_be() {
        assert_eq!(task_fate(&facts(ProcessState::None), at(9)), TaskFate::Created);
        let cut = TaskFacts { begun: true, ..facts(ProcessState::None) };
        assert_eq!(task_fate(&cut, at(9)), TaskFate::StartPending);
        assert_eq!(task_fate(&facts(ProcessState::Created), at(9)), TaskFate::StartPending);
    }

    #[test]
    fn a_call_has_settled_when_a_process_runs_or_nothing_more_is_to_be_expected() {
        let [short, grace, limit] = [10, 2_000, 30_000].map(Duration::from_millis);
        let patience = CallTimeouts { grace, limit };
        let check = |process, work, seen, looked, expected| {
            let sight = Observation { process, active: work };
            // Nothing has been seen for as long as was looked.
            let lasted = Durations { unchanged: seen, quiet: looked, waited: looked };
            assert_eq!(call_outcome(sight, lasted, patience), expected, "{sight:?} {lasted:?}");
        };
        check(
            ProcessState::Running { pid: 7 },
            Some(true),
            short,
            short,
            Some(CallOutcome::Started { pid: 7 }),
        );
        check(stopped(0), None, short, short, Some(CallOutcome::Started { pid: 0 }));
        check(ProcessState::Created, Some(true), short, short, None);
        check(ProcessState::Created, Some(true), short, grace, Some(CallOutcome::Incomplete));
        check(ProcessState::None, Some(true), grace, grace, None);
        check(ProcessState::None, Some(true), grace, limit, Some(CallOutcome::Stuck));
        check(ProcessState::None, Some(false), short, limit, None);
        check(ProcessState::None, Some(false), QUIET_PERIOD, QUIET_PERIOD, Some(CallOutcome::NoEffect));
        check(ProcessState::None, None, QUIET_PERIOD, QUIET_PERIOD, None);
        check(ProcessState::None, None, grace, grace, Some(CallOutcome::NoEffect));
        // Daemons that are killed faster than that share it.
        check(ProcessState::None, None, QUIET_PERIOD, grace, Some(CallOutcome::NoEffect));
        check(ProcessState::None, None, short, grace, None);
        check(ProcessState::Unanswered { pid: 7 }, None, limit, limit, Some(CallOutcome::Incomplete));
    }

    #[test]
    fn a_sandbox_is_ready_only_with_all_that_it_needs() {
        let facts = SandboxFacts { phase: SandboxPhase::Ready, pinned: true, infra: true };
        assert_eq!(sandbox_fate(facts), Some(SandboxState::Ready));
        assert!(matches!(
            sandbox_fate(SandboxFacts { pinned: false, ..facts }),
            Some(SandboxState::Unknown { .. })
        ));
        assert!(matches!(
            sandbox_fate(SandboxFacts { infra: false, ..facts }),
            Some(SandboxState::Unknown { .. })
        ));
        assert_eq!(
            sandbox_fate(SandboxFacts { phase: SandboxPhase::Stopped, pinned: false, infra: false }),
            Some(SandboxState::Stopped)
        );
        let cut = sandbox_fate(SandboxFacts { phase: SandboxPhase::Starting, ..facts });
        assert!(matches!(cut, Some(SandboxState::Unknown { .. })));
        let leaving = sandbox_fate(SandboxFacts { phase: SandboxPhase::Removing, ..facts });
        assert_eq!(leaving.map(|state| state.as_str()), Some("unknown"));
        assert_eq!(sandbox_fate(SandboxFacts { phase: SandboxPhase::Creating, ..facts }), None);
    }
}
