//! The shipped rules: valid, tested, and each alert with what an operator needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use switchyard_operator::metrics::table::{Description, Kind, SECTIONS};
use switchyard_tests::prereq;
use switchyard_tests::prometheus::{ScrapedNode, adapt, shipped, with_short_minutes};
use switchyard_tests::scratch::Scratch;
use yaml_rust2::{Yaml, YamlLoader};

use super::series::{LabelledName, words};

/// Prefix of the links to the documentation.
const RUNBOOKS: &str = "https://switchyard.example/docs/alerts.md#";

pub(super) fn promtool(dir: &Path, words: &[&str]) -> String {
    let promtool = prereq::require("promtool", "prometheus");
    let done = Command::new(promtool)
        .args(words)
        .current_dir(dir)
        .output()
        .expect("it was found");
    let output = [done.stdout, done.stderr].concat();
    let text = String::from_utf8(output).expect("it is text");
    assert!(done.status.success(), "promtool {words:?}: {text}");
    text
}

pub(super) fn load(name: &str) -> Yaml {
    let text =
        fs::read_to_string(shipped().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    YamlLoader::load_from_str(&text)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .remove(0)
}

/// All rules of a file.
pub(super) fn rules(file: &Yaml) -> Vec<&Yaml> {
    let groups = file["groups"].as_vec().expect("a file of rules has groups");
    groups
        .iter()
        .flat_map(|group| group["rules"].as_vec().expect("a group has rules"))
        .collect()
}

#[test]
fn shipped_rules_pass_their_tests() {
    let words = promtool(
        &shipped(),
        &[
            "test",
            "rules",
            "rules.test.yaml",
            "alerts.test.yaml",
            "kinds.test.yaml",
        ],
    );
    assert_eq!(words.matches("SUCCESS").count(), 3, "{words}");
    promtool(
        &shipped(),
        &[
            "check",
            "rules",
            "rules.yaml",
            "alerts.yaml",
            "watchdog.yaml",
        ],
    );
}

#[test]
fn shipped_and_adapted_configuration_is_valid() {
    let scratch = Scratch::new();
    let authority = scratch.path().join("authority");
    fs::write(&authority, "").expect("the directory is ours");
    let address = "127.0.0.1:9641".parse().expect("it is an address");
    let node = ScrapedNode {
        address,
        authority: &authority,
        token: "token",
        kubelet: "scraped",
    };
    let dir = scratch.path().join("prometheus");
    adapt(&dir, &node);
    promtool(&dir, &["check", "config", "prometheus.yaml"]);
    for name in ["prometheus.yaml", "nodes.yaml", "rules.yaml", "alerts.yaml"] {
        fs::copy(shipped().join(name), dir.join(name)).expect("it can be copied");
    }
    promtool(&dir, &["check", "config", "prometheus.yaml"]);
}

#[test]
fn each_alert_has_severity_texts_a_section_and_a_test() {
    let docs = shipped().join("../../docs/alerts.md");
    let docs = fs::read_to_string(docs).expect("the documentation is there");
    let sections: BTreeSet<String> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(str::to_lowercase)
        .collect();
    let tests = load("alerts.test.yaml");
    let tests: Vec<&Yaml> = tests["tests"]
        .as_vec()
        .expect("there are tests")
        .iter()
        .collect();
    let alerts = load("alerts.yaml");
    let mut names = BTreeSet::new();
    for rule in rules(&alerts) {
        let name = rule["alert"].as_str().expect("the file has alerts alone");
        names.insert(name.to_lowercase());
        let severity = rule["labels"]["severity"].as_str();
        assert!(
            matches!(severity, Some("critical" | "warning" | "info")),
            "{name}: {severity:?}"
        );
        for text in ["summary", "description"] {
            let text = rule["annotations"][text].as_str().unwrap_or_default();
            assert!(text.len() > 20, "{name}: {text:?}");
        }
        let link = rule["annotations"]["runbook_url"]
            .as_str()
            .expect("it has a link");
        assert_eq!(
            link.strip_prefix(RUNBOOKS),
            Some(name.to_lowercase().as_str()),
            "{name}"
        );
        let of_alert = tests
            .iter()
            .filter(|test| test["name"].as_str() == Some(name));
        let expected: Vec<bool> = of_alert
            .flat_map(|test| test["alert_rule_test"].as_vec().expect("it tests alerts"))
            .map(|case| {
                case["exp_alerts"]
                    .as_vec()
                    .is_some_and(|alerts| !alerts.is_empty())
            })
            .collect();
        assert!(
            expected.contains(&true) && expected.last() == Some(&false),
            "{name}: {expected:?}"
        );
    }
    assert_eq!(
        names, sections,
        "docs/alerts.md has a section for each alert, and no other"
    );
}

/// The labels of a series that the daemon serves, without those of Prometheus; `None` if it serves none of this name.
fn served(name: &str) -> Option<BTreeSet<&'static str>> {
    let mut all = SECTIONS.iter().flat_map(|(_, metrics)| *metrics);
    let of_histogram = |metric: &Description| {
        let part = name.strip_prefix(metric.name).unwrap_or_default();
        metric.kind == Kind::Histogram && ["_bucket", "_sum", "_count"].contains(&part)
    };
    let metric = all.find(|metric| metric.name == name || of_histogram(metric))?;
    let mut labels: BTreeSet<&str> = metric.labels.iter().copied().collect();
    if name.ends_with("_bucket") {
        labels.insert("le");
    }
    Some(labels)
}

