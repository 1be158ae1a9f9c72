//! TaskStats: the usage of a task, repeatedly until its exit.

use std::future::ready;
use std::time::{Duration, SystemTime};

use futures::stream::{self, Stream, StreamExt};
use switchyard_core::Result;
use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::object::Task;
use switchyard_proto::nomad::drivers::proto as nomad;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::{Driver, DriverStream};
use crate::session::Processors;
use crate::to_proto::{Sample, stats};

struct StatsSampler {
    scope: Scope,
    task: TaskId,
    id: String,
    processors: Processors,
    ticks: Interval,
    before: Option<Sample>,
}

impl Driver {
    /// The usage of a task, immediately and at each interval. Ends when the task exits or the gateway shuts down. There is
    /// none of a task that cannot be read.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn stats(
        &self,
        id: &str,
        interval: Duration,
        processors: Processors,
    ) -> Result<DriverStream<nomad::TaskStatsResponse>> {
        let scope = self.shared.scope.clone();
        if self.unreadable_task(id)?.is_some() {
            return Ok(Box::pin(no_usage(scope.ended())));
        }
        let task = self.task(id)?;
        Ok(Box::pin(usage(scope, &task, interval, processors)))
    }
}

/// A stream that is empty and ends with the gateway: after an earlier end an agent would open a new one each second, and
/// write each error to its log.
fn no_usage(
    ended: WaitForCancellationFutureOwned,
) -> impl Stream<Item = Result<nomad::TaskStatsResponse, Status>> + Send {
    stream::once(ended).filter_map(|()| ready(None))
}

fn usage(
    scope: Scope,
    task: &Task,
    interval: Duration,
    processors: Processors,
) -> impl Stream<Item = Result<nomad::TaskStatsResponse, Status>> + Send + use<> {
    let mut ticks = tokio::time::interval_at(Instant::now(), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let id = task.meta.name.clone();
    let task = task.id;
    let watch = StatsSampler {
        scope,
        task,
        id,
        processors,
        ticks,
        before: None,
    };
    stream::unfold(watch, async |mut watch| {
        let stats = watch.next().await?;
        Some((Ok(nomad::TaskStatsResponse { stats: Some(stats) }), watch))
    })
}

impl StatsSampler {
    async fn next(&mut self) -> Option<nomad::TaskStats> {
        loop {
            let text = self.task.to_string();
            let scope = &self.scope;
            let ticks = &mut self.ticks;
            tokio::select! {
                _ = ticks.tick() => {}
                _ = scope.tasks().wait(&text) => return None,
                () = scope.ended() => return None,
            }
            let task = scope.tasks().find(&text).ok()?;
            if !task.state.is_running() {
                continue;
            }
            match scope.tasks().stats(&[self.task]).await {
                Ok(mut found) => {
                    let usage = found.remove(&self.task)?.usage;
                    let now = Sample {
                        at: SystemTime::now(),
                        usage,
                    };
                    // The first sample has the averages since the start: an agent shows what it gets until the next.
                    let beginning = task.state.started_at().map(Sample::beginning);
                    let before = self.before.as_ref().or(beginning.as_ref());
                    let stats = stats(&self.id, before, &now, self.processors);
                    self.before = Some(now);
                    return Some(stats);
                }
                // Continue with the next interval: after an error the agent would open a new stream at once.
                Err(error) => {
                    tracing::debug!(
                        name = self.id,
                        error = error.report(),
                        "cannot read the usage of a task: trying again at the next interval"
                    );
                }
            }
        }
    }
}
