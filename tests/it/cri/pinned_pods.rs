//! Pods on a bridge of the gateway, which send with their own addresses alone unless a container of them has NET_ADMIN.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_proto::cri::v1::{Capability, ContainerConfig};
use switchyard_tests::cri::context;
use switchyard_tests::forger::is_heard;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};

/// Time for a datagram that arrives, and for one that does not.
const LIMIT: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(400);

fn netns(node: &TestNode, pod: &TestPod<'_>) -> PathBuf {
    node.root().run().join("ns").join(pod.id()).join("net")
}

/// Counts the pods that are pinned.
fn pinned(node: &TestNode) -> usize {
    node.root().bridge().pinned()
}

fn with_net_admin(config: &mut ContainerConfig) {
    context(config).capabilities = Some(Capability {
        add_capabilities: vec!["NET_ADMIN".to_owned()],
        ..Capability::default()
    });
}

#[test]
fn pod_uses_a_virtual_address_only_with_net_admin() {
    let node = TestNode::start_configured(|root| {
        format!(
            "[cri]\nnetwork = \"bridge\"\n\
             [network.bridge]\ndriver = \"native\"\nipv6 = false\n\
             [network.pods]\nname = {:?}\nsubnets = [{:?}]\n",
            root.network().bridge(),
            root.network().subnet(),
        )
    });
    let [plain, admin] = ["plain", "admin"].map(|name| node.pod(name));
    let network = node.root().network();
    let [gateway, other] = [network.gateway(), network.spare()];
    let is_forged = |pod: &TestPod<'_>, is_expected: bool| {
        let limit = if is_expected { LIMIT } else { QUIET };
        is_heard(&netns(&node, pod), other, gateway, limit)
    };
    let _id = plain.start_shell("main", "exec sleep 1000");
    assert_eq!(pinned(&node), 2, "before containers are known");
    assert!(!is_forged(&admin, false));
    // The node asks for the virtual address by ARP to answer.
    let script = format!(
        "ip addr add {other}/32 dev eth0\n\
         for i in 1 2 3 4 5 6 7 8 9 10; do ping -c 1 -W 2 -I {other} {gateway} >/dev/null && echo answered && break; done\n\
         ip addr del {other}/32 dev eth0"
    );
    assert_eq!(admin.run_shell(&script, with_net_admin), "answered");
    let check = |when: &str| {
        assert!(
            eventually(LIMIT, || pinned(&node) == 1),
            "{when}: {} are pinned",
            pinned(&node)
        );
        for (pod, is_expected) in [(&plain, false), (&admin, true)] {
            let own: Ipv4Addr = pod.ip().parse().expect("it is an address");
            let from = netns(&node, pod);
            assert!(is_heard(&from, own, gateway, LIMIT), "{when}: {own}");
            assert_eq!(is_forged(pod, is_expected), is_expected, "{when}: {own}");
        }
    };
    check("created");
    node.daemon().kill9();
    node.daemon().restart();
    check("restarted");
    node.root().bridge().remove_tables();
    check("flushed");
    for pod in [&plain, &admin] {
        node.cri().stop_pod(pod.id()).expect("it can be stopped");
    }
    assert_eq!(pinned(&node), 0);
}
