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
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use switchyard_core::gateway::Scope;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::reload::Reloadable;
use switchyard_core::state::TaskState;
use switchyard_core::{Error, Result};
use switchyard_logkeeper as logkeeper;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::dependencies::Dependencies;
use crate::executor::{Executor, TaskLog};
use crate::from_proto::check_id;
use crate::health::CheckRunner;
use crate::life::State;
use crate::offer::{Offer, Reservations};
use crate::plan::{AllowedDevices, PlanContext};
use crate::record::Record;
use crate::secrets::SecretFiles;
use crate::session::assignments::{Change, Changes};
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;
use crate::task_logs;
use crate::worker::{DesiredState, Worker};

/// The settings of a task executor.
#[derive(Debug, Clone)]
pub struct TaskExecutorSettings {
    /// The id of the cluster: its tasks alone are touched. `None`: the tasks of every cluster, which are only removed.
    pub cluster_id: Option<String>,
    /// The id of the node.
    pub node_id: String,
    /// The directory below which each task has one for its log.
    pub log_dir: PathBuf,
    /// The directory for the files of secrets and configs, on which a tmpfs is mounted for them.
    pub files_dir: PathBuf,
    /// The ports from which those are chosen that a service publishes without a number.
    pub port_range: RangeInclusive<u16>,
    /// How long a pull may take.
    pub pull_timeout: Duration,
    /// The logkeeper, which knows whether it still writes the log of a task that has ended. `None`: it writes none.
    pub logkeeper: Option<Arc<logkeeper::Client>>,
    /// The CDI names of the devices that services may name.
    pub allowed_devices: Reloadable<AllowedDevices>,
}

/// Runs the tasks of one cluster. Clones share them.
#[derive(Debug, Clone)]
pub struct TaskExecutor {
    shared: Arc<TaskContext>,
    facts: watch::Receiver<NodeFacts>,
}

/// What managers are offered of the node, if something is.
#[derive(Debug, Default)]
struct Offering {
    reservations: Arc<Mutex<Reservations>>,
    offer: Option<Offer>,
}

/// What the workers share.
#[derive(Debug)]
pub(crate) struct TaskContext {
    pub(crate) scope: Scope,
    pub(crate) settings: TaskExecutorSettings,
    pub(crate) files: SecretFiles,
    pub(crate) checks: CheckRunner,
    pub(crate) dependencies: Mutex<Dependencies>,
    pub(crate) reports: Arc<Reports>,
    /// Serialises the workers of one task: an id that is removed and assigned again has a second one.
    pub(crate) locks: KeyedLock<String>,
    facts: watch::Receiver<NodeFacts>,
    /// The desired states of the assigned tasks.
    desired: Mutex<BTreeMap<String, watch::Sender<DesiredState>>>,
    /// What the assigned tasks reserve.
    pub(crate) reservations: Arc<Mutex<Reservations>>,
    workers: TaskTracker,
    /// Keeps the facts up to date.
    offer: Option<Offer>,
}

// === impl TaskExecutor ===

#[async_trait]
impl Executor for TaskExecutor {
    fn facts(&self) -> watch::Receiver<NodeFacts> {
        self.facts.clone()
    }

    /// Waits until the gateway has recovered: before, no task has an object.
    async fn apply(&self, changes: Changes) {
        self.shared.scope.recovered().await;
        let Changes { is_complete, list } = changes;
        if is_complete {
            self.remove_all_but(&list);
        }
        for change in list {
            self.apply_one(change);
        }
    }

    /// Waits for the first offer too: managers end tasks whose devices a node does not offer.
    async fn recover(&self) {
        if let Err(error) = self.remove_old_files().await {
            tracing::warn!(
                error = error.report(),
                "secrets of ended tasks cannot be removed: they stay on a tmpfs"
            );
        }
        if let Some(offer) = &self.shared.offer {
            offer.made().await;
        }
    }

