//! The statuses of tasks that managers are to know: the latest of each task, until the task is gone.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::Notify;

#[cfg(test)]
mod tests;

/// Maximum number of statuses in a request. With the longest text each has 2 KiB, and managers accept 4 MiB.
pub(crate) const BATCH_MAX: usize = 256;

/// The longest message and error of a status, in bytes.
const TEXT_MAX: usize = 1024;

/// Receiver of the executor's reports.
#[derive(Debug, Default)]
pub struct Reports {
    latest: Mutex<Latest>,
    changed: Notify,
}

/// The latest status of each task. It is pure.
#[derive(Debug, Default)]
struct Latest {
    statuses: BTreeMap<String, swarm::TaskStatus>,
    unsent: BTreeSet<String>,
}

/// A status as it is sent.
pub(crate) type StatusUpdate = swarm::update_task_status_request::TaskStatusUpdate;

// === impl Reports ===

impl Reports {
    /// Reports the status of a task. A state that is lower than the last one reported is ignored, as managers do.
    pub fn report(&self, task: &str, status: swarm::TaskStatus) {
        if self.latest.lock().set(task, status) {
            self.changed.notify_one();
        }
    }

    /// Forgets a task that is gone.
    pub fn forget(&self, task: &str) {
        self.latest.lock().forget(task);
    }

    /// The latest status of a task.
    #[must_use]
    pub fn latest(&self, task: &str) -> Option<swarm::TaskStatus> {
        self.latest.lock().statuses.get(task).cloned()
    }

    /// A session begins: its manager may know nothing of what was sent to another.
    pub(crate) fn begin_session(&self) {
        self.latest.lock().begin_session();
        self.changed.notify_one();
    }

    /// Waits until there is something to send, and returns some of it. Cancel-safe.
    pub(crate) async fn next(&self) -> Vec<StatusUpdate> {
        loop {
            let batch = self.latest.lock().batch();
            if !batch.is_empty() {
                return batch;
            }
            self.changed.notified().await;
        }
    }

    /// A manager has these.
    pub(crate) fn sent(&self, batch: &[StatusUpdate]) {
        self.latest.lock().sent(batch);
    }
}

// === impl Latest ===

impl Latest {
    fn set(&mut self, task: &str, mut status: swarm::TaskStatus) -> bool {
        for text in [&mut status.message, &mut status.err] {
            cut(text);
        }
        match self.statuses.get(task) {
            Some(known) if known.state > status.state || *known == status => return false,
            Some(_) | None => {}
        }
        self.statuses.insert(task.to_owned(), status);
        self.unsent.insert(task.to_owned());
        true
    }

    fn forget(&mut self, task: &str) {
        self.statuses.remove(task);
        self.unsent.remove(task);
    }

    fn begin_session(&mut self) {
        self.unsent = self.statuses.keys().cloned().collect();
    }

    fn batch(&self) -> Vec<StatusUpdate> {
        let updates = self.unsent.iter().take(BATCH_MAX).filter_map(|task| {
            let status = Some(self.statuses.get(task)?.clone());
            Some(StatusUpdate {
                task_id: task.clone(),
                status,
            })
        });
        updates.collect()
    }

    /// A status that has changed meanwhile stays unsent.
    fn sent(&mut self, batch: &[StatusUpdate]) {
        for StatusUpdate { task_id, status } in batch {
            if self.statuses.get(task_id) == status.as_ref() {
                self.unsent.remove(task_id);
            }
        }
    }
}

/// Shortens a text to whole characters.
fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_MAX));
}
