//! The metrics of the daemon, in one registry. Labels never hold an id. `docs/metrics.md` says what each means.
//!
//! | metric | labels |
//! | --- | --- |
//! | `switchyard_build_info` | `version`, `revision` |
//! | `switchyard_rpc_requests_total` | `protocol`, `method`, `code` |
//! | `switchyard_rpc_duration_seconds` | `protocol`, `method` |
//! | `switchyard_rpc_in_flight` | `protocol` |
//! | `switchyard_sandboxes`, `switchyard_tasks` | `owner`, `state` |
//! | `switchyard_images` | |
//! | `switchyard_streaming_sessions` | `kind`: exec, attach or portforward |
//! | `switchyard_nomad_launchers` | |
//! | `switchyard_image_pulls_total` | `result` |
//! | `switchyard_backend_up` | `part` |
//! | `switchyard_ledger_capacity` | `resource`: vendor, type and name of a group of devices |
//! | `switchyard_ledger_claims` | `owner`, `resource`: the same, or `port` |
//! | `switchyard_ledger_refusals_total` | `owner`, `resource`: `device` or `port`, `reason` |
//! | `switchyard_device_host_plugins` | `state`: connected, silent or ended |
//! | `switchyard_device_host_devices` | `resource`, `health`: healthy or unhealthy |
//! | `switchyard_device_host_state_since_timestamp_seconds` | `resource`, `state` |
//! | `switchyard_device_host_failures_total` | `reason` |
//! | `switchyard_swarm_{member,session_open}` | |
//! | `switchyard_swarm_{sessions,session_failures}_total` | |
//! | `switchyard_swarm_certificate_{begin,end}_timestamp_seconds` | |
//! | `switchyard_log_containers`, `switchyard_log_{lines,bytes,dropped_lines,dropped_bytes}_total` | |
//! | `switchyard_log_stalls_total` | |
//! | `switchyard_log_{stalled_file_systems,stalled_containers,stall_age_seconds}` | |
//! | `switchyard_containerd_calls_total` | `method`, `code` |
//! | `switchyard_containerd_call_duration_seconds` | `method` |
//! | `switchyard_containerd_reconnects_total` | |
//! | `switchyard_managed_restarts_total` | `part`: containerd or logkeeper |
//! | `switchyard_recovery_objects_total` | `kind`, `result`: adopted, recovered, cleaned or unreadable |
//! | `switchyard_cleanup_queue`, `switchyard_cleanup_failures_total` | |
//! | `switchyard_runtime_{workers,alive_tasks,global_queue_depth}` | |
//! | `switchyard_runtime_{busy_seconds,parks}_total` | |
//! | `switchyard_config_reloads_total` | `result`: applied or refused |
//! | `switchyard_config_{last_reload_successful,last_load_success_timestamp_seconds,pending_changes}` | |
//! | `switchyard_operation_duration_seconds` | `owner`: an owner or `node`, `operation`, `result`: ok, failed or dropped |
//! | `switchyard_operation_step_duration_seconds` | `operation`, `step` |
//! | `switchyard_operations_in_flight` | `owner`, `operation` |
//! | `switchyard_operation_oldest_age_seconds` | `operation` |
//! | `switchyard_audit_lines_total` | `result`: written or lost |
//! | `switchyard_trace_spans_total` | `result`: sent or lost |
//! | `switchyard_replaced_programs` | `part`: daemon, containerd or logkeeper |
//! | `process_*` | |

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use switchyard_core::backend::BackendObserver;
use switchyard_core::gateway::PullsByResult;
use switchyard_core::operation::OperationAges;
use switchyard_core::table::Counts;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::{DevicesView, REVISION, VERSION};
use switchyard_telemetry::TraceCounts;

use crate::audit::AuditCounts;
use crate::status::Part;

mod audit;
mod backend;
mod families;
mod ledger;
mod logs;
mod operations;
mod plugins;
mod process;
mod programs;
mod reload;
mod runtime;
mod swarm;
mod traces;

