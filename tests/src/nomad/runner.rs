//! An agent's handling of one task: it waits for its exit, and recovers the task after the plugin was
//! restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use switchyard_proto::nomad::drivers::proto as nomad;

use super::agent::{Agent, CallFailure};
use crate::host::eventually;

/// Limit for the run of a test's task.
const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Within which a task is recovered once a plugin can be started.
const RECOVER_LIMIT: Duration = Duration::from_secs(60);

/// Waits for the exit of one task on its own thread, across restarts of the plugin.
#[derive(Debug)]
pub struct TaskRunner {
    thread: JoinHandle<TaskEnd>,
    recovered: Arc<AtomicU32>,
}

/// The end of a task.
#[derive(Debug)]
pub struct TaskEnd {
    /// Its result.
    pub result: nomad::ExitResult,
    /// Number of its recoveries.
    pub recovered: u32,
}

// === impl TaskRunner ===

impl TaskRunner {
    /// Waits from now on.
    #[must_use]
    pub fn start(agent: &Arc<Agent>, handle: nomad::TaskHandle) -> Self {
        let agent = Arc::clone(agent);
        let recovered = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&recovered);
        Self {
            thread: std::thread::spawn(move || run(&agent, &handle, &count)),
            recovered,
        }
    }

    /// Waits until the task has been recovered this often.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn wait_recovered(&self, times: u32) {
        assert!(
            eventually(RECOVER_LIMIT, || self.recovered.load(Ordering::SeqCst)
                == times),
            "it was recovered {:?} times",
            self.recovered
        );
    }

    /// The end of the task.
    ///
    /// # Panics
    /// When the agent would have counted it as failed.
    #[track_caller]
    #[must_use]
    pub fn join(self) -> TaskEnd {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn run(agent: &Agent, handle: &nomad::TaskHandle, recovered: &AtomicU32) -> TaskEnd {
    let id = handle
        .config
        .as_ref()
        .expect("a handle has the task's configuration")
        .id
        .clone();
    let mut driver = agent.driver();
    loop {
        let status = match driver.wait(&id, RUN_LIMIT) {
            Ok(result) => {
                return TaskEnd {
                    result,
                    recovered: recovered.load(Ordering::SeqCst),
                };
            }
            Err(status) => status,
        };
        match agent.classify_failure(status) {
            CallFailure::PluginShutdown => {
                driver = agent.dispense();
                // Once, and if that fails the task is started a second time.
                driver
                    .recover(handle)
                    .expect("a task is recovered at the first try");
                recovered.fetch_add(1, Ordering::SeqCst);
            }
            CallFailure::Status(status) => {
                panic!("the agent takes the task {id} for failed: {status}")
            }
        }
    }
}
