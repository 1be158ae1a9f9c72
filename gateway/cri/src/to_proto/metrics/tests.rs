//! Names, labels and values of the metrics; and that nothing is reported that was not measured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use switchyard_core::stats::{CpuUsage, MemoryUsage, Pressure, PressureLine, TaskStats};

use super::super::tests::{record, sandbox as home, task};
use super::*;

fn read(usage: Usage, detail: Detail) -> Vec<cri::Metric> {
    let pod = CommonLabels::of(&home(switchyard_core::state::SandboxState::Ready), None);
    let metrics = TaskMetrics { stats: TaskStats { usage, writable_layer: None }, detail, file_system: None };
    let now = UNIX_EPOCH + Duration::from_secs(70);
    container_metrics(&task(), Some(&record("sha256:id", "nginx:1")), &pod, &metrics, now).metrics
}

/// Values by name and the metric's own labels.
fn values(metrics: &[cri::Metric]) -> BTreeMap<(String, Vec<String>), u64> {
    metrics
        .iter()
        .map(|metric| {
            let own = metric.label_values[names::COMMON.len()..].to_vec();
            ((metric.name.clone(), own), metric.value.expect("it is always set").value)
        })
        .collect()
}

fn key(name: &str, labels: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())
}

#[test]
fn metric_names_are_unique_with_help_and_matching_labels() {
    let descriptors = descriptors();
    let names: BTreeSet<_> = descriptors.iter().map(|descriptor| descriptor.name.clone()).collect();
    assert_eq!((names.len(), descriptors.len()), (56, 56));
    for descriptor in &descriptors {
        assert!(
            descriptor.name.starts_with("container_") && descriptor.help.ends_with('.'),
            "{descriptor:?}"
        );
        assert_eq!(&descriptor.label_keys[..5], names::COMMON);
        let distinct: BTreeSet<_> = descriptor.label_keys.iter().collect();
        assert_eq!(distinct.len(), descriptor.label_keys.len(), "{descriptor:?}");
    }
}

#[test]
fn counter_names_have_counter_suffixes() {
    for name in names::ALL {
        let total = name.name.ends_with("_total") && !name.name.starts_with("container_fs_inodes");
        let counter = name.kind == cri::MetricType::Counter;
        assert!(counter == total || name.name == "container_memory_failcnt", "{}", name.name);
    }
}

#[test]
fn metric_labels_identify_the_container() {
    let metrics = read(Usage::default(), Detail::default());
    let seen =
        metrics.iter().find(|metric| metric.name == "container_last_seen").expect("it is always reported");
    let id = task().id.to_string();
    assert_eq!(seen.label_values, ["pod", "ns", "app", id.as_str(), "nginx:1"]);
    assert_eq!((seen.value.map(|seen| seen.value), seen.timestamp), (Some(70), 70_000_000_000));
}

#[test]
fn unmeasured_metrics_have_no_value() {
    let reported: BTreeSet<_> =
        read(Usage::default(), Detail::default()).into_iter().map(|metric| metric.name).collect();
    // The limits of the container in these tests, and the timestamp.
    let expected = [
        "container_last_seen",
        "container_spec_cpu_shares",
        "container_spec_memory_limit_bytes",
        "container_spec_memory_swap_limit_bytes",
    ];
    assert_eq!(reported, expected.map(str::to_owned).into());
}

#[test]
fn cpu_seconds_are_whole_and_page_faults_have_scopes() {
    let line = |total_us| PressureLine { total_us, ..PressureLine::default() };
    let pressure = Some(Pressure { some: line(2_900_000), full: line(1_000_000) });
    let cpu = CpuUsage {
        at: UNIX_EPOCH,
        total_ns: 3_999_999_999,
        user_ns: None,
        system_ns: Some(1),
        periods: Some(9),
        throttled_periods: None,
        throttled_ns: None,
        pressure,
    };
    let memory = MemoryUsage {
        at: UNIX_EPOCH,
        usage_bytes: 5,
        working_set_bytes: 4,
        available_bytes: None,
        rss_bytes: None,
        cache_bytes: None,
        mapped_bytes: None,
        kernel_bytes: None,
        peak_bytes: None,
        limit_hits: Some(0),
        page_faults: Some(30),
        major_page_faults: Some(3),
        own_page_faults: Some(20),
        own_major_page_faults: None,
        pressure: None,
    };
    let usage = Usage { cpu: Some(cpu), memory: Some(memory), ..Usage::default() };
    let reported = values(&read(usage, Detail::default()));
    assert_eq!(reported[&key("container_cpu_usage_seconds_total", &["total"])], 3);
    assert_eq!(reported[&key("container_cpu_system_seconds_total", &[])], 0);
    assert!(!reported.contains_key(&key("container_cpu_user_seconds_total", &[])));
    assert_eq!(reported[&key("container_pressure_cpu_waiting_seconds_total", &[])], 2);
    assert_eq!(reported[&key("container_pressure_cpu_stalled_seconds_total", &[])], 1);
    assert!(!reported.contains_key(&key("container_pressure_memory_stalled_seconds_total", &[])));
    // A zero that was measured is reported.
    assert_eq!(reported[&key("container_memory_failcnt", &[])], 0);
    let failures = |kind, scope| reported[&key("container_memory_failures_total", &[kind, scope])];
    assert_eq!((failures("pgfault", "container"), failures("pgfault", "hierarchy")), (20, 30));
    assert_eq!((failures("pgmajfault", "container"), failures("pgmajfault", "hierarchy")), (3, 3));
}

#[test]
fn devices_and_huge_pages_have_own_series() {
    let detail = Detail {
        devices: vec![switchyard_core::stats::DeviceIo {
            device: "/dev/sda".into(),
            major: 8,
            minor: 0,
            bytes: vec![("Read".into(), 512), ("Discard".into(), 7)],
            operations: vec![("Write".into(), 2)],
        }],
        hugepages: vec![switchyard_core::stats::HugepageUsage {
            page_size: "2MB".into(),
            usage_bytes: 2 << 20,
            peak_bytes: None,
        }],
        ..Detail::default()
    };
    let reported = values(&read(Usage::default(), detail));
    let blkio =
        |operation| reported[&key("container_blkio_device_usage_total", &["/dev/sda", "8", "0", operation])];
    assert_eq!((blkio("Read"), blkio("Discard")), (512, 7));
    assert_eq!(reported[&key("container_fs_reads_bytes_total", &["/dev/sda"])], 512);
    assert_eq!(reported[&key("container_fs_writes_total", &["/dev/sda"])], 2);
    assert!(!reported.contains_key(&key("container_fs_reads_total", &["/dev/sda"])));
    assert_eq!(reported[&key("container_hugetlb_usage_bytes", &["2MB"])], 2 << 20);
    assert!(!reported.contains_key(&key("container_hugetlb_max_usage_bytes", &["2MB"])));
}

#[test]
fn loopback_is_excluded_from_network_metrics() {
    let pod = CommonLabels::of(&home(switchyard_core::state::SandboxState::Ready), None);
    let link = |name: &str| InterfaceStats { name: name.into(), tx_dropped: 6, ..InterfaceStats::default() };
    let reported = values(&sandbox_metrics(&pod, &[link("lo"), link("eth0"), link("net1")], UNIX_EPOCH));
    assert_eq!(reported.len(), 16);
    assert_eq!(reported[&key("container_network_transmit_packets_dropped_total", &["net1"])], 6);
}
