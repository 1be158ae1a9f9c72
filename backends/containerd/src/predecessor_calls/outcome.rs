//! The outcome of a predecessor call: a decision without side effects.

use std::time::Duration;

use crate::client::process_state::ProcessState;

/// One observation of a container that a predecessor call may still be working on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observation {
    /// The state of its process, as containerd reports it.
    pub(crate) process: ProcessState,
    /// True if it has a bundle, where bundles can be seen (managed containerd), or else if a process is seen
    /// that works on it. `None` if neither can be known.
    pub(crate) active: Option<bool>,
}

impl Observation {
    /// Returns whether there is no process and no sign of activity, beside an external containerd, whose
    /// bundles cannot be seen.
    pub(crate) fn nothing_seen(self) -> bool {
        self.active.is_none() && self.process == ProcessState::None
    }
}

/// Durations of observations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durations {
    /// Time for which this daemon has made the same observation.
    pub(crate) unchanged: Duration,
    /// Time for which [`Observation::nothing_seen`] has held. Includes the time that predecessors observed
    /// before they were killed.
    pub(crate) quiet: Duration,
    /// Time for which the call has been waited for, by this daemon and its predecessors.
    pub(crate) waited: Duration,
}

/// Durations after which a state counts as the outcome of a predecessor call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTimeouts {
    /// A process that was created and is not being started; and, where bundles cannot be seen, no process and
    /// no sign of activity.
    pub(crate) grace: Duration,
    /// Activity that has not led to a process yet, or a shim that does not answer.
    pub(crate) limit: Duration,
}

/// The outcome of a predecessor call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It left nothing.
    NoEffect,
    /// It left something other than a process that ran, such as a created process: that has to be terminated.
    Incomplete,
    /// It is still active after [`CallTimeouts::limit`] and has not led to a process: that has to be
    /// terminated.
    Stuck,
    /// It started a process.
    Started {
        /// Process id on the host; 0 if the process has exited already.
        pid: u32,
    },
}

impl CallOutcome {
    /// Returns whether nothing has to be terminated.
    pub(crate) const fn needs_no_cleanup(self) -> bool {
        match self {
            Self::NoEffect | Self::Started { .. } => true,
            Self::Incomplete | Self::Stuck => false,
        }
    }
}

/// Time for which one daemon must observe that a container has no bundle, or, where bundles cannot be seen,
/// no process and no sign of activity. Longer than containerd takes to read a call that was sent to it.
const QUIET_PERIOD: Duration = Duration::from_millis(200);

/// The outcome of a predecessor call; `None` while it may still be in progress.
///
/// A process that is created and not started is [`CallOutcome::Incomplete`] once the wait has lasted for
/// `grace`, however short the process was seen: only a daemon whose create call was answered asks for the
/// start, so a start call, if there is one, was sent before the wait began.
pub(crate) fn call_outcome(
    observation: Observation,
    durations: Durations,
    timeouts: CallTimeouts,
) -> Option<CallOutcome> {
    let Durations {
        unchanged,
        quiet,
        waited,
    } = durations;
    match (observation.process, observation.active) {
        (ProcessState::Running { pid }, _) => Some(CallOutcome::Started { pid }),
        (ProcessState::Stopped(_), _) => Some(CallOutcome::Started { pid: 0 }),
        (ProcessState::Unanswered { .. }, _) => {
            (waited >= timeouts.limit).then_some(CallOutcome::Incomplete)
        }
        (ProcessState::None, Some(true)) => {
            (waited >= timeouts.limit).then_some(CallOutcome::Stuck)
        }
        (ProcessState::Created, _) => (waited >= timeouts.grace).then_some(CallOutcome::Incomplete),
        (ProcessState::None, None) if quiet < timeouts.grace => None,
        (ProcessState::None, Some(false) | None) => {
            (unchanged >= QUIET_PERIOD).then_some(CallOutcome::NoEffect)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::client::process_state::ProcessExit;

    fn stopped(code: i32) -> ProcessState {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(8);
        ProcessState::Stopped(ProcessExit { code, at: Some(at) })
    }

    #[test]
    fn a_call_has_settled_when_a_process_runs_or_nothing_more_is_to_be_expected() {
        let [short, grace, limit] = [10, 2_000, 30_000].map(Duration::from_millis);
        let timeouts = CallTimeouts { grace, limit };
        let check = |process, active, unchanged, waited, expected| {
            let observation = Observation { process, active };
            // As if nothing had been seen during the whole wait.
            let durations = Durations {
                unchanged,
                quiet: waited,
                waited,
            };
            assert_eq!(
                call_outcome(observation, durations, timeouts),
                expected,
                "{observation:?} {durations:?}"
            );
        };
        check(
            ProcessState::Running { pid: 7 },
            Some(true),
            short,
            short,
            Some(CallOutcome::Started { pid: 7 }),
        );
        check(
            stopped(0),
            None,
            short,
            short,
            Some(CallOutcome::Started { pid: 0 }),
        );
        check(ProcessState::Created, Some(true), short, short, None);
        check(
            ProcessState::Created,
            Some(true),
            short,
            grace,
            Some(CallOutcome::Incomplete),
        );
        check(ProcessState::None, Some(true), grace, grace, None);
        check(
            ProcessState::None,
            Some(true),
            grace,
            limit,
            Some(CallOutcome::Stuck),
        );
        check(ProcessState::None, Some(false), short, limit, None);
        check(
            ProcessState::None,
            Some(false),
            QUIET_PERIOD,
            QUIET_PERIOD,
            Some(CallOutcome::NoEffect),
        );
        check(ProcessState::None, None, QUIET_PERIOD, QUIET_PERIOD, None);
        check(
            ProcessState::None,
            None,
            grace,
            grace,
            Some(CallOutcome::NoEffect),
        );
        // The quiet time of daemons that were killed before `grace` was over is added up.
        check(
            ProcessState::None,
            None,
            QUIET_PERIOD,
            grace,
            Some(CallOutcome::NoEffect),
        );
        check(ProcessState::None, None, short, grace, None);
        check(
            ProcessState::Unanswered { pid: 7 },
            None,
            limit,
            limit,
            Some(CallOutcome::Incomplete),
        );
    }
}
