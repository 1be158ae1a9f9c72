//! Removals that have failed and that nobody asks for again, as while containerd is down: they are tried until they
//! succeed.
//!
//! ```text
//!  failed start, DestroyTask, DestroyNetwork ─► entry ─► tries, each under the lock of the task key ─► gone
//!                                                 ├── next StartTask: removes the sandbox first; it never adopts the
//!                                                 │   task in it
//!                                                 ├── DestroyTask, sweep: removes the sandbox first
//!                                                 ├── RecoverTask: there is no such task
//!                                                 └── CreateNetwork: removes the sandbox first, and makes a new one
//! ```
//!
//! An entry names a sandbox by the gateway's id, so that it never affects a later start under the same name. A removal
//! whose beginning is recorded is continued by the next daemon ([`switchyard_core::gateway`]). What is left of a failed
//! start otherwise is found by its state: see [`is_failed_start`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use switchyard_core::backend::Condition;
use switchyard_core::backoff::Backoff;
use switchyard_core::id::SandboxId;
use switchyard_core::image::ImageId;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::state::{ExitCause, TaskState};
use switchyard_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, Semaphore};

use super::Driver;
use crate::identity::{is_network, task_key};
use crate::plugin_config::GcConfig;

/// The shortest and the longest pause between two tries of one removal. While containerd is down, each pause is the shortest one and
/// the time until its return, which is waited for as long as the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(1));
/// Interval at which the backend is checked for its return.
const RUNTIME_POLL: Duration = Duration::from_millis(500);
/// Limit for waiting for one try. The removal continues, and the next try joins it.
const TRY_LIMIT: Duration = Duration::from_secs(120);
/// Maximum number of concurrent removals.
const CONCURRENT: usize = 8;

/// The disposal of a sandbox with its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Disposal {
    /// True if it is only stopped, and kept for inspection.
    pub(super) keep: bool,
    /// After which time its images are released if no other task uses them; `None` if they are not.
    pub(super) image_delay: Option<Duration>,
}

/// The sandboxes whose removal has failed: at most one entry for each of Nomad's sandboxes.
#[derive(Debug, Default)]
pub(super) struct UnfinishedRemovals {
    entries: Mutex<HashMap<SandboxId, Unfinished>>,
    /// Signalled when an entry was added.
    added: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Unfinished {
    disposal: Disposal,
    /// True if its tries have begun.
    tried: bool,
}

// === impl Disposal ===

impl Disposal {
    /// It is removed, and its images are left to whoever comes next.
    pub(super) const REMOVE: Self = Self {
        keep: false,
        image_delay: None,
    };

    /// Combines both.
    fn and(self, other: Self) -> Self {
        Self {
            keep: self.keep && other.keep,
            image_delay: self.image_delay.or(other.image_delay),
        }
    }
}

impl From<&GcConfig> for Disposal {
    /// Returns the disposal of a task that its agent does not need any more.
    fn from(gc: &GcConfig) -> Self {
        Self {
            keep: !gc.container,
            image_delay: gc.image.then_some(gc.image_delay),
        }
    }
}

// === impl UnfinishedRemovals ===

impl UnfinishedRemovals {
    /// The removal of this sandbox has failed; returns whether it had not failed before.
    fn add(&self, id: SandboxId, disposal: Disposal) -> bool {
        let is_new = match self.entries.lock().entry(id) {
            Entry::Occupied(mut entry) => {
                let entry = entry.get_mut();
                entry.disposal = entry.disposal.and(disposal);
                false
            }
            Entry::Vacant(entry) => {
                entry.insert(Unfinished {
                    disposal,
                    tried: false,
                });
                true
            }
        };
        self.added.notify_one();
        is_new
    }

    /// The removal of this sandbox has succeeded; returns whether it had failed before.
    fn end(&self, id: SandboxId) -> bool {
        self.entries.lock().remove(&id).is_some()
    }

    /// Returns whether the removal of this sandbox has failed and will be retried.
    pub(super) fn contains(&self, id: SandboxId) -> bool {
        self.entries.lock().contains_key(&id)
    }

    fn disposal(&self, id: SandboxId) -> Option<Disposal> {
        self.entries.lock().get(&id).map(|entry| entry.disposal)
    }

