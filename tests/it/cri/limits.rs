//! Resource limits and usage.

use std::fs;
use std::time::Duration;

use switchyard_proto::cri::v1::{
    LinuxContainerResources, ListContainerStatsRequest, PodSandboxStatsRequest,
    UpdateContainerResourcesRequest, UpdatePodSandboxResourcesRequest,
};
use switchyard_tests::cri::limits;
use switchyard_tests::host::{cgroups, eventually};
use switchyard_tests::node::TestNode;

const MIB: i64 = 1 << 20;

#[test]
fn limits_are_applied_and_can_be_updated() {
    let node = TestNode::shared();
    let pod = node.pod("limits");
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        let limits = limits(config);
        limits.memory_limit_in_bytes = 64 * MIB;
        limits.cpu_shares = 512;
        limits.cpu_quota = 50_000;
        limits.cpu_period = 100_000;
        limits.cpuset_cpus = "0".into();
    });
    let memory = || cgroups::value(&id, ["memory.limit_in_bytes", "memory.max"]);
    assert_eq!(memory(), (64 * MIB).to_string());
    let quota = |quota: i64| [quota.to_string(), format!("{quota} 100000")];
    assert!(quota(50_000).contains(&cgroups::value(&id, ["cpu.cfs_quota_us", "cpu.max"])));
    assert_eq!(cgroups::value(&id, ["cpuset.cpus", "cpuset.cpus"]), "0");
    let reported = || {
        node.cri()
            .status(&id)
            .expect("it has a status")
            .resources
            .expect("reported")
            .linux
            .expect("reported")
    };
    assert_eq!(
        (
            reported().memory_limit_in_bytes,
            reported().cpu_shares,
            reported().cpu_quota
        ),
        (64 * MIB, 512, 50_000)
    );

    let change = LinuxContainerResources {
        memory_limit_in_bytes: 96 * MIB,
        cpu_quota: 80_000,
        cpu_period: 100_000,
        ..Default::default()
    };
    node.cri().update(&id, change).expect("they can be changed");
    assert_eq!(memory(), (96 * MIB).to_string());
    assert!(quota(80_000).contains(&cgroups::value(&id, ["cpu.cfs_quota_us", "cpu.max"])));
    let now = reported();
    assert_eq!(
        (now.memory_limit_in_bytes, now.cpu_shares, now.cpu_quota),
        (96 * MIB, 512, 80_000)
    );
    assert_eq!(now.cpuset_cpus, "0");

    let impossible = LinuxContainerResources {
        cpuset_cpus: "4000".into(),
        ..Default::default()
    };
    node.cri()
        .update(&id, impossible)
        .expect_err("there are not as many processors");
    assert_eq!(
        reported(),
        now,
        "a change that failed is reported as if it were in force"
    );
    assert_eq!(memory(), (96 * MIB).to_string());
}

#[test]
fn update_before_start_applies_to_a_created_container() {
    let node = TestNode::shared();
    let pod = node.pod("waiting");
    let mut config = node.container("main", &["sleep", "1000"]);
    limits(&mut config).memory_limit_in_bytes = 64 * MIB;
    let id = pod.create(&config);
    let change = LinuxContainerResources {
        memory_limit_in_bytes: 96 * MIB,
        ..Default::default()
    };
    node.cri().update(&id, change).expect("it can be changed");
    node.cri().start(&id).expect("it can be started");
    assert_eq!(
        cgroups::value(&id, ["memory.limit_in_bytes", "memory.max"]),
        (96 * MIB).to_string()
    );
}

