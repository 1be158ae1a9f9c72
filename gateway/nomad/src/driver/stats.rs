//! TaskStats: the usage of a task, repeatedly until its exit.

use std::time::{Duration, SystemTime};

use futures::Stream;
use futures::stream;
use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::object::Task;
use switchyard_proto::nomad::drivers::proto as nomad;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tonic::Status;

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

/// The usage of a task, immediately and at each interval. Ends when the task exits or the gateway shuts down.
pub(super) fn stream(
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
            if !scope.tasks().find(&text).ok()?.state.is_running() {
                continue;
            }
            match scope.tasks().stats(&[self.task]).await {
                Ok(mut found) => {
                    let usage = found.remove(&self.task)?.usage;
                    let now = Sample {
                        at: SystemTime::now(),
                        usage,
                    };
                    let stats = stats(&self.id, self.before.as_ref(), &now, self.processors);
                    self.before = Some(now);
                    return Some(stats);
                }
                // Continue with the next interval: after an error the agent would open a new stream at once.
                Err(error) => {
                    tracing::debug!(
                        task = self.id,
                        error = error.report(),
                        "cannot read the usage of a task: trying again at the next interval"
                    );
                }
            }
        }
    }
}
