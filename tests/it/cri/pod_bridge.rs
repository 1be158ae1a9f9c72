//! Pods on a bridge of the gateway: on a node without a CNI configuration and without CNI plugins.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use serde_json::Value;
use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_network::nft::{Element, NftFamily};
use switchyard_proto::cri::v1::PortMapping;
use switchyard_tests::host::{eventually, free_port};
use switchyard_tests::http;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use tonic::{Code, Status};

/// Serves a page on port 80.
const SERVE: &str =
    "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";
/// Time for a server to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts a node whose pods are on the bridge of this name. There is nothing of CNI on it.
fn node(more: impl FnOnce(&PrivateRoot) -> String) -> TestNode {
    TestNode::start_configured(|root| {
        fs::remove_dir_all(root.cni_conf()).expect("the root has made it");
        on_bridge(root, &more(root))
    })
}

/// The configuration of such a node.
fn on_bridge(root: &PrivateRoot, more: &str) -> String {
    format!(
        "[cri]\nnetwork = \"bridge\"\n\
         [network]\nbin_dirs = [{:?}]\n\
         [network.bridge]\ndriver = \"native\"\nipv6 = false\n\
         [network.pods]\nname = {:?}\n{more}",
        root.path().join("no-plugins"),
        root.network().bridge(),
    )
}

/// The configuration of a node whose pods have the network of CNI, with the same bridges.
fn without_pods(root: &PrivateRoot) -> String {
    format!(
        "[network.bridge]\ndriver = \"native\"\nipv6 = false\n\
         [network.pods]\nname = {:?}\n",
        root.network().bridge()
    )
}

/// The file that says that the pods of a gateway are on their bridge.
fn mark(node: &TestNode) -> PathBuf {
    let bridge = node.root().network().bridge();
    node.root().state().join(format!("network/{bridge}.pods"))
}

fn is_served(address: SocketAddr) -> bool {
    http::get(address, "/").is_ok_and(|page| page.text() == "hello\n")
}

#[track_caller]
fn assert_served(address: SocketAddr, pod: &TestPod<'_>) {
    let log = || pod.log_text("main");
    assert!(
        eventually(LIMIT, || is_served(address)),
        "nobody answers on {address}: {}",
        log()
    );
}

/// The condition of the network, with its message.
fn network(node: &TestNode) -> (bool, String) {
    let condition = node.cri().condition("NetworkReady");
    let condition = condition.expect("the daemon has a status");
    (condition.status, condition.message)
}

/// The files of addresses in use on the bridge of pods.
fn in_use(node: &TestNode) -> Vec<String> {
    let dir = node.root().bridge().data_dir();
    let files = fs::read_dir(dir.join(node.root().network().bridge()));
    let names = files.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.parse::<IpAddr>().is_ok())
        .collect()
}

/// Lists the elements of the tables.
fn elements(node: &TestNode) -> Vec<Element> {
    let mut tables = node.root().bridge().tables();
    let mut found = Vec::new();
    for family in NftFamily::TABLES {
        let table = tables.read(family).expect("root may read it");
        found.extend(table.iter().flat_map(|table| table.elements().clone()));
    }
    found
}

#[test]
fn pods_have_addresses_of_the_pod_cidr_and_host_ports_without_any_plugin() {
    let node = node(|_| String::new());
    let (is_ready, message) = network(&node);
    assert!(!is_ready && message.contains("podCIDR"), "{message}");
    let refused = node.cri().run_pod(&node.pod_config("early"));
    let refused = refused.expect_err("it has no addresses");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");

    let subnet = node.root().network().subnet();
    node.cri().set_pod_cidr(&subnet).expect("it is a range");
    assert_eq!(network(&node), (true, String::new()));
    let port = free_port();
    let pod = node.pod_with("served", |config| {
        config.port_mappings = vec![PortMapping {
            container_port: 80,
            host_port: i32::from(port),
            ..Default::default()
        }];
    });
    let _id = pod.start_shell("main", SERVE);
    let ip: Ipv4Addr = pod.ip().parse().expect("it is an address");
    assert!(
        node.root().network().contains(ip),
        "{ip} is not of {subnet}"
    );
    let published = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert_served((ip, 80).into(), &pod);
    assert_served(published, &pod);
    let beside = node.pod("beside");
    let asked = beside.run_shell(&format!("wget -q -O - http://{ip}/"), |_| {});
    assert_eq!(asked, "hello");

    // The ranges are on record, and pods go on.
    node.daemon().kill9();
    node.daemon().restart();
    assert_served(published, &pod);
    assert_eq!(network(&node), (true, String::new()));
    for pod in [&pod, &beside] {
        node.cri().stop_pod(pod.id()).expect("it can be stopped");
    }
    assert!(!is_served(published), "{published} still leads somewhere");
    assert_eq!(in_use(&node), Vec::<String>::new());
    let is_port = |element: &Element| matches!(element, Element::Port { .. });
    assert!(!elements(&node).iter().any(is_port));
}

