//! The metrics of the daemon, in one registry. Labels never hold an id.
//!
//! [`table`] has the name, type, labels and help text of each. The files beside it, one for each source of values, register those that
//! they set.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    Encoder, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};
use switchyard_core::backend::{BackendObserver, Troubles, WatchedDisk};
use switchyard_core::id::Owner;
use switchyard_core::operation::OperationAges;
use switchyard_core::table::Counts;
use switchyard_linux::host_features::HostFeatures;
use switchyard_linux::node_limits::NodeLimit;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::{DevicesView, REVISION, VERSION};
use switchyard_telemetry::{LogCounts, TraceCounts};

use crate::audit::AuditCounts;
use crate::events::HistoryCounts;
use crate::status::Part;

mod audit;
mod backend;
mod disks;
mod exits;
mod families;
mod label_names;
mod ledger;
mod log_writes;
mod logs;
mod node_limits;
mod operations;
mod parts;
mod plugins;
mod process;
mod programs;
mod recovery;
mod reload;
mod restarts;
mod runtime;
mod swarm;
pub mod table;
mod traces;

use audit::{AuditMetrics, LogLineMetrics};
use backend::BackendMetrics;
use disks::DiskMetrics;
use exits::HistoryMetrics;
use families::{counters, gauge, gauges, histograms, runtime_buckets, signed};
use label_names::LabelNames;
use ledger::LedgerMetrics;
use logs::LogMetrics;
use node_limits::LimitMetrics;
use operations::InFlightMetrics;
use parts::PartMetrics;
use plugins::PluginMetrics;
use process::ProcessMetrics;
use programs::ProgramMetrics;
use reload::ReloadMetrics;
use runtime::RuntimeMetrics;
use swarm::SwarmMetrics;
use traces::TraceMetrics;

pub use plugins::{PluginFigure, PluginFigures};
pub use recovery::RecoveryMetrics;
pub use reload::ReloadCounts;
pub use restarts::ProcessRestarts;
pub use swarm::SwarmFigures;

pub(crate) use exits::ExitMetrics;
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
    pub(crate) exits: ExitMetrics,
    backend: BackendMetrics,
    recovery: RecoveryMetrics,
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
    unreadable: IntGauge,
    streaming: IntGaugeVec,
    launchers: IntGauge,
    unended: IntGaugeVec,
    parts: PartMetrics,
    ledger: LedgerMetrics,
    plugins: PluginMetrics,
    swarm: SwarmMetrics,
    logs: LogMetrics,
    disks: DiskMetrics,
    limits: LimitMetrics,
    features: IntGaugeVec,
    reloads: ReloadMetrics,
    in_flight: InFlightMetrics,
    audit: AuditMetrics,
    log: LogLineMetrics,
    history: HistoryMetrics,
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
    /// Driver plugins of Nomad agents that have a session; `None` if Nomad is not served.
    pub launchers: Option<u64>,
    /// The numbers of all launchers, also those of device plugins, by version.
    pub launcher_versions: BTreeMap<String, u64>,
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
    /// The number of objects that cannot be read.
    pub unreadable: u64,
    /// The number of tasks of each owner that were sent SIGKILL and have not ended in time.
    pub unended: BTreeMap<Owner, u64>,
    /// The figures of frontends and of other components that report.
    pub reported: ReportedFigures,
    /// Devices and host ports, with their holders.
    pub devices: DevicesView,
    /// The parts, each up or down.
    pub parts: Vec<Part>,
    /// The reason why the runtime cannot be used, in one word; `None` if it can.
    pub runtime_fault: Option<String>,
    /// Objects in a condition that the backend cannot end by itself.
    pub troubles: Troubles,
    /// The logkeeper's counters; `None` if it does not answer now.
    pub logs: Option<Stats>,
    /// The disks of the backend and of the logs of containers, as far as they answer.
    pub disks: Vec<WatchedDisk>,
    /// Limits of the node, as far as they are known.
    pub limits: Vec<NodeLimit>,
    /// Features that the kernel and the node offer to the daemon.
    pub features: HostFeatures,
    /// Reloads of the configuration; `None` outside a daemon.
    pub reloads: Option<ReloadCounts>,
    /// Operations in flight.
    pub operations: OperationAges,
    /// Lines of the daemon's own log.
    pub log: LogCounts,
    /// Lines of the audit log; `None` if nothing is audited.
    pub audit: Option<AuditCounts>,
    /// Events of the history; `None` if none are recorded.
    pub history: Option<HistoryCounts>,
    /// Spans of traces; `None` if nothing is traced.
    pub traces: Option<TraceCounts>,
    /// The processes with their programs.
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
        gauges(&registry, table::BUILD)?
            .with_label_values(&[VERSION, REVISION])
            .set(1);
        let rpc = RpcMetrics::register(&registry)?;
        // Those whose pulls and whose bytes are counted are the same.
        let registries = LabelNames::default();
        let operations = OperationMetrics::register(&registry, registries.clone())?;
        let exits = ExitMetrics::register(&registry)?;
        let backend = BackendMetrics::register(&registry, registries)?;
        let recovery = RecoveryMetrics::register(&registry)?;
        let restarts = counters(&registry, table::RESTARTS)?;
        let node = Mutex::new(NodeMetrics::register(&registry)?);
        Ok(Self {
            registry,
            rpc,
            operations,
            exits,
            backend,
            recovery,
            restarts,
            node,
        })
    }

    /// The observer by which the backend is measured.
    #[must_use]
    pub fn backend_observer(&self) -> Arc<dyn BackendObserver> {
        Arc::new(self.backend.clone())
    }

    /// The metrics of the daemon's recovery.
    #[must_use]
    pub fn recovery(&self) -> RecoveryMetrics {
        self.recovery.clone()
    }

    /// The counters of restarts of a process.
    #[must_use]
    pub fn restarts(&self, part: &str) -> ProcessRestarts {
        ProcessRestarts::of(&self.restarts, part)
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
        let duration = histograms(registry, table::RPC_DURATION, runtime_buckets()?)?;
        Ok(Self {
            requests: counters(registry, table::RPC_REQUESTS)?,
            duration,
            in_flight: gauges(registry, table::RPC_IN_FLIGHT)?,
        })
    }
}

