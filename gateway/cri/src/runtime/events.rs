//! GetContainerEvents: what there is, then what happens, to one client.
//!
//! A client gets its answers as fast as it takes them: each is made when the one before has gone, from the table as it is then. What
//! waits for a slow client is the one queue that all share and the ids of what it has not been told of yet. One that misses events is
//! told so and cut off; when it comes again it begins with what there is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec;

use futures::stream::{self, StreamExt};
use switchyard_core::event::{Event, EventKind, ListAndWatch};
use switchyard_core::gateway::Scope;
use switchyard_core::id::SandboxId;
use switchyard_core::table::{Sandbox, SandboxWithTasks};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;

use super::Runtime;
use crate::record::Records;
use crate::status::status;
use crate::{batch, to_proto};

/// What happened to one object, as CRI names it.
#[derive(Debug, Clone, PartialEq)]
struct Notice {
    at: SystemTime,
    kind: cri::ContainerEventType,
    /// Of the container, or of the sandbox itself.
    id: String,
    sandbox: SandboxId,
    /// The sandbox as it was, for when it is gone.
    last_seen: Option<Arc<Sandbox>>,
}

/// One client's place in what it is told.
struct Feed {
    scope: Scope,
    records: Arc<Records>,
    watch: ListAndWatch,
    /// What there was at the beginning and has not been told of.
    initial: vec::IntoIter<SandboxId>,
    pending: VecDeque<Notice>,
}

impl Runtime {
    /// CRI v1 GetContainerEvents.
    pub(super) fn events(&self) -> Result<batch::Stream<cri::ContainerEventResponse>> {
        let mut following = self.scope.list_and_watch()?;
        let standing = std::mem::take(&mut following.sandboxes).into_iter();
        let scope = self.scope.clone();
        let records = Arc::clone(&self.records);
        let feed = Feed { scope, records, watch: following, initial: standing, pending: VecDeque::new() };
        let told = stream::unfold(Some(feed), |feed| async {
            let mut feed = feed?;
            match feed.next().await {
                Ok(message) => Some((Ok(message), Some(feed))),
                // It is the last word.
                Err(error) => Some((Err(status(&error)), None)),
            }
        });
        Ok(told.boxed())
    }
}

// === impl Feed ===

impl Feed {
    /// The next message, when there is one. Cancel-safe.
    async fn next(&mut self) -> Result<cri::ContainerEventResponse> {
        loop {
            if let Some(notice) = self.pending.pop_front() {
                return Ok(self.message(notice));
            }
            if let Some(id) = self.initial.next() {
                // One that is gone by now is told of by its events.
                if let Ok(home) = self.scope.sandbox_with_tasks(id) {
                    self.pending.extend(initial_notices(&home, self.watch.since));
                }
                continue;
            }
            match self.watch.next().await {
                Ok(Some(event)) => self.pending.extend(notices(event)),
                Ok(None) => return Err(Error::unavailable("the gateway is shutting down: connect again")),
                Err(lagged) => {
                    return Err(Error::new(
                        ErrorKind::ResourceExhausted,
                        format!(
                            "{} events were missed because they were not taken in time: connect again, the answer begins with what there is",
                            lagged.missed
                        ),
                    ));
                }
            }
        }
    }

    /// The message of a notice, with the pod as it is now; as it was last if it is gone.
    fn message(&self, notice: Notice) -> cri::ContainerEventResponse {
        let Notice { at, kind, id, sandbox, last_seen: was } = notice;
        let (home, containers_statuses) = match self.scope.sandbox_with_tasks(sandbox) {
            Ok(home) => {
                let statuses = container_statuses(&home, &self.records);
                (Some(home.sandbox), statuses)
            }
            Err(_) => (was, Vec::new()),
        };
        let pod_sandbox_status = home.map(|home| {
            let record = self.records.sandbox(&home);
            to_proto::sandbox_status(&home, record.as_deref())
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

/// All containers of a sandbox in full.
pub(super) fn container_statuses(home: &SandboxWithTasks, records: &Records) -> Vec<cri::ContainerStatus> {
    let status = |task| to_proto::container_status(task, records.task(task).as_deref());
    home.tasks.iter().map(|task| status(task)).collect()
}

/// What is told of a sandbox that stands when a client comes: each object by the last thing that happened to it.
fn initial_notices(home: &SandboxWithTasks, at: SystemTime) -> Vec<Notice> {
    use cri::ContainerEventType as Kind;
    let sandbox = home.sandbox.id;
    let notice = |id: String, kind| Notice { at, kind, id, sandbox, last_seen: None };
    let state = match to_proto::sandbox_state(&home.sandbox.state) {
        cri::PodSandboxState::SandboxReady => Kind::ContainerStartedEvent,
        cri::PodSandboxState::SandboxNotready => Kind::ContainerStoppedEvent,
    };
    let tasks = home.tasks.iter().map(|task| {
        let kind = match to_proto::container_state(&task.state) {
            cri::ContainerState::ContainerCreated => Kind::ContainerCreatedEvent,
            cri::ContainerState::ContainerRunning => Kind::ContainerStartedEvent,
            cri::ContainerState::ContainerExited | cri::ContainerState::ContainerUnknown => {
                Kind::ContainerStoppedEvent
            }
        };
        notice(task.id.to_string(), kind)
    });
    std::iter::once(notice(sandbox.to_string(), state)).chain(tasks).collect()
}

/// What an event is in CRI's words. A sandbox is made and started at once.
fn notices(event: Event) -> Vec<Notice> {
    use cri::ContainerEventType as Kind;
    let Event { at, owner: _, kind, sandbox: was } = event;
    let (id, kinds) = match kind {
        EventKind::SandboxReady(id) => {
            (id.to_string(), &[Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent][..])
        }
        EventKind::SandboxStopped(id) => (id.to_string(), &[Kind::ContainerStoppedEvent][..]),
        EventKind::SandboxRemoved(id) => (id.to_string(), &[Kind::ContainerDeletedEvent][..]),
        EventKind::TaskCreated(id) => (id.to_string(), &[Kind::ContainerCreatedEvent][..]),
        EventKind::TaskStarted(id) => (id.to_string(), &[Kind::ContainerStartedEvent][..]),
        EventKind::TaskExited(id, _) => (id.to_string(), &[Kind::ContainerStoppedEvent][..]),
        EventKind::TaskRemoved(id) => (id.to_string(), &[Kind::ContainerDeletedEvent][..]),
        // Who asked was told so, and CRI has no event of it.
        EventKind::Refused(_) => return Vec::new(),
    };
    // Every event tells its sandbox; without one a message would mean nothing to its readers.
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