use audit::AuditMetrics;
use backend::BackendMetrics;
use families::{counters, gauge, gauges, runtime_buckets, signed};
use ledger::LedgerMetrics;
use logs::LogMetrics;
use operations::InFlightMetrics;
use plugins::PluginMetrics;
use process::ProcessMetrics;
use programs::ProgramMetrics;
use reload::ReloadMetrics;
use runtime::RuntimeMetrics;
use swarm::SwarmMetrics;
use traces::TraceMetrics;

pub use plugins::{PluginFigure, PluginFigures};
pub use reload::ReloadCounts;
pub use swarm::SwarmFigures;

pub(crate) use operations::OperationMetrics;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// The metrics of the daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Those of the RPC layer.
    pub rpc: RpcMetrics,
    pub(crate) operations: OperationMetrics,
    backend: BackendMetrics,
    restarts: IntCounterVec,
    // Gauges that are reset for each scrape; the lock serialises concurrent scrapes.
    node: Mutex<NodeMetrics>,
}

/// The metrics of the RPC layer.
#[derive(Debug, Clone)]
pub struct RpcMetrics {
    /// RPCs that ended, by `protocol`, `method` and `code`.
    pub requests: IntCounterVec,
    /// Their times, by `protocol` and `method`.
    pub duration: HistogramVec,
    /// RPCs that have begun and not ended, by `protocol`.
    pub in_flight: IntGaugeVec,
}

#[derive(Debug)]
struct NodeMetrics {
    sandboxes: IntGaugeVec,
    tasks: IntGaugeVec,
    images: IntGauge,
    pulls: IntCounterVec,
    streaming: IntGaugeVec,
    launchers: IntGauge,
    up: IntGaugeVec,
    ledger: LedgerMetrics,
    plugins: PluginMetrics,
    swarm: SwarmMetrics,
    logs: LogMetrics,
    reloads: ReloadMetrics,
    in_flight: InFlightMetrics,
    audit: AuditMetrics,
    traces: TraceMetrics,
    programs: ProgramMetrics,
    process: ProcessMetrics,
    runtime: RuntimeMetrics,
}