#[test]
fn pods_of_a_node_without_a_kubelet_have_configured_addresses() {
    let node = node(|root| format!("subnets = [{:?}]\n", root.network().subnet()));
    assert_eq!(network(&node), (true, String::new()));
    let pod = node.pod("alone");
    let ip: Ipv4Addr = pod.ip().parse().expect("it is an address");
    assert!(node.root().network().contains(ip), "{ip}");
    let route = pod.run_shell("ip route", |_| {});
    let gateway = node.root().network().gateway();
    assert!(route.contains(&format!("default via {gateway}")), "{route}");
    let facts: Value = serde_json::from_str(&node.cri().node_info("config")).expect("it is JSON");
    let shown = facts.to_string();
    assert!(shown.contains(node.root().network().bridge()), "{shown}");
}

/// The kubelet may tell others while pods have addresses of the former ones.
#[test]
fn pods_keep_their_addresses_when_the_node_gets_others() {
    let node = node(|root| format!("subnets = [{:?}]\n", root.network().subnet()));
    let former = node.pod("former");
    let _id = former.start_shell("main", SERVE);
    let ip: Ipv4Addr = former.ip().parse().expect("it is an address");
    // The network of the gateway's own bridge is taken.
    let taken = node.root().bridge().subnet();
    node.cri().set_pod_cidr(&taken).expect("it is a range");
    let (is_ready, message) = network(&node);
    assert!(!is_ready && message.contains("own bridge"), "{message}");
    assert_served((ip, 80).into(), &former);
    let [a, b, c, _] = ip.octets();
    let upper = format!("{a}.{b}.{c}.128/25");
    node.cri().set_pod_cidr(&upper).expect("it is a range");
    assert_eq!(network(&node), (true, String::new()));
    let present = node.pod("present");
    let next: Ipv4Addr = present.ip().parse().expect("it is an address");
    assert!(next.octets()[3] > 128, "{next}");
    for to in [ip, next] {
        assert!(node.root().network().contains(to), "{to}");
    }
    let _id = present.start_shell("main", SERVE);
    assert_served((next, 80).into(), &present);
    assert_served((ip, 80).into(), &former);
    for pod in [&former, &present] {
        node.cri().stop_pod(pod.id()).expect("it can be stopped");
    }
    assert_eq!(in_use(&node), Vec::<String>::new());
}

/// The plugin `bridge` gives a bridge one address of IPv4.
#[test]
fn with_plugins_another_range_waits_until_the_bridge_of_the_former_one_is_deleted() {
    let node = TestNode::start_configured(|root| {
        let network = root.network();
        let bridge = network.bridge();
        let subnet = network.subnet();
        format!(
            "[cri]\nnetwork = \"bridge\"\n\
             [network.pods]\nname = {bridge:?}\nsubnets = [{subnet:?}]\n"
        )
    });
    let bridge = node.root().network().bridge().to_owned();
    let former = node.pod("former");
    let ip: Ipv4Addr = former.ip().parse().expect("it is an address");
    let [a, b, c, _] = ip.octets();
    let upper = format!("{a}.{b}.{c}.128/25");
    node.cri().set_pod_cidr(&upper).expect("it is a range");
    let (is_ready, message) = network(&node);
    let advice = format!("ip link delete {bridge}");
    assert!(!is_ready && message.contains(&advice), "{message}");
    node.cri().stop_pod(former.id()).expect("it can be stopped");
    let deleted = Command::new(prereq::require("ip", "iproute2"))
        .args(["link", "delete", &bridge])
        .status();
    assert!(deleted.expect("it was found").success());
    assert!(
        eventually(LIMIT, || network(&node).0),
        "{:?}",
        network(&node)
    );
    let present = node.pod("present");
    let next: Ipv4Addr = present.ip().parse().expect("it is an address");
    assert!(next.octets()[3] > 128, "{next}");
}

/// As when a network add-on comes to the node, which may have the same range.
#[test]
fn bridge_without_pods_is_deleted_when_new_ones_have_the_network_of_cni_again() {
    let node = node(|root| format!("subnets = [{:?}]\n", root.network().subnet()));
    let bridge = node.root().network().bridge().to_owned();
    let mark = mark(&node);
    assert!(mark.exists(), "the bridge would be another gateway's");
    let last = node.pod("last");
    node.root().write_config(&without_pods(node.root()));
    node.daemon().restart();
    let is_there = || if_nametoindex(bridge.as_str()).is_ok();
    assert!(is_there() && mark.exists(), "a pod is on it");
    node.cri().stop_pod(last.id()).expect("it can be stopped");
    assert_eq!(in_use(&node), Vec::<String>::new());
    node.daemon().restart();
    assert!(eventually(LIMIT, || !is_there()), "{bridge} stays");
    assert!(eventually(LIMIT, || !mark.exists()), "{bridge} is marked");
}

