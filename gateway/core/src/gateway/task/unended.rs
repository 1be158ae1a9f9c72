//! Tasks that were sent SIGKILL and did not end in time. They stay so until a process of theirs returns from the kernel, or
//! the runtime reports the end: no caller waits for that.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::Tasks;
use crate::id::{Owner, TaskId};

/// The tasks that have not ended in time, and some that have ended since, each with what it was found to wait for last.
#[derive(Debug, Default)]
pub(super) struct UnendedTasks {
    overdue: Mutex<BTreeMap<TaskId, Option<String>>>,
}

/// A task that was sent SIGKILL and has not ended in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnendedTask {
    /// Its id.
    pub id: TaskId,
    /// Its owner.
    pub owner: Owner,
    /// The processes that were left of it, and what they waited for; `None` if none was seen.
    pub why: Option<String>,
}

impl UnendedTasks {
    /// Adds a task, or what it waits for.
    pub(super) fn note(&self, id: TaskId, why: Option<String>) {
        let mut overdue = self.overdue.lock();
        let known = overdue.entry(id).or_default();
        *known = why.or_else(|| known.take());
    }
}

impl Tasks {
    /// The tasks that were sent SIGKILL and have not ended in time.
    #[must_use]
    pub fn unended(&self) -> Vec<UnendedTask> {
        let overdue = &self.unended_tasks.overdue;
        let known = overdue.lock().clone();
        let mut unended = Vec::new();
        for (id, why) in known {
            let task = self.context.table.task(id);
            match task.filter(|task| task.state.may_run()) {
                Some(task) => {
                    let owner = task.meta.owner;
                    unended.push(UnendedTask { id, owner, why });
                }
                // It has ended, which it does once.
                None => drop(overdue.lock().remove(&id)),
            }
        }
        unended
    }

    /// The number of tasks of each owner that were sent SIGKILL and have not ended in time.
    #[must_use]
    pub fn count_unended(&self) -> BTreeMap<Owner, u64> {
        let mut counts: BTreeMap<Owner, u64> = BTreeMap::new();
        for task in self.unended() {
            *counts.entry(task.owner).or_default() += 1;
        }
        counts
    }
}
