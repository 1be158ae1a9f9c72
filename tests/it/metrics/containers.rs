//! The metrics of real containers under the names that their owners gave them.

use std::collections::BTreeSet;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

use super::{LIMIT, promtool, value};

/// Messages of promtool about two names that cAdvisor chose and dashboards use.
const MISNOMERS: [&str; 2] = [
    "container_fs_inodes_total non-counter metrics should not have \"_total\" suffix",
    "container_memory_failcnt counter metrics should have \"_total\" suffix",
];

const BUSY: &str = "while :; do :; done";

fn containers(node: &TestNode, query: &str) -> String {
    let (status, text) = node.daemon().get(&format!("/metrics/containers{query}"));
    assert_eq!(status, 200, "{text}");
    text
}

fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("container_"))
}

/// The names of the metrics that CRI reports of a pod and its containers.
fn names_in_cri(node: &TestNode, pod: &str) -> BTreeSet<String> {
    let request = cri::ListPodSandboxMetricsRequest {};
    let answer = node
        .cri()
        .runtime(async |mut client| client.list_pod_sandbox_metrics(request).await);
    let pods = answer.expect("they are served").pod_metrics;
    let pod = pods
        .into_iter()
        .find(|metrics| metrics.pod_sandbox_id == pod)
        .expect("the pod is ready");
    let inside = pod
        .container_metrics
        .into_iter()
        .flat_map(|container| container.metrics);
    pod.metrics
        .into_iter()
        .chain(inside)
        .map(|metric| metric.name)
        .collect()
}

#[test]
fn containers_of_pods_and_jobs_have_the_names_of_their_owners() {
    let node = TestNode::start();
    let pod = node.pod("measured");
    let id = pod.start(&node.container("main", &["sh", "-c", BUSY]));
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let image = node.image();
    let config =
        json!({ "image": image, "command": "sh", "args": ["-c", BUSY], "network_mode": "host" });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    driver.start(&task.config).expect("it starts");

    let alloc = task.config.alloc_id.clone();
    let of_pod = [
        ("owner", "kubernetes"),
        ("pod", "measured"),
        ("namespace", "tests"),
    ];
    let of_container = [
        &of_pod[..],
        &[("id", &id), ("container", "main"), ("image", &image)],
    ]
    .concat();
    let of_task = [
        ("owner", "nomad"),
        ("nomad_namespace", "default"),
        ("nomad_job", "job"),
        ("nomad_group", "group"),
        ("nomad_alloc", &alloc),
        ("nomad_task", "task"),
        ("image", &image),
    ];
    let used = |text: &str, labels: &[(&str, &str)]| {
        value(
            text,
            "container_cpu_usage_seconds_total",
            &[labels, &[("cpu", "total")]].concat(),
        )
    };
    // Readings are shared for seconds: the first may be from before the containers.
    let mut text = String::new();
    let both_used = || {
        text = containers(&node, "");
        used(&text, &of_container) > Some(0.1) && used(&text, &of_task) > Some(0.1)
    };
    assert!(
        eventually(LIMIT, both_used),
        "no processor was used: {text}"
    );
    assert_usage_is_plausible(&text, [&of_container, &of_task]);
    let interface = [
        ("id", pod.id()),
        ("container", ""),
        ("image", ""),
        ("interface", "eth0"),
    ];
    let sent = [&of_pod[..], &interface].concat();
    assert!(
        value(&text, "container_network_transmit_packets_total", &sent) >= Some(0.0),
        "{text}"
    );
    assert_names_are_of_one_owner(&text);

    assert_each_owner_can_be_asked_for(&node, pod.id());
    let said = promtool(&text);
    assert_eq!(said.lines().collect::<Vec<_>>(), MISNOMERS, "{said}");

    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();
}

fn assert_each_owner_can_be_asked_for(node: &TestNode, pod: &str) {
    let pods = containers(node, "?owner=kubernetes");
    let names: BTreeSet<_> = samples(&pods)
        .filter_map(|line| Some(line.split_once('{')?.0.to_owned()))
        .collect();
    assert_eq!(names, names_in_cri(node, pod));
    let jobs = containers(node, "?owner=nomad");
    assert!(
        samples(&jobs).count() > 20 && samples(&jobs).all(|line| line.contains("owner=\"nomad\""))
    );
    assert_eq!(samples(&containers(node, "?owner=swarm")).count(), 0);
    assert_eq!(
        node.daemon()
            .get_from_admin_address("/metrics/containers")
            .0,
        404
    );
}

fn assert_names_are_of_one_owner(text: &str) {
    for sample in samples(text) {
        let is_pod = sample.contains("{owner=\"kubernetes\",id=\"");
        assert!(
            is_pod || sample.contains("{owner=\"nomad\",id=\""),
            "{sample}"
        );
        assert_eq!(
            sample.contains(",pod=\"measured\",namespace=\"tests\",container=\""),
            is_pod,
            "{sample}"
        );
        assert_eq!(sample.contains(",nomad_alloc=\""), !is_pod, "{sample}");
    }
}

fn assert_usage_is_plausible(text: &str, labels: [&[(&str, &str)]; 2]) {
    for labels in labels {
        let memory = value(text, "container_memory_working_set_bytes", labels);
        assert!(
            memory > Some(4096.0) && memory < Some(1e9),
            "{labels:?}: {memory:?}\n{text}"
        );
        assert_eq!(
            value(text, "container_processes", labels),
            Some(1.0),
            "{labels:?}\n{text}"
        );
        let started = value(text, "container_start_time_seconds", labels);
        let seen = value(text, "container_last_seen", labels);
        assert!(
            started <= seen && started > seen.map(|seen| seen - 300.0),
            "{started:?} {seen:?}"
        );
    }
}
