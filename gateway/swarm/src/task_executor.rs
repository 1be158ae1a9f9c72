//! Runs the tasks that managers assign to this node, by the gateway.
//!
//! ```text
//!  Changes ─► TaskExecutor ─► secrets, configs, desired states ─► Worker (one for each task) ─► Scope
//!                                                           └─► Reports
//! ```
//!
//! The container objects are the record: after a restart each task is taken up from its object and from what
//! the manager knows of it. A daemon that ends reports nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use switchyard_core::Result;
use switchyard_core::gateway::Scope;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::state::TaskState;
use switchyard_linux::blocking;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::executor::{Executor, MemberName, TaskLog};
use crate::from_proto::check_id;
use crate::health::CheckRunner;
use crate::life::State;
use crate::offer::{DeviceCheck, Offer, Reservations};
use crate::record::Record;
use crate::secrets::SecretFiles;
use crate::session::assignments::{Change, Changes};
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;
use crate::task_context::{TaskContext, TaskExecutorSettings};
use crate::task_logs;
use crate::worker::{DesiredState, Worker};

/// Runs the tasks of the cluster that it serves. Clones share them.
#[derive(Debug, Clone)]
pub struct TaskExecutor {
    shared: Arc<TaskContext>,
    assigned: Arc<Assigned>,
    facts: watch::Receiver<NodeFacts>,
}

/// The offer of the node's resources to managers, if there is one.
#[derive(Debug, Default)]
struct Offering {
    reservations: Arc<Mutex<Reservations>>,
    offer: Option<Offer>,
}

/// State that the clones of an executor share, and its workers do not need.
#[derive(Debug)]
struct Assigned {
    /// The tasks that are assigned or worked on.
    tasks: Mutex<BTreeMap<String, TaskEntry>>,
    workers: TaskTracker,
    /// Keeps the facts up to date.
    offer: Option<Offer>,
}

/// A task that is assigned or worked on.
#[derive(Debug, Default)]
struct TaskEntry {
    /// The desired state; `None` if it is not assigned any more, so that its last worker removes it.
    wanted: Option<watch::Sender<DesiredState>>,
    /// Number of its workers: several only if it was assigned again while it was being removed.
    workers: usize,
}

/// A worker of a task, until it has ended in whatever way.
struct WorkerGuard {
    assigned: Arc<Assigned>,
    id: String,
}

// === impl TaskExecutor ===

#[async_trait]
impl Executor for TaskExecutor {
    fn serve(&self, member: &MemberName) {
        *self.shared.member.lock() = Some(member.clone());
    }

    fn facts(&self) -> watch::Receiver<NodeFacts> {
        self.facts.clone()
    }

    /// Waits until the gateway has recovered: before, no task has an object.
    async fn apply(&self, changes: Changes) {
        self.shared.scope.recovered().await;
        let Changes { is_complete, list } = changes;
        if is_complete {
            self.shared.dependencies.lock().retain(&list);
            self.remove_all_but(&list);
        }
        for change in list {
            self.apply_one(change);
        }
    }

    fn resume_device_check(&self, kept: DeviceCheck) {
        self.shared.reservations.lock().resume_device_check(kept);
    }

    fn device_check(&self) -> watch::Receiver<Option<DeviceCheck>> {
        self.shared.reservations.lock().device_check()
    }

    /// Waits for an offer too that follows the check of the managers, as far as it is known: they end tasks otherwise.
    async fn recover(&self) {
        if let Err(error) = self.remove_old_files().await {
            tracing::warn!(
                error = error.report(),
                "secrets of ended tasks cannot be removed: they stay on a tmpfs"
            );
        }
        if let Some(offer) = &self.assigned.offer {
            offer.renewed().await;
        }
    }

    async fn remove_all(&self) -> Result<()> {
        self.apply(Changes {
            is_complete: true,
            list: Vec::new(),
        })
        .await;
        self.idle().await;
        let kept = self.tasks_with_files()?;
        let files = self.shared.files.clone();
        blocking("removal of the directory for secrets", move || {
            files.close(|task| kept.contains(task))
        })
        .await
    }

    fn logs(&self) -> Vec<TaskLog> {
        task_logs::list(&self.shared.scope, self.shared.cluster().as_deref())
    }

    async fn is_log_complete(&self, log: &TaskLog) -> bool {
        let TaskContext {
            scope, settings, ..
        } = &*self.shared;
        log.has_ended
            && task_logs::is_complete(scope, settings.logkeeper.as_deref(), &log.task_id).await
    }
}

