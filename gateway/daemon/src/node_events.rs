//! Events about the node itself, for its history: starts and ends of containerd and the logkeeper, and jumps of the clock.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};
use switchyard_core::backend::{BackendStatus, Condition};
use switchyard_core::gateway::Gateway;
use switchyard_linux::process::ProcessId;
use switchyard_operator::events::EventLog;
use switchyard_operator_api::text::rfc3339;
use tokio::sync::watch;

use crate::managed::State;

/// Interval at which an external containerd is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The longest such interval, while contact with it comes and goes.
const LOOK_MAX: Duration = Duration::from_secs(60);

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

/// An external containerd at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RuntimeLook {
    is_up: bool,
    /// Number of times that contact with it was lost so far.
    losses: u64,
}

/// Records when an external containerd stops and begins to answer, also if it did both between two looks. Cancel-safe.
pub(crate) async fn follow_runtime(events: EventLog, gateway: Gateway) {
    let mut before: Option<RuntimeLook> = None;
    let mut pace = LookPace::new();
    loop {
        let BackendStatus {
            runtime,
            contact_losses,
            version,
            ..
        } = gateway.status();
        let is_up = runtime == Condition::True;
        // What this daemon has lost before the first look was up.
        let known = before.unwrap_or(RuntimeLook { is_up, losses: 0 });
        let change = runtime_change(known, &runtime, contact_losses, &version);
        let pause = pace.pause_after(change.is_some());
        if let Some((word, detail)) = change {
            events.note(word, detail);
        }
        // What was never up has not ended.
        if is_up || contact_losses > 0 || before.is_some() {
            before = Some(RuntimeLook {
                is_up,
                losses: contact_losses,
            });
        }
        tokio::time::sleep(pause).await;
    }
}

/// The word and the words for what has happened to an external containerd since a look; `None` for nothing. Pure.
fn runtime_change(
    before: RuntimeLook,
    runtime: &Condition,
    losses: u64,
    version: &str,
) -> Option<(&'static str, String)> {
    let lost = losses.saturating_sub(before.losses);
    let times = |lost: u64| match lost {
        0 => String::new(),
        1 => "; contact was lost once more meanwhile".to_owned(),
        lost => format!("; contact was lost {lost} more times meanwhile"),
    };
    match runtime {
        Condition::True if before.is_up => match lost {
            0 => None,
            1 => Some((
                "runtime_interrupted",
                format!("{version}: contact was lost, and is there again, as after a restart"),
            )),
            lost => Some((
                "runtime_interrupted",
                format!("{version}: contact was lost {lost} times, and is there again"),
            )),
        },
        Condition::True => Some(("runtime_answers", format!("{version}{}", times(lost)))),
        Condition::False { .. } if !before.is_up && lost == 0 => None,
        Condition::False { reason, message } => {
            // One of the losses is the one that lasts.
            let others = times(lost.saturating_sub(1));
            Some((
                "runtime_unavailable",
                format!("{reason}: {message}{others}"),
            ))
        }
    }
}

/// The pauses between looks at an external containerd. They grow while there is something to record, so that one whose
/// contact comes and goes for days makes an event a minute, which has the number of losses.
#[derive(Debug)]
struct LookPace {
    pause: Duration,
    /// Time since the last change.
    quiet: Duration,
}

impl LookPace {
    const fn new() -> Self {
        Self {
            pause: LOOK,
            quiet: Duration::ZERO,
        }
    }

    /// The pause after a look that has found a change, or none.
    fn pause_after(&mut self, has_changed: bool) -> Duration {
        if has_changed {
            self.quiet = Duration::ZERO;
            self.pause = LOOK_MAX.min(self.pause * 2);
        } else {
            self.quiet += self.pause;
            if self.quiet >= LOOK_MAX {
                self.pause = LOOK;
            }
        }
        self.pause
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
    fn each_loss_of_an_external_containerd_is_in_an_event_however_short() {
        let up = Condition::True;
        let down = Condition::False {
            reason: "ContainerdUnavailable".to_owned(),
            message: "refused".to_owned(),
        };
        let interrupted = "v1: contact was lost, and is there again, as after a restart";
        for (was_up, lost, now, expected) in [
            (true, 0, &up, None),
            (true, 1, &up, Some(("runtime_interrupted", interrupted))),
            (
                true,
                30,
                &up,
                Some((
                    "runtime_interrupted",
                    "v1: contact was lost 30 times, and is there again",
                )),
            ),
            (
                true,
                1,
                &down,
                Some(("runtime_unavailable", "ContainerdUnavailable: refused")),
            ),
            // A disk failed, and containerd answers.
            (
                true,
                0,
                &down,
                Some(("runtime_unavailable", "ContainerdUnavailable: refused")),
            ),
            (
                true,
                3,
                &down,
                Some((
                    "runtime_unavailable",
                    "ContainerdUnavailable: refused; contact was lost 2 more times meanwhile",
                )),
            ),
            (false, 0, &down, None),
            (
                false,
                1,
                &down,
                Some(("runtime_unavailable", "ContainerdUnavailable: refused")),
            ),
            (false, 0, &up, Some(("runtime_answers", "v1"))),
            (
                false,
                1,
                &up,
                Some((
                    "runtime_answers",
                    "v1; contact was lost once more meanwhile",
                )),
            ),
        ] {
            let before = RuntimeLook {
                is_up: was_up,
                losses: 5,
            };
            let change = runtime_change(before, now, 5 + lost, "v1");
            let change = change
                .as_ref()
                .map(|(word, detail)| (*word, detail.as_str()));
            assert_eq!(change, expected, "{was_up} {lost} {now:?}");
        }
    }

    #[test]
    fn contact_that_comes_and_goes_makes_few_events_and_one_outage_is_seen_soon() {
        // A look finds a change if there was one since the look before.
        let events = |changes: &dyn Fn(Duration, Duration) -> bool, until: Duration| {
            let mut pace = LookPace::new();
            let mut at = Duration::ZERO;
            let mut before = Duration::ZERO;
            let mut events = Vec::new();
            while at < until {
                let has_changed = changes(before, at);
                if has_changed {
                    events.push(at.as_secs());
                }
                before = at;
                at += pace.pause_after(has_changed);
            }
            events
        };
        let day = Duration::from_secs(24 * 3600);
        for period in [1, 3, 20, 59, 90] {
            let flapping =
                |before: Duration, at: Duration| at.as_secs() / period > before.as_secs() / period;
            let events = events(&flapping, day).len();
            assert!(
                (900..=24 * 60 * 4).contains(&events),
                "{period}: {events} events"
            );
        }
        // It is away from second 10 to 13, and again an hour later.
        let outages = [10, 13, 3610, 3613].map(Duration::from_secs);
        let changes =
            |before: Duration, at: Duration| outages.iter().any(|out| before < *out && *out <= at);
        let seen = events(&changes, day);
        assert_eq!(seen.len(), outages.len(), "{seen:?}");
        for (seen, out) in seen.iter().zip(outages) {
            assert!(*seen - out.as_secs() <= 2, "{seen} {out:?}");
        }
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
