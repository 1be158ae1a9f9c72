//! Lists of what a page at rest does not have: series of the tests that appear with an event, and series of the rules that are
//! missing on some kinds of node.

use std::collections::BTreeSet;

use super::NodeKind::{self, All, Kubelet, Nomad, Swarm};
use crate::prometheus::series::LabelledName;

/// The nodes of `kinds.test.yaml`, each with its kind. Those with one fault that any node can have are of the kind that has
/// everything.
pub(super) const NODES: &[(&str, NodeKind)] = &[
    ("kubelet", Kubelet),
    ("nomad", Nomad),
    ("swarm", Swarm),
    ("all", All),
    ("logkeeper", Kubelet),
    ("containerd", Swarm),
    ("managed", All),
    ("requested", All),
    ("upgraded", Swarm),
    ("disk", All),
    ("shim", Kubelet),
    ("blocked", Kubelet),
    ("agent", Nomad),
    ("clone", Swarm),
    ("expired", Swarm),
    ("password", Kubelet),
    ("runtime", Kubelet),
    ("almost full", All),
    ("processes", All),
    ("leak", All),
    ("busy", All),
    ("slow", All),
    ("dying", All),
    ("slow logs", Kubelet),
    ("hanging logs", Kubelet),
];

/// Series that a node has only after an event.
#[derive(Debug)]
pub(super) struct EventSeries {
    /// The name of the series.
    pub(super) name: &'static str,
    /// The label that tells the event.
    pub(super) label: &'static str,
    /// Its values for events of this sort.
    pub(super) values: &'static [&'static str],
    /// A series that a page at rest has, with the same values of all other labels.
    pub(super) beside: &'static str,
    /// The source file that writes the values.
    pub(super) source: &'static str,
    /// The event.
    pub(super) event: &'static str,
}

/// The series of `kinds.test.yaml` that a page at rest does not have.
pub(super) const EVENTS: &[EventSeries] = &[
    EventSeries {
        name: "switchyard_backend_up",
        label: "part",
        values: &["snapshotters"],
        beside: "switchyard_ready",
        source: "gateway/operator/src/node/backend_parts.rs",
        event: "a snapshotter does not answer, or containerd",
    },
    EventSeries {
        name: "switchyard_runtime_down",
        label: "reason",
        values: &["ContainerdUnavailable", "LogkeeperUnavailable"],
        beside: "switchyard_ready",
        source: "backends/containerd/src/client/health.rs",
        event: "containerd or the logkeeper does not answer",
    },
    EventSeries {
        name: "switchyard_runtime_down",
        label: "reason",
        values: &["DiskReadOnly"],
        beside: "switchyard_ready",
        source: "backends/containerd/src/base/disks.rs",
        event: "a disk cannot be written",
    },
    EventSeries {
        name: "switchyard_sandboxes",
        label: "state",
        values: &["unknown"],
        beside: "switchyard_unended_tasks",
        source: "gateway/core/src/state.rs",
        event: "a sandbox cannot be ended, or its shim does not answer",
    },
    EventSeries {
        name: "switchyard_operation_failures_total",
        label: "kind",
        values: &[
            "internal",
            "invalid_argument",
            "unauthenticated",
            "unavailable",
        ],
        beside: "switchyard_operation_duration_seconds_count",
        source: "gateway/core/src/error.rs",
        event: "an operation failed",
    },
    EventSeries {
        name: "switchyard_operation_duration_seconds_count",
        label: "result",
        values: &["failed"],
        beside: "switchyard_operation_duration_seconds_count",
        source: "gateway/operator/src/metrics/operations.rs",
        event: "an operation failed",
    },
    EventSeries {
        name: "switchyard_operation_step_failures_total",
        label: "kind",
        values: &["unavailable"],
        beside: "switchyard_operation_step_duration_seconds_count",
        source: "gateway/core/src/error.rs",
        event: "a step of an operation failed",
    },
    EventSeries {
        name: "switchyard_cni_runs_total",
        label: "result",
        values: &["failed"],
        beside: "switchyard_cni_runs_total",
        source: "gateway/core/src/backend/observer.rs",
        event: "a network plugin failed",
    },
    EventSeries {
        name: "switchyard_image_pulls_total",
        label: "result",
        values: &["not_found", "unauthenticated", "unavailable"],
        beside: "switchyard_image_pulls_total",
        source: "gateway/core/src/error.rs",
        event: "a pull failed",
    },
    EventSeries {
        name: "switchyard_rpc_requests_total",
        label: "code",
        values: &["UNAVAILABLE", "UNKNOWN"],
        beside: "switchyard_rpc_requests_total",
        source: "gateway/rpc/src/lib.rs",
        event: "a call failed",
    },
];

/// Series that rules read and some nodes do not have.
#[derive(Debug)]
pub(super) struct UnreadSeries {
    /// The beginning of the selectors. The first of the list that fits a selector says what is so.
    pub(super) selector: &'static str,
    /// The nodes that never have it.
    pub(super) never: &'static [NodeKind],
    /// The nodes that have it after an event, such as a failure, if at all.
    pub(super) event: &'static [NodeKind],
    /// Reason why they do not have it.
    pub(super) reason: &'static str,
}

/// Every kind.
pub(super) const EACH: &[NodeKind] = &[Kubelet, Nomad, Swarm, All];

