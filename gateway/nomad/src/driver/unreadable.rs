//! Tasks that exist and that this version cannot read, as after a rollback (ADR 74).
//!
//! An agent that is refused once gives a task up: it destroys it, and starts another one. So what it asks before that is
//! answered as for a task that runs, until a daemon that reads the task is back; what would change the task is refused:
//!
//! ```text
//!  RecoverTask ─► yes     WaitTask, TaskStats ─► nothing, until the daemon ends     InspectTask ─► it runs
//!  StopTask, DestroyTask, SignalTask, ExecTask, each start of the task ─► FailedPrecondition
//! ```

use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::backend::{Unreadable, UnreadableKind};

use super::Driver;

impl Driver {
    /// The task with this Nomad id, if it cannot be read.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub(super) fn unreadable_task(&self, id: &str) -> Result<Option<Arc<Unreadable>>> {
        Ok(self.unreadable(id)?.filter(|held| is_task(held)))
    }

    /// Checks that no object with this name exists that cannot be read.
    ///
    /// # Errors
    /// `FailedPrecondition`, naming the object and what to do; `Unavailable` before recovery.
    pub(super) fn check_readable(&self, id: &str) -> Result<()> {
        self.unreadable(id)?
            .map_or(Ok(()), |held| Err(held.defect()))
    }

    /// The object with this name that cannot be read: the task, or else its sandbox.
    fn unreadable(&self, id: &str) -> Result<Option<Arc<Unreadable>>> {
        let mut found = self.shared.scope.sandboxes().unreadable()?;
        // The name of an object is empty if it is not known.
        found.retain(|held| !id.is_empty() && held.name == id);
        Ok(found.into_iter().max_by_key(|held| is_task(held)))
    }
}

/// Returns whether an object is a task: by its kind or, if that cannot be read, by its sandbox, which only tasks have.
fn is_task(held: &Unreadable) -> bool {
    held.kind == UnreadableKind::Task || held.sandbox.is_some()
}
