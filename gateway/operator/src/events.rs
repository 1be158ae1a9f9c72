//! The events of the node, for people: changes of sandboxes and tasks, refused requests for devices, ports, processors
//! or memory, and what becomes of the daemon, containerd, the logkeeper and the clock.
//!
//! ```text
//! gateway ─► describe ─┬─► ring      the latest ones, in memory, for followers
//!   notes ─────────────┼─► store     all of seven days, on disk: segments of records, which a thread writes
//!                      └─► metrics and audit log, of exits
//! ```
//!
//! The ring is bounded in number and size; a start fills it with the last events on record. A follower requests the
//! events after the last one that it knows ([`EventLog::after`]); the answer reports whether some were lost meanwhile.
//! Those on record are read in pages ([`EventLog::history`]).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use switchyard_core::event::{Event, Lagged, Subscription};
use switchyard_core::operation::EndedOperation;
use switchyard_core::{Error, Result};
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{EventPage, EventView, ExitView, HistoryPage, NODE_OWNER};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::owners::Owners;

mod describe;
mod filter;
mod place;
pub(crate) mod record;
mod ring;
mod segments;
mod store;

pub use filter::EventFilter;
pub use place::{Place, PlaceError};
pub use store::HistoryCounts;

use ring::Ring;
use store::HistoryStore;

/// Maximum number of events in an answer.
const PAGE: usize = 500;

/// The word for the start of a daemon.
const STARTED: &str = "daemon_started";

/// The word for its end.
const ENDED: &str = "daemon_ended";

/// The latest events, and those on record. Clones share them.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<EventStore>);

#[derive(Debug)]
struct EventStore {
    ring: Mutex<Ring>,
    /// The number of the latest event.
    latest: watch::Sender<u64>,
    /// Names this run of the daemon: event numbers begin again with the next one.
    run: String,
    /// The number of the last event of earlier runs.
    former: u64,
    /// The end of the run before this one, if that left no record of it.
    former_end: Option<String>,
    owners: Owners,
    /// `None` if events are in memory alone.
    store: Option<HistoryStore>,
    exits: Arc<dyn ExitObserver>,
}

/// Learns of the exits of tasks. Its method must not block.
pub(crate) trait ExitObserver: fmt::Debug + Send + Sync {
    /// A task has exited; the exit is that of the event.
    fn task_exited(&self, event: &EventView, exit: &ExitView);
}

impl EventLog {
    /// The list of a daemon with this state directory, in which events are recorded. It begins with the last ones on
    /// record. Blocks for half a second at most.
    pub(crate) fn start(owners: Owners, state: &Path, exits: Arc<dyn ExitObserver>) -> Self {
        let (store, former) = HistoryStore::start(state).unzip();
        Self::with(owners, store, former.unwrap_or_default(), exits)
    }

    fn with(
        owners: Owners,
        store: Option<HistoryStore>,
        former: Vec<EventView>,
        exits: Arc<dyn ExitObserver>,
    ) -> Self {
        let run = format!("{}-{}", std::process::id(), rfc3339(SystemTime::now()));
        let former_end = unrecorded_end(&former);
        let mut ring = Ring::default();
        let mut last = 0;
        for event in former {
            last = ring.push(in_memory(event));
        }
        Self(Arc::new(EventStore {
            ring: Mutex::new(ring),
            latest: watch::Sender::new(last),
            run,
            former: last,
            former_end,
            owners,
            store,
            exits,
        }))
    }
}

impl EventLog {
    /// Records these events, until their gateway ends.
    pub async fn record(self, mut events: Subscription) {
        loop {
            match events.next().await {
                Ok(Some(event)) => self.observe(&event),
                Ok(None) => return,
                Err(Lagged { missed }) => {
                    tracing::warn!(
                        missed,
                        "events are missing on the list of events: there were too many at once"
                    );
                    if let Some(store) = &self.0.store {
                        store.lose(missed);
                    }
                    let number = self.0.ring.lock().miss(missed);
                    self.announce(number);
                }
            }
        }
    }

    fn observe(&self, event: &Event) {
        let view = describe::view(event, &self.0.owners, SystemTime::now());
        let view = record::bounded(view);
        if let Some(exit) = &view.exit {
            self.0.exits.task_exited(&view, exit);
        }
        self.add(view);
    }

