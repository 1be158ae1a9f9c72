//! The tasks that this daemon knows.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::keyed_lock::LockInUse;
use switchyard_core::{Error, Result};

use super::TaskEntry;
use crate::live::LiveContainers;
use crate::sandbox::table::SandboxTable;

/// The tasks that this daemon knows, by id.
#[derive(Default)]
pub(crate) struct TaskTable {
    entries: Mutex<HashMap<TaskId, Arc<TaskEntry>>>,
}

impl fmt::Debug for TaskTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the entries: their specs have the environment of clients.
        f.debug_struct("TaskTable")
            .field("len", &self.lock().len())
            .finish()
    }
}

impl TaskTable {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<TaskEntry>>> {
        self.entries.lock()
    }

    /// # Errors
    /// `NotFound` if the table has no such task.
    pub(crate) fn get(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let found = self.lock().get(&id).cloned();
        found.ok_or_else(|| Error::not_found(format!("task {id} does not exist")))
    }

    /// The tasks of a sandbox.
    pub(crate) fn of_sandbox(&self, id: SandboxId) -> Vec<TaskId> {
        let tasks = self.lock();
        let of_it = tasks.values().filter(|task| task.sandbox == id);
        of_it.map(|task| task.id).collect()
    }

    /// The tasks that may run and have no persisted exit: the id and the runtime handler of each.
    pub(crate) fn exits_to_protect(&self) -> BTreeMap<String, String> {
        let tasks = self.lock();
        let runs = tasks
            .values()
            .filter(|task| task.may_have_process() && task.persisted_exit().is_none());
        runs.map(|task| (task.id.to_string(), task.record().handler.clone()))
            .collect()
    }

    /// The locks of tasks that are held at this moment.
    pub(crate) fn locks_in_use(&self) -> Vec<LockInUse> {
        let tasks = self.lock();
        tasks
            .values()
            .flat_map(|task| task.locks_in_use())
            .collect()
    }

    /// The ids of the tasks whose exits are not persisted yet, for the status.
    pub(crate) fn unpersisted_exits(&self) -> Vec<String> {
        let tasks = self.lock();
        let ended = tasks
            .values()
            .filter(|task| task.unpersisted_exit().is_some());
        let mut ids: Vec<_> = ended.map(|task| task.id.to_string()).collect();
        ids.sort();
        ids
    }
}

/// The tables of sandboxes and tasks, for the parts below them.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) sandboxes: Arc<SandboxTable>,
    pub(crate) tasks: Arc<TaskTable>,
}

impl LiveContainers for Tables {
    fn may_have_process(&self, id: &str) -> bool {
        let task = id
            .parse::<TaskId>()
            .ok()
            .and_then(|id| self.tasks.get(id).ok());
        let sandbox = id
            .parse::<SandboxId>()
            .ok()
            .and_then(|id| self.sandboxes.get(id).ok());
        // After an interrupted removal the object remains and can be started again.
        task.is_some_and(|entry| entry.may_have_process())
            || sandbox.is_some_and(|entry| entry.infra_pid().is_some())
    }

    fn running_shims(&self, except: Option<&str>) -> Vec<(String, i32)> {
        let mut ours: Vec<_> = self.tasks.lock().values().cloned().collect();
        ours.retain(|entry| {
            entry.persisted_exit().is_none()
                && except.is_none_or(|except| *except != entry.id.to_string())
        });
        ours.iter()
            .filter_map(|entry| Some((entry.id.to_string(), entry.shim_pid()?)))
            .collect()
    }
}
