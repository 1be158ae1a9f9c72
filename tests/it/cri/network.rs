//! Pod networks: addresses, host ports, bandwidth, the host network.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::cri::v1::{DnsConfig, NamespaceMode, PortMapping, StatusRequest};
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::{http, prereq};
use tonic::Code;

/// Serves a page on port 80.
const SERVE: &str =
    "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";
/// Time for a server to answer.
const LIMIT: Duration = Duration::from_secs(10);

fn answers(address: SocketAddr) -> bool {
    eventually(LIMIT, || {
        http::get(address, "/").is_ok_and(|page| page.text() == "hello\n")
    })
}

/// The name of the host's end of a pod's interface.
fn host_interface(node: &TestNode, container: &str) -> String {
    let index = node.cri().sh(container, "cat /sys/class/net/eth0/iflink");
    let ports = format!("/sys/class/net/{}/brif", node.root().network().bridge());
    let entries = fs::read_dir(ports).expect("the bridge is there while a pod is");
    let mut names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .find(|name| {
            fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))
                .is_ok_and(|text| text.trim() == index)
        })
        .expect("the peer of eth0 is at the bridge")
}

#[test]
fn pod_is_reachable_at_its_address() {
    let node = TestNode::shared();
    let pod = node.pod("served");
    let _id = pod.start_shell("main", SERVE);
    let ip: Ipv4Addr = pod.ip().parse().expect("it is an address");
    assert!(node.root().network().contains(ip), "{ip}");
    assert!(
        answers((ip, 80).into()),
        "nobody answers on {ip}: {}",
        pod.log_text("main")
    );
}

#[test]
fn dual_stack_pod_has_two_addresses() {
    let node = TestNode::start_with("", |root| root.use_dual_stack());
    let pod = node.pod("dual");
    let _id = pod.start_shell("main", SERVE);
    let network = pod.status().network.expect("it has a network");
    let first: IpAddr = network.ip.parse().expect("it is an address");
    assert_eq!(network.additional_ips.len(), 1, "{network:?}");
    let second: IpAddr = network.additional_ips[0]
        .ip
        .parse()
        .expect("it is an address");
    assert!(first.is_ipv4() && second.is_ipv6(), "{network:?}");
    assert!(
        answers((first, 80).into()) && answers((second, 80).into()),
        "{}",
        pod.log_text("main")
    );
}

/// The plugin bridge enables IPv6 where the pod has disabled it.
#[test]
fn pod_that_disables_ipv6_has_none_on_a_dual_stack_network() {
    let node = TestNode::start_with("", |root| root.use_dual_stack());
    for (interface, has_address, has_loopback) in [
        ("all", false, false),
        ("eth0", false, true),
        ("lo", true, false),
    ] {
        let pod = node.pod_with(&format!("without-{interface}"), |config| {
            let sysctls = &mut config.linux.get_or_insert_default().sysctls;
            let name = format!("net.ipv6.conf.{interface}.disable_ipv6");
            sysctls.insert(name, "1".into());
        });
        let network = pod.status().network.expect("it has a network");
        let found: IpAddr = network.ip.parse().expect("it is an address");
        assert!(found.is_ipv4(), "{interface}: {network:?}");
        assert_eq!(
            network.additional_ips.len(),
            usize::from(has_address),
            "{interface}: {network:?}"
        );
        let script = "grep -c '^fd00' /proc/net/if_inet6; grep -c ' lo$' /proc/net/if_inet6; grep -c '^::1' /etc/hosts; true";
        let [address, loopback] = [has_address, has_loopback].map(u8::from);
        assert_eq!(
            pod.run_shell(script, |_| {}),
            format!("{address}\n{loopback}\n{loopback}"),
            "{interface}"
        );
    }
}