/// The figures of the components that report, for metrics.
#[derive(Debug, Default)]
pub struct ReportedFigures {
    /// Open sessions of exec, attach and port-forward, by kind; empty while they are not served.
    pub streaming: Vec<(&'static str, u64)>,
    /// Launchers of Nomad agents that have a session; `None` if Nomad is not served.
    pub launchers: Option<u64>,
    /// Vendors' device plugins and their failures; `None` if they are not hosted.
    pub plugins: Option<PluginFigures>,
    /// The node's part in a swarm; `None` if it may have none.
    pub swarm: Option<SwarmFigures>,
}

/// The values of the node in one scrape.
#[derive(Debug, Default)]
pub struct NodeCounts {
    /// Sandboxes by owner and state.
    pub sandboxes: Counts,
    /// Tasks by owner and state.
    pub tasks: Counts,
    /// The number of images; `None` if they cannot be counted now.
    pub images: Option<u64>,
    /// Image pulls that have ended, by result.
    pub pulls: PullsByResult,
    /// The figures of frontends and of other components that report.
    pub reported: ReportedFigures,
    /// Devices and host ports, with their holders.
    pub devices: DevicesView,
    /// The parts, each up or down.
    pub parts: Vec<Part>,
    /// The logkeeper's counters; `None` if it does not answer now.
    pub logs: Option<Stats>,
    /// Reloads of the configuration; `None` outside a daemon.
    pub reloads: Option<ReloadCounts>,
    /// Operations in flight.
    pub operations: OperationAges,
    /// Lines of the audit log; `None` if nothing is audited.
    pub audit: Option<AuditCounts>,
    /// Spans of traces; `None` if nothing is traced.
    pub traces: Option<TraceCounts>,
    /// The processes and whether their programs were replaced.
    pub programs: Vec<ProgramView>,
}

// === impl Metrics ===

impl Metrics {
    /// A fresh registry with all metrics in it.
    ///
    /// # Errors
    /// A name or label that Prometheus does not allow, which is a bug in this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let build = IntGaugeVec::new(
            Opts::new("switchyard_build_info", "The build that runs; always 1."),
            &["version", "revision"],
        )?;
        build.with_label_values(&[VERSION, REVISION]).set(1);
        registry.register(Box::new(build))?;
        let rpc = RpcMetrics::register(&registry)?;
        let operations = OperationMetrics::register(&registry)?;
        let backend = BackendMetrics::register(&registry)?;
        let restarts = counters(
            &registry,
            "switchyard_managed_restarts_total",
            "Starts of a process of the daemon's that had ended, or did not start before.",
            &["part"],
        )?;
        let node = Mutex::new(NodeMetrics::register(&registry)?);
        Ok(Self { registry, rpc, operations, backend, restarts, node })
    }

    /// The observer by which the backend is measured.
    #[must_use]
    pub fn backend_observer(&self) -> Arc<dyn BackendObserver> {
        Arc::new(self.backend.clone())
    }

    /// The counter of restarts of a managed process; its series begins with 0.
    #[must_use]
    pub fn restarts(&self, part: &str) -> IntCounter {
        self.restarts.with_label_values(&[part])
    }

    /// All metrics in Prometheus' text format, with the values of the node from `counts`.
    ///
    /// # Errors
    /// A family that cannot be encoded, which is a bug in this crate.
    pub fn render(&self, counts: &NodeCounts) -> Result<Vec<u8>, prometheus::Error> {
        let families = {
            let mut node = self.node.lock();
            node.set(counts);
            self.registry.gather()
        };
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

// === impl RpcMetrics ===

impl RpcMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let options =
            HistogramOpts::new("switchyard_rpc_duration_seconds", "Time from request to status of RPCs.");
        let duration = HistogramVec::new(options.buckets(runtime_buckets()?), &["protocol", "method"])?;
        registry.register(Box::new(duration.clone()))?;
        Ok(Self {
            requests: counters(
                registry,
                "switchyard_rpc_requests_total",
                "RPCs that ended, by gRPC status code.",
                &["protocol", "method", "code"],
            )?,
            duration,
            in_flight: gauges(
                registry,
                "switchyard_rpc_in_flight",
                "RPCs that have begun and not ended.",
                &["protocol"],
            )?,
        })
    }
}

// === impl NodeMetrics ===

