//! The samples of a reading; and that nothing is reported that was not measured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use switchyard_core::id::{Owner, TaskId};
use switchyard_core::stats::{CpuUsage, HugepageUsage, MemoryUsage, PressureLine, TaskStats};

use super::*;
use crate::samples;

type Samples = BTreeMap<(Metric, Vec<String>), Amount>;

fn task() -> Task {
    samples::task(Owner::Kubernetes, TaskId::from_bytes([2; 32]))
}

/// Collects samples; each may come once.
fn collect(into: &mut Samples) -> impl FnMut(Metric, &[&str], Amount) {
    |metric, labels, amount| {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        assert!(
            into.insert((metric, labels), amount).is_none(),
            "{metric:?} came twice"
        );
    }
}

fn read(usage: Usage, detail: Detail) -> Samples {
    let metrics = TaskMetrics {
        stats: TaskStats {
            usage,
            writable_layer: None,
        },
        detail,
        file_system: None,
    };
    let mut samples = Samples::new();
    of_task(
        &task(),
        &metrics,
        UNIX_EPOCH + Duration::from_secs(70),
        collect(&mut samples),
    );
    samples
}

fn key(metric: Metric, labels: &[&str]) -> (Metric, Vec<String>) {
    (
        metric,
        labels.iter().map(|label| (*label).to_owned()).collect(),
    )
}

#[test]
fn unmeasured_metrics_have_no_sample() {
    let reported: BTreeSet<_> = read(Usage::default(), Detail::default())
        .into_keys()
        .collect();
    // The limits of the task, and the times.
    let expected = [
        Metric::LastSeen,
        Metric::StartTime,
        Metric::SpecCpuPeriod,
        Metric::SpecCpuQuota,
        Metric::SpecCpuShares,
        Metric::SpecMemoryLimit,
        Metric::SpecMemoryReservation,
        Metric::SpecMemorySwapLimit,
    ];
    assert_eq!(reported, expected.map(|metric| key(metric, &[])).into());
}

#[test]
fn a_full_reading_has_a_sample_of_every_metric() {
    let mut samples = Samples::new();
    of_task(
        &task(),
        &samples::reading(),
        UNIX_EPOCH,
        collect(&mut samples),
    );
    of_sandbox(&[samples::interface()], collect(&mut samples));
    let reported: BTreeSet<_> = samples.into_keys().map(|(metric, _)| metric).collect();
    assert_eq!(reported.into_iter().collect::<Vec<_>>(), Metric::ALL);
}

#[test]
fn times_keep_their_fractions_and_page_faults_have_scopes() {
    let line = |total_us| PressureLine {
        total_us,
        ..PressureLine::default()
    };
    let cpu = CpuUsage {
        at: UNIX_EPOCH,
        total_ns: 3_999_999_999,
        user_ns: None,
        system_ns: Some(1),
        periods: Some(9),
        throttled_periods: None,
        throttled_ns: None,
        pressure: Some(Pressure {
            some: line(2_900_000),
            full: Some(line(1_000_000)),
        }),
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
        // As a kernel reports it that does not count when all processes are stalled.
        pressure: Some(Pressure {
            some: line(0),
            full: None,
        }),
    };
    let usage = Usage {
        cpu: Some(cpu),
        memory: Some(memory),
        ..Usage::default()
    };
    let reported = read(usage, Detail::default());
    assert_eq!(
        reported[&key(Metric::CpuUsage, &["total"])],
        Amount::Nanoseconds(3_999_999_999)
    );
    assert_eq!(
        reported[&key(Metric::CpuSystem, &[])],
        Amount::Nanoseconds(1)
    );
    assert!(!reported.contains_key(&key(Metric::CpuUser, &[])));
    assert_eq!(
        reported[&key(Metric::CpuWaiting, &[])],
        Amount::Microseconds(2_900_000)
    );
    assert_eq!(
        reported[&key(Metric::CpuStalled, &[])],
        Amount::Microseconds(1_000_000)
    );
    assert!(reported.contains_key(&key(Metric::MemoryWaiting, &[])));
    assert!(!reported.contains_key(&key(Metric::MemoryStalled, &[])));
    // A zero that was measured is reported.
    assert_eq!(reported[&key(Metric::MemoryFailcnt, &[])], Amount::Count(0));
    let failures = |kind, scope| reported[&key(Metric::MemoryFailures, &[kind, scope])].whole();
    assert_eq!(
        (
            failures("pgfault", "container"),
            failures("pgfault", "hierarchy")
        ),
        (20, 30)
    );
    assert_eq!(
        (
            failures("pgmajfault", "container"),
            failures("pgmajfault", "hierarchy")
        ),
        (3, 3)
    );
}

#[test]
fn devices_and_huge_pages_have_own_samples() {
    let device = DeviceIo {
        device: "/dev/sda".into(),
        major: 8,
        minor: 0,
        bytes: vec![("Read".into(), 512), ("Discard".into(), 7)],
        operations: vec![("Write".into(), 2)],
    };
    let pages = HugepageUsage {
        page_size: "2MB".into(),
        usage_bytes: 2 << 20,
        peak_bytes: None,
    };
    let detail = Detail {
        devices: vec![device],
        hugepages: vec![pages],
        ..Detail::default()
    };
    let reported = read(Usage::default(), detail);
    let blkio =
        |operation| reported[&key(Metric::Blkio, &["/dev/sda", "8", "0", operation])].whole();
    assert_eq!((blkio("Read"), blkio("Discard")), (512, 7));
    assert_eq!(
        reported[&key(Metric::FsReadBytes, &["/dev/sda"])],
        Amount::Count(512)
    );
    assert_eq!(
        reported[&key(Metric::FsWrites, &["/dev/sda"])],
        Amount::Count(2)
    );
    assert!(!reported.contains_key(&key(Metric::FsReads, &["/dev/sda"])));
    assert_eq!(
        reported[&key(Metric::HugetlbUsage, &["2MB"])],
        Amount::Count(2 << 20)
    );
    assert!(!reported.contains_key(&key(Metric::HugetlbPeak, &["2MB"])));
}

#[test]
fn loopback_is_excluded_from_network_metrics() {
    let link = |name: &str| InterfaceStats {
        name: name.into(),
        ..samples::interface()
    };
    let mut reported = Samples::new();
    of_sandbox(
        &[link("lo"), link("eth0"), link("net1")],
        collect(&mut reported),
    );
    assert_eq!(reported.len(), 16);
    assert_eq!(
        reported[&key(Metric::TxDropped, &["net1"])],
        Amount::Count(8)
    );
}
