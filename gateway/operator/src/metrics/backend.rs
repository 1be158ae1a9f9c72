//! Metrics of the backend: its calls to containerd and shims, what recovery found, and cleanups left to do.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use switchyard_core::backend::{BackendObserver, RecoveryResult, RuntimeCall};

use super::families::{counter, counters, gauge, histograms};
use super::table;

/// Metrics of the backend. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct BackendMetrics {
    calls: IntCounterVec,
    call_duration: HistogramVec,
    reconnects: IntCounter,
    recovered: IntCounterVec,
    cleanups: IntGauge,
    cleanup_failures: IntCounter,
}

impl BackendMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        // 1 ms to 93 s: most calls only touch containerd's database, and those that start processes have
        // 150 s.
        let buckets = prometheus::exponential_buckets(0.001, 2.5, 13)?;
        let call_duration = histograms(registry, table::CONTAINERD_DURATION, buckets)?;
        Ok(Self {
            calls: counters(registry, table::CONTAINERD_CALLS)?,
            call_duration,
            reconnects: counter(registry, table::CONTAINERD_RECONNECTS)?,
            recovered: counters(registry, table::RECOVERY_OBJECTS)?,
            cleanups: gauge(registry, table::CLEANUP_QUEUE)?,
            cleanup_failures: counter(registry, table::CLEANUP_FAILURES)?,
        })
    }
}

impl BackendObserver for BackendMetrics {
    fn call_ended(&self, RuntimeCall { method, code, took }: RuntimeCall<'_>) {
        self.calls.with_label_values(&[method, code]).inc();
        if let Some(took) = took {
            self.call_duration
                .with_label_values(&[method])
                .observe(took.as_secs_f64());
        }
    }

    fn reconnected(&self) {
        self.reconnects.inc();
    }

    fn recovered(&self, kind: &'static str, result: RecoveryResult) {
        self.recovered
            .with_label_values(&[kind, result.as_str()])
            .inc();
    }

    fn cleanup_added(&self) {
        self.cleanups.inc();
    }

    fn cleanup_failed(&self) {
        self.cleanup_failures.inc();
    }

    fn cleanup_ended(&self) {
        self.cleanups.dec();
    }
}
