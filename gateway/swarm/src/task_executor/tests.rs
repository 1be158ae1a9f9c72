//! Tests of the executor, on the fake backend.

use std::future::Future;
use std::time::Duration;

use switchyard_core::Error;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::ledger::MemoryStore;
use switchyard_core::operation::Operations;
use switchyard_core::reload::Reloadable;
use switchyard_fake::{Fake, Method};
use tempfile::TempDir;
use tokio::task::AbortHandle;

use super::*;
use crate::sample_tasks::{CLUSTER, config, container, secret, secret_reference, task, task_id};
use crate::secrets::mount_model::MountModel;
use crate::waiting::WaitingServices;

mod devices;
mod health;
mod life;
mod races;
mod restarts;
mod rotation;
mod templates;
mod traces;
mod unmet;
mod unreadable;

/// The statuses that a manager has.
type Statuses = BTreeMap<String, swarm::TaskStatus>;

/// A node with a fake backend and an executor.
struct TestNode {
    fake: Fake,
    gateway: Gateway,
    operations: Operations,
    executor: TaskExecutor,
    /// The statuses that the manager knows.
    statuses: watch::Receiver<Statuses>,
    manager: AbortHandle,
    /// Holds the files and logs.
    place: TempDir,
}

impl TestNode {
    async fn new() -> Self {
        Self::over(Fake::with_busybox()).await
    }

    async fn over(fake: Fake) -> Self {
        // Each Linux has a tmpfs there.
        Self::start(fake, tempfile::tempdir_in("/dev/shm").unwrap()).await
    }

    async fn start(fake: Fake, place: TempDir) -> Self {
        let operations = Operations::default();
        let backend = Arc::new(fake.clone());
        let leases = Arc::new(MemoryStore::default());
        let gateway = Gateway::with_leases(backend, Limits::default(), leases, operations.clone());
        gateway.recover().await.unwrap();
        let settings = TaskExecutorSettings {
            log_dir: place.path().join("logs"),
            files_dir: place.path().join("files"),
            port_range: 61_000..=61_003,
            pull_timeout: Duration::from_secs(60),
            allowed_devices: Reloadable::default(),
            device_kinds: Reloadable::default(),
            waiting: WaitingServices::default(),
            logkeeper: None,
        };
        let (_, facts) = watch::channel(NodeFacts::default());
        let reports = Arc::<Reports>::default();
        let (files, _) = MountModel::files(settings.files_dir.clone());
        let scope = gateway.scope(Owner::Swarm);
        let executor = TaskExecutor::of(
            scope,
            settings,
            files,
            facts,
            reports.clone(),
            Offering::default(),
        );
        executor.serve(&member(CLUSTER));
        executor.remove_old_files().await.unwrap();
        let (sender, statuses) = watch::channel(Statuses::new());
        // A manager that takes what is reported.
        let manager = tokio::spawn(async move {
            loop {
                let batch = reports.next().await;
                reports.sent(&batch);
                sender.send_modify(|known| {
                    known.extend(
                        batch
                            .into_iter()
                            .filter_map(|one| Some((one.task_id, one.status?))),
                    );
                });
            }
        });
        Self {
            fake,
            gateway,
            operations,
            executor,
            statuses,
            manager: manager.abort_handle(),
            place,
        }
    }

    /// The node after `kill -9` of the daemon.
    async fn killed(self) -> Self {
        let fake = self.fake.reopen();
        let Self {
            gateway,
            executor,
            manager,
            place,
            ..
        } = self;
        manager.abort();
        // What is in flight of the dead daemon never returns.
        drop((gateway, executor));
        Self::start(fake, place).await
    }

    async fn apply(&self, is_complete: bool, list: Vec<Change>) {
        self.executor.apply(Changes { is_complete, list }).await;
    }

    async fn assign(&self, task: swarm::Task) {
        self.apply(false, vec![Change::Task(Arc::new(task))]).await;
    }

    async fn remove(&self, number: usize) {
        self.apply(false, vec![Change::TaskGone(task_id(number))])
            .await;
    }

    fn status(&self, number: usize) -> Option<swarm::TaskStatus> {
        self.statuses.borrow().get(&task_id(number)).cloned()
    }

    /// Waits until a task is reported in this state.
    async fn reported(&self, number: usize, state: State) -> swarm::TaskStatus {
        let mut changes = self.statuses.clone();
        let reported = async {
            loop {
                if let Some(status) = self.status(number)
                    && State::from_wire(status.state) >= state
                {
                    return status;
                }
                changes.changed().await.unwrap();
            }
        };
        let status = within(reported).await;
        assert_eq!(State::from_wire(status.state), state, "{status:?}");
        status
    }

    /// The core's id of a task.
    #[track_caller]
    fn object(&self, number: usize) -> TaskId {
        self.gateway
            .scope(Owner::Swarm)
            .tasks()
            .named(&task_id(number))
            .unwrap()
            .unwrap()
            .id
    }

    /// The files of secrets and configs that are there.
    fn files(&self) -> usize {
        let dirs = std::fs::read_dir(self.place.path().join("files"))
            .into_iter()
            .flatten()
            .flatten();
        dirs.map(|dir| std::fs::read_dir(dir.path()).unwrap().count())
            .sum()
    }

    /// Checks that nothing is left of any task.
    async fn is_empty(&self) {
        within(self.executor.idle()).await;
        assert_eq!(self.fake.remaining_objects(), Vec::<String>::new());
        assert_eq!(self.files(), 0);
        assert_eq!(self.fake.breaches(), Vec::<String>::new());
    }
}

/// The result of something that should not take long.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .expect("it takes too long")
}

/// This node in a cluster.
fn member(cluster: &str) -> MemberName {
    MemberName {
        cluster: cluster.into(),
        node: "node1".into(),
    }
}

/// A task whose container runs this, until it is stopped if it is empty.
fn running(number: usize, args: &[&str]) -> swarm::Task {
    let args = if args.is_empty() { &["serve"] } else { args };
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    task(
        number,
        swarm::ContainerSpec {
            args,
            ..container()
        },
    )
}

fn wanted(task: swarm::Task, state: State) -> swarm::Task {
    swarm::Task {
        desired_state: state.to_wire().into(),
        ..task
    }
}

/// The task as a manager has it that knows this state.
fn known(task: swarm::Task, state: State) -> swarm::Task {
    let status = Some(swarm::TaskStatus {
        state: state.to_wire().into(),
        ..Default::default()
    });
    swarm::Task { status, ..task }
}
