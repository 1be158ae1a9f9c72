//! Metrics of tokio's runtime, as far as they are part of its stable interface.

use prometheus::{Counter, IntCounter, IntGauge, Registry};
use tokio::runtime::Handle;

use super::families::{counter, gauge, seconds_counter};
use super::table;

#[derive(Debug)]
pub(super) struct RuntimeMetrics {
    workers: IntGauge,
    tasks: IntGauge,
    queued: IntGauge,
    busy: Counter,
    parks: IntCounter,
}

impl RuntimeMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            workers: gauge(registry, table::WORKERS)?,
            tasks: gauge(registry, table::ALIVE_TASKS)?,
            queued: gauge(registry, table::QUEUED_TASKS)?,
            busy: seconds_counter(registry, table::BUSY)?,
            parks: counter(registry, table::PARKS)?,
        })
    }

    /// Updates all values; outside a runtime they stay unchanged.
    pub(super) fn refresh(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let metrics = runtime.metrics();
        let workers = metrics.num_workers();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.workers.set(number(workers));
        self.tasks.set(number(metrics.num_alive_tasks()));
        self.queued.set(number(metrics.global_queue_depth()));
        let busy: f64 = (0..workers)
            .map(|at| metrics.worker_total_busy_duration(at).as_secs_f64())
            .sum();
        self.busy.inc_by((busy - self.busy.get()).max(0.0));
        let parks: u64 = (0..workers).map(|at| metrics.worker_park_count(at)).sum();
        self.parks.inc_by(parks.saturating_sub(self.parks.get()));
    }
}
