//! Limits, usage and out-of-memory kills with cgroup v2 and systemd.

use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::limits;
use switchyard_tests::host::eventually;

use crate::node::{GuestFact, GuestNode, GuestPod, LIMIT, cgroup_file, property, run};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "limits_are_in_cgroup_v2_files_and_can_be_updated",
        limits_are_in_the_files,
    ),
    (
        "crun_limits_survive_systemd_daemon_reload",
        limits_hold_with_crun,
    ),
    ("stats_match_the_cgroup", stats_match_the_cgroup),
    (
        "oom_kill_of_the_main_process_is_reported",
        the_main_process_is_killed,
    ),
    ("oom_kill_of_a_child_process_is_reported", a_child_is_killed),
    (
        "hierarchy_of_version_1_beside_version_2_changes_nothing",
        version_1_is_mounted_besides,
    ),
    ("no_systemd_units_are_left_after_removal", nothing_is_left),
];

const MIB: i64 = 1 << 20;
/// Allocates more memory at once than any limit here.
const HOG: &str = "dd if=/dev/zero of=/dev/null bs=200M count=10";
/// Mount point of a hierarchy of v1 beside v2, for the time of a test.
const BESIDE: &str = "/sys/fs/cgroup/net_cls";
/// The number of attempts: systemd removes the cgroup a moment after its last process has exited.
const TRIES: usize = 5;

fn limits_are_in_the_files(node: &GuestNode) {
    let pod = node.pod("limits");
    let id = limits_of(node, &pod, "");
    assert_eq!(
        property(&format!("switchyard-{id}.scope"), "MemoryMax"),
        (96 * MIB).to_string()
    );
}

/// crun does not pass most limits to systemd. So they are in a cgroup below the scope: those of the scope
/// itself would be lost when units are reloaded.
fn limits_hold_with_crun(node: &GuestNode) {
    let pod = node.pod_of("limits-crun", "crun");
    let id = limits_of(node, &pod, "container/");
    let stats = node
        .cri
        .stats(&id)
        .expect("it has stats")
        .memory
        .unwrap_or_default();
    let available = stats.available_bytes.unwrap_or_default().value;
    assert!(available > 0 && available <= 96 << 20, "{stats:?}");
}

/// Checks all limits of a container that it starts; they are in `group` below its scope.
fn limits_of(node: &GuestNode, pod: &GuestPod<'_>, group: &str) -> String {
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = 64 * MIB;
        limits.memory_swap_limit_in_bytes = 100 * MIB;
        limits.cpu_shares = 512;
        limits.cpu_quota = 50_000;
        limits.cpu_period = 100_000;
        limits.cpuset_cpus = "0".into();
        limits.unified.insert("pids.max".into(), "33".into());
        limits
            .unified
            .insert("memory.high".into(), (48 * MIB).to_string());
    });
    let file = |name: &str| cgroup_file(&id, &format!("{group}{name}"));
    assert_eq!(file("memory.max"), (64 * MIB).to_string());
    // v2 limits swap separately: the limit of both minus that of memory.
    assert_eq!(file("memory.swap.max"), (36 * MIB).to_string());
    assert_eq!(file("memory.high"), (48 * MIB).to_string());
    assert_eq!(file("cpu.max"), "50000 100000");
    // 2 to 262144 shares correspond to a weight of 1 to 10000.
    assert_eq!(
        file("cpu.weight"),
        (1 + (512 - 2) * 9999 / 262_142).to_string()
    );
    assert_eq!(file("pids.max"), "33");
    assert_eq!(file("cpuset.cpus"), "0");

    let change = cri::LinuxContainerResources {
        memory_limit_in_bytes: 96 * MIB,
        cpu_quota: 80_000,
        cpu_period: 100_000,
        ..Default::default()
    };
    node.cri.update(&id, change).expect("they can be changed");
    assert_eq!(file("memory.max"), (96 * MIB).to_string());
    assert_eq!(file("cpu.max"), "80000 100000");
    assert_eq!(file("pids.max"), "33");
    let none = pod.start_shell_with("none", "exec sleep 1000", |config| {
        limits(config).memory_limit_in_bytes = 64 * MIB;
    });
    // systemd writes its own values again when units are reloaded.
    run(&["systemctl", "daemon-reload"]);
    // A memory limit without a swap limit means no swap.
    assert_eq!(cgroup_file(&none, &format!("{group}memory.swap.max")), "0");
    assert_eq!(file("memory.max"), (96 * MIB).to_string());
    assert_eq!(file("cpu.max"), "80000 100000");
    id
}

