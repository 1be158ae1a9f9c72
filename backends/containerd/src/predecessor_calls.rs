//! Predecessor calls: calls that a killed predecessor left running in containerd. The daemon waits for them
//! before it touches their containers.
//!
//! The logkeeper holds the connection of the predecessor open, so that containerd carries on with the calls.
//! Which containers they may concern is known from what the predecessor left: a start that was begun and not
//! finished.

use std::sync::Arc;
use std::time::{Duration, Instant};

use switchyard_core::Result;

use crate::base::container_id::ContainerId;
use crate::client::Client;
use crate::client::process_state::ProcessState;
use crate::context::Context;
use crate::shims::Shims;

pub(crate) mod outcome;
mod wait_records;

use outcome::{CallOutcome, CallTimeouts, Durations, Observation, call_outcome};

/// Waits for predecessor calls.
#[derive(Debug)]
pub(crate) struct PredecessorCalls {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) shims: Arc<Shims>,
}

/// The time that a predecessor call has to finish in containerd; after it the container is ended.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two observations of a container whose bundle can be seen.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same where bundles cannot be seen: each observation scans all processes.
const PROC_SCAN_INTERVAL: Duration = Duration::from_millis(100);

impl PredecessorCalls {
    /// Waits until the predecessor call about this container has finished. Returns at once if there is none.
    ///
    /// If the outcome has to be cleaned up, each later call of this method returns it again at once, also in
    /// the next daemon, until [`PredecessorCalls::predecessor_call_done`] is called: a kill during the
    /// cleanup does not restart the wait. Cancel-safe.
    pub(crate) async fn await_predecessor_call(&self, id: &ContainerId) -> Result<CallOutcome> {
        if !self.shims.predecessor_calls.contains(id) {
            return Ok(CallOutcome::NoEffect);
        }
        let timeouts = CallTimeouts {
            grace: self.context.settings().recovery.grace(),
            limit: CALL_TIMEOUT,
        };
        let mut wait = self.load_or_begin_wait(id).await?;
        let mut last = None;
        let mut since = Instant::now();
        loop {
            let process = self.client.process_state(id).await?;
            let observation = Observation {
                process,
                active: self.observe_activity(id, process).await?,
            };
            // Only an observation that has lasted counts as an outcome, so each change restarts its time.
            if last != Some(observation) {
                (last, since) = (Some(observation), Instant::now());
                if observation.nothing_seen() != wait.quiet.is_some() {
                    wait.quiet = observation.nothing_seen().then_some(since);
                    self.save_wait(id, wait).await;
                }
            }
            let durations = Durations {
                unchanged: since.elapsed(),
                quiet: wait.quiet.map_or(Duration::ZERO, |quiet| quiet.elapsed()),
                waited: wait.began.elapsed(),
            };
            if let Some(outcome) = call_outcome(observation, durations, timeouts) {
                tracing::debug!(object = %id, ?outcome, ?durations, "a predecessor call has finished");
                if outcome.needs_no_cleanup() {
                    self.predecessor_call_done(id).await?;
                }
                return Ok(outcome);
            }
            tokio::time::sleep(if self.shims.bundles().is_some() {
                POLL_INTERVAL
            } else {
                PROC_SCAN_INTERVAL
            })
            .await;
        }
    }

    /// Returns whether containerd works on a container. With a managed containerd the bundle shows it. With
    /// an external one only processes that work on the container do, and their absence proves nothing.
    async fn observe_activity(
        &self,
        id: &ContainerId,
        process: ProcessState,
    ) -> Result<Option<bool>> {
        match (self.shims.has_bundle(id), process) {
            (Some(has_bundle), _) => Ok(Some(has_bundle)),
            (None, ProcessState::None) => Ok(self.shims.has_activity(id).await?.then_some(true)),
            (
                None,
                ProcessState::Created
                | ProcessState::Running { .. }
                | ProcessState::Stopped(_)
                | ProcessState::Unanswered { .. },
            ) => Ok(None),
        }
    }

    /// Forgets the predecessor call about a container, in memory and on disk. Idempotent.
    pub(crate) async fn predecessor_call_done(&self, id: &str) -> Result<()> {
        if self.shims.predecessor_calls.contains(id) {
            // The file first: if the removal fails, the call is still known and the next attempt removes it.
            self.remove_wait(id).await?;
            self.shims.predecessor_calls.remove(id);
        }
        Ok(())
    }
}
