//! An agent of this node in a swarm, with an executor that runs nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::test_util::IdleExecutor;
use switchyard_swarm::{
    Agent, AgentReport, Change, Error, Identity, JoinRequest, NodeFacts, Reports, Store, join,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::SwarmCluster;

/// An agent that runs on a thread in the namespace of the managers. Dropping it ends it without a word.
#[derive(Debug)]
pub struct TestAgent {
    executor: Arc<IdleExecutor>,
    reports: Arc<Reports>,
    report: watch::Receiver<AgentReport>,
    end: CancellationToken,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

/// The directory of a membership.
#[must_use]
pub fn state(cluster: &SwarmCluster, name: &str) -> PathBuf {
    cluster.dir().join(name).join("swarm")
}

/// Joins a node, as the first manager with this token.
///
/// # Errors
/// Those of the join.
///
/// # Panics
/// When no thread can be started.
pub fn try_join(
    cluster: &SwarmCluster,
    dir: &Path,
    token: &str,
    availability: Availability,
) -> Result<Identity, Error> {
    let store = Store::new(dir.to_owned());
    let token = token.parse()?;
    let request = JoinRequest {
        managers: vec![cluster.address(0)],
        token,
        availability,
    };
    cluster
        .within(move || block_on(join(&store, &request)))
        .join()
        .expect("a join does not panic")
}

/// Joins a node with the worker token.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn join_worker(cluster: &SwarmCluster, dir: &Path, availability: Availability) -> Identity {
    match try_join(cluster, dir, &cluster.token("worker"), availability) {
        Ok(identity) => identity,
        Err(error) => panic!("{}", error.report()),
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be made").block_on(work)
}

// === impl TestAgent ===

impl TestAgent {
    /// Starts the agent of the membership in a directory.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    #[must_use]
    pub fn start(cluster: &SwarmCluster, dir: &Path, facts: NodeFacts) -> Self {
        let store = Store::new(dir.to_owned());
        let loaded = store
            .load(SystemTime::now())
            .expect("the membership can be read");
        let identity = loaded.expect("the node is a member");
        let executor = Arc::new(IdleExecutor::new(facts));
        let reports = Arc::<Reports>::default();
        let agent = Agent::new(store, identity, executor.clone(), reports.clone());
        let agent = block_on(agent).expect("the managers can be read");
        let report = agent.report();
        let end = CancellationToken::new();
        let ended = end.clone();
        let thread = cluster.within(move || block_on(agent.run(ended)));
        Self {
            executor,
            reports,
            report,
            end,
            thread: Some(thread),
        }
    }

    /// Returns the state of the agent.
    #[must_use]
    pub fn report(&self) -> AgentReport {
        self.report.borrow().clone()
    }

    /// Changes the node's description for managers.
    pub fn describe(&self, change: impl FnOnce(&mut NodeFacts)) {
        self.executor.facts.send_modify(change);
    }

    /// All changes that were assigned since the start.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.executor
            .changes
            .lock()
            .iter()
            .flat_map(|changes| changes.list.clone())
            .collect()
    }

    /// Returns the number of complete messages.
    #[must_use]
    pub fn complete_messages(&self) -> usize {
        self.executor
            .changes
            .lock()
            .iter()
            .filter(|changes| changes.is_complete)
            .count()
    }

    /// Reports a status.
    pub fn report_status(&self, task: &str, state: swarm::TaskState, message: &str, err: &str) {
        let status = swarm::TaskStatus {
            timestamp: Some(SystemTime::now().into()),
            state: state.into(),
            message: message.to_owned(),
            err: err.to_owned(),
            ..Default::default()
        };
        self.reports.report(task, status);
    }

    /// Waits until the agent ends by itself.
    ///
    /// # Errors
    /// Why it ended.
    ///
    /// # Panics
    /// When it does not end within a minute.
    pub fn wait(mut self) -> Result<(), Error> {
        let thread = self.thread.take().expect("it is waited for once");
        let has_ended = crate::host::eventually(Duration::from_secs(60), || thread.is_finished());
        assert!(has_ended, "the agent continues: {:?}", self.report());
        thread.join().expect("an agent does not panic")
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the agent has panicked"
            );
        }
    }
}