#[test]
fn oom_score_update_applies_to_processes_that_did_not_set_their_own() {
    let node = TestNode::start();
    let pod = node.pod("rescored");
    let script =
        "(echo 900 > /proc/self/oom_score_adj; exec sleep 1001) & sleep 1002 & exec sleep 1003";
    let id = pod.start_shell_with("main", script, |config| limits(config).oom_score_adj = 500);
    let shown = "for p in $(pidof sleep); do echo $(cat /proc/$p/oom_score_adj); done | sort";
    let scores = || node.cri().sh(&id, shown);
    let settled = |expected: &str| {
        let reached = eventually(Duration::from_secs(10), || scores() == expected);
        assert!(reached, "{} instead of {expected}", scores());
    };
    let reported = || {
        let status = node.cri().status(&id).expect("it has a status");
        status
            .resources
            .and_then(|all| all.linux)
            .expect("limits are reported")
            .oom_score_adj
    };
    let change = |oom_score_adj| LinuxContainerResources {
        oom_score_adj,
        ..Default::default()
    };
    settled("500\n500\n900");
    node.cri()
        .update(&id, change(600))
        .expect("it can be changed");
    assert_eq!((scores().as_str(), reported()), ("600\n600\n900", 600));
    let fresh = || {
        node.cri()
            .sh(&id, "sleep 0.2; cat /proc/self/oom_score_adj")
    };
    assert_eq!(
        fresh(),
        "600",
        "a command that is run in it has the score of before"
    );
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!((fresh().as_str(), reported()), ("600", 600));
    node.cri()
        .update(&id, change(500))
        .expect("it can be changed back");
    assert_eq!(
        (scores().as_str(), fresh().as_str(), reported()),
        ("500\n500\n900", "500", 500)
    );
}

#[test]
fn oom_score_update_before_start_applies_from_the_start() {
    let node = TestNode::shared();
    let pod = node.pod("prescored");
    let mut config = node.container("main", &["sleep", "1000"]);
    limits(&mut config).oom_score_adj = 500;
    let id = pod.create(&config);
    let change = LinuxContainerResources {
        oom_score_adj: 700,
        ..Default::default()
    };
    node.cri().update(&id, change).expect("it can be changed");
    node.cri().start(&id).expect("it can be started");
    assert_eq!(
        node.cri().sh(
            &id,
            "cat /proc/1/oom_score_adj; cat /proc/self/oom_score_adj"
        ),
        "700\n700"
    );
}

#[test]
fn unsupported_limits_are_not_reported_as_applied() {
    use switchyard_proto::cri::v1::HugepageLimit;
    let node = TestNode::shared();
    let pod = node.pod("granted");
    // No kernel has pages of this size.
    let pages = || {
        vec![HugepageLimit {
            page_size: "3MB".into(),
            limit: 3 << 20,
        }]
    };
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        let limits = limits(config);
        (
            limits.memory_limit_in_bytes,
            limits.memory_swap_limit_in_bytes,
        ) = (64 * MIB, 96 * MIB);
        (limits.oom_score_adj, limits.hugepage_limits) = (-998, pages());
    });
    let score = || {
        node.cri()
            .sh(&id, "cat /proc/1/oom_score_adj")
            .parse::<i64>()
            .expect("it is a number")
    };
    let swap = || {
        let groups = cgroups::named(&id);
        let read = |name: &str| {
            groups
                .iter()
                .find_map(|dir| fs::read_to_string(dir.join(name)).ok())
        };
        let number = |text: String| text.trim().parse::<i64>().expect("it is a number");
        let above =
            |text: String| number(text) + number(read("memory.max").expect("it is limited"));
        read("memory.memsw.limit_in_bytes")
            .map(number)
            .or_else(|| read("memory.swap.max").map(above))
            .unwrap_or(0)
    };
    let reported = || {
        node.cri()
            .status(&id)
            .expect("it has a status")
            .resources
            .and_then(|all| all.linux)
            .expect("reported")
    };
    let agree = |when: &str| {
        let reported = reported();
        assert_eq!(
            (reported.oom_score_adj, reported.memory_swap_limit_in_bytes),
            (score(), swap()),
            "{when}"
        );
        assert_eq!(reported.hugepage_limits, [], "{when}");
    };
    agree("at creation");
    let change = LinuxContainerResources {
        oom_score_adj: -990,
        memory_limit_in_bytes: 128 * MIB,
        hugepage_limits: pages(),
        ..Default::default()
    };
    node.cri()
        .update(&id, change)
        .expect("memory alone can be raised above the sum");
    assert_eq!(reported().memory_limit_in_bytes, 128 * MIB);
    agree("after a change");
}

