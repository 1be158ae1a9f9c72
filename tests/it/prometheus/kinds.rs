//! The series of `kinds.test.yaml`, and those that the rules read, beside the page of a live daemon of each kind of node.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::json;
use switchyard_tests::cri::Cri;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::devices::make_device;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::eventually;
use switchyard_tests::image::busybox;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::registry::Registry;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::scratch::Scratch;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::files::{load, promtool, rules};
use super::series::{LabelledName, selectors};
use crate::architecture::repository;
use crate::cri::logs::writers::TestLogkeeper;
use crate::swarm::resources::Pod;
use crate::swarm::services::{create, registry, tasks, wait_all_removed};

mod lists;

use lists::{EACH, EVENTS, NODES, UNREAD};

/// Time for a page to be complete: disks are looked at every few seconds.
const SOON: Duration = Duration::from_secs(60);

/// The image of the node without CRI.
const IMAGE: &str = "library/busybox:latest";

/// A command that prints, and runs until it is stopped.
const SCRIPT: &str = "echo printed; exec sleep 1000";

/// Labels whose values are names of this node, of a registry or of a program: every value is as good.
const NAMES: [&str; 3] = ["mountpoint", "plugin", "registry"];

/// The kinds of nodes that the tests of the rules know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    /// With a kubelet alone.
    Kubelet,
    /// With a Nomad agent alone.
    Nomad,
    /// A member of a swarm, with a containerd and a logkeeper that the daemon does not start.
    Swarm,
    /// With all three orchestrators.
    All,
}

/// A series of each labelled name.
type Page = BTreeSet<LabelledName>;

/// The series without what Prometheus adds, and with one value for all names.
fn comparable(mut series: LabelledName) -> LabelledName {
    series
        .labels
        .retain(|label, _| !["instance", "job"].contains(&label.as_str()));
    for (label, value) in &mut series.labels {
        if NAMES.contains(&label.as_str()) {
            "any".clone_into(value);
        }
    }
    series
}

/// The series of a page of metrics.
fn page_of(text: &str) -> Page {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.filter_map(|line| Some(line.rsplit_once(' ')?.0));
    series
        .map(|series| comparable(LabelledName::parse(series)))
        .collect()
}

/// The series of the daemon in `kinds.test.yaml`.
fn inputs() -> Vec<LabelledName> {
    let file = load("kinds.test.yaml");
    let tests = file["tests"].as_vec().expect("there are tests");
    let inputs = tests
        .iter()
        .flat_map(|test| test["input_series"].as_vec().expect("it has series"));
    inputs
        .map(|input| LabelledName::parse(input["series"].as_str().expect("it is a text")))
        .filter(LabelledName::is_of_daemon)
        .collect()
}

fn kind_of(series: &LabelledName) -> NodeKind {
    let node = &series.labels["instance"];
    let known = NODES.iter().find(|(name, _)| name == node);
    let (_, kind) = known.unwrap_or_else(|| panic!("the list of nodes does not have {node}"));
    *kind
}

/// The series of the daemon that `kinds.test.yaml` has for the nodes of a kind.
fn recorded(kind: NodeKind) -> Page {
    let inputs = inputs().into_iter();
    inputs
        .filter(|series| kind_of(series) == kind)
        .map(comparable)
        .collect()
}

/// The selectors of rules and alerts.
fn read_by_rules() -> BTreeSet<String> {
    let mut read = BTreeSet::new();
    for name in ["rules.yaml", "alerts.yaml"] {
        let file = load(name);
        for rule in rules(&file) {
            let expression = rule["expr"].as_str().expect("a rule has an expression");
            read.extend(selectors(expression));
        }
    }
    read
}

/// Returns whether a selector finds something on a page at rest; `None` if that depends on what has happened.
fn is_found(selector: &str, kind: NodeKind) -> Option<bool> {
    let listed = UNREAD
        .iter()
        .find(|unread| selector.starts_with(unread.selector));
    match listed {
        Some(unread) if unread.never.contains(&kind) => Some(false),
        Some(unread) if unread.event.contains(&kind) => None,
        Some(_) | None => Some(true),
    }
}

