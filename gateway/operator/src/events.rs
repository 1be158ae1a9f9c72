//! The latest events of the node, for people: changes of sandboxes and tasks, and refused requests for
//! devices, ports, processors or memory.
//!
//! They are kept in memory, in a ring that is bounded in number and size, and are gone when the daemon ends.
//! A follower requests the events after the last one that it knows ([`EventLog::after`]); the answer reports
//! whether some were lost meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use switchyard_core::event::{Event, EventKind, Lagged, Subscription};
use switchyard_core::state::{Exit, ExitCause};
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{EventPage, EventView};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::owners::Owners;

mod ring;

use ring::Ring;

/// Maximum number of events in an answer.
const PAGE: usize = 500;

/// The latest events. Clones share them.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<EventStore>);

#[derive(Debug)]
struct EventStore {
    ring: Mutex<Ring>,
    /// The number of the latest event.
    latest: watch::Sender<u64>,
    /// Names this run of the daemon: event numbers begin again with the next one.
    run: String,
    owners: Owners,
}

impl EventLog {
    /// An empty list.
    #[must_use]
    pub fn new(owners: Owners) -> Self {
        let run = format!("{}-{}", std::process::id(), rfc3339(SystemTime::now()));
        Self(Arc::new(EventStore {
            ring: Mutex::default(),
            latest: watch::Sender::new(0),
            run,
            owners,
        }))
    }
}

impl EventLog {
    /// Records these events, until their gateway ends.
    pub async fn record(self, mut events: Subscription) {
        loop {
            match events.next().await {
                Ok(Some(event)) => self.push(view(&event, &self.0.owners)),
                Ok(None) => return,
                Err(Lagged { missed }) => {
                    tracing::warn!(
                        missed,
                        "events are missing on the list of events: there were too many at once"
                    );
                    let number = self.0.ring.lock().miss(missed);
                    self.0.latest.send_replace(number);
                }
            }
        }
    }

    fn push(&self, event: EventView) {
        let number = self.0.ring.lock().push(event);
        // After the ring has it: a follower that wakes finds the event.
        self.0.latest.send_replace(number);
    }

    /// At most `most` of the latest events that are wanted, the newest first.
    pub fn latest(&self, most: usize, is_wanted: impl Fn(&EventView) -> bool) -> Vec<EventView> {
        self.0.ring.lock().latest(most, is_wanted)
    }

    /// The events after the one with this number in this run of the daemon, at most 500 of them; all events
    /// that are kept if no number is given. If there are none, waits for one for at most `wait`. Cancel-safe.
    pub async fn after(
        &self,
        known: Option<(&str, u64)>,
        owner: Option<&str>,
        wait: Duration,
    ) -> EventPage {
        let same_run = known
            .filter(|(run, _)| *run == self.0.run)
            .map(|(_, number)| number);
        let after = same_run.unwrap_or_default();
        let is_restarted = known.is_some() && same_run.is_none();
        let deadline = Instant::now() + wait;
        let mut latest = self.0.latest.subscribe();
        let mut passed = after;
        let (events, next) = loop {
            // The sender lives as long as `self`.
            let is_late = timeout_at(deadline, latest.wait_for(|latest| *latest > passed))
                .await
                .is_err();
            let (events, next) = self.0.ring.lock().page(passed, PAGE, owner);
            if is_late || !events.is_empty() {
                break (events, next);
            }
            // Those were of other owners.
            passed = next;
        };
        let ring = self.0.ring.lock();
        // A client that asks for the first time has missed no event.
        let missed = if same_run.is_some() {
            ring.missing_after(after)
        } else {
            0
        };
        EventPage {
            run: self.0.run.clone(),
            next,
            missed,
            is_restarted,
            events,
        }
    }
}

/// The view of an event.
fn view(event: &Event, owners: &Owners) -> EventView {
    let Event {
        at,
        owner,
        kind,
        sandbox,
        task,
    } = event;
    let (word, detail) = describe(kind);
    let names = sandbox.as_deref().map(|sandbox| {
        owners
            .names_in_record(&sandbox.meta, task.as_deref().map(|task| &*task.meta))
            .to_string()
    });
    EventView {
        number: 0,
        at: rfc3339(*at),
        owner: owner.to_string(),
        event: word.to_owned(),
        sandbox: sandbox.as_deref().map(|sandbox| sandbox.id.to_string()),
        task: task.as_deref().map(|task| task.id.to_string()),
        name: names.unwrap_or_default(),
        detail,
    }
}

/// The word for an event, and details.
fn describe(kind: &EventKind) -> (&'static str, String) {
    match kind {
        EventKind::SandboxReady(_) => ("sandbox_ready", String::new()),
        EventKind::SandboxStopped(_) => ("sandbox_stopped", String::new()),
        EventKind::SandboxRemoved(_) => ("sandbox_removed", String::new()),
        EventKind::TaskCreated(_) => ("task_created", String::new()),
        EventKind::TaskStarted(_) => ("task_started", String::new()),
        EventKind::TaskExited(_, exit) => ("task_exited", exit_text(exit)),
        EventKind::TaskRemoved(_) => ("task_removed", String::new()),
        EventKind::Refused(refusal) => ("refused", refusal.to_string()),
    }
}

fn exit_text(
    Exit {
        code,
        finished_at: _,
        cause,
    }: &Exit,
) -> String {
    match cause {
        ExitCause::Exited => format!("code {code}"),
        ExitCause::OomKilled => format!("code {code}, killed because it ran out of memory"),
        ExitCause::StartFailed(why) => format!("never started: {why}"),
        ExitCause::Lost => "its exit was not observed".to_owned(),
    }
}

#[cfg(test)]
mod tests;
