//! Tasks that were sent SIGKILL and did not end in time. They stay so until a process of theirs returns from the kernel, or
//! the runtime reports the end: no caller waits for that.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use super::Tasks;
use crate::id::{Owner, TaskId};

/// The tasks that have not ended in time, and some that have ended since.
#[derive(Debug, Default)]
pub(super) struct UnendedTasks {
    overdue: Mutex<BTreeSet<TaskId>>,
}

impl UnendedTasks {
    /// Adds a task.
    pub(super) fn note(&self, id: TaskId) {
        self.overdue.lock().insert(id);
    }

    /// Returns the tasks that are still there, and forgets the others. `may_run` is asked without the lock.
    fn retain(&self, may_run: impl Fn(TaskId) -> bool) -> BTreeSet<TaskId> {
        let known = self.overdue.lock().clone();
        let ended: Vec<TaskId> = known.iter().copied().filter(|id| !may_run(*id)).collect();
        if ended.is_empty() {
            return known;
        }
        let mut overdue = self.overdue.lock();
        for id in &ended {
            overdue.remove(id);
        }
        overdue.clone()
    }
}

impl Tasks {
    /// The number of tasks of each owner that were sent SIGKILL and have not ended in time.
    #[must_use]
    pub fn count_unended(&self) -> BTreeMap<Owner, u64> {
        let table = &self.context.table;
        let may_run = |id| table.task(id).is_some_and(|task| task.state.may_run());
        let mut counts: BTreeMap<Owner, u64> = BTreeMap::new();
        for id in self.unended_tasks.retain(may_run) {
            if let Some(task) = table.task(id) {
                *counts.entry(task.meta.owner).or_default() += 1;
            }
        }
        counts
    }
}
