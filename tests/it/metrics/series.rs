//! The number of the daemon's own series once each of its parts has been used: `docs/monitoring.md` has the bound.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

use super::scrape;
use crate::architecture::repository;

/// The bound that the documentation has.
fn documented() -> usize {
    let page = fs::read_to_string(repository().join("docs/monitoring.md")).expect("it exists");
    let row = page
        .lines()
        .find(|line| line.starts_with("| `/metrics` |"))
        .expect("it has a row for the page");
    let digits: String = row.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("the row has one number")
}

/// Makes the requests that a kubelet makes again and again.
fn ask(node: &TestNode, pod: &str, container: &str) {
    let cri = node.cri();
    let version = cri::VersionRequest::default();
    cri.runtime(async |mut client| client.version(version).await)
        .expect("it is answered");
    let status = cri::StatusRequest { verbose: false };
    cri.runtime(async |mut client| client.status(status).await)
        .expect("it is answered");
    let pods = cri::ListPodSandboxRequest::default();
    cri.runtime(async |mut client| client.list_pod_sandbox(pods).await)
        .expect("it is answered");
    let of_pod = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.to_owned(),
        ..Default::default()
    };
    cri.runtime(async |mut client| client.pod_sandbox_status(of_pod).await)
        .expect("it is answered");
    let containers = cri::ListContainersRequest::default();
    cri.runtime(async |mut client| client.list_containers(containers).await)
        .expect("it is answered");
    let of_container = cri::ContainerStatusRequest {
        container_id: container.to_owned(),
        ..Default::default()
    };
    cri.runtime(async |mut client| client.container_status(of_container).await)
        .expect("it is answered");
    let stats = cri::ListContainerStatsRequest::default();
    cri.runtime(async |mut client| client.list_container_stats(stats).await)
        .expect("it is answered");
    let stats = cri::ListPodSandboxStatsRequest::default();
    cri.runtime(async |mut client| client.list_pod_sandbox_stats(stats).await)
        .expect("it is answered");
    let metrics = cri::ListPodSandboxMetricsRequest {};
    cri.runtime(async |mut client| client.list_pod_sandbox_metrics(metrics).await)
        .expect("it is answered");
    let images = cri::ListImagesRequest::default();
    cri.images(async |mut client| client.list_images(images).await)
        .expect("it is answered");
    let disks = cri::ImageFsInfoRequest {};
    cri.images(async |mut client| client.image_fs_info(disks).await)
        .expect("it is answered");
}

#[test]
fn daemon_has_no_more_series_than_documented() {
    let node = TestNode::start();
    let pod = node.pod("counted");
    let id = pod.start_shell("main", "exec sleep 1000");
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    ask(&node, pod.id(), &id);
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({
        "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": "host"
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    driver.start(&task.config).expect("it starts");
    task.end(&driver);
    agent.stop();
    node.cri().stop(&id, 0).expect("it stops");
    node.cri().remove(&id).expect("it is removed");
    node.cri().stop_pod(pod.id()).expect("it stops");
    node.cri().remove_pod(pod.id()).expect("it is removed");

    let text = scrape(&node);
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        *families.entry(&line[..end]).or_default() += 1;
    }
    let mut largest: Vec<_> = families
        .iter()
        .map(|(name, count)| (*count, *name))
        .collect();
    largest.sort_unstable();
    largest.reverse();
    largest.truncate(12);
    let all: usize = families.values().sum();
    println!("{all} series, most of them of {largest:?}");
    let most = documented();
    assert!(
        all <= most && all > most / 2,
        "{all} series, and {most} are documented: {largest:?}"
    );
}
