//! The kernel's counters of devices, huge pages and memory: our metrics report the kernel's own values. And its lists of the
//! children of processes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use switchyard_linux::process;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::limits;
use switchyard_tests::host::eventually;

use crate::node::{GuestFact, GuestNode, LIMIT, cgroup_file, run};

pub(crate) const FACTS: &[GuestFact] = &[
    ("device_metrics_match_the_kernel", metrics_of_devices),
    (
        "hugepage_and_memory_reservation_metrics_match_the_kernel",
        metrics_of_huge_pages,
    ),
    (
        "children_of_processes_are_listed",
        children_of_processes_are_listed,
    ),
];

const MIB: u64 = 1 << 20;
/// The number of labels that all metrics have, before their own.
const COMMON: usize = 5;
/// The file with the number of huge pages that the guest sets aside.
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
/// The mount point of the huge pages, for the time of the test.
const HUGE: &str = "/run/guest-huge";

/// The values of the metrics of a container, by name and the labels beyond those that all have.
fn metrics(node: &GuestNode, container: &str) -> BTreeMap<(String, Vec<String>), u64> {
    let request = cri::ListPodSandboxMetricsRequest {};
    let answer = node
        .cri
        .runtime(async |mut client| client.list_pod_sandbox_metrics(request).await);
    let pods = answer.expect("they are served").pod_metrics;
    let mut containers = pods.into_iter().flat_map(|pod| pod.container_metrics);
    let found = containers
        .find(|metrics| metrics.container_id == container)
        .expect("it is reported");
    found
        .metrics
        .into_iter()
        .map(|metric| {
            let labels = metric.label_values[COMMON..].to_vec();
            (
                (metric.name, labels),
                metric.value.expect("every metric has a value").value,
            )
        })
        .collect()
}

/// Waits until the metrics have these values.
#[track_caller]
fn wait_metrics(
    node: &GuestNode,
    container: &str,
    expected: impl Fn() -> Vec<(&'static str, Vec<String>, u64)>,
) {
    let mut different = Vec::new();
    let same = eventually(LIMIT, || {
        let reported = metrics(node, container);
        different = expected();
        different.retain(|(name, labels, value)| {
            reported.get(&((*name).to_owned(), labels.clone())) != Some(value)
        });
        different.is_empty()
    });
    assert!(
        same,
        "not reported: {different:?}, but {:#?}",
        metrics(node, container)
    );
}

/// The counts of one device in `io.stat`, by their keys.
fn counted(container: &str, device: &str) -> BTreeMap<String, u64> {
    let text = cgroup_file(container, "io.stat");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(device))
        .unwrap_or_default();
    let pairs = line
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='));
    pairs
        .filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)))
        .collect()
}

fn metrics_of_devices(node: &GuestNode) {
    let pod = node.pod("devices");
    let script = "dd if=/dev/zero of=/data bs=1M count=4 oflag=direct && dd if=/data of=/dev/null bs=1M iflag=direct && \
        echo done; exec sleep 1000";
    let id = pod.start_shell("main", script);
    pod.wait_log_lines("main", |lines| lines.iter().any(|line| line == "done"));
    let disk = fs::read_to_string("/sys/block/vda/dev").expect("the disk of the guest is there");
    let disk = disk.trim();
    let count = |key: &str| counted(&id, disk).get(key).copied().unwrap_or_default();
    assert!(
        count("wbytes") >= 4 * MIB && count("rbytes") >= 4 * MIB,
        "{}",
        cgroup_file(&id, "io.stat")
    );
    let (major, minor) = disk.split_once(':').expect("a device has two numbers");
    let of = |operation: &str| {
        ["/dev/vda", major, minor, operation]
            .map(str::to_owned)
            .to_vec()
    };
    let device = || vec!["/dev/vda".to_owned()];
    wait_metrics(node, &id, || {
        vec![
            (
                "container_blkio_device_usage_total",
                of("Write"),
                count("wbytes"),
            ),
            (
                "container_blkio_device_usage_total",
                of("Read"),
                count("rbytes"),
            ),
            ("container_fs_writes_bytes_total", device(), count("wbytes")),
            ("container_fs_reads_bytes_total", device(), count("rbytes")),
            ("container_fs_writes_total", device(), count("wios")),
            ("container_fs_reads_total", device(), count("rios")),
        ]
    });
}

fn metrics_of_huge_pages(node: &GuestNode) {
    fs::write(NR_HUGEPAGES, "4").expect("the guest has huge pages");
    run(&[
        "sh",
        "-c",
        &format!("mkdir -p {HUGE} && mount -t hugetlbfs none {HUGE} -o pagesize=2M"),
    ]);
    let pod = node.pod("huge");
    let script = "fallocate -l 2097152 /huge/page && echo done; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| {
        config.mounts = vec![cri::Mount {
            host_path: HUGE.to_owned(),
            container_path: "/huge".to_owned(),
            ..Default::default()
        }];
        limits(config)
            .unified
            .insert("memory.low".into(), (8 * MIB).to_string());
    });
    pod.wait_log_lines("main", |lines| lines == ["done"]);
    assert_eq!(
        cgroup_file(&id, "hugetlb.2MB.current"),
        (2 * MIB).to_string()
    );
    assert_eq!(cgroup_file(&id, "memory.low"), (8 * MIB).to_string());
    wait_metrics(node, &id, || {
        vec![
            (
                "container_hugetlb_usage_bytes",
                vec!["2MB".to_owned()],
                2 * MIB,
            ),
            (
                "container_spec_memory_reservation_limit_bytes",
                Vec::new(),
                8 * MIB,
            ),
        ]
    });
    drop(pod);
    run(&[
        "sh",
        "-c",
        &format!("rm {HUGE}/page && umount {HUGE} && rmdir {HUGE}"),
    ]);
    fs::write(NR_HUGEPAGES, "0").expect("the guest has huge pages");
}

/// The kernel of the machine that runs the other tests may have no such lists.
fn children_of_processes_are_listed(_: &GuestNode) {
    assert!(process::lists_children(), "CONFIG_PROC_CHILDREN is not set");
    let mut child = Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("it can be started");
    let found = process::children(std::process::id().cast_signed());
    let is_found = found.contains(&child.id().cast_signed());
    child.kill().expect("it runs");
    child.wait().expect("it is a child");
    assert!(is_found, "{found:?}");
}
