//! Events about the node itself, for its history: starts and ends of containerd and the logkeeper, and jumps of the clock.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};
use switchyard_core::backend::Condition;
use switchyard_core::gateway::Gateway;
use switchyard_linux::process::ProcessId;
use switchyard_operator::events::EventLog;
use switchyard_operator_api::text::rfc3339;
use tokio::sync::watch;

use crate::managed::State;

/// Interval at which an external containerd is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which the clock is looked at.
const CLOCK_LOOK: Duration = Duration::from_secs(5);

/// The smallest change of the clock that counts as a jump: a clock that is corrected slowly changes less in an interval.
const JUMP: Duration = Duration::from_secs(1);

/// Records what becomes of a managed process, or of an external logkeeper. Cancel-safe.
pub(crate) async fn follow_process(
    events: EventLog,
    name: &'static str,
    mut state: watch::Receiver<State>,
) {
    let mut before = State::Starting;
    loop {
        let now = told(&before, state.borrow_and_update().clone());
        if let Some((word, detail)) = process_change(&before, &now) {
            events.note(&format!("{name}_{word}"), detail);
        }
        before = now;
        // The sender lives as long as the daemon.
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// The process that runs in this state.
const fn process_of(state: &State) -> Option<ProcessId> {
    match state {
        State::Up { process, .. } | State::Hanging { process, .. } => Some(*process),
        State::Starting | State::Down(_) => None,
    }
}

/// The state after another one. An external process that does not answer is reported as down: if the one before is there, it
/// has not ended.
fn told(before: &State, now: State) -> State {
    match (process_of(before), now) {
        (Some(process), State::Down(why)) if process.is_alive() => State::Hanging { process, why },
        (_, now) => now,
    }
}

/// The word and the words for a change of a process; `None` for one that is no start and no end. A process that was found
/// running has not started now. Pure.
fn process_change(before: &State, now: &State) -> Option<(&'static str, String)> {
    match (before, now) {
        (
            _,
            State::Up {
                process,
                adopted,
                version,
                ..
            },
        ) => {
            let text = format!("{version}, process {}", process.pid);
            match process_of(before) {
                Some(former) if former == *process => {
                    matches!(before, State::Hanging { .. }).then_some(("answers", text))
                }
                Some(former) => Some(("started", format!("{text}, in place of {}", former.pid))),
                // At the start of this daemon.
                None if *adopted && *before == State::Starting => None,
                None => Some(("started", text)),
            }
        }
        (State::Up { .. }, State::Hanging { process, why }) => {
            Some(("hangs", format!("process {}: {why}", process.pid)))
        }
        (State::Up { .. } | State::Hanging { .. }, State::Down(why)) => {
            Some(("ended", why.clone()))
        }
        (State::Up { .. } | State::Hanging { .. }, State::Starting) => {
            Some(("ended", "a restart was asked for".to_owned()))
        }
        (State::Starting, State::Down(why)) => Some(("failed", why.clone())),
        (_, State::Hanging { .. } | State::Starting) | (State::Down(_), State::Down(_)) => None,
    }
}

/// Records when an external containerd stops and begins to answer. Cancel-safe.
pub(crate) async fn follow_runtime(events: EventLog, gateway: Gateway) {
    let mut before: Option<bool> = None;
    loop {
        let status = gateway.status();
        let is_up = status.runtime == Condition::True;
        if before.is_some_and(|before| before != is_up) {
            match status.runtime {
                Condition::True => events.note("runtime_answers", status.version),
                Condition::False { reason, message } => {
                    events.note("runtime_unavailable", format!("{reason}: {message}"));
                }
            }
        }
        // What was never up has not ended.
        if is_up || before.is_some() {
            before = Some(is_up);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Records jumps of the clock. A suspended node is none. Cancel-safe.
pub(crate) async fn follow_clock(events: EventLog) {
    let mut before = ClockReading::now();
    loop {
        tokio::time::sleep(CLOCK_LOOK).await;
        let now = ClockReading::now();
        if let Some(text) = before.zip(now).and_then(|(before, now)| jump(before, now)) {
            tracing::warn!("{text}");
            events.note("clock_jumped", text);
        }
        before = now.or(before);
    }
}

/// The time of the node's start, for the event of the daemon's; empty if it is not known.
pub(crate) fn booted() -> String {
    let booted = ClockReading::now().and_then(|now| now.wall.checked_sub(now.since_boot));
    booted
        .map(|at| format!(", node up since {}", rfc3339(at)))
        .unwrap_or_default()
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    wall: SystemTime,
    /// The time since the node's start, with the time for which it was suspended.
    since_boot: Duration,
}

impl ClockReading {
    /// `None` if the kernel does not have the second one.
    fn now() -> Option<Self> {
        let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
        Some(Self {
            wall: SystemTime::now(),
            since_boot: since_boot.into(),
        })
    }
}

/// The words about a jump between two readings; `None` if there was none. Pure.
fn jump(before: ClockReading, now: ClockReading) -> Option<String> {
    let passed = now.since_boot.saturating_sub(before.since_boot);
    let expected = before.wall.checked_add(passed)?;
    let (direction, by) = match now.wall.duration_since(expected) {
        Ok(by) => ("forward", by),
        Err(error) => ("back", error.duration()),
    };
    (by >= JUMP).then(|| {
        format!(
            "the clock was set {direction} by {:.1} s, from {}",
            by.as_secs_f64(),
            rfc3339(expected)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn process(pid: i32) -> ProcessId {
        ProcessId { pid, started: 1 }
    }

    fn up(pid: i32, adopted: bool) -> State {
        State::Up {
            process: process(pid),
            adopted,
            version: "v2".to_owned(),
            is_configuration_current: None,
        }
    }

    fn hanging(pid: i32) -> State {
        State::Hanging {
            process: process(pid),
            why: "silent".to_owned(),
        }
    }

    fn down() -> State {
        State::Down("ended with signal 9".to_owned())
    }

    #[track_caller]
    fn check(before: &State, now: &State, expected: Option<(&str, &str)>) {
        let change = process_change(before, now);
        let change = change
            .as_ref()
            .map(|(word, detail)| (*word, detail.as_str()));
        assert_eq!(change, expected, "{before:?} {now:?}");
    }

    #[test]
    fn starts_and_ends_of_a_process_are_events_and_its_adoption_is_none() {
        check(&State::Starting, &up(7, true), None);
        check(&up(7, true), &up(7, true), None);
        let started = Some(("started", "v2, process 7"));
        check(&State::Starting, &up(7, false), started);
        check(&down(), &up(7, false), started);
        // An external logkeeper that was away.
        check(&down(), &up(7, true), started);
        let replaced = Some(("started", "v2, process 8, in place of 7"));
        check(&up(7, true), &up(8, true), replaced);
        check(
            &up(7, false),
            &down(),
            Some(("ended", "ended with signal 9")),
        );
        let asked = Some(("ended", "a restart was asked for"));
        check(&up(7, false), &State::Starting, asked);
        check(
            &up(7, false),
            &hanging(7),
            Some(("hangs", "process 7: silent")),
        );
        check(&hanging(7), &hanging(7), None);
        check(
            &hanging(7),
            &up(7, false),
            Some(("answers", "v2, process 7")),
        );
        check(
            &State::Starting,
            &down(),
            Some(("failed", "ended with signal 9")),
        );
        check(&down(), &down(), None);
        check(&down(), &State::Starting, None);
    }

    #[test]
    fn process_that_is_there_has_not_ended() {
        let own = i32::try_from(std::process::id())
            .ok()
            .and_then(ProcessId::of);
        let process = own.expect("this process runs");
        let before = State::Up {
            process,
            adopted: true,
            version: "v2".to_owned(),
            is_configuration_current: None,
        };
        let why = "ended with signal 9".to_owned();
        assert_eq!(told(&before, down()), State::Hanging { process, why });
        // Another one has its id.
        assert_eq!(told(&up(process.pid, true), down()), down());
        assert_eq!(told(&State::Starting, down()), down());
    }

    #[test]
    fn jump_is_a_difference_between_the_clocks_and_no_time_that_passes() {
        let at = |wall: u64, since_boot: u64| ClockReading {
            wall: SystemTime::UNIX_EPOCH + Duration::from_millis(wall),
            since_boot: Duration::from_millis(since_boot),
        };
        let begin = at(10_000_000, 5_000);
        assert_eq!(jump(begin, at(10_001_000, 6_000)), None);
        assert_eq!(jump(begin, at(10_001_900, 6_000)), None);
        // A suspended node.
        assert_eq!(jump(begin, at(13_601_000, 3_606_000)), None);
        let back = jump(begin, at(6_401_000, 6_000)).unwrap();
        let expected = "the clock was set back by 3600.0 s, from 1970-01-01T02:46:41.000Z";
        assert_eq!(back, expected);
        let forward = jump(begin, at(10_002_000, 6_000)).unwrap();
        assert!(forward.contains("forward by 1.0 s"), "{forward}");
    }
}
