//! The table of sandboxes and tasks: the one place where their state changes.
//!
//! Every change is one short critical section: check, apply the pure transition, publish the event. So events
//! are in the order of the changes, readers never see a partial change, and no caller waits while it holds
//! the lock. Readers get `Arc`s: listing a thousand objects copies a thousand pointers.
//!
//! Longer than 500 lines because no other file may change the state of an object.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::backend::{Recovered, Unreadable};
use crate::error::{Error, Result};
use crate::event::{Event, EventBus, EventKind, Subscription, TaskEnd};
use crate::id::{Owner, SandboxId, TaskId};
use crate::object::{Sandbox, SandboxDetails, Task, TaskDetails};
use crate::spec::Signal;
use crate::state::{Exit, SandboxEvent, SandboxState, TaskEvent, TaskState};
use crate::stop_request::StopRequest;

/// All sandboxes and tasks of the node.
#[derive(Debug, Default)]
pub struct Table {
    objects: Mutex<Objects>,
    events: EventBus,
    /// The latest event time handed out, ns since the epoch.
    last_event_ns: AtomicU64,
}

/// A snapshot of a sandbox with its tasks.
#[derive(Debug, Clone)]
pub struct SandboxWithTasks {
    /// The time of the snapshot: later than every event that it includes, earlier than every other event.
    pub at: SystemTime,
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// Its tasks, by id.
    pub tasks: Vec<Arc<Task>>,
}

#[derive(Default)]
struct Objects {
    sandboxes: BTreeMap<SandboxId, watch::Sender<Arc<Sandbox>>>,
    tasks: BTreeMap<TaskId, watch::Sender<Arc<Task>>>,
    sandbox_names: BTreeMap<(Owner, String), SandboxId>,
    task_names: BTreeMap<(Owner, String), TaskId>,
    /// The first request to stop each task that runs, for the event of its exit.
    stops: BTreeMap<TaskId, StopRequest>,
    /// The latest signal that a client has sent to each task that runs, for the same.
    signals: BTreeMap<TaskId, (Signal, StopRequest)>,
    /// Never changes after recovery.
    unreadable: Vec<Arc<Unreadable>>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sandboxes, {} tasks",
            self.sandboxes.len(),
            self.tasks.len()
        )
    }
}

impl Objects {
    fn sandbox(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.sandboxes.get(&id).map(|cell| cell.borrow().clone())
    }

    /// Returns whether the main process of a task runs.
    fn runs(&self, id: TaskId) -> bool {
        let task = self.tasks.get(&id);
        task.is_some_and(|cell| cell.borrow().state.is_running())
    }
}

