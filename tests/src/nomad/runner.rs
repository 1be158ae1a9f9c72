//! What an agent does for one task: waits for its end, and takes it up again when the plugin has ended.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use switchyard_proto::nomad::drivers::proto as nomad;

use super::agent::{Agent, Fault};

/// How long a test's task may run.
const RUN_LIMIT: Duration = Duration::from_secs(180);

/// Waits for the end of one task on a thread of its own, over as many plugins as it takes.
#[derive(Debug)]
pub struct Runner {
    thread: JoinHandle<Ended>,
}

/// How a task ended.
#[derive(Debug)]
pub struct Ended {
    /// Its result.
    pub result: nomad::ExitResult,
    /// How often it was recovered.
    pub recovered: u32,
}

// === impl Runner ===

impl Runner {
    /// Waits from now on.
    #[must_use]
    pub fn start(agent: &Arc<Agent>, handle: nomad::TaskHandle) -> Self {
        let agent = Arc::clone(agent);
        Self { thread: std::thread::spawn(move || run(&agent, &handle)) }
    }

    /// The end of the task.
    ///
    /// # Panics
    /// When the agent would have counted it as failed.
    #[track_caller]
    #[must_use]
    pub fn join(self) -> Ended {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn run(agent: &Agent, handle: &nomad::TaskHandle) -> Ended {
    let id = handle.config.as_ref().expect("a handle has the task's configuration").id.clone();
    let mut driver = agent.driver();
    let mut recovered = 0;
    loop {
        let status = match driver.wait(&id, RUN_LIMIT) {
            Ok(result) => return Ended { result, recovered },
            Err(status) => status,
        };
        match agent.fault(status) {
            Fault::PluginShutdown => {
                driver = agent.dispense();
                // Once, and if that fails the task is started a second time.
                driver.recover(handle).expect("a task is recovered at the first try");
                recovered += 1;
            }
            Fault::Status(status) => panic!("the agent takes the task {id} for failed: {status}"),
        }
    }
}