impl TaskExecutor {
    /// Makes an executor over `scope`, normally that of [`Owner::Swarm`](switchyard_core::id::Owner::Swarm),
    /// which reports to `reports`. `facts` is the node's description for managers.
    #[must_use]
    pub fn new(
        scope: Scope,
        settings: TaskExecutorSettings,
        facts: watch::Receiver<NodeFacts>,
        reports: Arc<Reports>,
    ) -> Self {
        let files = SecretFiles::new(settings.files_dir.clone());
        Self::of(scope, settings, files, facts, reports, Offering::default())
    }

    /// Makes an executor that also offers to managers the processors, memory and devices that other owners
    /// leave: `facts` is the rest of the node's description. Needs a runtime.
    #[must_use]
    pub fn offering(
        scope: Scope,
        settings: TaskExecutorSettings,
        facts: NodeFacts,
        reports: Arc<Reports>,
    ) -> Self {
        let reservations = Arc::<Mutex<Reservations>>::default();
        let (told, receiver) = watch::channel(facts.clone());
        let offered = (facts, settings.device_kinds.clone());
        let offer = Offer::begin(scope.clone(), offered, Arc::clone(&reservations), told);
        let files = SecretFiles::new(settings.files_dir.clone());
        Self::of(
            scope,
            settings,
            files,
            receiver,
            reports,
            Offering {
                reservations,
                offer: Some(offer),
            },
        )
    }

    fn of(
        scope: Scope,
        settings: TaskExecutorSettings,
        files: SecretFiles,
        facts: watch::Receiver<NodeFacts>,
        reports: Arc<Reports>,
        offering: Offering,
    ) -> Self {
        let Offering {
            reservations,
            offer,
        } = offering;
        let shared = TaskContext {
            checks: CheckRunner::new(scope.clone()),
            scope,
            settings,
            files,
            dependencies: Mutex::default(),
            reports,
            locks: KeyedLock::default(),
            facts: facts.clone(),
            member: Mutex::default(),
            reservations,
        };
        let assigned = Assigned {
            tasks: Mutex::default(),
            workers: TaskTracker::new(),
            offer,
        };
        Self {
            shared: Arc::new(shared),
            assigned: Arc::new(assigned),
            facts,
        }
    }

    /// Waits until the gateway has recovered, and removes the files of tasks that neither run nor are worked on. To be
    /// called before the first session. Cancel-safe.
    ///
    /// # Errors
    /// Files cannot be removed: nothing else is affected.
    pub async fn remove_old_files(&self) -> Result<()> {
        self.shared.scope.recovered().await;
        let kept = self.tasks_with_files()?;
        let files = self.shared.files.clone();
        blocking("removal of secrets", move || {
            files.retain(|task| kept.contains(task))
        })
        .await
    }