    /// Records something that happened to the node now; never waits. `event` is one word.
    pub fn note(&self, event: &str, detail: String) {
        self.push(EventView {
            at: rfc3339(SystemTime::now()),
            owner: NODE_OWNER.to_owned(),
            event: event.to_owned(),
            detail,
            ..EventView::default()
        });
    }

    /// Records that an operation has failed; never waits.
    pub(crate) fn note_failure(&self, operation: &EndedOperation<'_>) {
        let view = describe::failure(operation, &self.0.owners, SystemTime::now());
        self.push(view);
    }

    /// Records the start of this daemon, and that the one before has left no record of its end.
    pub fn note_start(&self, detail: &str) {
        let before = self.0.former_end.as_deref().unwrap_or_default();
        self.note(STARTED, format!("{detail}{before}"));
    }

    /// Records the end of this daemon.
    pub fn note_end(&self, why: &str) {
        self.note(ENDED, why.to_owned());
    }

    fn push(&self, event: EventView) {
        self.add(record::bounded(event));
    }

    /// Adds an event whose texts are bounded.
    fn add(&self, event: EventView) {
        if let Some(store) = &self.0.store {
            store.record(&event);
        }
        let number = self.0.ring.lock().push(in_memory(event));
        self.announce(number);
    }

    /// Wakes followers, after the ring has the event with this number. Of two at once, the later one may come first.
    fn announce(&self, number: u64) {
        self.0
            .latest
            .send_modify(|latest| *latest = number.max(*latest));
    }

    /// At most `most` of the latest events that are wanted, the newest first.
    pub fn latest(&self, most: usize, is_wanted: impl Fn(&EventView) -> bool) -> Vec<EventView> {
        self.0.ring.lock().latest(most, is_wanted)
    }

    /// The events on record from a place on that a filter wants, at most 500 of them. Takes a few seconds at most.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `FailedPrecondition` if no events are recorded; `Unavailable` if the disk does not answer, or cannot be read.
    pub async fn history(&self, from: Place, filter: EventFilter) -> Result<HistoryPage> {
        match &self.0.store {
            Some(store) => store.page(from, filter).await,
            None => Err(Error::failed_precondition(
                "this daemon records no events: its log says why",
            )),
        }
    }

    /// The records of the history since the daemon started; `None` if events are in memory alone.
    #[must_use]
    pub fn counts(&self) -> Option<HistoryCounts> {
        self.0.store.as_ref().map(HistoryStore::counts)
    }

    /// Waits until the events so far are on record, for a bounded time. Blocks.
    pub fn flush(&self) {
        if let Some(store) = &self.0.store {
            store.flush();
        }
    }

    /// The events after the one with this number in this run of the daemon, at most 500 of them; all events
    /// that are in memory if no number is given, and those of this run after one of an earlier run. If there are none,
    /// waits for one for at most `wait`. Cancel-safe.
    pub async fn after(
        &self,
        known: Option<(&str, u64)>,
        owner: Option<&str>,
        wait: Duration,
    ) -> EventPage {
        let same_run = known
            .filter(|(run, _)| *run == self.0.run)
            .map(|(_, number)| number);
        let is_restarted = known.is_some() && same_run.is_none();
        let begin = if is_restarted { self.0.former } else { 0 };
        let after = same_run.unwrap_or(begin);
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

/// The event as the ring keeps it: its names are on record alone.
fn in_memory(event: EventView) -> EventView {
    EventView {
        names: BTreeMap::new(),
        ..event
    }
}

/// The words about a run of the daemon that left these last events and no record of its end; `None` if there was none, or
/// it has ended as it should.
fn unrecorded_end(former: &[EventView]) -> Option<String> {
    let last = former.last()?;
    let of_daemon = |event: &&EventView| event.event == STARTED || event.event == ENDED;
    let is_recorded = former
        .iter()
        .rev()
        .find(of_daemon)
        .is_some_and(|event| event.event == ENDED);
    (!is_recorded).then(|| {
        format!(
            "; the daemon before it left no record of its end: it was killed or crashed, the node went down, or the record could not be written, after {}",
            last.at
        )
    })
}

#[cfg(test)]
mod tests;