    /// The entries whose tries have not begun; they count as begun from now on.
    fn take_untried(&self) -> Vec<SandboxId> {
        let mut entries = self.entries.lock();
        let mut untried = Vec::new();
        for (id, entry) in entries.iter_mut() {
            if !entry.tried {
                entry.tried = true;
                untried.push(*id);
            }
        }
        untried
    }
}

// === impl Driver ===

impl Driver {
    /// Removes a sandbox with its task, or stops it, as `disposal` and earlier removals that have failed say. The caller
    /// holds the lock of the task key.
    ///
    /// # Errors
    /// Those of the removal, after which it can be removed again.
    pub(super) async fn dispose(&self, sandbox: &Sandbox, disposal: Disposal) -> Result<()> {
        let scope = &self.shared.scope;
        let id = sandbox.id.to_string();
        let earlier = self.shared.unfinished.disposal(sandbox.id);
        let disposal = earlier.map_or(disposal, |earlier| disposal.and(earlier));
        if disposal.keep {
            scope.sandboxes().stop(&id).await?;
        } else {
            // Afterwards its images are not known any more, also if the sandbox could not be removed after the task.
            let task = scope.tasks().named(&sandbox.meta.name)?;
            let removed = scope.sandboxes().remove(&id).await;
            if let (Some(task), Some(delay)) = (task, disposal.image_delay) {
                let used =
                    std::iter::once(&task.details.image_id).chain(&task.details.volume_images);
                // Those of a task that is still there are in use, and are not scheduled.
                used.for_each(|image: &ImageId| self.shared.image_gc.schedule(image, delay));
            }
            removed?;
        }
        if self.shared.unfinished.end(sandbox.id) {
            tracing::info!(
                sandbox = id,
                name = sandbox.meta.name,
                "a removal that had failed is done"
            );
        }
        Ok(())
    }

    /// As [`Driver::dispose`]; if it fails, it is tried in the background until it succeeds.
    ///
    /// # Errors
    /// Those of the first try.
    pub(super) async fn dispose_eventually(
        &self,
        sandbox: &Sandbox,
        disposal: Disposal,
    ) -> Result<()> {
        let disposed = self.dispose(sandbox, disposal).await;
        if let Err(error) = &disposed {
            self.dispose_later(sandbox, disposal, error);
        }
        disposed
    }

    /// Has a sandbox whose removal has failed with this error removed in the background. From now on no agent
    /// references its task, and none can recover it. The caller holds the lock of the task key.
    pub(super) fn dispose_later(&self, sandbox: &Sandbox, disposal: Disposal, error: &Error) {
        let name = &sandbox.meta.name;
        self.shared.references.forget(name);
        if self.shared.unfinished.add(sandbox.id, disposal) {
            tracing::warn!(sandbox = %sandbox.id, name, error = error.report(), "a removal fails: it is retried until it succeeds");
        } else {
            tracing::debug!(sandbox = %sandbox.id, name, error = error.report(), "a removal still fails");
        }
    }

    /// Returns whether the removal of the task of this name has failed and will be retried.
    pub(super) fn has_unfinished_removal(&self, name: &str) -> Result<bool> {
        let sandbox = self.shared.scope.sandboxes().named(name)?;
        Ok(sandbox.is_some_and(|sandbox| self.shared.unfinished.contains(sandbox.id)))
    }

    /// Completes removals that have failed, and removes what predecessors left of failed starts, while it is polled.
    /// Cancel-safe: a try that has begun continues.
    pub(super) async fn finish_removals(&self) {
        let permits = &Semaphore::new(CONCURRENT);
        let mut works = FuturesUnordered::<BoxFuture<'_, ()>>::new();
        for sandbox in self.failed_starts() {
            works.push(Box::pin(self.discard_failed_start(sandbox)));
        }
        loop {
            for id in self.shared.unfinished.take_untried() {
                works.push(Box::pin(self.finish_removal(id, permits)));
            }
            tokio::select! {
                () = self.shared.unfinished.added.notified() => {}
                Some(()) = works.next() => {}
            }
        }
    }