    async fn remove_all(&self) -> Result<()> {
        self.apply(Changes { is_complete: true, list: Vec::new() }).await;
        self.idle().await;
        let kept = self.tasks_with_files()?;
        let files = self.shared.files.clone();
        blocking("removal of the directory for secrets", move || files.close(|task| kept.contains(task))).await
    }

    fn logs(&self) -> Vec<TaskLog> {
        let TaskContext { scope, settings, .. } = &*self.shared;
        task_logs::list(scope, settings.cluster_id.as_deref())
    }

    async fn is_log_complete(&self, log: &TaskLog) -> bool {
        let TaskContext { scope, settings, .. } = &*self.shared;
        log.has_ended && task_logs::is_complete(scope, settings.logkeeper.as_deref(), &log.task_id).await
    }
}

impl TaskExecutor {
    /// An executor over `scope`, normally that of [`Owner::Swarm`](switchyard_core::id::Owner::Swarm), which
    /// reports to `reports`. `facts` is what managers are told of the node.
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

    /// The same, and offers the managers what other owners leave of the node's processors, memory and devices: `facts`
    /// is everything else that they are told. Needs a runtime.
    #[must_use]
    pub fn offering(
        scope: Scope,
        settings: TaskExecutorSettings,
        facts: NodeFacts,
        reports: Arc<Reports>,
    ) -> Self {
        let reservations = Arc::<Mutex<Reservations>>::default();
        let (told, receiver) = watch::channel(facts.clone());
        let offer = Offer::begin(scope.clone(), facts, Arc::clone(&reservations), told);
        let files = SecretFiles::new(settings.files_dir.clone());
        Self::of(scope, settings, files, receiver, reports, Offering { reservations, offer: Some(offer) })
    }

    fn of(
        scope: Scope,
        settings: TaskExecutorSettings,
        files: SecretFiles,
        facts: watch::Receiver<NodeFacts>,
        reports: Arc<Reports>,
        offering: Offering,
    ) -> Self {
        let Offering { reservations, offer } = offering;
        let shared = TaskContext {
            checks: CheckRunner::new(scope.clone()),
            scope,
            settings,
            files,
            dependencies: Mutex::default(),
            reports,
            locks: KeyedLock::default(),
            facts: facts.clone(),
            desired: Mutex::default(),
            reservations,
            workers: TaskTracker::new(),
            offer,
        };
        Self { shared: Arc::new(shared), facts }
    }

    /// Waits until the gateway has recovered, and removes the files of tasks that do not run. To be called
    /// before the first session. Cancel-safe.
    ///
    /// # Errors
    /// Files cannot be removed: nothing else is affected.
    pub async fn remove_old_files(&self) -> Result<()> {
        self.shared.scope.recovered().await;
        let kept = self.tasks_with_files()?;
        let files = self.shared.files.clone();
        blocking("removal of secrets", move || files.retain(|task| kept.contains(task))).await
    }

    /// The tasks of all clusters that may have files: those that run or will.
    fn tasks_with_files(&self) -> Result<BTreeSet<String>> {
        let runs = |state: &TaskState| match state {
            TaskState::Created
            | TaskState::Starting
            | TaskState::Running { .. }
            | TaskState::Stopping { .. } => true,
            TaskState::Exited { .. } | TaskState::Removing { .. } => false,
        };
        let tasks = self.shared.scope.tasks()?;
        Ok(tasks.iter().filter(|task| runs(&task.state)).map(|task| task.meta.name.clone()).collect())
    }

    /// Waits until no task is worked on: until all removals are done, and all other workers have ended with
    /// the gateway. Cancel-safe.
    pub async fn idle(&self) {
        self.shared.workers.close();
        self.shared.workers.wait().await;
        self.shared.workers.reopen();
    }

