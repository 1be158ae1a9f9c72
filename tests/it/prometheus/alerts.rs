//! Alerts that fire and clear on a real node: each fault is made, and mended.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_tests::devices::{container_with_device, device_group};
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::prometheus::Prometheus;
use switchyard_tests::scraped_node::ScrapedTestNode;

/// Time for an alert to fire or to clear: the longest looks back over fifteen minutes, which are half a
/// minute here.
const LIMIT: Duration = Duration::from_secs(120);

/// A node with a small disk for its state, and one device.
fn start() -> ScrapedTestNode {
    ScrapedTestNode::start(|root| {
        root.small_disk(&root.state(), "size=60m");
        device_group(root)
    })
}

/// Waits until the node is scraped and no alert fires.
#[track_caller]
fn wait_quiet(prometheus: &Prometheus) {
    let quiet = eventually(LIMIT, || {
        let up = prometheus
            .query("up{job=\"switchyard\"} == 1")
            .expect("it is valid");
        let firing = prometheus
            .query("ALERTS{alertstate=\"firing\"}")
            .expect("it is valid");
        !up.is_empty() && firing.is_empty()
    });
    assert!(
        quiet,
        "{:?}\n{}",
        prometheus.query("ALERTS or up"),
        prometheus.log()
    );
}

#[test]
fn alerts_fire_and_clear_as_parts_of_a_node_fail_and_recover() {
    let scraped = start();
    let prometheus = scraped.prometheus();
    wait_quiet(&prometheus);
    let node = &scraped.node;

    full_disk(node, &prometheus);
    refused_reload(node, &prometheus);
    refused_device(node, &prometheus);
    hanging_containerd(node, &prometheus);
    stopped_daemon(&scraped, &prometheus);
    wait_quiet(&prometheus);
}

fn full_disk(node: &TestNode, prometheus: &Prometheus) {
    let filling = node.root().state().join("filling");
    let mut file = File::create(&filling).expect("there is an inode left");
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    prometheus.wait_alert("SwitchyardDiskFull", true, LIMIT);
    prometheus.wait_alert("SwitchyardDiskAlmostFull", true, LIMIT);
    let firing = prometheus.firing("SwitchyardDiskAlmostFull");
    let state = node.root().state().display().to_string();
    assert!(
        firing.iter().any(|labels| labels["mountpoint"] == state),
        "{firing:?}"
    );
    fs::remove_file(&filling).expect("it is there");
    prometheus.wait_alert("SwitchyardDiskFull", false, LIMIT);
    prometheus.wait_alert("SwitchyardDiskAlmostFull", false, LIMIT);
}

fn refused_reload(node: &TestNode, prometheus: &Prometheus) {
    let hang_up = || kill(Pid::from_raw(node.daemon().pid()), Signal::SIGHUP).expect("it runs");
    let good = fs::read_to_string(node.root().config()).expect("it was written");
    fs::write(
        node.root().config(),
        good.replace("version = 1", "version = 1\nlevle = 1"),
    )
    .expect("it is ours");
    hang_up();
    prometheus.wait_alert("SwitchyardReloadRefused", true, LIMIT);
    fs::write(node.root().config(), good).expect("it is ours");
    hang_up();
    prometheus.wait_alert("SwitchyardReloadRefused", false, LIMIT);
}

fn refused_device(node: &TestNode, prometheus: &Prometheus) {
    // One refusal is seen only where the node was scraped a quarter of an hour before, which is half a minute here.
    let scraped = eventually(LIMIT, || {
        let before = prometheus.query("up{job=\"switchyard\"} offset 30s == 1");
        !before.expect("it is valid").is_empty()
    });
    assert!(scraped, "{}", prometheus.log());
    let first = node.pod("first");
    first
        .try_create(&container_with_device(node, "holder"))
        .expect("the device is free");
    let second = node.pod("second");
    second
        .try_create(&container_with_device(node, "other"))
        .expect_err("the device is taken");
    prometheus.wait_alert("SwitchyardDeviceRefused", true, LIMIT);
    let firing = prometheus.firing("SwitchyardDeviceRefused");
    assert!(
        firing
            .iter()
            .all(|labels| labels["owner"] == "kubernetes" && labels["reason"] == "held"),
        "{firing:?}"
    );
    prometheus.wait_alert("SwitchyardDeviceRefused", false, LIMIT);
}

fn hanging_containerd(node: &TestNode, prometheus: &Prometheus) {
    let containerd = node.containerd_pid();
    kill(containerd, Signal::SIGSTOP).expect("it runs");
    prometheus.wait_alert("SwitchyardContainerdDown", true, LIMIT);
    kill(containerd, Signal::SIGCONT).expect("it is there, stopped");
    prometheus.wait_alert("SwitchyardContainerdDown", false, LIMIT);
}

fn stopped_daemon(scraped: &ScrapedTestNode, prometheus: &Prometheus) {
    scraped.node.daemon().terminate();
    prometheus.wait_alert("SwitchyardDown", true, LIMIT);
    scraped.node.daemon().restart();
    // It has another port: nodes.yaml is read again, and the name of the node has no port.
    scraped.adapt();
    prometheus.wait_alert("SwitchyardDown", false, LIMIT);
}