#[test]
fn series_in_tests_of_the_rules_are_those_that_the_daemon_serves() {
    let mut checked = BTreeSet::new();
    for file in ["rules.test.yaml", "alerts.test.yaml", "kinds.test.yaml"] {
        let tests = load(file);
        let tests = tests["tests"].as_vec().expect("there are tests");
        let inputs = tests
            .iter()
            .flat_map(|test| test["input_series"].as_vec().expect("it has series"));
        for input in inputs {
            let text = input["series"].as_str().expect("it is a text");
            let series = LabelledName::parse(text);
            if !series.is_of_daemon() {
                continue;
            }
            let labels = series.labels.keys().map(String::as_str);
            let labels: BTreeSet<&str> = labels
                .filter(|label| !["instance", "job"].contains(label))
                .collect();
            assert_eq!(served(&series.name), Some(labels), "{file}: {text}");
            assert_words_are_written(file, &series);
            checked.insert(series.name);
        }
    }
    assert!(checked.len() > 30, "{checked:?}");
}

/// Checks the values that are of a closed set, and that a method has the name that it has in gRPC.
#[track_caller]
fn assert_words_are_written(file: &str, series: &LabelledName) {
    for (label, value) in &series.labels {
        let is_written = match words(&series.name, label) {
            Some(words) => words.contains(&value.as_str()),
            None if label == "method" => {
                matches!(value.split_once('/'), Some((service, _)) if service.contains('.'))
            }
            None => true,
        };
        assert!(is_written, "{file}: {series} never has this {label}");
    }
}

/// The values of a label in matchers of Alertmanager.
fn matched<'a>(matchers: &'a Yaml, label: &str) -> Vec<&'a str> {
    let matchers = matchers.as_vec().expect("matchers are a list");
    let values = matchers.iter().filter_map(|matcher| {
        let text = matcher.as_str().expect("a matcher is a text");
        let value = text
            .strip_prefix(label)?
            .trim_start_matches(['!', '=', '~']);
        Some(value.trim_matches('"').split('|'))
    });
    values.flatten().collect()
}