/// The daemon is killed at each step of noting that pods are on their bridge, and of deleting it when they are not any more.
#[test]
fn kill_amid_a_change_of_the_network_of_pods_leaves_neither_bridge_nor_mark() {
    let subnets = |root: &PrivateRoot| format!("subnets = [{:?}]\n", root.network().subnet());
    let node = node(subnets);
    let bridge = node.root().network().bridge().to_owned();
    let mark = mark(&node);
    let is_there = || if_nametoindex(bridge.as_str()).is_ok();
    let killed_at = |step: CrashPoint| {
        node.daemon().kill9();
        node.daemon().kill_at(&[(step, 1)]);
        node.daemon().spawn();
        node.daemon().wait_killed();
    };
    node.root().write_config(&without_pods(node.root()));
    node.daemon().restart();
    assert!(eventually(LIMIT, || !mark.exists()), "{bridge} is marked");

    let root = node.root();
    root.write_config(&on_bridge(root, &subnets(root)));
    for step in Operation::MarkPodBridge.crash_points() {
        killed_at(*step);
        assert!(mark.exists(), "{step:?}");
    }
    node.daemon().restart();
    let is_known = || {
        let is_it =
            |element: &Element| matches!(element, Element::Bridge(name) if name.as_str() == bridge);
        elements(&node).iter().any(is_it)
    };
    let last = node.pod("last");
    assert!(is_known(), "the tables have no rules for {bridge}");
    node.cri().stop_pod(last.id()).expect("it can be stopped");
    assert!(is_there() && mark.exists(), "no pod was on it");

    root.write_config(&without_pods(root));
    // Each start goes on where the one before was killed.
    for step in Operation::DeletePodBridge.crash_points() {
        killed_at(*step);
        let [is_deleted, is_unmarked] =
            [CrashPoint::PodBridgeDeleted, CrashPoint::PodBridgeUnmarked].map(|at| at <= *step);
        if *step == CrashPoint::PodBridgeRulesRemoved {
            // No daemon runs that would add it again.
            assert!(!is_known(), "the tables have rules for {bridge}");
        }
        assert_eq!(is_there(), !is_deleted, "{step:?}");
        assert_eq!(mark.exists(), !is_unmarked, "{step:?}");
    }
    node.daemon().restart();
    assert!(!is_there() && !mark.exists());
}

/// Makes a request amid which the daemon is killed at this step, and makes it again of the next one.
#[track_caller]
fn interrupted<T>(node: &TestNode, step: CrashPoint, request: impl Fn() -> Result<T, Status>) -> T {
    node.daemon().kill_at(&[(step, 1)]);
    // The answer is lost with the daemon.
    let _ = request();
    node.daemon().wait_killed();
    node.daemon().restart();
    request().unwrap_or_else(|status| panic!("{step:?}: {status}"))
}

#[test]
fn pod_has_one_address_and_one_port_whatever_the_daemon_is_killed_after() {
    let node = node(|root| format!("subnets = [{:?}]\n", root.network().subnet()));
    let bridge = node.root().bridge();
    let port = free_port();
    // The first pod alone makes the bridge.
    let attach = Operation::AttachToBridge.crash_points().iter().copied();
    let of_each = attach.filter(|step| *step != CrashPoint::BridgeMade);
    let attach = [CrashPoint::BridgeMade].into_iter().chain(of_each);
    let mut detach = Operation::DetachFromBridge.crash_points().iter().cycle();
    for begin in attach {
        let mut config = node.pod_config("killed");
        config.port_mappings = vec![PortMapping {
            container_port: 80,
            host_port: i32::from(port),
            ..Default::default()
        }];
        let id = interrupted(&node, begin, || node.cri().run_pod(&config));
        let status = node.cri().pod_status(&id).expect("it is there");
        let address = status.network.unwrap_or_default().ip;
        let address: IpAddr = address.parse().expect("it has an address");
        assert_eq!(bridge.holders(address), [id.as_str()], "{begin:?}");
        assert_eq!(bridge.targets(port), [address], "{begin:?}");
        let is_alone = || in_use(&node) == [address.to_string()];
        assert!(
            eventually(LIMIT, is_alone),
            "{begin:?}: {:?}",
            in_use(&node)
        );
        let end = *detach.next().expect("it has steps");
        interrupted(&node, end, || node.cri().stop_pod(&id));
        assert_eq!(bridge.targets(port), Vec::<IpAddr>::new(), "{end:?}");
        assert_eq!(in_use(&node), Vec::<String>::new(), "{end:?}");
        let removed = node.cri().remove_pod(&id);
        removed.expect("it can be removed");
        node.assert_clean();
    }
}