impl NodeMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let labels = &["owner", "state"];
        Ok(Self {
            sandboxes: gauges(registry, "switchyard_sandboxes", "Sandboxes by owner and state.", labels)?,
            tasks: gauges(registry, "switchyard_tasks", "Tasks by owner and state.", labels)?,
            images: gauge(registry, "switchyard_images", "Images that the node has.")?,
            pulls: counters(
                registry,
                "switchyard_image_pulls_total",
                "Image pulls that ended, by result: ok, or the kind of error.",
                &["result"],
            )?,
            streaming: gauges(
                registry,
                "switchyard_streaming_sessions",
                "Sessions of exec, attach and port-forward that clients have open.",
                &["kind"],
            )?,
            launchers: gauge(
                registry,
                "switchyard_nomad_launchers",
                "Plugins of Nomad agents that have a session.",
            )?,
            up: gauges(registry, "switchyard_backend_up", "Whether a part works.", &["part"])?,
            ledger: LedgerMetrics::register(registry)?,
            plugins: PluginMetrics::register(registry)?,
            swarm: SwarmMetrics::register(registry)?,
            logs: LogMetrics::register(registry)?,
            reloads: ReloadMetrics::register(registry)?,
            in_flight: InFlightMetrics::register(registry)?,
            audit: AuditMetrics::register(registry)?,
            traces: TraceMetrics::register(registry)?,
            programs: ProgramMetrics::register(registry)?,
            process: ProcessMetrics::register(registry)?,
            runtime: RuntimeMetrics::register(registry)?,
        })
    }

    fn set(&mut self, counts: &NodeCounts) {
        set_counts(&self.sandboxes, &counts.sandboxes);
        set_counts(&self.tasks, &counts.tasks);
        if let Some(images) = counts.images {
            self.images.set(signed(images));
        }
        for (result, count) in &counts.pulls {
            let counter = self.pulls.with_label_values(&[*result]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        if let Some(launchers) = counts.reported.launchers {
            self.launchers.set(signed(launchers));
        }
        for (kind, open) in &counts.reported.streaming {
            self.streaming.with_label_values(&[*kind]).set(signed(*open));
        }
        // Some parts come and go.
        self.up.reset();
        for part in &counts.parts {
            self.up.with_label_values(&[part.name]).set(i64::from(part.is_up()));
        }
        self.ledger.set(&counts.devices);
        if let Some(plugins) = &counts.reported.plugins {
            self.plugins.set(plugins);
        }
        if let Some(swarm) = &counts.reported.swarm {
            self.swarm.set(swarm);
        }
        if let Some(logs) = &counts.logs {
            self.logs.set(logs);
        }
        if let Some(reloads) = &counts.reloads {
            self.reloads.set(reloads);
        }
        self.in_flight.set(&counts.operations);
        if let Some(audit) = counts.audit {
            self.audit.set(audit);
        }
        if let Some(traces) = counts.traces {
            self.traces.set(traces);
        }
        self.programs.set(&counts.programs);
        self.process.refresh();
        self.runtime.refresh();
    }
}

fn set_counts(gauge: &IntGaugeVec, counts: &Counts) {
    gauge.reset();
    for ((owner, state), count) in counts {
        gauge.with_label_values(&[owner.as_str(), state]).set(signed(*count));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use switchyard_core::id::Owner;
    use switchyard_logkeeper::protocol::Counters;

    use super::*;
    use crate::status::Condition;

    fn text(metrics: &Metrics, counts: &NodeCounts) -> String {
        String::from_utf8(metrics.render(counts).unwrap()).unwrap()
    }

    #[test]
    fn scrape_shows_current_node_metrics() {
        let metrics = Metrics::new().unwrap();
        let totals = Counters { dropped_lines: 5, ..Counters::default() };
        let logs = Stats {
            containers: 3,
            stalled_containers: 2,
            stall_age_ms: 2500,
            stalls: 4,
            totals,
            ..Stats::default()
        };
        let part = Part::needed("containerd", Condition::Down("gone".into()));
        let counts = NodeCounts {
            sandboxes: BTreeMap::from([((Owner::Kubernetes, "ready"), 2)]),
            images: Some(7),
            pulls: BTreeMap::from([("not_found", 1)]),
            logs: Some(logs),
            reported: ReportedFigures {
                streaming: vec![("exec", 3), ("attach", 0)],
                ..ReportedFigures::default()
            },
            parts: vec![part],
            ..NodeCounts::default()
        };
        let first = text(&metrics, &counts);
        assert!(first.contains("switchyard_sandboxes{owner=\"kubernetes\",state=\"ready\"} 2"), "{first}");
        assert!(first.contains("switchyard_images 7"), "{first}");
        assert!(first.contains("switchyard_streaming_sessions{kind=\"exec\"} 3"), "{first}");
        assert!(first.contains("switchyard_streaming_sessions{kind=\"attach\"} 0"), "{first}");
        assert!(first.contains("switchyard_backend_up{part=\"containerd\"} 0"), "{first}");
        assert!(first.contains("switchyard_image_pulls_total{result=\"not_found\"} 1"), "{first}");
        assert!(first.contains("switchyard_build_info{"), "{first}");
        assert!(first.contains("switchyard_log_containers 3"), "{first}");
        assert!(first.contains("switchyard_log_dropped_lines_total 5"), "{first}");
        assert!(first.contains("switchyard_log_stalled_containers 2"), "{first}");
        assert!(first.contains("switchyard_log_stall_age_seconds 2.5"), "{first}");
        assert!(first.contains("switchyard_log_stalls_total 4"), "{first}");
        let second = text(&metrics, &NodeCounts::default());
        assert!(!second.contains("switchyard_sandboxes{"), "{second}");
    }

    #[test]
    fn scrape_shows_process_metrics() {
        let metrics = Metrics::new().unwrap();
        let text = text(&metrics, &NodeCounts::default());
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_start_time_seconds") > 1e9);
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
