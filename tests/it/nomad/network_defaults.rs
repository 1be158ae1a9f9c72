//! The defaults of the gateway's bridges: a node that begins with this version has bridges of the daemon, which are kept apart, and one of
//! a former version stays as it is (ADR 117).

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::eventually;
use switchyard_tests::http;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::root::PrivateRoot;

/// Time for a server to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Serves a page on port 80.
const SERVE: &str =
    "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";

/// Removes what says that a node of tests has the former defaults.
fn forget_defaults(root: &PrivateRoot) {
    fs::remove_file(root.network_defaults()).expect("the root has written it");
}

fn record(node: &TestNode) -> String {
    fs::read_to_string(node.root().network_defaults()).expect("a daemon has started here")
}

/// Returns what the daemon has in force: driver, isolation and direct routing, each with its source.
fn in_force(node: &TestNode) -> [String; 3] {
    let dump = node.output(&["config", "dump", "--running", "--origin"]);
    let section = |name: &str| {
        let (_, text) = dump
            .split_once(&format!("\n[{name}]\n"))
            .unwrap_or_else(|| panic!("{name}: {dump}"));
        text.split_once("\n[").map_or(text, |(text, _)| text)
    };
    let value = |name: &str, key: &str| {
        let mut lines = section(name).lines();
        let line = lines.find(|line| line.starts_with(&format!("{key} = ")));
        line.unwrap_or_else(|| panic!("{key}: {dump}")).to_owned()
    };
    [
        value("network.bridge", "driver"),
        value("network", "isolation"),
        value("network", "direct_routing"),
    ]
}

/// Fails unless these are in force, all by the default of the node.
#[track_caller]
fn assert_defaults(node: &TestNode, expected: [&str; 3]) {
    for (line, value) in in_force(node).iter().zip(expected) {
        let source = format!(
            "{value}  # default of this node: {}",
            node.root().network_defaults().display()
        );
        assert!(line.ends_with(&source), "{line}, not {source}");
    }
}

/// The codes of all notes of the doctor.
fn notes(node: &TestNode) -> Vec<String> {
    let config = node.root().config();
    let config = config.to_str().expect("the path is ASCII");
    let done = node.call(&["doctor", "--output", "json", "--config", config]);
    let report: Value = serde_json::from_slice(&done.stdout).expect("it is JSON");
    let findings = report["findings"].as_array().expect("it is a list").iter();
    let notes = findings.filter(|finding| finding["severity"] == "note");
    notes
        .filter_map(|finding| finding["code"].as_str().map(str::to_owned))
        .collect()
}

/// The configuration of a node without CNI plugins, whose pods have a bridge beside that of tasks.
fn two_bridges(root: &PrivateRoot) -> String {
    format!(
        "[cri]\nnetwork = \"bridge\"\n\
         [network]\nbin_dirs = [{:?}]\n\
         [network.pods]\nname = {:?}\nsubnets = [{:?}]\n",
        root.path().join("no-plugins"),
        root.network().bridge(),
        root.network().subnet(),
    )
}

#[test]
fn new_node_needs_no_plugins_and_its_bridges_do_not_reach_each_other() {
    let node = TestNode::start_configured(|root| {
        forget_defaults(root);
        two_bridges(root)
    });
    let began = record(&node);
    assert_eq!(began, "version = 1\ndriver = \"native\"\n");
    assert_defaults(&node, ["\"native\"", "\"bridge\"", "false"]);
    assert!(!notes(&node).contains(&"SY318".to_owned()));

    let agent = Agent::start(node.root(), &json!({}));
    let config = json!({ "image": node.image(), "command": "sh", "args": ["-c", SERVE] });
    let mut task = TaskSetup::new(node.root(), &agent, "web", &config);
    let started = agent.driver().start(&task.config).expect("it starts");
    let network = started.network_override.expect("it has an address");
    let ip: Ipv4Addr = network.addr.parse().expect("it is an address");
    let served = || http::get(SocketAddr::from((ip, 80)), "/").is_ok();
    assert!(eventually(LIMIT, served), "the node does not reach {ip}");
    let pod = node.pod("asks");
    let get = r"printf 'GET / HTTP/1.0\r\n\r\n'";
    let ask = format!("{get} | nc -w 2 {ip} 80 2>/dev/null || echo closed");
    assert_eq!(pod.run_shell(&ask, |_| {}), "closed");

    // Keys win, without another task, and change no record.
    let open = "[network]\nisolation = \"none\"\ndirect_routing = true\n";
    let opened = two_bridges(node.root()).replace("[network]\n", open);
    node.root().write_config(&opened);
    node.daemon().restart();
    let asked = || pod.run_shell(&ask, |_| {});
    let answers = || asked().ends_with("hello");
    assert!(eventually(LIMIT, answers), "still kept apart: {}", asked());
    assert!(in_force(&node)[1].contains("config.toml:"));
    assert_eq!(record(&node), began);

    assert!(
        agent.plugin().exit(LIMIT).is_some(),
        "a plugin ends with the daemon that was there"
    );
    let driver = agent.dispense();
    task.end(&driver);
}

/// The directory of leases is all that is left of it.
#[test]
fn node_of_a_former_version_stays_as_it_is_until_its_keys_are_set() {
    let node = TestNode::start_with("", |root| {
        forget_defaults(root);
        fs::create_dir(root.state().join("ledger")).expect("the root can be written");
    });
    let former = ["\"cni\"", "\"none\"", "true"];
    let began = "version = 1\ndriver = \"cni\"\n";
    assert_eq!(record(&node), began);
    assert_defaults(&node, former);
    assert!(notes(&node).contains(&"SY318".to_owned()));
    node.daemon().restart();
    assert_defaults(&node, former);

    node.root()
        .write_config("[network.bridge]\ndriver = \"native\"\n");
    node.daemon().restart();
    let [driver, isolation, routing] = in_force(&node);
    assert!(driver.contains("\"native\"  # ") && driver.contains("config.toml:"));
    // It has reached all, and still does.
    assert!(isolation.starts_with("isolation = \"none\"") && routing.contains("= true"));
    node.root().write_config(
        "[network]\nisolation = \"bridge\"\ndirect_routing = false\n[network.bridge]\ndriver = \"native\"\n",
    );
    node.daemon().restart();
    assert!(in_force(&node)[1].starts_with("isolation = \"bridge\""));
    assert!(!notes(&node).contains(&"SY318".to_owned()));
    assert_eq!(record(&node), began);

    node.root().write_config("");
    node.daemon().restart();
    assert_defaults(&node, former);
}

#[test]
fn reload_finds_no_change_in_defaults_and_waits_with_a_key() {
    let node = TestNode::start_with("", forget_defaults);
    let reload = || node.output(&["config", "reload"]);
    fs::write(node.root().network_defaults(), "damaged").expect("the root can be written");
    reload();
    assert_defaults(&node, ["\"native\"", "\"bridge\"", "false"]);
    node.root()
        .write_config("[network.bridge]\ndriver = \"cni\"\n");
    let text = reload();
    assert!(text.contains("network.bridge.driver"), "{text}");
    assert_defaults(&node, ["\"native\"", "\"bridge\"", "false"]);
    // Plugins leave all open, so that nothing depends on what is damaged.
    node.daemon().restart();
    assert!(in_force(&node)[0].contains("\"cni\""));
    assert_eq!(record(&node), "damaged");
}