#[test]
fn example_for_alertmanager_names_alerts_and_receivers_that_exist() {
    let config = load("alertmanager.yaml");
    let alerts = load("alerts.yaml");
    let watchdog = load("watchdog.yaml");
    let all = rules(&alerts).into_iter().chain(rules(&watchdog));
    let names: BTreeSet<&str> = all.filter_map(|rule| rule["alert"].as_str()).collect();
    let list = |value: &Yaml| value.as_vec().expect("it is a list").clone();
    let receivers = list(&config["receivers"]);
    let receivers: BTreeSet<&str> = receivers
        .iter()
        .filter_map(|receiver| receiver["name"].as_str())
        .collect();
    let routes = list(&config["route"]["routes"]);
    let used: BTreeSet<&str> = routes
        .iter()
        .chain([&config["route"]])
        .filter_map(|route| route["receiver"].as_str())
        .collect();
    assert_eq!(used, receivers);
    let held_back = list(&config["inhibit_rules"]);
    let of_rules = held_back
        .iter()
        .flat_map(|rule| [&rule["source_matchers"], &rule["target_matchers"]]);
    let of_routes = routes.iter().map(|route| &route["matchers"]);
    for name in of_rules
        .chain(of_routes)
        .flat_map(|matchers| matched(matchers, "alertname"))
    {
        assert!(names.contains(name) || name == "Switchyard.+", "{name}");
    }
    let severities: BTreeSet<&str> = routes
        .iter()
        .flat_map(|route| matched(&route["matchers"], "severity"))
        .collect();
    assert_eq!(
        severities,
        BTreeSet::from(["critical", "info"]),
        "all others are warnings"
    );
}

#[test]
fn no_pod_is_scraped_from_two_jobs() {
    let config = load("prometheus.yaml");
    let jobs = config["scrape_configs"].as_vec().expect("there are jobs");
    let mut kept = BTreeSet::new();
    for job in jobs
        .iter()
        .filter(|job| job["metrics_path"].as_str() == Some("/metrics/containers"))
    {
        let relabel = job["relabel_configs"].as_vec().expect("it selects nodes");
        let keep = relabel
            .iter()
            .find(|step| step["action"].as_str() == Some("keep"))
            .expect("it keeps some");
        assert_eq!(keep["source_labels"][0].as_str(), Some("__kubelet"));
        let value = keep["regex"].as_str().expect("it is a word");
        assert!(kept.insert(value), "two jobs keep {value}");
        // Pods come from the kubelet then.
        let owners: Option<Vec<&str>> = job["params"]["owner"]
            .as_vec()
            .map(|owners| owners.iter().filter_map(Yaml::as_str).collect());
        assert_eq!(
            owners,
            (value == "scraped").then(|| vec!["nomad"]),
            "{value}"
        );
    }
    assert_eq!(kept, BTreeSet::from(["none", "scraped"]));
}

#[test]
fn kept_metrics_of_containers_exist_and_include_those_of_rules_and_dashboards() {
    let read = |path: &str| {
        fs::read_to_string(shipped().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let docs = read("../../docs/metrics.md");
    let (_, listed) = docs
        .split_once("<!-- generated: containers -->")
        .expect("the document has a list");
    let mut served: BTreeSet<&str> = listed
        .lines()
        .filter(|line| line.starts_with("container_"))
        .filter_map(|line| line.split('{').next())
        .collect();
    served.insert("switchyard_container_scrape_success");
    let config = load("prometheus.yaml");
    let jobs = config["scrape_configs"].as_vec().expect("there are jobs");
    let of_containers = jobs
        .iter()
        .filter(|job| job["metrics_path"].as_str() == Some("/metrics/containers"));
    for job in of_containers {
        let step = &job["metric_relabel_configs"][0];
        assert_eq!(step["action"].as_str(), Some("keep"));
        let names = step["regex"].as_str().expect("it is a text");
        let kept: BTreeSet<&str> = names.split('|').collect();
        assert!(kept.is_subset(&served), "{kept:?}");
        for file in [
            "rules.yaml",
            "alerts.yaml",
            "../grafana/switchyard.json",
            "../grafana/switchyard-fleet.json",
        ] {
            let text = read(file);
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
            for name in words.filter(|word| served.contains(word)) {
                assert!(kept.contains(name), "{file} needs {name}");
            }
        }
    }
}

#[test]
fn short_minutes_change_times_alone() {
    for (shipped, short) in [
        ("for: 5m\n", "for: 10s\n"),
        ("rate(a[5m]) offset 15m)", "rate(a[10s]) offset 30s)"),
        ("a:b:rate5m > 0.1 * 10", "a:b:rate5m > 0.1 * 10"),
        ("age > 2 * 60\n", "age > 2 * 2\n"),
        ("5 minutes, 30 more", "5 minutes, 30 more"),
        ("a{le=\"0.99\"} 7", "a{le=\"0.99\"} 7"),
    ] {
        assert_eq!(with_short_minutes(shipped), short);
    }
}
