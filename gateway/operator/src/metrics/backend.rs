//! Metrics of the backend: its calls to containerd and shims, what recovery found, and cleanups left to do.

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use switchyard_core::backend::{BackendObserver, RecoveryResult, RuntimeCall};

use super::families::{counter, counters, gauge};

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
        let options = HistogramOpts::new(
            "switchyard_containerd_call_duration_seconds",
            "Time from request to status of calls to containerd and shims; not of waits and transfers.",
        );
        let call_duration = HistogramVec::new(options.buckets(buckets), &["method"])?;
        registry.register(Box::new(call_duration.clone()))?;
        Ok(Self {
            calls: counters(
                registry,
                "switchyard_containerd_calls_total",
                "Calls to containerd and shims that ended, by gRPC status code.",
                &["method", "code"],
            )?,
            call_duration,
            reconnects: counter(
                registry,
                "switchyard_containerd_reconnects_total",
                "Connections to containerd that were made after an earlier one was lost.",
            )?,
            recovered: counters(
                registry,
                "switchyard_recovery_objects_total",
                "Objects of a predecessor that recovery dealt with, by result.",
                &["kind", "result"],
            )?,
            cleanups: gauge(
                registry,
                "switchyard_cleanup_queue",
                "Undos and removals that are left to do, and are tried until they succeed.",
            )?,
            cleanup_failures: counter(
                registry,
                "switchyard_cleanup_failures_total",
                "Tries of undos and removals that failed.",
            )?,
        })
    }
}

impl BackendObserver for BackendMetrics {
    fn call_ended(&self, RuntimeCall { method, code, took }: RuntimeCall<'_>) {
        self.calls.with_label_values(&[method, code]).inc();
        if let Some(took) = took {
            self.call_duration.with_label_values(&[method]).observe(took.as_secs_f64());
        }
    }

    fn reconnected(&self) {
        self.reconnects.inc();
    }

    fn recovered(&self, kind: &'static str, result: RecoveryResult) {
        self.recovered.with_label_values(&[kind, result.as_str()]).inc();
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