/// A row of the list below.
const fn unread(
    selector: &'static str,
    never: &'static [NodeKind],
    event: &'static [NodeKind],
    reason: &'static str,
) -> UnreadSeries {
    UnreadSeries {
        selector,
        never,
        event,
        reason,
    }
}

/// The series that expressions of rules and alerts read, and that a page at rest does not have.
pub(super) const UNREAD: &[UnreadSeries] = &[
    unread(
        "switchyard_backend_up{part=\"containerd\"",
        &[Swarm],
        &[],
        "a containerd that the daemon does not start is seen by `switchyard_runtime_down` alone",
    ),
    unread(
        "switchyard_backend_up{part=\"device plugins\"",
        EACH,
        &[],
        "vendors' device plugins register only where `devices.host` is enabled",
    ),
    unread(
        "switchyard_device_host_",
        EACH,
        &[],
        "vendors' device plugins register only where `devices.host` is enabled",
    ),
    unread(
        "switchyard_backend_up{part=\"kubelet devices\"",
        &[Swarm],
        &[],
        "it has no devices to offer",
    ),
    unread(
        "switchyard_backend_up{part=\"network\"",
        &[Nomad, Swarm],
        &[],
        "without a CNI configuration, only a kubelet misses it",
    ),
    unread(
        "switchyard_backend_up{part=\"swarm\"",
        &[Kubelet, Nomad],
        &[],
        "it is in no swarm",
    ),
    unread(
        "switchyard_cni_runs_total{result=\"failed\"",
        &[],
        EACH,
        "no network plugin has failed",
    ),
    unread(
        "switchyard_cni_runs_total",
        &[],
        &[Swarm],
        "no service has had a bridge network",
    ),
    unread(
        "switchyard_former_configurations",
        &[Swarm],
        &[],
        "the daemon generates no configuration for a containerd that it does not start",
    ),
    unread(
        "switchyard_image_pulls_total{",
        &[],
        EACH,
        "no pull has failed",
    ),
    unread(
        "switchyard_ledger_refusals_total",
        &[],
        EACH,
        "the ledger has refused nothing",
    ),
    unread(
        "switchyard_log_write_duration_seconds",
        &[Nomad],
        &[],
        "agents read the output of tasks, which the logkeeper does not write",
    ),
    unread(
        "switchyard_managed_restarts_total{part!=\"logkeeper\"",
        &[Swarm],
        &[],
        "restarts of a containerd that the daemon does not start are seen by its reconnections",
    ),
    unread(
        "switchyard_managed_restarts_total{part=\"containerd\"",
        &[Swarm],
        &[],
        "restarts of a containerd that the daemon does not start are seen by its reconnections",
    ),
    unread(
        "switchyard_operation_failures_total",
        &[],
        EACH,
        "no operation has failed",
    ),
    unread(
        "switchyard_operation_step_failures_total",
        &[],
        EACH,
        "no step of an operation has failed",
    ),
    unread(
        "switchyard_operation_step_duration_seconds",
        &[],
        &[Nomad, Swarm],
        "nobody has run a command in a task",
    ),
    unread(
        "switchyard_operations_in_flight",
        &[Kubelet, Nomad],
        &[Swarm, All],
        "the node does not leave a swarm",
    ),
    unread(
        "switchyard_rpc_requests_total{protocol=\"cri\"",
        &[Nomad, Swarm],
        &[],
        "it has no kubelet",
    ),
    unread(
        "switchyard_rpc_requests_total{protocol=\"nomad\"",
        &[Kubelet, Swarm],
        &[Nomad, All],
        "it has no agent, or no call of an agent has been refused",
    ),
    unread(
        "switchyard_rpc_requests_total{code=~",
        &[Swarm],
        &[Kubelet, Nomad, All],
        "nobody calls it, or no call has failed",
    ),
    unread(
        "switchyard_rpc_requests_total",
        &[Swarm],
        &[],
        "managers are called, and do not call",
    ),
    unread(
        "switchyard_runtime_down",
        &[],
        EACH,
        "the runtime can be used",
    ),
    unread(
        "switchyard_sandboxes{state=\"unknown\"",
        &[],
        EACH,
        "each sandbox can be ended",
    ),
    unread(
        "switchyard_streaming_sessions",
        &[Nomad, Swarm],
        &[],
        "the streaming server is CRI's",
    ),
    unread(
        "switchyard_swarm_certificate_",
        &[Kubelet, Nomad],
        &[],
        "it is in no swarm",
    ),
];

// === impl EventSeries ===

impl EventSeries {
    /// Returns whether a series is one of these.
    pub(super) fn has(&self, series: &LabelledName) -> bool {
        let value = series.labels.get(self.label);
        series.name == self.name && value.is_some_and(|value| self.values.contains(&value.as_str()))
    }

    /// Returns whether a series is one that can appear on a page at rest.
    pub(super) fn can_join(&self, series: &LabelledName, page: &BTreeSet<LabelledName>) -> bool {
        let is_beside = |known: &LabelledName| {
            let mut others = series
                .labels
                .iter()
                .filter(|(label, _)| *label != self.label);
            known.name == self.beside
                && others.all(|(label, value)| known.labels.get(label) == Some(value))
        };
        self.has(series) && page.iter().any(is_beside)
    }
}
