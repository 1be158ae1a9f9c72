//! An agent's handling of one task: it waits for its exit, and recovers the task after the plugin was
//! restarted. It starts one plugin and asks it once: a task that is refused then is destroyed, and started under a new id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::agent::{Agent, CallFailure};
use super::driver::BlockingDriver;
use super::task::next_id;
use crate::host::eventually;

/// Limit for the run of a test's task.
const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Time after the last recovery of a task within which a plugin outlives its daemon.
const RECOVERY_WINDOW: Duration = Duration::from_secs(10);
/// Within which a task is recovered once a plugin can be started.
const RECOVER_LIMIT: Duration = Duration::from_secs(60);

/// Waits for the exit of one task on its own thread, across restarts of the plugin.
#[derive(Debug)]
pub struct TaskRunner {
    thread: JoinHandle<TaskEnd>,
    recovered: Arc<AtomicU32>,
    latest: Arc<Mutex<Option<Instant>>>,
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
        let latest = Arc::default();
        let seen = (Arc::clone(&recovered), Arc::clone(&latest));
        Self {
            thread: std::thread::spawn(move || run(&agent, &handle, (&seen.0, &seen.1))),
            recovered,
            latest,
        }
    }

    /// Waits until the task has been recovered this often.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn wait_recovered(&self, times: u32) {
        let is_recovered = || self.recovered.load(Ordering::SeqCst) == times;
        let is_over = || is_recovered() || self.thread.is_finished();
        assert!(
            eventually(RECOVER_LIMIT, is_over) && is_recovered(),
            "it was recovered {:?} times",
            self.recovered
        );
    }

    /// Waits until the plugin, which has recovered the task, ends with its daemon again.
    ///
    /// # Panics
    /// When the task is recovered again and again meanwhile.
    #[track_caller]
    pub fn wait_recovery_over(&self) {
        let is_over = || {
            let latest = *self.latest.lock();
            latest.is_none_or(|latest| latest.elapsed() > RECOVERY_WINDOW)
        };
        assert!(eventually(RECOVER_LIMIT, is_over));
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

fn run(
    agent: &Agent,
    handle: &nomad::TaskHandle,
    (recovered, latest): (&AtomicU32, &Mutex<Option<Instant>>),
) -> TaskEnd {
    let config = handle.config.as_ref();
    let config = config.expect("a handle has the task's configuration");
    let mut driver = agent.driver();
    loop {
        let status = match driver.wait(&config.id, RUN_LIMIT) {
            Ok(result) => {
                return TaskEnd {
                    result,
                    recovered: recovered.load(Ordering::SeqCst),
                };
            }
            Err(status) => status,
        };
        match agent.classify_failure(&driver, status) {
            CallFailure::PluginShutdown => {
                driver = agent.dispense();
                if let Err(refused) = driver.recover(handle) {
                    panic!("RecoverTask: {refused}; {}", give_up(&driver, config));
                }
                *latest.lock() = Some(Instant::now());
                recovered.fetch_add(1, Ordering::SeqCst);
            }
            CallFailure::Status(status) => {
                panic!(
                    "the agent takes the task {} for failed: {status}",
                    config.id
                )
            }
        }
    }
}

/// Gives up a task that could not be recovered, as an agent does; returns how that went.
fn give_up(driver: &BlockingDriver, config: &nomad::TaskConfig) -> String {
    let destroyed = driver.destroy(&config.id, true);
    let next = nomad::TaskConfig {
        id: next_id(config),
        ..config.clone()
    };
    let started = driver.start(&next).map(drop);
    format!(
        "DestroyTask of {}: {destroyed:?}; StartTask of {}: {started:?}",
        config.id, next.id
    )
}
