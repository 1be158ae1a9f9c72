//! GetContainerEvents: sends one client the current state, then the events.
//!
//! A client is sent messages as fast as it reads them: each message is built when the previous one was taken,
//! from the current state of the table. For a slow client, only its position in the queue that all clients
//! share is stored, and the ids of initial objects that were not sent yet. A client that misses events gets
//! an error, and its stream ends; when it reconnects, it begins with the current state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec;

use futures::stream::{self, StreamExt};
use switchyard_core::event::{Event, EventKind, ListAndWatch};
use switchyard_core::gateway::Scope;
use switchyard_core::id::SandboxId;
use switchyard_core::object::Sandbox;
use switchyard_core::table::SandboxWithTasks;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;

use super::{Runtime, held};
use crate::record::Records;
use crate::status::status;
use crate::{batch, to_proto};

/// An event of one object, in CRI's terms.
#[derive(Debug, Clone, PartialEq)]
struct Notice {
    at: SystemTime,
    kind: cri::ContainerEventType,
    /// The id of the container, or of the sandbox itself.
    id: String,
    sandbox: SandboxId,
    /// The last state of the sandbox, for use after its removal.
    last_seen: Option<Arc<Sandbox>>,
}

/// The position of one client in the events.
struct Feed {
    scope: Scope,
    records: Arc<Records>,
    watch: ListAndWatch,
    /// The initial sandboxes that were not sent yet.
    initial: vec::IntoIter<SandboxId>,
    pending: VecDeque<Notice>,
}

impl Runtime {
    /// CRI v1 GetContainerEvents.
    pub(super) fn events(&self) -> Result<batch::Stream<cri::ContainerEventResponse>> {
        let mut following = self.scope.sandboxes().list_and_watch()?;
        let standing = std::mem::take(&mut following.sandboxes).into_iter();
        let scope = self.scope.clone();
        let records = Arc::clone(&self.records);
        let feed = Feed {
            scope,
            records,
            watch: following,
            initial: standing,
            pending: VecDeque::new(),
        };
        let messages = stream::unfold(Some(feed), |feed| async {
            let mut feed = feed?;
            match feed.next().await {
                Ok(message) => Some((Ok(message), Some(feed))),
                // An error ends the stream.
                Err(error) => Some((Err(status(&error)), None)),
            }
        });
        Ok(messages.boxed())
    }
}

// === impl Feed ===

impl Feed {
    /// The next message; waits for one. Cancel-safe.
    async fn next(&mut self) -> Result<cri::ContainerEventResponse> {
        loop {
            if let Some(notice) = self.pending.pop_front() {
                // A kubelet would take a container that the message lacks for gone; it lists from time to time.
                if held::has_container_of(&self.scope, notice.sandbox)? {
                    continue;
                }
                return Ok(self.message(notice));
            }
            if let Some(id) = self.initial.next() {
                // If a sandbox is gone by now, its events follow.
                if let Ok(current) = self.scope.sandboxes().with_tasks(id) {
                    self.pending
                        .extend(initial_notices(&current, self.watch.since));
                }
                continue;
            }
            match self.watch.next().await {
                Ok(Some(event)) => self.pending.extend(notices(event)),
                Ok(None) => {
                    return Err(Error::unavailable(
                        "the gateway is shutting down: connect again",
                    ));
                }
                Err(lagged) => {
                    return Err(Error::new(
                        ErrorKind::ResourceExhausted,
                        format!(
                            "{} events were missed because the client did not read them in time: connect again, the stream begins with the current state",
                            lagged.missed
                        ),
                    ));
                }
            }
        }
    }