    fn apply_one(&self, change: Change) {
        let mut dependencies = self.shared.dependencies.lock();
        match change {
            Change::Secret(secret) => dependencies.put_secret(secret),
            Change::Config(config) => dependencies.put_config(config),
            Change::SecretGone(id) => dependencies.remove_secret(&id),
            Change::ConfigGone(id) => dependencies.remove_config(&id),
            // A node without plugins for them gets none.
            Change::Volume(_) | Change::VolumeGone(_) => {}
            Change::Task(task) => self.assign(task),
            Change::TaskGone(id) => self.remove(id),
        }
    }

    /// Removes the tasks and objects of this cluster that a complete list does not name.
    fn remove_all_but(&self, list: &[Change]) {
        let TaskContext { scope, settings, desired, .. } = &*self.shared;
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
        let sandboxes = scope.sandboxes().unwrap_or_default();
        let of_cluster = |record: &Record| {
            settings.cluster_id.as_ref().is_none_or(|cluster| record.cluster_id == *cluster)
        };
        let objects = sandboxes
            .iter()
            .filter(|sandbox| of_cluster(&Record::of(&sandbox.meta)))
            .map(|sandbox| sandbox.meta.name.clone());
        let assigned: Vec<String> = desired.lock().keys().cloned().collect();
        let known: BTreeSet<String> = objects.chain(assigned).collect();
        for id in known.into_iter().filter(|id| !named.contains(id.as_str())) {
            self.remove(id);
        }
    }

    /// Takes up a task, or wants it in another state.
    fn assign(&self, task: Arc<swarm::Task>) {
        let shared = &self.shared;
        let state = State::from_wire(task.desired_state);
        shared.reservations.lock().observe(&task, &shared.facts.borrow());
        let mut desired = shared.desired.lock();
        if let Some(sender) = desired.get(&task.id) {
            sender.send_if_modified(|wanted| {
                // A manager never wants less than before.
                let higher = state > wanted.state;
                wanted.state = wanted.state.max(state);
                higher
            });
            return;
        }
        // The id becomes a part of paths.
        if let Err(error) = check_id("id", &task.id) {
            tracing::warn!(error = error.report(), "a manager has assigned a task without a valid id");
            return;
        }
        shared.reservations.lock().put(&task);
        let (sender, wanted) = watch::channel(DesiredState { state, removed: false });
        desired.insert(task.id.clone(), sender);
        let worker = Worker::new(Arc::clone(shared), task.id.clone(), Some(task), wanted);
        shared.workers.spawn(worker.run());
    }

    /// Stops and removes a task.
    fn remove(&self, id: String) {
        let shared = &self.shared;
        let removal = DesiredState { state: State::Remove, removed: true };
        let sender = shared.desired.lock().remove(&id);
        if let Some(sender) = &sender {
            // From here on its worker reports nothing.
            sender.send_replace(removal);
        }
        shared.reports.forget(&id);
        shared.reservations.lock().remove(&id);
        if sender.is_some() || check_id("id", &id).is_err() {
            return;
        }
        // One of before the restart that is assigned no more. The sender need not live.
        let (_, wanted) = watch::channel(removal);
        shared.workers.spawn(Worker::new(Arc::clone(shared), id, None, wanted).run());
    }
}

// === impl TaskContext ===

impl TaskContext {
    /// What plans are made with.
    pub(crate) fn plan_context(&self) -> PlanContext {
        let (hostname, architecture) = {
            let facts = self.facts.borrow();
            (facts.hostname.clone(), facts.architecture.clone())
        };
        let handlers = self.scope.handlers();
        PlanContext {
            cluster_id: self.settings.cluster_id.clone().unwrap_or_default(),
            node_id: self.settings.node_id.clone(),
            hostname,
            architecture,
            log_dir: self.settings.log_dir.clone(),
            recursive_readonly_mounts: handlers
                .first()
                .is_some_and(|handler| handler.recursive_readonly_mounts),
            allowed_devices: self.settings.allowed_devices.get(),
        }
    }
}

/// Runs a short call that blocks.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|fault| Err(Error::internal(format!("{what} broke off")).with_source(fault)))
}

#[cfg(test)]
mod tests;
