//! This node in a swarm without managers: an executor over a real backend, which tests hand the assignments to.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use swarm::TaskState;
use switchyard_contract::Fixture;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::reload::Reloadable;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::test_util::service_task;
use switchyard_swarm::{
    Change, Changes, Executor, MemberName, NodeFacts, Reports, TaskExecutor, TaskExecutorSettings,
    WaitingServices,
};
use tokio::sync::watch;

use crate::backend_fixture::BackendFixture;
use crate::host::eventually;

/// Limit for a step of a container.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A gateway over a real backend, with the executor of a swarm.
#[derive(Debug)]
pub struct SwarmNode {
    /// The gateway.
    pub gateway: Gateway,
    /// The executor of assigned tasks.
    pub executor: TaskExecutor,
    /// The reports to managers.
    pub reports: Arc<Reports>,
}

// === impl SwarmNode ===

impl SwarmNode {
    /// Recovers the gateway and starts the executor.
    ///
    /// # Panics
    /// If the backend does not recover.
    pub async fn over(world: &BackendFixture) -> Self {
        let gateway = Gateway::new(world.backend(), Limits::default());
        gateway.recover().await.expect("a fresh backend recovers");
        let settings = TaskExecutorSettings {
            log_dir: world.root().state().join("swarm/logs"),
            files_dir: world.root().run().join("swarm/files"),
            port_range: 61_100..=61_109,
            pull_timeout: LIMIT,
            logkeeper: None,
            allowed_devices: Reloadable::default(),
            device_kinds: Reloadable::default(),
            waiting: WaitingServices::default(),
        };
        let (_, facts) = watch::channel(facts("host-1"));
        let reports = Arc::<Reports>::default();
        let executor = TaskExecutor::new(
            gateway.scope(Owner::Swarm),
            settings,
            facts,
            reports.clone(),
        );
        executor.serve(&MemberName {
            cluster: "cluster1".into(),
            node: "node1".into(),
        });
        executor
            .remove_old_files()
            .await
            .expect("there are no files yet, or they can be removed");
        Self {
            gateway,
            executor,
            reports,
        }
    }

    /// Hands changes over, as a session does: all assignments, or what is different.
    pub async fn apply(&self, is_complete: bool, list: Vec<Change>) {
        self.executor.apply(Changes { is_complete, list }).await;
    }

    /// Waits until a task is reported in this state or beyond, and returns its status.
    ///
    /// # Panics
    /// If it is not, or beyond it.
    pub async fn reported(&self, id: &str, state: TaskState) -> swarm::TaskStatus {
        let reached = async {
            loop {
                if let Some(status) = self
                    .reports
                    .latest(id)
                    .filter(|status| status.state >= state.into())
                {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let status = tokio::time::timeout(LIMIT, reached)
            .await
            .expect("the task does not get there");
        assert_eq!(status.state, i32::from(state), "{status:?}");
        status
    }

    /// The log of a task, when it has this text.
    ///
    /// # Panics
    /// If it does not get it.
    pub async fn log(&self, world: &BackendFixture, id: &str, text: &str) -> String {
        let path = world
            .root()
            .state()
            .join("swarm/logs")
            .join(id)
            .join("output.log");
        let read = || fs::read_to_string(&path).unwrap_or_default();
        let has = tokio::task::block_in_place(|| eventually(LIMIT, || read().contains(text)));
        assert!(has, "{text:?} is not in {:?}", read());
        read()
    }

    /// Removes all tasks and ends the gateway.
    ///
    /// # Panics
    /// If that fails.
    pub async fn end(self) {
        tokio::time::timeout(LIMIT, self.executor.remove_all())
            .await
            .expect("the removal does not end")
            .expect("nothing uses the files of secrets any more");
        self.gateway
            .shut_down(LIMIT)
            .await
            .expect("nothing is in flight");
    }
}

/// A task that runs this script.
#[must_use]
pub fn task(
    world: &BackendFixture,
    id: &str,
    script: &str,
    change: impl FnOnce(&mut swarm::ContainerSpec),
) -> swarm::Task {
    let mut container = swarm::ContainerSpec {
        image: world.image(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        // Shells and `sleep` as the first process of a container ignore SIGTERM.
        stop_grace_period: Some(prost_types::Duration {
            seconds: 0,
            nanos: 100_000_000,
        }),
        ..Default::default()
    };
    change(&mut container);
    service_task(id, container)
}

/// The assignment of a task.
#[must_use]
pub fn assigned(task: swarm::Task) -> Change {
    Change::Task(Arc::new(task))
}

/// Returns the description of a test's node: a processor, a GiB, and networks without overlay.
#[must_use]
pub fn facts(hostname: &str) -> NodeFacts {
    NodeFacts {
        hostname: hostname.to_owned(),
        architecture: "x86_64".to_owned(),
        version: "switchyard-test".to_owned(),
        networks: vec!["host".to_owned(), "bridge".to_owned()],
        logs: vec!["json-file".to_owned(), "local".to_owned()],
        nano_cpus: 1_000_000_000,
        memory_bytes: 1 << 30,
        ..NodeFacts::default()
    }
}