    /// The message of a notice, with the pod's current state, or its last one if it is gone.
    fn message(&self, notice: Notice) -> cri::ContainerEventResponse {
        let Notice {
            at,
            kind,
            id,
            sandbox,
            last_seen: was,
        } = notice;
        let (sandbox, containers_statuses) = match self.scope.sandboxes().with_tasks(sandbox) {
            Ok(current) => {
                let statuses = container_statuses(&current, &self.records);
                (Some(current.sandbox), statuses)
            }
            Err(_) => (was, Vec::new()),
        };
        let pod_sandbox_status = sandbox.map(|sandbox| {
            let record = self.records.sandbox(&sandbox);
            to_proto::sandbox_status(&sandbox, record.as_deref())
        });
        cri::ContainerEventResponse {
            container_id: id,
            container_event_type: kind.into(),
            created_at: to_proto::nanoseconds(at),
            pod_sandbox_status,
            containers_statuses,
        }
    }
}

/// The statuses of all containers of a sandbox.
pub(super) fn container_statuses(
    current: &SandboxWithTasks,
    records: &Records,
) -> Vec<cri::ContainerStatus> {
    let status = |task| to_proto::container_status(task, records.task(task).as_deref());
    current.tasks.iter().map(|task| status(task)).collect()
}

/// The initial notices of an existing sandbox: one for each object, with the event that led to its current
/// state.
fn initial_notices(current: &SandboxWithTasks, at: SystemTime) -> Vec<Notice> {
    use cri::ContainerEventType as Kind;
    let sandbox = current.sandbox.id;
    let notice = |id: String, kind| Notice {
        at,
        kind,
        id,
        sandbox,
        last_seen: None,
    };
    let state = match to_proto::sandbox_state(&current.sandbox.state) {
        cri::PodSandboxState::SandboxReady => Kind::ContainerStartedEvent,
        cri::PodSandboxState::SandboxNotready => Kind::ContainerStoppedEvent,
    };
    let tasks = current.tasks.iter().map(|task| {
        let kind = match to_proto::container_state(&task.state) {
            cri::ContainerState::ContainerCreated => Kind::ContainerCreatedEvent,
            cri::ContainerState::ContainerRunning => Kind::ContainerStartedEvent,
            cri::ContainerState::ContainerExited | cri::ContainerState::ContainerUnknown => {
                Kind::ContainerStoppedEvent
            }
        };
        notice(task.id.to_string(), kind)
    });
    std::iter::once(notice(sandbox.to_string(), state))
        .chain(tasks)
        .collect()
}

/// Converts an event. CRI has separate events for creating and starting a sandbox, which happen together
/// here.
fn notices(event: Event) -> Vec<Notice> {
    use cri::ContainerEventType as Kind;
    let Event {
        at,
        owner: _,
        kind,
        sandbox: was,
        task: _,
    } = event;
    let (id, kinds) = match kind {
        EventKind::SandboxReady(id) => (
            id.to_string(),
            &[Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent][..],
        ),
        EventKind::SandboxStopped(id) => (id.to_string(), &[Kind::ContainerStoppedEvent][..]),
        EventKind::SandboxRemoved(id) => (id.to_string(), &[Kind::ContainerDeletedEvent][..]),
        EventKind::TaskCreated(id) => (id.to_string(), &[Kind::ContainerCreatedEvent][..]),
        EventKind::TaskStarted(id) => (id.to_string(), &[Kind::ContainerStartedEvent][..]),
        EventKind::TaskExited(id, ..) => (id.to_string(), &[Kind::ContainerStoppedEvent][..]),
        EventKind::TaskRemoved(id) => (id.to_string(), &[Kind::ContainerDeletedEvent][..]),
        // The caller got the error, and CRI has no event for it.
        EventKind::Refused(_) | EventKind::Conflict(_) | EventKind::Unmet(_) => return Vec::new(),
    };
    // Every message contains its sandbox; without one it would be useless to clients.
    let Some(was) = was else { return Vec::new() };
    let notice = |kind: &Kind| Notice {
        at,
        kind: *kind,
        id: id.clone(),
        sandbox: was.id,
        last_seen: Some(Arc::clone(&was)),
    };
    kinds.iter().map(notice).collect()
}

#[cfg(test)]
mod tests;