    /// The tasks of all clusters that may have files: those that run or will, those that cannot be read, and those whose
    /// worker may write some.
    fn tasks_with_files(&self) -> Result<BTreeSet<String>> {
        let runs = |state: &TaskState| match state {
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. } => true,
            TaskState::Exited { .. } | TaskState::Removing { .. } => false,
        };
        let mut named: BTreeSet<String> = self.assigned.tasks.lock().keys().cloned().collect();
        let unreadable = self.shared.scope.sandboxes().unreadable()?;
        named.extend(unreadable.iter().map(|held| held.name.clone()));
        let tasks = self.shared.scope.tasks().list()?;
        named.extend(
            tasks
                .iter()
                .filter(|task| runs(&task.state))
                .map(|task| task.meta.name.clone()),
        );
        Ok(named)
    }

    /// Waits until no task is worked on: until all removals are done, and all other workers have ended with
    /// the gateway. Cancel-safe.
    pub async fn idle(&self) {
        self.assigned.workers.close();
        self.assigned.workers.wait().await;
        self.assigned.workers.reopen();
    }

    fn apply_one(&self, change: Change) {
        let dependencies = &self.shared.dependencies;
        match change {
            Change::Secret(secret) => dependencies.lock().put_secret(secret),
            Change::Config(config) => dependencies.lock().put_config(config),
            Change::SecretGone(id) => dependencies.lock().remove_secret(&id),
            Change::ConfigGone(id) => dependencies.lock().remove_config(&id),
            // A node without plugins for them gets none.
            Change::Volume(_) | Change::VolumeGone(_) => {}
            Change::Task(task) => self.assign(task),
            Change::TaskGone(id) => self.remove(id),
        }
    }

    /// Removes the tasks and objects of this cluster that a complete list does not name.
    fn remove_all_but(&self, list: &[Change]) {
        let cluster = self.shared.cluster();
        let named: BTreeSet<&str> = list
            .iter()
            .filter_map(|change| match change {
                Change::Task(task) => Some(task.id.as_str()),
                Change::Secret(_)
                | Change::Config(_)
                | Change::Volume(_)
                | Change::TaskGone(_)
                | Change::VolumeGone(_)
                | Change::SecretGone(_)
                | Change::ConfigGone(_) => None,
            })
            .collect();
        // The gateway has recovered, so that there is a list.
        let sandboxes = self.shared.scope.sandboxes().list().unwrap_or_default();
        let of_cluster = |record: &Record| {
            cluster
                .as_ref()
                .is_none_or(|cluster| record.cluster_id == *cluster)
        };
        let objects = sandboxes
            .iter()
            .filter(|sandbox| of_cluster(&Record::of(&sandbox.meta)))
            .map(|sandbox| sandbox.meta.name.clone());
        let assigned: Vec<String> = self.assigned.tasks.lock().keys().cloned().collect();
        let known: BTreeSet<String> = objects.chain(assigned).collect();
        for id in known.into_iter().filter(|id| !named.contains(id.as_str())) {
            self.remove(id);
        }
    }

    /// Takes up a task, or wants it in another state.
    fn assign(&self, task: Arc<swarm::Task>) {
        let shared = &self.shared;
        let state = State::from_wire(task.desired_state);
        let concluded = shared
            .reservations
            .lock()
            .observe(&task, &self.facts.borrow());
        if let Some(changed) = concluded {
            changed.log(&task.id);
        }
        // The id becomes a part of paths.
        if let Err(error) = check_id("id", &task.id) {
            tracing::warn!(
                error = error.report(),
                "a manager has assigned a task without a valid id"
            );
            return;
        }
        let mut tasks = self.assigned.tasks.lock();
        let worked_on = tasks.get(&task.id).filter(|entry| entry.workers > 0);
        if let Some(sender) = worked_on.and_then(|entry| entry.wanted.as_ref()) {
            sender.send_if_modified(|wanted| {
                // A manager never wants less than before.
                let higher = state > wanted.state;
                wanted.state = wanted.state.max(state);
                higher
            });
            return;
        }
        shared.reservations.lock().put(&task);
        let (sender, wanted) = watch::channel(DesiredState {
            state,
            removed: false,
        });
        let entry = tasks.entry(task.id.clone()).or_default();
        entry.wanted = Some(sender);
        entry.workers += 1;
        drop(tasks);
        self.work_on(task.id.clone(), Some(task), wanted);
    }

    /// Stops and removes a task.
    fn remove(&self, id: String) {
        let shared = &self.shared;
        let removal = DesiredState {
            state: State::Remove,
            removed: true,
        };
        let mut tasks = self.assigned.tasks.lock();
        if let Some(sender) = tasks.get_mut(&id).and_then(|entry| entry.wanted.take()) {
            // From here on its worker reports nothing.
            sender.send_replace(removal);
        }
        shared.reports.forget(&id);
        shared.reservations.lock().remove(&id);
        // A worker of a task that is not assigned removes it, however long that takes: another one would wait for it, and
        // find nothing.
        if tasks.get(&id).is_some_and(|entry| entry.workers > 0) || check_id("id", &id).is_err() {
            return;
        }
        // One of before the restart that is assigned no more. The sender need not live.
        let (_, wanted) = watch::channel(removal);
        tasks.entry(id.clone()).or_default().workers += 1;
        drop(tasks);
        self.work_on(id, None, wanted);
    }

    /// Begins a worker for a task, which is counted already, and waits for the others that the task has. A runtime that
    /// ends drops it at once, which locks the tasks.
    fn work_on(
        &self,
        id: String,
        task: Option<Arc<swarm::Task>>,
        wanted: watch::Receiver<DesiredState>,
    ) {
        let guard = WorkerGuard {
            assigned: Arc::clone(&self.assigned),
            id: id.clone(),
        };
        let worker = Worker::new(Arc::clone(&self.shared), id, task, wanted);
        self.assigned.workers.spawn(async move {
            let _until_it_ends = guard;
            worker.run().await;
        });
    }
}

// === impl WorkerGuard ===

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        let mut tasks = self.assigned.tasks.lock();
        if let Some(entry) = tasks.get_mut(&self.id) {
            entry.workers = entry.workers.saturating_sub(1);
            if entry.workers == 0 && entry.wanted.is_none() {
                tasks.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
