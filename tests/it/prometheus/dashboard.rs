//! The Grafana dashboards: well-formed, and each of their expressions evaluated by a real Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::devices::{container_with_device, device_group};
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::prometheus::Prometheus;
use switchyard_tests::scraped_node::ScrapedTestNode;

/// Time for a figure to appear: some scrapes and evaluations.
const SOON: Duration = Duration::from_secs(60);

/// The dashboard of one node, and that of all nodes.
const NODE: &str = "switchyard";
const FLEET: &str = "switchyard-fleet";

/// Panels that are empty on a node on which nothing has failed or is under way, or that has no device plugins or traces.
const EMPTY_WHEN_WELL: [&str; 15] = [
    "Age of the oldest",
    "Bytes of pulls",
    "Device plugins",
    "Exits of tasks",
    "Failed operations",
    "Failed pulls",
    "Failed runs of network plugins",
    "Failures by code",
    "In flight, by owner",
    "Lost records",
    "Most failures",
    "Nodes by alert",
    "Nodes by part that is down",
    "Refusals",
    "containerd: errors and reconnects",
];

/// The beginnings of expressions that have few series, however many nodes there are.
const FEW: [&str; 4] = ["sum", "count", "topk(10, ", "bottomk(10, "];

/// A query of a panel.
#[derive(Debug)]
struct Query {
    panel: String,
    expression: String,
}

fn dashboard(uid: &str) -> Value {
    let file = format!("../deploy/grafana/{uid}.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(path).expect("the dashboard is there");
    serde_json::from_str(&text).expect("it is JSON")
}

fn list<'a>(value: &'a Value, what: &str) -> &'a Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{what} is no list: {value}"))
}

/// The queries with the variables replaced: all nodes, of which there is one, and all owners.
fn queries(uid: &str) -> Vec<Query> {
    let dashboard = dashboard(uid);
    let panels = list(&dashboard["panels"], "panels")
        .iter()
        .filter(|panel| panel["type"] != "row");
    let queries = panels.flat_map(|panel| {
        list(&panel["targets"], "targets")
            .iter()
            .map(|target| Query {
                panel: panel["title"]
                    .as_str()
                    .expect("a panel has a title")
                    .to_owned(),
                expression: target["expr"]
                    .as_str()
                    .expect("a target has an expression")
                    .replace("$node", ".*")
                    .replace("$owner", ".*")
                    .replace("$__rate_interval", "20s"),
            })
    });
    queries.collect()
}

/// Checks a dashboard, and each of its expressions by `check`.
fn assert_complete(uid: &str, variables: &[&str], check: impl Fn(&str, &str)) {
    let dashboard = dashboard(uid);
    assert!(dashboard["uid"] == uid && dashboard["title"].is_string());
    assert!(
        dashboard["schemaVersion"]
            .as_u64()
            .is_some_and(|version| version >= 36)
    );
    let found: Vec<_> = list(&dashboard["templating"]["list"], "variables")
        .iter()
        .map(|variable| variable["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(found, variables);
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in list(&dashboard["panels"], "panels") {
        let title = panel["title"].as_str().expect("a panel has a title");
        assert!(
            ids.insert(panel["id"].as_u64().expect("a panel has an id")),
            "{title}: the id is taken"
        );
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("it has a place"));
        assert!(
            w > 0 && h > 0 && x + w <= 24,
            "{title} is outside of the grid"
        );
        for cell in (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line))) {
            assert!(
                cells.insert(cell),
                "{title} lies over another panel at {cell:?}"
            );
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.len() > 5),
            "{title}"
        );
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title} has no unit"
        );
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        assert_eq!(panel["datasource"], source, "{title}");
        let mut references = BTreeSet::new();
        for target in list(&panel["targets"], title) {
            assert_eq!(target["datasource"], source, "{title}");
            assert!(
                references.insert(target["refId"].as_str().expect("a target has a refId")),
                "{title}"
            );
            let expression = target["expr"].as_str().expect("a target has an expression");
            check(title, expression);
        }
    }
}

#[test]
fn dashboard_of_a_node_is_complete_and_about_one_node() {
    assert_complete(
        NODE,
        &["datasource", "node", "owner"],
        |title, expression| {
            assert!(
                expression.contains("$node"),
                "{title} does not heed the variable: {expression}"
            );
            let by_owner = expression.contains("by (owner");
            assert_eq!(
                by_owner,
                expression.contains("$owner"),
                "{title}: {expression}"
            );
        },
    );
    let dashboard = dashboard(NODE);
    let node = list(&dashboard["templating"]["list"], "variables")
        .iter()
        .find(|variable| variable["name"] == "node")
        .expect("it has been checked");
    assert!(node["includeAll"] == false && node["multi"] == false);
}

#[test]
fn dashboard_of_all_nodes_is_complete_and_has_few_series() {
    assert_complete(FLEET, &["datasource"], |title, expression| {
        assert!(
            FEW.iter().any(|begin| expression.starts_with(begin)),
            "{title} has a series for each node: {expression}"
        );
        let is_by_instance = expression.starts_with("sum by (instance")
            || expression.starts_with("count by (instance");
        assert!(!is_by_instance, "{title}: {expression}");
    });
}

/// Waits until a query has a result that is as it should be.
#[track_caller]
fn wait_result(
    node: &TestNode,
    container: &str,
    prometheus: &Prometheus,
    query: &Query,
    owners: &[&str],
) {
    let mut last = Vec::new();
    let found = eventually(SOON, || {
        // Shares and means are those of the calls and operations of the last moments: there must be some.
        assert_eq!(node.cri().sh(container, "echo reached"), "reached");
        last = prometheus
            .query(&query.expression)
            .unwrap_or_else(|error| panic!("{query:?}: {error}"));
        let has = |owner: &&str| {
            last.iter()
                .any(|sample| sample.labels.get("owner").is_some_and(|o| o == owner))
        };
        !last.is_empty() && owners.iter().all(has)
    });
    assert!(
        found,
        "{query:?} has no series for each of {owners:?}: {last:?}\n{}",
        prometheus.log()
    );
}

#[test]
fn each_panel_shows_a_real_node_and_each_owner_that_has_tasks() {
    let scraped = ScrapedTestNode::start(device_group);
    let node = &scraped.node;
    let prometheus = scraped.prometheus();
    let pod = node.pod("shown");
    let container = pod.start_shell("main", "while :; do echo line; sleep 0.2; done");
    let _holder = pod.create(&container_with_device(node, "holder"));
    let agent = Agent::start(node.root(), &json!({}));
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", "while :; do echo line; sleep 0.2; done"],
        "network_mode": "host"
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    agent.driver().start(&task.config).expect("it starts");
    for query in [NODE, FLEET].into_iter().flat_map(queries) {
        // Prometheus refuses what is not valid, whether it has a result or not.
        let first = prometheus.query(&query.expression);
        assert!(first.is_ok(), "{query:?}: {first:?}");
        if EMPTY_WHEN_WELL.contains(&query.panel.as_str()) {
            continue;
        }
        wait_result(
            node,
            &container,
            &prometheus,
            &query,
            owners_in(&query.expression),
        );
    }
    task.end(&agent.driver());
}

/// The owners that an expression must have a series for.
fn owners_in(expression: &str) -> &'static [&'static str] {
    let is_about_devices = expression.contains("switchyard_ledger");
    if expression.contains("by (owner") && !is_about_devices {
        &["kubernetes", "nomad"]
    } else {
        &[]
    }
}
