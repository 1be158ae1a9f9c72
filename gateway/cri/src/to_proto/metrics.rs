//! The metrics of ListMetricDescriptors and ListPodSandboxMetrics. CRI's values are integers, so seconds are
//! whole seconds.

use std::time::SystemTime;

use switchyard_container_metrics::{Amount, Kind, Metric, sheet};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::stats::{InterfaceStats, TaskMetrics};
use switchyard_proto::cri::v1 as cri;

use super::time::nanoseconds;
use super::{container, sandbox};
use crate::record::{ContainerRecord, SandboxRecord};

/// The labels that all metrics have, before their own.
const COMMON: [&str; 5] = ["pod", "namespace", "container", "id", "image"];

/// The values of the labels that all metrics of an object have.
#[derive(Debug, Clone)]
pub(crate) struct CommonLabels {
    pod: String,
    namespace: String,
    container: String,
    id: String,
    image: String,
}

/// The descriptors of all metrics.
pub(crate) fn descriptors() -> Vec<cri::MetricDescriptor> {
    Metric::ALL
        .iter()
        .map(|metric| cri::MetricDescriptor {
            name: metric.name().to_owned(),
            help: metric.help().to_owned(),
            label_keys: COMMON
                .iter()
                .chain(metric.labels())
                .map(|label| (*label).to_owned())
                .collect(),
        })
        .collect()
}

/// The metrics of a running container, read at `now`.
pub(crate) fn container_metrics(
    task: &Task,
    record: Option<&ContainerRecord>,
    pod: &CommonLabels,
    metrics: &TaskMetrics,
    now: SystemTime,
) -> cri::ContainerMetrics {
    let subject = CommonLabels {
        container: container::metadata(task, record).name,
        id: task.id.to_string(),
        image: container::image(task, record).image,
        ..pod.clone()
    };
    let mut samples = Vec::with_capacity(64);
    sheet::of_task(task, metrics, now, |metric, labels, amount| {
        samples.push(subject.sample(metric, labels, amount, now));
    });
    cri::ContainerMetrics {
        container_id: subject.id,
        metrics: samples,
    }
}

/// The metrics of a sandbox, read at `now`: its network traffic.
pub(crate) fn sandbox_metrics(
    pod: &CommonLabels,
    interfaces: &[InterfaceStats],
    now: SystemTime,
) -> Vec<cri::Metric> {
    let mut samples = Vec::new();
    sheet::of_sandbox(interfaces, |metric, labels, amount| {
        samples.push(pod.sample(metric, labels, amount, now));
    });
    samples
}

// === impl CommonLabels ===

impl CommonLabels {
    /// The labels of a sandbox itself; those of its containers differ in the container name.
    pub(crate) fn of(sandbox: &Sandbox, record: Option<&SandboxRecord>) -> Self {
        let metadata = sandbox::metadata(sandbox, record);
        Self {
            pod: metadata.name,
            namespace: metadata.namespace,
            container: String::new(),
            id: sandbox.id.to_string(),
            image: String::new(),
        }
    }

    /// A sample with these labels, and then the metric's own.
    fn sample(&self, metric: Metric, own: &[&str], amount: Amount, now: SystemTime) -> cri::Metric {
        let Self {
            pod,
            namespace,
            container,
            id,
            image,
        } = self;
        let mut label_values = Vec::with_capacity(COMMON.len() + own.len());
        label_values.extend([pod, namespace, container, id, image].map(String::clone));
        label_values.extend(own.iter().map(|label| (*label).to_owned()));
        let metric_type = match metric.kind() {
            Kind::Counter => cri::MetricType::Counter,
            Kind::Gauge => cri::MetricType::Gauge,
        };
        cri::Metric {
            name: metric.name().to_owned(),
            timestamp: nanoseconds(now),
            metric_type: metric_type.into(),
            label_values,
            value: Some(cri::UInt64Value {
                value: amount.whole(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
