//! Tasks on the gateway's own bridge, which send with their own addresses alone unless they have NET_ADMIN.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use switchyard_crash_points::Operation;
use switchyard_tests::forger::is_heard;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

use super::kills::{amid, as_agent, finish};
use super::networks::NATIVE;

/// Time for a datagram that arrives, and for one that does not.
const LIMIT: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(400);

/// The network namespaces of the tasks of a node.
fn namespaces(node: &TestNode) -> Vec<PathBuf> {
    let all = fs::read_dir(node.root().run().join("ns"));
    let files = all.into_iter().flatten().flatten();
    files
        .map(|entry| entry.path().join("net"))
        .filter(|netns| netns.exists())
        .collect()
}

#[test]
fn task_sends_with_other_addresses_only_with_net_admin() {
    let node = TestNode::start_with(NATIVE, |_| {});
    let agent = Agent::start(node.root(), &json!({ "allow_caps": ["ALL"] }));
    let bridge = node.root().bridge();
    let [gateway, other] = [bridge.gateway(), bridge.spare()];
    for (capabilities, is_forged) in [
        (json!([]), false),
        (json!(["net_raw"]), false),
        (json!(["net_raw", "net_admin"]), true),
    ] {
        let config = json!({
            "image": node.image(), "command": "sleep", "args": ["1000"], "cap_add": capabilities,
        });
        let mut task = TaskSetup::new(node.root(), &agent, "web", &config);
        let started = agent.driver().start(&task.config).expect("it starts");
        let network = started.network_override.expect("it has an address");
        let own: Ipv4Addr = network.addr.parse().expect("it is an address");
        for stage in ["started", "after a restart"] {
            if stage != "started" {
                node.daemon().kill9();
                node.daemon().restart();
                assert!(
                    agent.plugin().exit(LIMIT).is_some(),
                    "a plugin ends with the daemon that was there"
                );
                let _ = agent.dispense();
            }
            // That of the task before goes behind the answer.
            assert!(eventually(LIMIT, || namespaces(&node).len() == 1));
            let netns = namespaces(&node).remove(0);
            assert!(is_heard(&netns, own, gateway, LIMIT), "{capabilities}");
            let limit = if is_forged { LIMIT } else { QUIET };
            let found = is_heard(&netns, other, gateway, limit);
            assert_eq!(found, is_forged, "{stage}, {capabilities}");
        }
        let driver = agent.driver();
        task.end(&driver);
    }
}

#[test]
fn start_with_net_admin_interrupted_by_kill_is_completed_by_retry() {
    let node = TestNode::start_with(NATIVE, |_| {});
    let agent = Agent::start(node.root(), &json!({ "allow_caps": ["ALL"] }));
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", "echo begun; exec sleep 1000"],
        "cap_add": ["net_admin"],
    });
    for step in Operation::AllowNetAdmin.crash_points() {
        let task = TaskSetup::new(node.root(), &agent, "web", &config);
        amid(&node, *step, || {
            as_agent(&agent, |driver| driver.start(&task.config))
        });
        task.wait_stdout(|text| text.contains("begun"));
        // What was cut off goes with its pins.
        assert!(
            eventually(LIMIT, || node.root().bridge().pinned() == 0),
            "{step:?}"
        );
        finish(&agent, task);
        node.assert_clean();
    }
}