#[test]
fn allowed_update_annotations_reach_the_spec_but_not_the_status() {
    let node = TestNode::start_with(
        "[containerd.runtimes.runc]\nupdate_annotations = [\"hi*\", \"*\"]\n",
        |_| {},
    );
    let pod = node.pod("annotated");
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.annotations = [("given".to_owned(), "first".to_owned())].into();
    });
    let request = UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(LinuxContainerResources {
            cpu_shares: 300,
            ..Default::default()
        }),
        annotations: [
            ("hint", "warm"),
            ("io.kubernetes.cri.sandbox-id", "another"),
            ("bundle", "/"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..Default::default()
    };
    let updated = node
        .cri()
        .runtime(async |mut client| client.update_container_resources(request).await);
    updated.expect("it can be changed");
    let info: serde_json::Value =
        serde_json::from_str(&node.cri().container_info(&id)).expect("it is JSON");
    let annotations = &info["runtimeSpec"]["annotations"];
    assert_eq!(annotations["hint"], "warm");
    assert_eq!(
        annotations["io.kubernetes.cri.container-type"], "container",
        "{annotations}"
    );
    assert_eq!(
        annotations["io.kubernetes.cri.sandbox-id"],
        pod.id(),
        "{annotations}"
    );
    assert!(annotations["bundle"].is_null(), "{annotations}");
    assert_eq!(info["runtimeOptions"]["binary_name"], "runc");
    let reported = node.cri().status(&id).expect("it has a status").annotations;
    assert_eq!(
        reported,
        [("given".to_owned(), "first".to_owned())].into(),
        "CRI wants them as they were given"
    );
}

#[test]
fn pod_level_resources_are_reported_after_daemon_kill() {
    let node = TestNode::start();
    let pod = node.pod("resized");
    let limits = |memory_limit_in_bytes| LinuxContainerResources {
        memory_limit_in_bytes,
        ..Default::default()
    };
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id().to_owned(),
        overhead: Some(limits(10 * MIB)),
        resources: Some(limits(200 * MIB)),
    };
    let updated = node
        .cri()
        .runtime(async |mut client| client.update_pod_sandbox_resources(request).await);
    updated.expect("it is ready");
    node.daemon().kill9();
    node.daemon().restart();
    let info: serde_json::Value =
        serde_json::from_str(&node.cri().pod_info(pod.id())).expect("it is JSON");
    let reported = |part: &str| info["config"]["linux"][part]["memory_limit_in_bytes"].as_i64();
    assert_eq!(
        (reported("overhead"), reported("resources")),
        (Some(10 * MIB), Some(200 * MIB))
    );
    assert!(!pod.ip().is_empty(), "the rest of the record is as it was");
}

#[test]
fn parent_cgroup_is_removed_with_the_last_pod_unless_preexisting() {
    // Only where cgroups are created as directories: slices are systemd's own.
    let node = TestNode::start_with("[cgroup]\ndriver = \"cgroupfs\"\n", |_| {});
    let below = |name: &str| format!("/{}/{name}", node.root().cgroup_name());
    let there = |name: &str| !cgroups::named(name).is_empty();
    let parent = |parent: String| {
        move |config: &mut switchyard_proto::cri::v1::PodSandboxConfig| {
            config.linux.get_or_insert_default().cgroup_parent = parent;
        }
    };
    let name = switchyard_tests::host::random_name();
    let one = node.pod_with("one", parent(below(&name)));
    let two = node.pod_with("two", parent(below(&name)));
    let _ = (
        one.start_shell("main", "exec sleep 1000"),
        two.start_shell("main", "exec sleep 1000"),
    );
    assert!(there(&name));
    drop(one);
    assert!(there(&name), "the other pod is in it");
    node.daemon().kill9();
    node.daemon().restart();
    drop(two);
    assert!(!there(&name), "{:?}", cgroups::named(&name));
    assert!(
        !there(&node.root().cgroup_name()),
        "the one above was ours as well"
    );

    let theirs = switchyard_tests::host::random_name();
    let memory = cgroups::create(&format!("{}/{theirs}", node.root().cgroup_name()));
    let pod = node.pod_with("guest", parent(below(&theirs)));
    let _ = pod.start_shell("main", "exec sleep 1000");
    drop(pod);
    assert!(memory.is_dir(), "somebody else made it");
    assert!(
        cgroups::clear(&theirs).is_empty(),
        "what they made can be removed"
    );
}