/// Checks that a live node of a kind, on which tasks have run, has the series that the tests of the rules suppose, and those that
/// the rules read.
#[track_caller]
fn assert_as_recorded(kind: NodeKind, mut scrape: impl FnMut() -> String) {
    let recorded = recorded(kind);
    let mut page = Page::new();
    let mut missing: Vec<String> = Vec::new();
    eventually(SOON, || {
        page = page_of(&scrape());
        let can_join =
            |series: &LabelledName| EVENTS.iter().any(|event| event.can_join(series, &page));
        let absent = recorded
            .difference(&page)
            .filter(|series| !can_join(series));
        missing = absent.map(ToString::to_string).collect();
        missing.is_empty()
    });
    assert!(
        missing.is_empty(),
        "kinds.test.yaml has series that a live node of the kind {kind:?} has not: {missing:#?}"
    );
    for event in EVENTS {
        let found = page.iter().find(|series| event.has(series));
        assert!(
            found.is_none(),
            "{found:?} needs an event by the list ({}), and a node at rest has it",
            event.event
        );
    }
    assert_read(kind, &page);
}

/// Lets promtool look for the selectors of the rules on a page.
#[track_caller]
fn assert_read(kind: NodeKind, page: &Page) {
    let mut text =
        "rule_files: []\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
            .to_owned();
    for series in page {
        let mut series = series.clone();
        for (label, value) in [("instance", "node"), ("job", "switchyard")] {
            series.labels.insert(label.to_owned(), value.to_owned());
        }
        text.push_str(&format!("      - {{series: '{series}', values: '1'}}\n"));
    }
    text.push_str("    promql_expr_test:\n");
    for selector in read_by_rules() {
        if let Some(is_found) = is_found(&selector, kind) {
            let value = u8::from(is_found);
            text.push_str(&format!(
                "      - {{expr: '(count({selector}) > bool 0) or vector(0)', eval_time: 0m, \
                 exp_samples: [{{labels: '{{}}', value: {value}}}]}}\n"
            ));
        }
    }
    let scratch = Scratch::new();
    fs::write(scratch.path().join("page.test.yaml"), text).expect("the directory is ours");
    // What it reports is a series that rules read and the node lacks, or one that the list says it lacks.
    promtool(scratch.path(), &["test", "rules", "page.test.yaml"]);
}

#[test]
fn lists_of_series_are_of_use_and_their_words_are_written() {
    let inputs = inputs();
    for (node, _) in NODES {
        assert!(
            inputs
                .iter()
                .any(|series| series.labels["instance"] == *node),
            "{node}"
        );
    }
    for event in EVENTS {
        let source = fs::read_to_string(repository().join(event.source));
        let source = source.unwrap_or_else(|error| panic!("{}: {error}", event.source));
        for value in event.values {
            assert!(source.contains(&format!("\"{value}\"")), "{event:?}");
            let is_used =
                |series: &LabelledName| event.has(series) && series.labels[event.label] == *value;
            assert!(inputs.iter().any(is_used), "{value}: {event:?}");
        }
    }
    let read = read_by_rules();
    assert!(read.len() > 60, "{read:?}");
    for (at, unread) in UNREAD.iter().enumerate() {
        let is_first = |selector: &String| {
            let fits = UNREAD
                .iter()
                .position(|unread| selector.starts_with(unread.selector));
            fits == Some(at)
        };
        assert!(read.iter().any(is_first), "{unread:?}");
        assert!(unread.reason.len() > 10, "{unread:?}");
        let is_about_some = EACH
            .iter()
            .any(|kind| unread.never.contains(kind) || unread.event.contains(kind));
        assert!(is_about_some, "{unread:?}");
    }
}