// === impl NodeMetrics ===

impl NodeMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            sandboxes: gauges(registry, table::SANDBOXES)?,
            tasks: gauges(registry, table::TASKS)?,
            images: gauge(registry, table::IMAGES)?,
            unreadable: gauge(registry, table::UNREADABLE)?,
            streaming: gauges(registry, table::STREAMING_SESSIONS)?,
            launchers: gauge(registry, table::LAUNCHERS)?,
            unended: gauges(registry, table::UNENDED_TASKS)?,
            parts: PartMetrics::register(registry)?,
            ledger: LedgerMetrics::register(registry)?,
            plugins: PluginMetrics::register(registry)?,
            swarm: SwarmMetrics::register(registry)?,
            logs: LogMetrics::register(registry)?,
            disks: DiskMetrics::register(registry)?,
            limits: LimitMetrics::register(registry)?,
            features: gauges(registry, table::HOST_FEATURES)?,
            reloads: ReloadMetrics::register(registry)?,
            in_flight: InFlightMetrics::register(registry)?,
            audit: AuditMetrics::register(registry)?,
            log: LogLineMetrics::register(registry)?,
            history: HistoryMetrics::register(registry)?,
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
        self.unreadable.set(signed(counts.unreadable));
        if let Some(launchers) = counts.reported.launchers {
            self.launchers.set(signed(launchers));
        }
        for (kind, open) in &counts.reported.streaming {
            self.streaming
                .with_label_values(&[*kind])
                .set(signed(*open));
        }
        for owner in Owner::ALL {
            let count = counts.unended.get(&owner).copied().unwrap_or_default();
            self.unended
                .with_label_values(&[owner.as_str()])
                .set(signed(count));
        }
        self.parts.set(
            &counts.parts,
            counts.runtime_fault.as_deref(),
            &counts.troubles,
        );
        self.ledger.set(&counts.devices);
        self.plugins.set(counts.reported.plugins.as_ref());
        if let Some(swarm) = &counts.reported.swarm {
            self.swarm.set(swarm);
        }
        match &counts.logs {
            Some(logs) => self.logs.set(logs),
            None => self.logs.forget_file_systems(),
        }
        self.disks.set(&counts.disks);
        self.limits.set(&counts.limits);
        for feature in counts.features.iter() {
            self.features
                .with_label_values(&[feature.name])
                .set(i64::from(feature.fault.is_none()));
        }
        if let Some(reloads) = &counts.reloads {
            self.reloads.set(reloads);
        }
        self.in_flight.set(&counts.operations);
        if let Some(audit) = counts.audit {
            self.audit.set(audit);
        }
        self.log.set(counts.log);
        if let Some(history) = counts.history {
            self.history.set(history);
        }
        if let Some(traces) = counts.traces {
            self.traces.set(traces);
        }
        self.programs
            .set(&counts.programs, &counts.reported.launcher_versions);
        self.process.refresh();
        self.runtime.refresh();
    }
}

fn set_counts(gauge: &IntGaugeVec, counts: &Counts) {
    gauge.reset();
    for ((owner, state), count) in counts {
        gauge
            .with_label_values(&[owner.as_str(), state])
            .set(signed(*count));
    }
}

#[cfg(test)]
mod tests;
