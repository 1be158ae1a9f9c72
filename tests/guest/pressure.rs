//! Pressure stall information, soft limits and swap, which only cgroup v2 has.

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::limits;
use switchyard_tests::host::eventually;

use crate::node::{GuestFact, GuestNode, LIMIT, cgroup_file, run};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "pressure_is_reported_for_containers_pods_and_metrics",
        pressure_is_reported,
    ),
    (
        "memory_high_throttles_and_kills_nobody",
        memory_high_throttles,
    ),
    ("swap_is_limited_and_reported", swap_is_limited_and_reported),
];

const MIB: i64 = 1 << 20;
/// A temporary swap file of the guest.
const SWAP: &str = "/swapfile";

/// The stall time in ns, from the line of the kernel's file that begins so.
fn stalled(container: &str, file: &str, line: &str) -> u64 {
    let text = cgroup_file(container, file);
    let found = text
        .lines()
        .find(|text| text.starts_with(line))
        .expect("the kernel reports pressure");
    let (_, total) = found
        .split_once("total=")
        .expect("a line ends with the total");
    total.parse::<u64>().expect("it is a number") * 1000
}

fn pressure_is_reported(node: &GuestNode) {
    let pod = node.pod("pressure");
    // Two processes that compete for a twentieth of a processor: one waits while the other runs, and both
    // wait for their quota.
    let id = pod.start_shell_with(
        "main",
        "while :; do :; done & while :; do :; done",
        |config| {
            let limits = limits(config);
            limits.cpu_quota = 5_000;
            limits.cpu_period = 100_000;
        },
    );
    let mut reported = cri::ContainerStats::default();
    let low = stalled(&id, "cpu.pressure", "some");
    let waits = eventually(LIMIT, || {
        reported = node.cri.stats(&id).expect("it has stats");
        let some = reported.cpu.and_then(|cpu| cpu.psi?.some);
        some.is_some_and(|some| some.total > low + 100_000_000 && some.avg10 > 1.0)
    });
    let high = stalled(&id, "cpu.pressure", "some");
    let psi = reported
        .cpu
        .expect("it is reported")
        .psi
        .expect("it is reported");
    let some = psi.some.expect("it is reported");
    let full = psi.full.expect("it is reported");
    assert!(
        waits && some.total <= high,
        "{some:?} is not between {low} and {high}"
    );
    assert!(
        full.total <= some.total && some.avg10 <= 100.0 && some.avg60 <= some.avg10 + 1.0,
        "{psi:?}"
    );
    assert!(
        reported.memory.expect("it is reported").psi.is_some()
            && reported.io.expect("it is reported").psi.is_some()
    );

    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod.id.clone(),
    };
    let answer = node
        .cri
        .runtime(async |mut client| client.pod_sandbox_stats(request).await);
    let linux = answer
        .expect("it has stats")
        .stats
        .unwrap_or_default()
        .linux
        .unwrap_or_default();
    // The cgroup of the pod.
    assert!(
        linux
            .cpu
            .and_then(|cpu| cpu.psi?.some)
            .is_some_and(|some| some.total > 0)
    );
    assert!(linux.memory.is_some_and(|memory| memory.psi.is_some()));
    assert!(linux.io.is_some_and(|io| io.psi.is_some()));

    assert_pressure_is_among_the_metrics(node, &pod.id, &id);
}

fn assert_pressure_is_among_the_metrics(node: &GuestNode, pod: &str, id: &str) {
    let request = cri::ListPodSandboxMetricsRequest::default();
    let answer = node
        .cri
        .runtime(async |mut client| client.list_pod_sandbox_metrics(request).await);
    let all = answer.expect("they can be listed").pod_metrics;
    let ours = all
        .into_iter()
        .find(|of| of.pod_sandbox_id == pod)
        .expect("it is among them");
    let of = ours
        .container_metrics
        .into_iter()
        .find(|of| of.container_id == id)
        .expect("it is among them");
    for (name, grows) in [
        ("container_pressure_cpu_waiting_seconds_total", true),
        ("container_pressure_cpu_stalled_seconds_total", true),
        ("container_pressure_memory_waiting_seconds_total", false),
        ("container_pressure_memory_stalled_seconds_total", false),
        ("container_pressure_io_waiting_seconds_total", false),
        ("container_pressure_io_stalled_seconds_total", false),
    ] {
        let metric = of.metrics.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not among them"));
        assert!(
            metric.value.is_some_and(|value| value.value > 0 || !grows),
            "{metric:?}"
        );
    }
}