#[test]
fn zero_hugepage_limits_are_accepted() {
    use switchyard_proto::cri::v1::HugepageLimit;
    let node = TestNode::shared();
    let pod = node.pod("pages");
    let seen = pod.run_shell("echo runs", |config| {
        limits(config).hugepage_limits = ["2MB", "1GB"]
            .map(|size| HugepageLimit {
                page_size: size.into(),
                limit: 0,
            })
            .to_vec();
    });
    assert_eq!(seen, "runs");
}

#[test]
fn usage_stats_are_reported_and_increase() {
    let node = TestNode::shared();
    let pod = node.pod("use");
    let id = pod.start_shell_with("main", "while :; do :; done", |config| {
        limits(config).cpu_quota = 20_000
    });
    let idle = pod.create(&node.container("idle", &["true"]));
    let stats = || node.cri().stats(&id).expect("it has stats");
    let first = stats();
    let cpu = |stats: &switchyard_proto::cri::v1::ContainerStats| {
        stats
            .cpu
            .as_ref()
            .and_then(|cpu| cpu.usage_core_nano_seconds)
            .map_or(0, |value| value.value)
    };
    let memory = first.memory.expect("memory is reported");
    let bytes = memory
        .working_set_bytes
        .expect("the working set is reported")
        .value;
    assert!(bytes > 0 && bytes < 64 << 20, "{memory:?}");
    assert!(
        eventually(Duration::from_secs(10), || cpu(&stats()) > cpu(&first)),
        "{first:?}"
    );
    let layer = |stats: &switchyard_proto::cri::v1::ContainerStats| {
        let layer = stats.writable_layer.clone().unwrap_or_default();
        (
            layer.used_bytes.unwrap_or_default().value,
            layer.fs_id.unwrap_or_default().mountpoint,
        )
    };
    let (before, mountpoint) = layer(&first);
    assert!(
        fs::metadata(&mountpoint).is_ok_and(|meta| meta.is_dir()),
        "{mountpoint:?}"
    );
    let _ = node
        .cri()
        .sh(&id, "head -c 4000000 /dev/zero > /file; sync");
    let mut after = before;
    let grown = eventually(Duration::from_secs(20), || {
        after = layer(&stats()).0;
        after >= before + 4_000_000
    });
    assert!(
        grown,
        "the writable layer has {after} bytes and had {before}"
    );

    let request = ListContainerStatsRequest::default();
    let all = node
        .cri()
        .runtime(async |mut client| client.list_container_stats(request).await);
    let all = all.expect("they can be listed").stats;
    let ids: Vec<_> = all
        .iter()
        .filter_map(|stats| Some(stats.attributes.as_ref()?.id.clone()))
        .collect();
    assert!(ids.contains(&id) && ids.contains(&idle), "{ids:?}");
    let request = PodSandboxStatsRequest {
        pod_sandbox_id: pod.id().to_owned(),
    };
    let answer = node
        .cri()
        .runtime(async |mut client| client.pod_sandbox_stats(request).await);
    let linux = answer
        .expect("it has stats")
        .stats
        .expect("they are reported")
        .linux
        .expect("they are Linux's");
    let network = linux.network.expect("its network is reported");
    assert_eq!(network.default_interface.expect("it has one").name, "eth0");
    assert!(
        linux
            .containers
            .iter()
            .any(|stats| stats.attributes.as_ref().is_some_and(|a| a.id == id))
    );
}