    /// The sandboxes of failed starts, among those of all starts.
    fn failed_starts(&self) -> Vec<Arc<Sandbox>> {
        let mut sandboxes = self.shared.scope.sandboxes().list().unwrap_or_default();
        sandboxes.retain(|sandbox| self.is_of_failed_start(sandbox));
        sandboxes
    }

    fn is_of_failed_start(&self, sandbox: &Sandbox) -> bool {
        let name = &sandbox.meta.name;
        // A task that cannot be read may run.
        if !matches!(self.unreadable_task(name), Ok(None)) {
            return false;
        }
        let Ok(task) = self.shared.scope.tasks().named(name) else {
            return false;
        };
        !is_network(name) && is_failed_start(sandbox, task.as_deref())
    }

    /// Removes what a predecessor left of a failed start.
    async fn discard_failed_start(&self, found: Arc<Sandbox>) {
        let name = &found.meta.name;
        // Of a start that is in progress now, more will be there afterwards.
        let _guard = self.shared.task_locks.lock(task_key(name).to_owned()).await;
        let Ok(sandbox) = self.shared.scope.sandboxes().by_id(found.id) else {
            return;
        };
        if self.is_of_failed_start(&sandbox) {
            tracing::info!(name, "removing what a predecessor left of a failed start");
            self.shared.unfinished.add(sandbox.id, Disposal::REMOVE);
        }
    }

    /// Tries a removal until it succeeds.
    async fn finish_removal(&self, id: SandboxId, permits: &Semaphore) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        while self.shared.unfinished.contains(id) {
            backoff.wait().await;
            if !self.is_runtime_up() {
                // It may be down for a reason that does not concern removals.
                let _ = tokio::time::timeout(PAUSES.1, self.runtime_return()).await;
                // A long pause could begin before its return and end long after it.
                backoff.reset();
            }
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            if tokio::time::timeout(TRY_LIMIT, self.try_removal(id))
                .await
                .is_err()
            {
                tracing::warn!(sandbox = %id, "a removal does not end within {TRY_LIMIT:?}: it is waited for again");
            }
        }
    }

    fn is_runtime_up(&self) -> bool {
        self.shared.scope.status().runtime == Condition::True
    }

    async fn runtime_return(&self) {
        while !self.is_runtime_up() {
            tokio::time::sleep(RUNTIME_POLL).await;
        }
    }

    async fn try_removal(&self, id: SandboxId) {
        let scope = &self.shared.scope;
        let name = match scope.sandboxes().by_id(id) {
            Ok(sandbox) => sandbox.meta.name.clone(),
            Err(error) => return self.forget_if_gone(id, &error),
        };
        let guard = self
            .shared
            .task_locks
            .lock(task_key(&name).to_owned())
            .await;
        let driver = self.clone();
        let what = format!("removal of {name}");
        let work = async move {
            let _guard = guard;
            // Another call may have been first.
            let Some(disposal) = driver.shared.unfinished.disposal(id) else {
                return Ok(());
            };
            match driver.shared.scope.sandboxes().by_id(id) {
                Ok(sandbox) => driver.dispose_eventually(&sandbox, disposal).await,
                Err(error) => {
                    driver.forget_if_gone(id, &error);
                    Ok(())
                }
            }
        };
        // A failure is logged where it happens.
        drop(scope.run_detached(what, work).await);
    }

    fn forget_if_gone(&self, id: SandboxId, error: &Error) {
        if error.kind() == ErrorKind::NotFound {
            self.shared.unfinished.end(id);
        }
    }
}

/// Returns whether this sandbox and task are left from a start that has failed for good. No agent has a
/// handle of it, and no repeated request adopts it.
fn is_failed_start(sandbox: &Sandbox, task: Option<&Task>) -> bool {
    match task.map(|task| &task.state) {
        None => true,
        // There is nothing any more that it could be started in.
        Some(TaskState::Created) => !sandbox.state.is_ready(),
        Some(TaskState::Exited {
            started_at: None,
            exit,
        }) => matches!(exit.cause, ExitCause::StartFailed(_)),
        Some(
            TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited {
                started_at: Some(_),
                ..
            }
            | TaskState::Removing { .. },
        ) => false,
    }
}
