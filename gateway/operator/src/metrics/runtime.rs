//! Metrics of tokio's runtime, as far as they are part of its stable interface.

use prometheus::{Counter, IntCounter, IntGauge, Registry};
use tokio::runtime::Handle;

use super::families::{counter, gauge};

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
        let busy = Counter::new(
            "switchyard_runtime_busy_seconds_total",
            "Time that the threads of the asynchronous runtime were busy, of all together.",
        )?;
        registry.register(Box::new(busy.clone()))?;
        Ok(Self {
            workers: gauge(registry, "switchyard_runtime_workers", "Threads of the asynchronous runtime.")?,
            tasks: gauge(
                registry,
                "switchyard_runtime_alive_tasks",
                "Asynchronous tasks of the daemon that have not ended.",
            )?,
            queued: gauge(
                registry,
                "switchyard_runtime_global_queue_depth",
                "Asynchronous tasks that are ready and in the queue of no thread yet.",
            )?,
            busy,
            parks: counter(
                registry,
                "switchyard_runtime_parks_total",
                "How often a thread of the asynchronous runtime went to sleep for want of work.",
            )?,
        })
    }

    /// Updates all values; outside a runtime they stay unchanged.
    pub(super) fn refresh(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let metrics = runtime.metrics();
        let workers = metrics.num_workers();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.workers.set(number(workers));
        self.tasks.set(number(metrics.num_alive_tasks()));
        self.queued.set(number(metrics.global_queue_depth()));
        let busy: f64 = (0..workers).map(|at| metrics.worker_total_busy_duration(at).as_secs_f64()).sum();
        self.busy.inc_by((busy - self.busy.get()).max(0.0));
        let parks: u64 = (0..workers).map(|at| metrics.worker_park_count(at)).sum();
        self.parks.inc_by(parks.saturating_sub(self.parks.get()));
    }
}
