//! What is cleared away while requests are served: tried at once, and again until it is gone.
//!
//! An undo or a clearing-up that fails because containerd is away must not wait for the daemon's next start. Recovery finds the
//! same things again should the daemon be killed meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use switchyard_cgroup::Group;
use switchyard_core::id::SandboxId;
use switchyard_core::state::Exit;
use switchyard_core::{ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::health::Contact;
use crate::sandbox::SandboxEntry;
use crate::task::TaskEntry;

/// Between two tries.
const PERIOD: Duration = Duration::from_secs(2);
/// How many things are cleared away at once.
const AT_ONCE: usize = 4;

/// The most things that wait to be cleared away. More of them than there are ever objects on a node would be a fault of ours; what is
/// not kept then is found by the next start.
const MOST: usize = 10_000;

/// Something to clear away.
#[derive(Debug, Clone)]
pub(crate) enum Leftover {
    /// A sandbox that was never finished, with what is known of it.
    Sandbox(SandboxId, Option<Arc<SandboxEntry>>),
    /// A task that was never finished.
    Task(Arc<TaskEntry>),
    /// The process and the log of a task that has ended.
    Ended(Arc<TaskEntry>),
    /// A start that failed, which is not on record yet.
    FailedStart(Arc<TaskEntry>, Exit),
    /// Limits that may not be those on record.
    Limits(Arc<TaskEntry>),
    /// What is left of a checkpoint, for which the task may stand still.
    Checkpoint(Arc<TaskEntry>),
    /// The cgroup of a process that is gone, with something in it yet.
    Group(Group),
}

/// What waits to be cleared away.
#[derive(Debug)]
pub(crate) struct Leftovers {
    queue: Mutex<VecDeque<Leftover>>,
    turns: Arc<Semaphore>,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self { queue: Mutex::default(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Leftovers {
    /// Keeps something for later.
    pub(crate) fn keep(&self, leftover: Leftover) {
        if !push(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner), leftover, MOST) {
            tracing::error!(
                most = MOST,
                "too much waits to be cleared away: something is left for the next start of this daemon"
            );
        }
    }

    fn take(&self) -> Vec<Leftover> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

/// Puts something at the end of a queue that holds no more than `most`; `false` if it is full.
fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) -> bool {
    let fits = queue.len() < most;
    if fits {
        queue.push_back(item);
    }
    fits
}

impl Inner {
    /// Clears something away as soon as there is a turn, without anybody waiting for it.
    pub(crate) fn clear_soon(self: &Arc<Self>, leftover: Leftover) {
        let inner = Arc::clone(self);
        self.tracker.spawn(async move {
            // Nobody closes it.
            let _turn = inner.leftovers.turns.acquire().await;
            inner.try_to_clear(leftover).await;
        });
    }

    /// Clears leftovers away until `stop`.
    pub(crate) async fn clear_leftovers(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = stop.cancelled() => return,
            }
            if matches!(self.health.now(), Contact::Down { .. }) {
                continue;
            }
            // One that takes long, for want of an answer of its shim, does not hold up the others.
            let taken = stream::iter(self.leftovers.take());
            taken.for_each_concurrent(AT_ONCE, |leftover| self.try_to_clear(leftover)).await;
        }
    }

    async fn try_to_clear(&self, leftover: Leftover) {
        if let Err(error) = self.clear_leftover(&leftover).await {
            tracing::warn!(error = error.report(), "something is still left behind: trying again");
            self.leftovers.keep(leftover);
        }
    }

    async fn clear_leftover(&self, leftover: &Leftover) -> Result<()> {
        match leftover {
            Leftover::Sandbox(id, Some(entry)) => self.destroy_entry(*id, entry).await,
            Leftover::Sandbox(id, None) => self.destroy_sandbox(*id).await,
            Leftover::Task(entry) => self.destroy_task(entry).await,
            Leftover::Ended(entry) => self.clear_process(entry).await,
            Leftover::Limits(entry) => self.restore_limits(entry).await,
            Leftover::Checkpoint(entry) => self.end_checkpoint(entry).await,
            Leftover::Group(group) => self.remove_group(group).await,
            Leftover::FailedStart(entry, exit) => match self.undo_start(entry, exit).await {
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_keeps_what_it_has() {
        let mut queue = VecDeque::new();
        assert!(push(&mut queue, 1, 2) && push(&mut queue, 2, 2));
        assert!(!push(&mut queue, 3, 2));
        assert_eq!(queue, [1, 2]);
        queue.pop_front();
        assert!(push(&mut queue, 3, 2));
    }
}