fn stats_match_the_cgroup(node: &GuestNode) {
    let pod = node.pod("stats");
    let script = "head -c 20000000 /dev/zero > /dev/shm/held; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; exec sleep 1000";
    let id = pod.start_shell("main", script);
    pod.wait_log_lines("main", |lines| lines == ["done"]);
    // The container is idle, so that values do not change between two reads.
    let number = |text: String| text.parse::<u64>().expect("it is a number");
    let keyed = |file: &str, key: &str| {
        let text = cgroup_file(&id, file);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .expect("the key is there");
        number(line.trim().to_owned())
    };
    let memory = || {
        (
            number(cgroup_file(&id, "memory.current")),
            keyed("memory.stat", "inactive_file "),
        )
    };
    let cpu = || keyed("cpu.stat", "usage_usec ") * 1000;
    let low = memory();
    let cpu_low = cpu();
    let mut stats = cri::ContainerStats::default();
    // Samples may be a few seconds old.
    let fresh = eventually(LIMIT, || {
        stats = node.cri.stats(&id).expect("it has stats");
        stats
            .cpu
            .unwrap_or_default()
            .usage_core_nano_seconds
            .unwrap_or_default()
            .value
            >= cpu_low
    });
    assert!(fresh, "{stats:?} is behind {cpu_low} ns");
    let high = memory();
    let cpu_high = cpu();
    let reported = stats
        .cpu
        .unwrap_or_default()
        .usage_core_nano_seconds
        .unwrap_or_default()
        .value;
    assert!(
        reported <= cpu_high,
        "{reported} ns are more than {cpu_high}"
    );
    let reported = stats.memory.unwrap_or_default();
    let near = |value: u64, low: u64, high: u64| {
        value + 1_000_000 >= low.min(high) && value <= low.max(high) + 1_000_000
    };
    let usage = reported.usage_bytes.unwrap_or_default().value;
    assert!(
        usage >= 20_000_000 && near(usage, low.0, high.0),
        "{usage} is not between {low:?} and {high:?}"
    );
    let set = reported.working_set_bytes.unwrap_or_default().value;
    assert!(
        near(set, low.0 - low.1, high.0 - high.1),
        "{set} is not between {low:?} and {high:?}"
    );

    assert_pod_has_stats(node, &pod);
}

fn assert_pod_has_stats(node: &GuestNode, pod: &GuestPod<'_>) {
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
    assert_eq!(
        linux
            .network
            .unwrap_or_default()
            .default_interface
            .unwrap_or_default()
            .name,
        "eth0"
    );
    assert_eq!(linux.containers.len(), 1);
}

/// A VPN or a traffic shaper mounts `net_cls`, which v2 lacks.
fn version_1_is_mounted_besides(node: &GuestNode) {
    let mount = format!("mkdir -p {BESIDE} && mount -t cgroup -o net_cls none {BESIDE}");
    run(&["sh", "-c", &mount]);
    run(&["systemctl", "restart", "switchyard"]);
    node.wait_ready();
    stats_match_the_cgroup(node);
    a_child_is_killed(node);
    let entries = std::fs::read_dir(BESIDE).expect("it is mounted").flatten();
    let groups = entries.filter(|entry| entry.path().is_dir()).count();
    assert_eq!(groups, 0, "a runtime has made groups in it");
    run(&["sh", "-c", &format!("umount {BESIDE} && rmdir {BESIDE}")]);
    run(&["systemctl", "restart", "switchyard"]);
    node.wait_ready();
}

fn the_main_process_is_killed(node: &GuestNode) {
    let pod = node.pod("oom");
    for try_ in 0..TRIES {
        let id = pod.start_shell_with(&format!("hog-{try_}"), &format!("exec {HOG}"), |config| {
            limits(config).memory_limit_in_bytes = 20 * MIB;
        });
        let status = node.wait_exit(&id);
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (137, "OOMKilled"),
            "try {try_}"
        );
    }
}

fn a_child_is_killed(node: &GuestNode) {
    let pod = node.pod("oom-child");
    for try_ in 0..TRIES {
        let id = pod.start_shell_with(
            &format!("parent-{try_}"),
            &format!("{HOG}; exit 9"),
            |config| {
                limits(config).memory_limit_in_bytes = 20 * MIB;
            },
        );
        let status = node.wait_exit(&id);
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (9, "OOMKilled"),
            "try {try_}"
        );
    }
    // A container that survives the kill of a process gets the same reason when it exits.
    let id = pod.start_shell_with(
        "later",
        &format!("{HOG}; echo goes on; exec sleep 1000"),
        |config| {
            limits(config).memory_limit_in_bytes = 20 * MIB;
        },
    );
    pod.wait_log_lines("later", |lines| lines.iter().any(|line| line == "goes on"));
    node.cri.stop(&id, 0).expect("it can be stopped");
    assert_eq!(node.wait_exit(&id).reason, "OOMKilled");
    let id = pod.start_shell_with("modest", "exit 137", |config| {
        limits(config).memory_limit_in_bytes = 20 * MIB
    });
    assert_eq!(node.wait_exit(&id).reason, "Error");
}

fn nothing_is_left(_: &GuestNode) {
    let mut units = String::new();
    let gone = eventually(Duration::from_secs(20), || {
        units = run(&[
            "systemctl",
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            "switchyard-*.scope",
        ]);
        units.is_empty()
    });
    assert!(gone, "{units}");
}
