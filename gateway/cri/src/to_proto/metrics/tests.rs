//! Names, labels and values on the wire; which reading becomes which sample is tested with the sheet.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use switchyard_container_metrics::samples;
use switchyard_core::spec::{CgroupFile, CpuPeriod, CpuQuota};
use switchyard_core::state::{SandboxState, TaskState};

use super::super::tests::{record, sandbox as home, task};
use super::*;

#[test]
fn metric_labels_identify_the_container() {
    let pod = CommonLabels::of(&home(SandboxState::Ready), None);
    let now = UNIX_EPOCH + Duration::from_secs(70);
    let record = record("sha256:id", "nginx:1");
    let metrics =
        container_metrics(&task(), Some(&record), &pod, &TaskMetrics::default(), now).metrics;
    let seen = metrics
        .iter()
        .find(|metric| metric.name == "container_last_seen")
        .expect("it is always reported");
    let id = task().id.to_string();
    assert_eq!(
        seen.label_values,
        ["pod", "ns", "app", id.as_str(), "nginx:1"]
    );
    assert_eq!(
        (seen.value.map(|seen| seen.value), seen.timestamp),
        (Some(70), 70_000_000_000)
    );
    for descriptor in descriptors() {
        assert_eq!(&descriptor.label_keys[..COMMON.len()], COMMON);
    }
}

/// The answer as text, with its order, so that a change of it is seen.
#[test]
fn answer_to_the_kubelet_is_the_golden_one() {
    let pod = CommonLabels::of(&home(SandboxState::Ready), None);
    let now = UNIX_EPOCH + Duration::new(1_700_000_000, 999_999_999);
    let mut task = task();
    task.state = TaskState::Running {
        pid: 7,
        started_at: UNIX_EPOCH + Duration::new(1_600_000_000, 500_000_000),
    };
    let resources = &mut task.details.resources;
    resources.cpu_period_us = CpuPeriod::new(100_000).ok();
    resources.cpu_quota_us = CpuQuota::new(50_000).ok();
    resources
        .unified
        .insert(CgroupFile::new("memory.low").unwrap(), "4096\n".into());
    let of_task = container_metrics(
        &task,
        Some(&record("sha256:id", "nginx:1")),
        &pod,
        &samples::reading(),
        now,
    );
    let of_pod = sandbox_metrics(&pod, &[samples::interface()], now);
    let mut answer = String::new();
    for descriptor in descriptors() {
        writeln!(
            answer,
            "{} {:?} {}",
            descriptor.name, descriptor.label_keys, descriptor.help
        )
        .unwrap();
    }
    for metric in of_pod.iter().chain(&of_task.metrics) {
        let cri::Metric {
            name,
            timestamp,
            metric_type,
            label_values,
            value,
        } = metric;
        let value = value.expect("it is always set").value;
        let own: Vec<_> = label_values
            .iter()
            .map(|label| if label.len() == 64 { "id" } else { label })
            .collect();
        writeln!(answer, "{name} {timestamp} {metric_type} {own:?} {value}").unwrap();
    }
    let golden = include_str!("golden.txt");
    assert_eq!(answer, golden);
    let reported: BTreeSet<_> = of_pod
        .iter()
        .chain(&of_task.metrics)
        .map(|metric| &metric.name)
        .collect();
    assert_eq!(
        reported.len(),
        descriptors().len(),
        "every metric has a value"
    );
}