/// The number of objects by owner and state; for metrics.
pub type Counts = BTreeMap<(Owner, &'static str), u64>;

// === impl Table ===

impl Table {
    /// An empty table that publishes to `events`.
    #[must_use]
    pub fn new(events: EventBus) -> Self {
        Self {
            objects: Mutex::default(),
            events,
            last_event_ns: AtomicU64::new(0),
        }
    }

    /// The bus on which changes are published.
    #[must_use]
    pub const fn events(&self) -> &EventBus {
        &self.events
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// Publishes an event. The caller that changes the table holds its lock, so events are in the order of
    /// the changes.
    fn publish(
        &self,
        owner: Owner,
        kind: EventKind,
        sandbox: Option<Arc<Sandbox>>,
        task: Option<Arc<Task>>,
    ) {
        self.events.publish(Event {
            at: self.next_event_time(),
            owner,
            kind,
            sandbox,
            task,
        });
    }

    /// The current time, but later than any time handed out before: setting the clock back must not reorder
    /// events.
    fn next_event_time(&self) -> SystemTime {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let next = |last: u64| Some(now.max(last.saturating_add(1)));
        let last = self
            .last_event_ns
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        let time = last.ok().and_then(next).unwrap_or(now);
        SystemTime::UNIX_EPOCH + Duration::from_nanos(time)
    }

    /// Publishes an event that concerns no object of the table.
    pub fn announce(&self, owner: Owner, kind: EventKind) {
        // The lock keeps the order of event times.
        let _order = self.lock();
        self.publish(owner, kind, None, None);
    }

    /// Fills an empty table with recovered objects. Publishes no events, since nothing changed.
    pub fn load(&self, recovered: Recovered) {
        let mut objects = self.lock();
        for sandbox in recovered.sandboxes {
            objects
                .sandbox_names
                .insert((sandbox.meta.owner, sandbox.meta.name.clone()), sandbox.id);
            objects
                .sandboxes
                .insert(sandbox.id, watch::Sender::new(Arc::new(sandbox)));
        }
        for task in recovered.tasks {
            objects
                .task_names
                .insert((task.meta.owner, task.meta.name.clone()), task.id);
            objects
                .tasks
                .insert(task.id, watch::Sender::new(Arc::new(task)));
        }
        objects.unreadable = recovered.unreadable.into_iter().map(Arc::new).collect();
    }

    /// Publishes the exits of these tasks, which recovery has found: no daemon ran when they ended.
    pub fn publish_found_exits(&self, ids: &[TaskId]) {
        let objects = self.lock();
        for id in ids {
            let Some(task) = objects.tasks.get(id).map(|cell| cell.borrow().clone()) else {
                continue;
            };
            let TaskState::Exited { exit, .. } = &task.state else {
                continue;
            };
            let end = TaskEnd {
                stop: None,
                is_found: true,
            };
            let kind = EventKind::TaskExited(*id, exit.clone(), end);
            let sandbox = objects.sandbox(task.sandbox);
            self.publish(task.meta.owner, kind, sandbox, Some(Arc::clone(&task)));
        }
    }

    // --- reading ---

    /// All sandboxes of an owner, by id.
    #[must_use]
    pub fn sandboxes(&self, owner: Owner) -> Vec<Arc<Sandbox>> {
        self.lock()
            .sandboxes
            .values()
            .map(|cell| cell.borrow().clone())
            .filter(|s| s.meta.owner == owner)
            .collect()
    }

    /// All tasks of an owner, by id.
    #[must_use]
    pub fn tasks(&self, owner: Owner) -> Vec<Arc<Task>> {
        self.lock()
            .tasks
            .values()
            .map(|cell| cell.borrow().clone())
            .filter(|t| t.meta.owner == owner)
            .collect()
    }

    /// All tasks of a sandbox, by id.
    #[must_use]
    pub fn tasks_of(&self, sandbox: SandboxId) -> Vec<Arc<Task>> {
        self.lock()
            .tasks
            .values()
            .map(|cell| cell.borrow().clone())
            .filter(|t| t.sandbox == sandbox)
            .collect()
    }

    /// A sandbox with its tasks, as of one moment.
    #[must_use]
    pub fn sandbox_with_tasks(&self, sandbox: SandboxId) -> Option<SandboxWithTasks> {
        let objects = self.lock();
        let found = objects.sandbox(sandbox)?;
        let tasks = objects.tasks.values().map(|cell| cell.borrow().clone());
        let tasks = tasks.filter(|task| task.sandbox == sandbox).collect();
        Some(SandboxWithTasks {
            at: self.next_event_time(),
            sandbox: found,
            tasks,
        })
    }

    /// An owner's sandboxes as of one moment, by id, and its events from then on.
    #[must_use]
    pub fn list_and_watch(&self, owner: Owner) -> (SystemTime, Vec<SandboxId>, Subscription) {
        let objects = self.lock();
        let owned = objects
            .sandboxes
            .iter()
            .filter(|(_, cell)| cell.borrow().meta.owner == owner);
        let sandboxes = owned.map(|(id, _)| *id).collect();
        (
            self.next_event_time(),
            sandboxes,
            self.events.subscribe(Some(owner)),
        )
    }

    /// One sandbox.
    #[must_use]
    pub fn sandbox(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.lock().sandbox(id)
    }

    /// One task.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<Arc<Task>> {
        self.lock().tasks.get(&id).map(|cell| cell.borrow().clone())
    }

    /// The sandbox with this name.
    #[must_use]
    pub fn sandbox_named(&self, owner: Owner, name: &str) -> Option<Arc<Sandbox>> {
        let objects = self.lock();
        let id = objects.sandbox_names.get(&(owner, name.to_owned()))?;
        objects.sandboxes.get(id).map(|cell| cell.borrow().clone())
    }

    /// An owner's sandboxes whose names have this prefix, by name. The cost does not depend on the number of
    /// other sandboxes.
    #[must_use]
    pub fn sandboxes_with_prefix(&self, owner: Owner, beginning: &str) -> Vec<Arc<Sandbox>> {
        let objects = self.lock();
        let first = (owner, beginning.to_owned());
        let named = objects.sandbox_names.range(first..);
        named
            .take_while(|((of, name), _)| *of == owner && name.starts_with(beginning))
            .filter_map(|(_, id)| objects.sandbox(*id))
            .collect()
    }

    /// The task with this name.
    #[must_use]
    pub fn task_named(&self, owner: Owner, name: &str) -> Option<Arc<Task>> {
        let objects = self.lock();
        let id = objects.task_names.get(&(owner, name.to_owned()))?;
        objects.tasks.get(id).map(|cell| cell.borrow().clone())
    }

    /// The objects that cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> Vec<Arc<Unreadable>> {
        self.lock().unreadable.clone()
    }

    /// The first object that cannot be read and is meant by `is_meant`.
    #[must_use]
    pub fn find_unreadable(
        &self,
        is_meant: impl Fn(&Unreadable) -> bool,
    ) -> Option<Arc<Unreadable>> {
        // Without the lock: `is_meant` may ask the table.
        self.unreadable().into_iter().find(|held| is_meant(held))
    }

    /// A receiver that follows the changes of one task and closes when the task is removed.
    #[must_use]
    pub fn watch_task(&self, id: TaskId) -> Option<watch::Receiver<Arc<Task>>> {
        self.lock().tasks.get(&id).map(watch::Sender::subscribe)
    }

    /// The number of sandboxes by owner and state.
    #[must_use]
    pub fn count_sandboxes(&self) -> Counts {
        let mut counts = Counts::new();
        for cell in self.lock().sandboxes.values() {
            let sandbox = cell.borrow();
            *counts
                .entry((sandbox.meta.owner, sandbox.state.as_str()))
                .or_default() += 1;
        }
        counts
    }

    /// The number of tasks by owner and state.
    #[must_use]
    pub fn count_tasks(&self) -> Counts {
        let mut counts = Counts::new();
        for cell in self.lock().tasks.values() {
            let task = cell.borrow();
            *counts
                .entry((task.meta.owner, task.state.as_str()))
                .or_default() += 1;
        }
        counts
    }

    // --- changing ---

    /// Adds a new sandbox, ready.
    ///
    /// # Errors
    /// `AlreadyExists` if its name is taken.
    pub fn insert_sandbox(&self, sandbox: Sandbox) -> Result<Arc<Sandbox>> {
        let mut objects = self.lock();
        let key = (sandbox.meta.owner, sandbox.meta.name.clone());
        if let Some(holder) = objects.sandbox_names.get(&key) {
            return Err(Error::already_exists(format!(
                "sandbox name {:?} is held by {holder}",
                key.1
            )));
        }
        let sandbox = Arc::new(sandbox);
        objects.sandbox_names.insert(key, sandbox.id);
        objects
            .sandboxes
            .insert(sandbox.id, watch::Sender::new(Arc::clone(&sandbox)));
        self.publish(
            sandbox.meta.owner,
            EventKind::SandboxReady(sandbox.id),
            Some(Arc::clone(&sandbox)),
            None,
        );
        Ok(sandbox)
    }

    /// Adds a new task to a ready sandbox.
    ///
    /// # Errors
    /// `AlreadyExists` if its name is taken; `NotFound` or `FailedPrecondition` if its sandbox does not exist
    /// or is not ready.
    pub fn insert_task(&self, task: Task) -> Result<Arc<Task>> {
        let mut objects = self.lock();
        let sandbox = objects
            .sandboxes
            .get(&task.sandbox)
            .map(|cell| cell.borrow().state.clone());
        match sandbox {
            None => return Err(no_sandbox(task.sandbox)),
            Some(state) if !state.is_ready() => {
                return Err(sandbox_not_ready(task.sandbox, &state));
            }
            Some(_) => {}
        }
        let key = (task.meta.owner, task.meta.name.clone());
        if let Some(holder) = objects.task_names.get(&key) {
            return Err(Error::already_exists(format!(
                "task name {:?} is held by {holder}",
                key.1
            )));
        }
        let task = Arc::new(task);
        objects.task_names.insert(key, task.id);
        objects
            .tasks
            .insert(task.id, watch::Sender::new(Arc::clone(&task)));
        let sandbox = objects.sandbox(task.sandbox);
        self.publish(
            task.meta.owner,
            EventKind::TaskCreated(task.id),
            sandbox,
            Some(Arc::clone(&task)),
        );
        Ok(task)
    }

    /// Applies an event to a task and returns the task before and after.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if the state does not allow it.
    pub fn apply_task(&self, id: TaskId, event: TaskEvent) -> Result<(Arc<Task>, Arc<Task>)> {
        let mut guard = self.lock();
        let objects = &mut *guard;
        let cell = objects.tasks.get(&id).ok_or_else(|| no_task(id))?;
        let before = cell.borrow().clone();
        let state = before.state.clone().apply(event).map_err(|illegal| {
            Error::failed_precondition(format!("task {id}")).with_source(illegal)
        })?;
        if state == before.state {
            return Ok((Arc::clone(&before), before));
        }
        let after = Arc::new(Task {
            state,
            ..(*before).clone()
        });
        cell.send_replace(Arc::clone(&after));
        let published = match &after.state {
            TaskState::Running { .. } if !before.state.is_running() => {
                Some(EventKind::TaskStarted(id))
            }
            // A removal that was abandoned returns to `Exited`, whose exit was published before.
            TaskState::Exited { exit, .. }
                if !matches!(before.state, TaskState::Removing { .. }) =>
            {
                let stop = objects.stops.remove(&id);
                let signal = objects.signals.remove(&id);
                let by_signal = signal.and_then(|signal| fatal(exit, signal));
                let mut asked = stop.into_iter().chain(by_signal);
                let end = TaskEnd {
                    // The exit of a task that ended by itself may be learned after a request.
                    stop: asked.find(|request| request.precedes(exit)),
                    is_found: false,
                };
                Some(EventKind::TaskExited(id, exit.clone(), end))
            }
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => None,
        };
        if let Some(kind) = published {
            let sandbox = objects.sandbox(after.sandbox);
            self.publish(after.meta.owner, kind, sandbox, Some(Arc::clone(&after)));
        }
        Ok((before, after))
    }

    /// Notes a request that a task stop, for the event of its exit. The first one counts; none does if the task does not
    /// run. To be called before the task can see the stop.
    pub fn note_stop(&self, id: TaskId, request: StopRequest) {
        let mut objects = self.lock();
        if objects.runs(id) {
            objects.stops.entry(id).or_insert(request);
        }
    }

    /// Notes a signal that a client sends to a task, for the event of its exit, if that is by this signal. To be called
    /// before the task can see it.
    pub fn note_signal(&self, id: TaskId, signal: Signal, request: StopRequest) {
        let mut objects = self.lock();
        if objects.runs(id) {
            objects.signals.insert(id, (signal, request));
        }
    }

    /// Replaces a task's details after a change.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_details(&self, id: TaskId, details: TaskDetails) -> Result<()> {
        let objects = self.lock();
        let cell = objects.tasks.get(&id).ok_or_else(|| no_task(id))?;
        cell.send_modify(|task| {
            Arc::make_mut(task).details = details;
        });
        Ok(())
    }

    /// Replaces the frontend's note about a sandbox.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_note(&self, id: SandboxId, note: Vec<u8>) -> Result<()> {
        let objects = self.lock();
        let cell = objects.sandboxes.get(&id).ok_or_else(|| no_sandbox(id))?;
        cell.send_modify(|sandbox| Arc::make_mut(sandbox).details.note = note);
        Ok(())
    }

    /// Applies an event to a sandbox and returns the sandbox after it.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if the state does not allow it.
    pub fn apply_sandbox(&self, id: SandboxId, event: SandboxEvent) -> Result<Arc<Sandbox>> {
        self.change_sandbox(id, event, |_| true, None)
            .map(|(_, after)| after)
    }

    /// Records that a sandbox has failed, if `is_unexpected` says so of the sandbox as it is: no other change
    /// comes between. Returns whether it was recorded.
    pub fn sandbox_failed(
        &self,
        id: SandboxId,
        is_unexpected: impl FnOnce(&Sandbox) -> bool,
        reason: &str,
    ) -> bool {
        let event = SandboxEvent::Lost {
            reason: reason.to_owned(),
        };
        self.change_sandbox(id, event, is_unexpected, None)
            .is_ok_and(|(changed, _)| changed)
    }

    /// Records that a sandbox was started again, with its new details. If a stop was requested meanwhile, it
    /// stays in that state.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it was not being started.
    pub fn sandbox_started(&self, id: SandboxId, details: SandboxDetails) -> Result<Arc<Sandbox>> {
        self.change_sandbox(id, SandboxEvent::Started, |_| true, Some(details))
            .map(|(_, after)| after)
    }

    /// Applies an event, if `condition` holds; returns whether something has changed, and the sandbox after
    /// it.
    fn change_sandbox(
        &self,
        id: SandboxId,
        event: SandboxEvent,
        condition: impl FnOnce(&Sandbox) -> bool,
        details: Option<SandboxDetails>,
    ) -> Result<(bool, Arc<Sandbox>)> {
        let objects = self.lock();
        let cell = objects.sandboxes.get(&id).ok_or_else(|| no_sandbox(id))?;
        let before = cell.borrow().clone();
        if !condition(&before) {
            return Ok((false, before));
        }
        let state = before.state.clone().apply(event).map_err(|illegal| {
            Error::failed_precondition(format!("sandbox {id}")).with_source(illegal)
        })?;
        if state == before.state {
            return Ok((false, before));
        }
        let was_ready = before.state.is_ready();
        let details = details.unwrap_or_else(|| before.details.clone());
        let after = Arc::new(Sandbox {
            state,
            details,
            ..(*before).clone()
        });
        cell.send_replace(Arc::clone(&after));
        let published = match (was_ready, after.state.is_ready()) {
            (true, false) => Some(EventKind::SandboxStopped(id)),
            (false, true) => Some(EventKind::SandboxReady(id)),
            (true, true) | (false, false) => None,
        };
        if let Some(kind) = published {
            self.publish(after.meta.owner, kind, Some(Arc::clone(&after)), None);
        }
        Ok((true, after))
    }

    /// Removes a task from the table after the backend has removed it. Idempotent.
    pub fn remove_task(&self, id: TaskId) {
        let mut objects = self.lock();
        objects.stops.remove(&id);
        objects.signals.remove(&id);
        if let Some(cell) = objects.tasks.remove(&id) {
            let task = cell.borrow().clone();
            objects
                .task_names
                .remove(&(task.meta.owner, task.meta.name.clone()));
            let sandbox = objects.sandbox(task.sandbox);
            self.publish(
                task.meta.owner,
                EventKind::TaskRemoved(id),
                sandbox,
                Some(task),
            );
        }
    }

    /// Removes a sandbox from the table after the backend has removed it. Idempotent.
    pub fn remove_sandbox(&self, id: SandboxId) {
        let mut objects = self.lock();
        if let Some(cell) = objects.sandboxes.remove(&id) {
            let sandbox = cell.borrow().clone();
            objects
                .sandbox_names
                .remove(&(sandbox.meta.owner, sandbox.meta.name.clone()));
            self.publish(
                sandbox.meta.owner,
                EventKind::SandboxRemoved(id),
                Some(sandbox),
                None,
            );
        }
    }
}

/// The request for a signal, if the exit is by it. Pure.
fn fatal(exit: &Exit, (signal, request): (Signal, StopRequest)) -> Option<StopRequest> {
    (exit.code == 128 + i32::from(signal.number())).then_some(request)
}

/// The error for a task id without a task.
#[must_use]
pub fn no_task(id: TaskId) -> Error {
    Error::not_found(format!("task {id} does not exist"))
}

/// The error for a sandbox id without a sandbox.
#[must_use]
pub fn no_sandbox(id: SandboxId) -> Error {
    Error::not_found(format!("sandbox {id} does not exist"))
}

/// The error for a sandbox in which no task can be created.
#[must_use]
pub fn sandbox_not_ready(id: SandboxId, state: &SandboxState) -> Error {
    Error::failed_precondition(format!(
        "sandbox {id} is {}: tasks need a ready one",
        state.as_str()
    ))
}

#[cfg(test)]
mod tests;