/// The request of a kubelet with memory QoS.
fn memory_high_throttles(node: &GuestNode) {
    let pod = node.pod("high");
    let script = "head -c 40000000 /dev/zero > /dev/shm/held; echo done; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = 128 * MIB;
        limits
            .unified
            .insert("memory.high".into(), (16 * MIB).to_string());
        limits
            .unified
            .insert("memory.min".into(), (4 * MIB).to_string());
    });
    assert_eq!(cgroup_file(&id, "memory.high"), (16 * MIB).to_string());
    assert_eq!(cgroup_file(&id, "memory.min"), (4 * MIB).to_string());
    assert!(
        eventually(LIMIT, || {
            let events = cgroup_file(&id, "memory.events");
            let high = events
                .lines()
                .find_map(|line| line.strip_prefix("high "))
                .expect("it is counted");
            high.parse::<u64>().expect("it is a number") > 0
        }),
        "{}",
        cgroup_file(&id, "memory.events")
    );
    assert!(cgroup_file(&id, "memory.events").contains("oom_kill 0"));
    // Once the limit is raised, the container continues at once; the reported limit is the one in force.
    let change = cri::LinuxContainerResources {
        unified: [("memory.high".to_owned(), "max".to_owned())].into(),
        ..Default::default()
    };
    node.cri.update(&id, change).expect("it can be changed");
    assert_eq!(cgroup_file(&id, "memory.high"), "max");
    assert_eq!(cgroup_file(&id, "memory.min"), (4 * MIB).to_string());
    assert_eq!(cgroup_file(&id, "memory.max"), (128 * MIB).to_string());
    pod.wait_log_lines("main", |lines| lines == ["done"]);
    let reported = node
        .cri
        .status(&id)
        .expect("it has a status")
        .resources
        .and_then(|all| all.linux);
    let unified = reported.expect("they are reported").unified;
    assert_eq!(
        unified.get("memory.high").map(String::as_str),
        Some("max"),
        "{unified:?}"
    );
    let status = node.cri.status(&id).expect("it has a status");
    assert_eq!(status.state(), cri::ContainerState::ContainerRunning);
}

fn swap_is_limited_and_reported(node: &GuestNode) {
    run(&[
        "sh",
        "-c",
        &format!(
            "fallocate -l 256M {SWAP} && chmod 600 {SWAP} && mkswap -q {SWAP} && swapon {SWAP}"
        ),
    ]);
    let pod = node.pod("swap");
    let hold = "head -c 40000000 /dev/zero > /dev/shm/held; echo done; exec sleep 1000";
    let id = pod.start_shell_with("main", hold, |config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = 24 * MIB;
        limits.memory_swap_limit_in_bytes = 88 * MIB;
    });
    pod.wait_log_lines("main", |lines| lines == ["done"]);
    assert_eq!(cgroup_file(&id, "memory.swap.max"), (64 * MIB).to_string());
    let current = || {
        cgroup_file(&id, "memory.swap.current")
            .parse::<u64>()
            .expect("it is a number")
    };
    assert!(
        current() > 10_000_000,
        "{} bytes are swapped out",
        current()
    );
    let reported = node
        .cri
        .stats(&id)
        .expect("it has stats")
        .swap
        .expect("it is reported");
    let used = reported.swap_usage_bytes.unwrap_or_default().value;
    assert!(
        used.abs_diff(current()) < 2_000_000,
        "{used} is not {}",
        current()
    );
    let free = reported.swap_available_bytes.unwrap_or_default().value;
    assert!((used + free).abs_diff(64 << 20) < 4096, "{reported:?}");
    // A container that may not use swap is killed instead.
    let none = pod.start_shell_with("none", &format!("{hold}; exit 9"), |config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = 24 * MIB;
        limits.memory_swap_limit_in_bytes = 24 * MIB;
    });
    assert_eq!(cgroup_file(&none, "memory.swap.max"), "0");
    assert!(eventually(LIMIT, || cgroup_file(&none, "memory.events")
        .contains("oom_kill 1")
        || node
            .cri
            .status(&none)
            .is_ok_and(|status| status.reason == "OOMKilled")));
    drop(pod);
    run(&["sh", "-c", &format!("swapoff {SWAP} && rm {SWAP}")]);
}
