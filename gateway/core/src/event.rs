//! Events: changes of sandboxes and tasks, for subscribers.
//!
//! Each subscriber has a bounded queue. One that is too slow loses the oldest events and gets their number
//! ([`Lagged`]); it must then read the table again. Publishing never waits for a subscriber.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::id::{Owner, SandboxId, TaskId};
use crate::ledger::Refusal;
use crate::names::Names;
use crate::object::{Sandbox, Task};
use crate::state::Exit;
use crate::stop_request::StopRequest;

/// Maximum number of events by which a subscriber may lag behind.
pub const CAPACITY: usize = 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time of the event; strictly later than every earlier one, even if the clock is set back.
    pub at: SystemTime,
    /// The owner of the object.
    pub owner: Owner,
    /// Kind of the event.
    pub kind: EventKind,
    /// The sandbox that the event is about, or that contains the task, as it was at that moment; present even
    /// if it has been removed since.
    pub sandbox: Option<Arc<Sandbox>>,
    /// The task that the event is about, as it was at that moment; present even if it has been removed since.
    pub task: Option<Arc<Task>>,
}

/// The kind of an event, and its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A sandbox is ready.
    SandboxReady(SandboxId),
    /// A sandbox is no longer ready.
    SandboxStopped(SandboxId),
    /// A sandbox is gone.
    SandboxRemoved(SandboxId),
    /// A task was created.
    TaskCreated(TaskId),
    /// A task runs.
    TaskStarted(TaskId),
    /// A task has ended, or never started.
    TaskExited(TaskId, Exit, TaskEnd),
    /// A task is gone.
    TaskRemoved(TaskId),
    /// A request for a resource of the node was refused.
    Refused(Arc<Refusal>),
    /// A resource of the node was given although this speaks against it.
    Conflict(Arc<Refusal>),
    /// Work that an owner was given cannot begin.
    Unmet(Arc<UnmetWork>),
}

/// Work that an owner was given and cannot begin, so that there is no object of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetWork {
    /// The names by which its owner's users know it.
    pub names: Names,
    /// Reason why it cannot begin: what it waits for, or lacks.
    pub reason: String,
    /// True if it was rejected; false if it is tried again.
    pub is_rejected: bool,
}

/// Circumstances of the end of a task, beside its exit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskEnd {
    /// The first request that it stop, if one came before its exit; or else that for the signal by which it ended.
    pub stop: Option<StopRequest>,
    /// True if it ended while no daemon ran, and recovery has found its exit.
    pub is_found: bool,
}

/// The subscriber was too slow and missed this many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{missed} events were missed: read the lists again")]
pub struct Lagged {
    /// Number of missed events.
    pub missed: u64,
}

/// Publishes events to all subscribers.
#[derive(Debug, Clone)]
pub struct EventBus {
    sender: broadcast::Sender<Event>,
}

/// One subscriber's queue, filtered to one owner if requested.
#[derive(Debug)]
pub struct Subscription {
    receiver: broadcast::Receiver<Event>,
    owner: Option<Owner>,
}

/// The sandboxes that exist at one moment, and the events after it.
#[derive(Debug)]
pub struct ListAndWatch {
    /// That moment: every event is later.
    pub since: SystemTime,
    /// The sandboxes that existed, by id.
    pub sandboxes: Vec<SandboxId>,
    pub(crate) events: Subscription,
    pub(crate) ended: CancellationToken,
}

// === impl EventBus ===

impl Default for EventBus {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(CAPACITY).0,
        }
    }
}

impl EventBus {
    /// Sends an event to every subscriber; never waits.
    pub fn publish(&self, event: Event) {
        // It is not an error to have no subscriber.
        let _ = self.sender.send(event);
    }

    /// A queue of the events from now on, of one owner or (`None`) of all.
    #[must_use]
    pub fn subscribe(&self, owner: Option<Owner>) -> Subscription {
        Subscription {
            receiver: self.sender.subscribe(),
            owner,
        }
    }
}

// === impl Subscription ===

impl Subscription {
    /// The next event; `None` once the gateway has ended. Cancel-safe.
    ///
    /// # Errors
    /// [`Lagged`] if events were lost; the next call continues with the oldest event still in the queue.
    pub async fn next(&mut self) -> Result<Option<Event>, Lagged> {
        loop {
            match self.receiver.recv().await {
                Ok(event) if self.owner.is_none_or(|owner| owner == event.owner) => {
                    return Ok(Some(event));
                }
                Ok(_) => {}
                Err(broadcast::error::RecvError::Closed) => return Ok(None),
                Err(broadcast::error::RecvError::Lagged(missed)) => return Err(Lagged { missed }),
            }
        }
    }
}

// === impl ListAndWatch ===

impl ListAndWatch {
    /// The next event; `None` once the gateway shuts down. Cancel-safe.
    ///
    /// # Errors
    /// [`Lagged`] if events were lost: subscribe again and read the current state.
    pub async fn next(&mut self) -> Result<Option<Event>, Lagged> {
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Ok(None),
            event = self.events.next() => event,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(owner: Owner) -> Event {
        let kind = EventKind::TaskCreated(TaskId::from_bytes([1; 32]));
        Event {
            at: SystemTime::UNIX_EPOCH,
            owner,
            kind,
            sandbox: None,
            task: None,
        }
    }

    #[tokio::test]
    async fn subscriber_sees_only_its_owners_events() {
        let bus = EventBus::default();
        let mut nomad = bus.subscribe(Some(Owner::Nomad));
        bus.publish(event(Owner::Kubernetes));
        bus.publish(event(Owner::Nomad));
        assert_eq!(nomad.next().await, Ok(Some(event(Owner::Nomad))));
    }

    #[tokio::test]
    async fn slow_subscriber_gets_a_lag_notice_and_continues() {
        let bus = EventBus::default();
        let mut slow = bus.subscribe(None);
        for _ in 0..CAPACITY + 5 {
            bus.publish(event(Owner::Host));
        }
        assert_eq!(slow.next().await, Err(Lagged { missed: 5 }));
        assert!(matches!(slow.next().await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn stalled_subscribers_block_neither_publisher_nor_others() {
        let bus = EventBus::default();
        let mut stalled: Vec<_> = (0..1000).map(|_| bus.subscribe(None)).collect();
        let mut listening = bus.subscribe(None);
        let events = 10 * CAPACITY;
        for _ in 0..events {
            // `publish` is not async, so it cannot wait.
            bus.publish(event(Owner::Host));
            assert_eq!(listening.next().await, Ok(Some(event(Owner::Host))));
        }
        // All subscribers share one queue, which never exceeds its capacity.
        assert_eq!(bus.sender.len(), CAPACITY);
        let missed = u64::try_from(events - CAPACITY).unwrap();
        for slow in &mut stalled {
            assert_eq!(slow.next().await, Err(Lagged { missed }));
            for _ in 0..CAPACITY {
                assert_eq!(slow.next().await, Ok(Some(event(Owner::Host))));
            }
        }
        bus.publish(event(Owner::Nomad));
        for slow in &mut stalled {
            assert_eq!(slow.next().await, Ok(Some(event(Owner::Nomad))));
        }
    }

    #[tokio::test]
    async fn event_stream_ends_with_its_bus() {
        let bus = EventBus::default();
        let mut last = bus.subscribe(None);
        drop(bus);
        assert_eq!(last.next().await, Ok(None));
    }
}