/// A device that is offered to a kubelet, whether there is one or not.
fn offered_device(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    format!(
        "[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
         pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n\
         [[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\nresource = \"acme.com/tpu\"\n\
         paths = [\"{1}/acme0\"]\n",
        root.path().join("kubelet").display(),
        dir.display()
    )
}

/// A node without a CNI configuration.
fn without_networks(root: &PrivateRoot) -> String {
    let dir = root.path().join("no-networks");
    fs::create_dir(&dir).expect("the root can be written");
    format!("[network]\nconf_dir = {dir:?}\n")
}

/// Probes a container that runs, and stops it, as a kubelet does.
fn probe_and_stop(cri: &Cri, container: &str) {
    assert_eq!(cri.sh(container, "echo reached"), "reached");
    cri.condition("RuntimeReady").expect("it is answered");
    cri.containers().expect("they are listed");
    cri.stop(container, 0).expect("it stops");
}

/// Runs a task of an agent on the gateway's own bridge, and ends it.
fn run_task(root: &PrivateRoot, image: &str) {
    let agent = Agent::start(root, &json!({}));
    let config = json!({ "image": image, "command": "sh", "args": ["-c", SCRIPT] });
    let mut task = TaskSetup::new(root, &agent, "web", &config);
    let driver = agent.driver();
    driver.start(&task.config).expect("it starts");
    task.end(&driver);
}

/// Joins the swarm, runs a task of a service, and ends it.
fn run_service(cluster: &SwarmCluster, worker: &SwarmWorker, image: &str) {
    worker.join(cluster, &cluster.token("worker"));
    create(cluster, "web", &[], image, SCRIPT);
    cluster.wait_until("the task runs", || {
        let tasks = tasks(cluster, "web");
        tasks.iter().any(|task| task.contains(" Running "))
    });
    cluster.docker(&["service", "rm", "web"]);
    wait_all_removed(cluster, worker);
}

#[test]
fn page_of_a_node_with_a_kubelet_has_what_tests_and_rules_read() {
    let node = TestNode::start_configured(|root| {
        let device = offered_device(root);
        format!("[nomad]\nenabled = false\n[swarm]\nenabled = false\n{device}")
    });
    let pod = node.pod("web");
    let container = pod.start_shell("main", SCRIPT);
    probe_and_stop(node.cri(), &container);
    assert_as_recorded(NodeKind::Kubelet, || node.daemon().get("/metrics").1);
}

#[test]
fn page_of_a_node_with_an_agent_has_what_tests_and_rules_read() {
    let root = PrivateRoot::new();
    let networks = without_networks(&root);
    let device = offered_device(&root);
    let config = format!("[cri]\nenabled = false\n[swarm]\nenabled = false\n{networks}{device}");
    let daemon = Daemon::start(&root, &config);
    let registry = Registry::start();
    registry.push(IMAGE, &busybox().build());
    run_task(&root, &registry.reference(IMAGE));
    assert_as_recorded(NodeKind::Nomad, || daemon.get("/metrics").1);
}

#[test]
fn page_of_a_member_of_a_swarm_has_what_tests_and_rules_read() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut started = None;
    let mut worker = SwarmWorker::start(&cluster, |root| {
        let socket = root.run().join("containerd/containerd.sock");
        let containerd = ExternalContainerd::start(root, &socket);
        started = Some((containerd, TestLogkeeper::start(root)));
        let networks = without_networks(root);
        format!(
            "[cri]\nenabled = false\n[nomad]\nenabled = false\n{networks}\
             [containerd]\nmode = \"external\"\naddress = {socket:?}\n\
             [logkeeper]\nmode = \"external\"\n"
        )
    });
    // Ended before the root of the worker is removed.
    let _started = started;
    run_service(&cluster, &worker, &image);
    assert_as_recorded(NodeKind::Swarm, || worker.daemon().get("/metrics").1);
}

#[test]
fn page_of_a_node_with_all_orchestrators_has_what_tests_and_rules_read() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, offered_device);
    run_service(&cluster, &worker, &image);
    let pod = Pod::run(&worker, &image);
    let container = pod.create(|_| {}).expect("it is created");
    pod.cri().start(&container).expect("it starts");
    probe_and_stop(pod.cri(), &container);
    run_task(worker.root(), &image);
    assert_as_recorded(NodeKind::All, || worker.daemon().get("/metrics").1);
}