/// Lets the bridge of a node be made by a plugin that keeps what it was given, in a network that takes its
/// ranges from outside.
fn note_what_is_given(root: &PrivateRoot) -> String {
    let dir = root.path().join("cni/noting");
    fs::create_dir_all(&dir).expect("the root can be written");
    let script = format!(
        "#!/bin/sh\ncat > '{0}'/$CNI_COMMAND\nexec {1}/bridge < '{0}'/$CNI_COMMAND\n",
        dir.display(),
        prereq::CNI_BIN_DIR
    );
    let plugin = dir.join("noting");
    fs::write(&plugin, script).expect("the root can be written");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let file = root.cni_conf().join("10-test.conflist");
    let text = fs::read(&file).expect("the root has written it");
    let mut list: Value = serde_json::from_slice(&text).expect("it is JSON");
    let bridge = &mut list["plugins"][0];
    bridge["type"] = json!("noting");
    bridge["capabilities"] = json!({ "dns": true, "cgroupPath": true, "ipRanges": true });
    bridge["ipam"]
        .as_object_mut()
        .expect("it is an object")
        .remove("ranges");
    fs::write(&file, list.to_string()).expect("the root can be written");
    format!(
        "[network]\nbin_dirs = [{dir:?}, {:?}]\n",
        prereq::CNI_BIN_DIR
    )
}

#[test]
fn cni_plugin_gets_its_requested_capability_args() {
    let node = TestNode::start_configured(note_what_is_given);
    let subnet = node.root().network().subnet();
    node.cri().set_pod_cidr(&subnet).expect("it is a range");
    node.daemon().kill9();
    node.daemon().restart();
    let mut config = node.pod_config("ranged");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    config.dns_config = Some(DnsConfig {
        servers: words(&["10.0.0.10"]),
        searches: words(&["cluster.local"]),
        options: words(&["ndots:5"]),
    });
    let parent = config.linux.clone().unwrap_or_default().cgroup_parent;
    let pod = node.run(config);
    let ip: Ipv4Addr = pod.ip().parse().expect("it is an address");
    assert!(
        node.root().network().contains(ip),
        "{ip} is not of {subnet}"
    );
    let given = fs::read(node.root().path().join("cni/noting/ADD")).expect("the plugin was run");
    let given: Value = serde_json::from_slice(&given).expect("it is JSON");
    let expected = json!({
        "dns": { "servers": ["10.0.0.10"], "searches": ["cluster.local"], "options": ["ndots:5"] },
        "cgroupPath": parent,
        "ipRanges": [[{ "subnet": subnet }]],
    });
    assert_eq!(given["runtimeConfig"], expected);
    let status = node
        .cri()
        .set_pod_cidr("10.0.0.0/40")
        .expect_err("it is no range");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
}

#[test]
fn host_port_reaches_the_pod_until_it_is_stopped() {
    let node = TestNode::shared();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|socket| socket.local_addr())
        .expect("loopback has a free port")
        .port();
    let pod = node.pod_with("ports", |config| {
        let host_port = i32::from(port);
        config.port_mappings = vec![PortMapping {
            container_port: 80,
            host_port,
            ..Default::default()
        }];
    });
    let _id = pod.start_shell("main", SERVE);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(
        answers(address),
        "nobody answers on {address}: {}",
        pod.log_text("main")
    );
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    // Nobody listens there any more; what leads there goes behind the answer.
    assert!(
        eventually(LIMIT, || http::get(address, "/").is_err()),
        "{address} still leads somewhere"
    );
}

#[test]
fn host_network_pod_reports_no_address() {
    let node = TestNode::shared();
    let pod = node.pod_with("host", |config| {
        namespaces(config).set_network(NamespaceMode::Node);
        config.hostname = "ignored".to_owned();
    });
    let status = pod.status();
    assert_eq!(status.network.unwrap_or_default().ip, "");
    let options = status
        .linux
        .and_then(|linux| linux.namespaces?.options)
        .expect("its namespaces are reported");
    assert_eq!(options.network(), NamespaceMode::Node);
    let seen = pod.run_shell("readlink /proc/self/ns/net; hostname", |_| {});
    let net = fs::read_link("/proc/self/ns/net").expect("this process has a namespace");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    assert_eq!(seen, format!("{}\n{}", net.display(), host.trim_end()));
}

#[test]
fn bandwidth_limits_are_applied_to_the_host_veth() {
    let node = TestNode::shared();
    let pod = node.pod_with("rates", |config| {
        for direction in ["ingress", "egress"] {
            config
                .annotations
                .insert(format!("kubernetes.io/{direction}-bandwidth"), "10M".into());
        }
    });
    let id = pod.start_shell("main", "exec sleep 1000");
    let interface = host_interface(&node, &id);
    let tc = prereq::require("tc", "iproute2");
    let shown = Command::new(tc)
        .args(["qdisc", "show", "dev", &interface])
        .output()
        .expect("tc starts");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("tbf") && shown.contains("10Mbit") && shown.contains("ingress"),
        "{shown}"
    );
}

