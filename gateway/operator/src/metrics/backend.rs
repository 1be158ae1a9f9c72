//! Metrics of the backend: its calls to containerd and shims, what recovery found, cleanups left to do, runs of network
//! plugins, and what pulls receive.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use switchyard_core::backend::{BackendObserver, PluginRun, RecoveryResult, RuntimeCall};
use switchyard_core::id::Owner;

use super::families::{counter, counters, gauge, histograms};
use super::label_names::LabelNames;
use super::table;

/// Metrics of the backend. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct BackendMetrics {
    calls: IntCounterVec,
    call_duration: HistogramVec,
    reconnects: IntCounter,
    recovered: IntCounterVec,
    oom_kills: IntCounterVec,
    cleanups: IntGauge,
    cleanup_failures: IntCounter,
    plugin_runs: IntCounterVec,
    plugin_duration: HistogramVec,
    plugins: LabelNames,
    pull_bytes: IntCounterVec,
    registries: LabelNames,
}

impl BackendMetrics {
    /// `registries` are those that are named.
    pub(super) fn register(
        registry: &Registry,
        registries: LabelNames,
    ) -> Result<Self, prometheus::Error> {
        // 1 ms to 93 s: most calls only touch containerd's database, and those that start processes have
        // 150 s.
        let buckets = prometheus::exponential_buckets(0.001, 2.5, 13)?;
        let call_duration = histograms(registry, table::CONTAINERD_DURATION, buckets)?;
        // 10 ms to 95 s: a plugin has 60 s by default.
        let buckets = prometheus::exponential_buckets(0.01, 2.5, 11)?;
        let plugin_duration = histograms(registry, table::CNI_DURATION, buckets)?;
        let oom_kills = counters(registry, table::OOM_KILLS)?;
        for owner in Owner::ALL {
            // So that the first kill is an increase.
            oom_kills.with_label_values(&[owner.as_str()]);
        }
        Ok(Self {
            calls: counters(registry, table::CONTAINERD_CALLS)?,
            call_duration,
            reconnects: counter(registry, table::CONTAINERD_RECONNECTS)?,
            recovered: counters(registry, table::RECOVERY_OBJECTS)?,
            oom_kills,
            cleanups: gauge(registry, table::CLEANUP_QUEUE)?,
            cleanup_failures: counter(registry, table::CLEANUP_FAILURES)?,
            plugin_runs: counters(registry, table::CNI_RUNS)?,
            plugin_duration,
            plugins: LabelNames::default(),
            pull_bytes: counters(registry, table::PULL_BYTES)?,
            registries,
        })
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "an event without a metric would be lost unnoticed"
)]
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

    fn oom_killed(&self, owner: Owner, processes: u64) {
        self.oom_kills
            .with_label_values(&[owner.as_str()])
            .inc_by(processes);
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

    fn plugin_ended(&self, run: PluginRun<'_>) {
        let PluginRun {
            plugin,
            command,
            result,
            took,
        } = run;
        let plugin = self.plugins.value(plugin);
        self.plugin_runs
            .with_label_values(&[&*plugin, command, result.as_str()])
            .inc();
        self.plugin_duration
            .with_label_values(&[&*plugin, command])
            .observe(took.as_secs_f64());
    }

    fn layer_received(&self, registry: &str, bytes: u64) {
        let registry = self.registries.value(registry);
        self.pull_bytes
            .with_label_values(&[&*registry])
            .inc_by(bytes);
    }
}
