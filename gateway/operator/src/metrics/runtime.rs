//! Metrics of tokio's runtime, as far as they are part of its stable interface.

use prometheus::{Counter, IntCounter, IntGauge, Registry};
use tokio::runtime::Handle;

use super::families::{counter, gauge, seconds_counter, signed, take_over};
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
        self.workers.set(signed(workers));
        self.tasks.set(signed(metrics.num_alive_tasks()));
        self.queued.set(signed(metrics.global_queue_depth()));
        let busy: f64 = (0..workers)
            .map(|at| metrics.worker_total_busy_duration(at).as_secs_f64())
            .sum();
        self.busy.inc_by((busy - self.busy.get()).max(0.0));
        let parks: u64 = (0..workers).map(|at| metrics.worker_park_count(at)).sum();
        take_over(&self.parks, parks);
    }
}