/// Every change of the configuration shows in the next Status, and in the next pod, without a restart.
#[test]
fn network_configuration_changes_are_detected() {
    let node = TestNode::start();
    let file = node.root().cni_conf().join("10-test.conflist");
    let good = fs::read_to_string(&file).expect("it was written");
    let condition = || {
        node.cri()
            .condition("NetworkReady")
            .expect("it is reported")
    };
    let refused = |why: &str| {
        let condition = condition();
        assert!(
            !condition.status && condition.reason == "NetworkPluginNotReady",
            "{why}: {condition:?}"
        );
        assert!(condition.message.contains(why), "{condition:?}");
        let status = node
            .cri()
            .run_pod(&node.pod_config("refused"))
            .expect_err("there is no network");
        assert!(status.message().contains(why), "{status}");
    };
    assert!(condition().status, "{:?}", condition());
    let kept = node.pod("kept");
    fs::write(&file, "{ \"name\": \"cut").expect("the root can be written");
    refused("10-test.conflist");
    let plugin = "no-such-plugin";
    fs::write(
        &file,
        good.replace("\"bandwidth\",", &format!("{plugin:?},")),
    )
    .expect("the root can be written");
    refused(plugin);
    fs::remove_file(&file).expect("it is there");
    refused(node.root().cni_conf().to_str().expect("the path is ASCII"));
    // What runs is none of its business, and what was attached can be detached without it.
    assert!(!kept.ip().is_empty());
    drop(kept);
    // A file that comes first by name is used from then on.
    fs::write(&file, &good).expect("the root can be written");
    assert!(condition().status, "{:?}", condition());
    let other = good.replacen(
        &format!("\"name\": \"{}\"", network_name(&good)),
        "\"name\": \"other\"",
        1,
    );
    fs::write(node.root().cni_conf().join("05-other.conflist"), other)
        .expect("the root can be written");
    let pod = node.pod("other");
    let journal = node
        .root()
        .state()
        .join("sandboxes")
        .join(pod.id())
        .join("cni.json");
    let journal = fs::read_to_string(journal).expect("the attachment is in a journal");
    assert!(journal.contains("\"other\""), "{journal}");
}

/// The name that a configuration gives its network.
fn network_name(conflist: &str) -> String {
    let list: Value = serde_json::from_str(conflist).expect("it is JSON");
    list["name"].as_str().expect("it has a name").to_owned()
}

#[test]
fn without_network_configuration_only_host_network_pods_run() {
    let conflist = |root: &PrivateRoot| root.cni_conf().join("10-test.conflist");
    let node = TestNode::start_with("", |root| {
        fs::remove_file(conflist(root)).expect("it was written")
    });
    let network_ready = || {
        let request = StatusRequest::default();
        let answer = node
            .cri()
            .runtime(async |mut client| client.status(request).await);
        let conditions = answer
            .expect("it reports its status")
            .status
            .expect("it has one")
            .conditions;
        conditions
            .into_iter()
            .find(|condition| condition.r#type == "NetworkReady")
            .expect("it is reported")
    };
    let condition = network_ready();
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (false, "NetworkPluginNotReady")
    );
    let config = node.pod_config("none");
    let status = node
        .cri()
        .run_pod(&config)
        .expect_err("there is no network for it");
    assert!(
        matches!(status.code(), Code::Unavailable | Code::FailedPrecondition),
        "{status}"
    );
    node.assert_clean();
    let host = node.pod_with("host", |config| {
        namespaces(config).set_network(NamespaceMode::Node)
    });
    assert_eq!(host.run_shell("echo runs", |_| {}), "runs");
    node.root()
        .network()
        .write_conflist(&node.root().cni_conf(), false);
    assert!(
        eventually(LIMIT, || network_ready().status),
        "the new configuration is not seen"
    );
    assert!(!node.run(config).ip().is_empty());
}
