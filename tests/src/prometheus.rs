//! A real Prometheus with the shipped configuration, adapted to one node and to the patience of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use url::form_urlencoded::byte_serialize;

use crate::host::eventually;
use crate::{http, prereq};

/// Limit for Prometheus to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Seconds for which a minute of the shipped rules stands in a test. Scrapes are two seconds apart, so a rate
/// over five minutes has five of them.
const MINUTE: u64 = 2;

/// The files that are taken over, some of them changed.
const FILES: [&str; 5] = [
    "prometheus.yaml",
    "rules.yaml",
    "alerts.yaml",
    "rules.test.yaml",
    "alerts.test.yaml",
];

/// A running Prometheus; it ends when this is dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

/// One element of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PromSample {
    /// Its labels, with `__name__` if it has a name.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The node that is scraped.
#[derive(Debug)]
pub struct ScrapedNode<'a> {
    /// Its metrics listener.
    pub address: SocketAddr,
    /// The authority of its certificate, as PEM.
    pub authority: &'a Path,
    /// Its bearer token.
    pub token: &'a str,
    /// State of the scrape of its kubelet: `none` or `scraped`.
    pub kubelet: &'a str,
}

/// The directory of the shipped files.
#[must_use]
pub fn shipped() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the crate lies in the repository")
        .join("deploy/prometheus")
}

/// Copies the shipped files to `dir` for a node. Times change, and nothing else: a minute of the rules lasts
/// two seconds, scrapes are two seconds apart and rules are evaluated each second.
///
/// # Panics
/// When a file cannot be copied, or does not have the times that are changed.
pub fn adapt(dir: &Path, node: &ScrapedNode<'_>) {
    fs::create_dir_all(dir).expect("the directory can be created");
    let write = |name: &str, text: &str| {
        fs::write(dir.join(name), text).expect("the directory can be written")
    };
    for name in FILES {
        let text = fs::read_to_string(shipped().join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let adapted = match name {
            "prometheus.yaml" => with_intervals(&text),
            "rules.yaml" | "alerts.yaml" => with_short_minutes(&text),
            _ => text,
        };
        write(name, &adapted);
    }
    let ScrapedNode {
        address,
        authority,
        token,
        kubelet,
    } = node;
    write(
        "nodes.yaml",
        &format!("- targets: ['{address}']\n  labels:\n    __kubelet: {kubelet}\n"),
    );
    write("token", token);
    fs::set_permissions(dir.join("token"), Permissions::from_mode(0o600)).expect("it is ours");
    fs::copy(authority, dir.join("ca.crt")).expect("it can be copied");
}

/// The scrape configuration with shorter intervals.
fn with_intervals(text: &str) -> String {
    let mut adapted = text.to_owned();
    for (shipped, short) in [
        ("scrape_interval: 15s", "scrape_interval: 2s"),
        ("scrape_interval: 60s", "scrape_interval: 2s"),
        ("scrape_timeout: 10s", "scrape_timeout: 2s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ] {
        assert!(
            adapted.contains(shipped),
            "{shipped} is not in the shipped configuration"
        );
        adapted = adapted.replace(shipped, short);
    }
    adapted
}

/// Rules whose minutes are short: `[5m]`, `offset 15m`, `for: 1m` and `2 * 60`. Names such as `rate5m` stay.
#[must_use]
pub fn with_short_minutes(text: &str) -> String {
    let text = text.replace(" * 60", &format!(" * {MINUTE}"));
    let mut adapted = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let length = number
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(number.len());
        let (digits, after) = number.split_at(length);
        adapted.push_str(before);
        let mut following = after.chars();
        let is_minutes = before.ends_with(['[', ' '])
            && following.next() == Some('m')
            && following.next().is_none_or(|c| !c.is_alphanumeric());
        match digits.parse::<u64>() {
            Ok(minutes) if is_minutes => {
                adapted.push_str(&format!("{}s", minutes * MINUTE));
                rest = &after[1..];
            }
            Ok(_) | Err(_) => {
                adapted.push_str(digits);
                rest = after;
            }
        }
    }
    adapted.push_str(rest);
    adapted
}

impl Prometheus {
    /// Starts Prometheus with the files in `dir`, where it also keeps its data.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let log = dir.join("log");
        let output = File::create(&log).expect("the directory can be written");
        let errors = output.try_clone().expect("a file can be opened twice");
        let child = Command::new(prereq::require("prometheus", "prometheus"))
            .arg(format!(
                "--config.file={}",
                dir.join("prometheus.yaml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .expect("it was found, so it starts");
        let mut started = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
        };
        let up = eventually(START_LIMIT, || {
            started.find_address().is_some_and(|address| {
                started.address = address;
                http::get(address, "/-/ready").is_ok_and(|answer| answer.status == 200)
            })
        });
        assert!(up, "Prometheus did not start:\n{}", started.log());
        started
    }

    /// The value of an expression now, an instant vector or a number.
    ///
    /// # Errors
    /// What Prometheus says against the expression.
    ///
    /// # Panics
    /// When Prometheus does not answer.
    pub fn query(&self, expression: &str) -> Result<Vec<PromSample>, String> {
        let query: String = byte_serialize(expression.as_bytes()).collect();
        let answer = http::get(self.address, &format!("/api/v1/query?query={query}"))
            .unwrap_or_else(|error| panic!("{expression}: {error}\n{}", self.log()));
        let answer: Value = serde_json::from_str(&answer.text()).expect("it answers in JSON");
        if answer["status"] != "success" {
            return Err(answer["error"].to_string());
        }
        let result = &answer["data"]["result"];
        match answer["data"]["resultType"].as_str() {
            Some("vector") => Ok(result
                .as_array()
                .expect("it is a vector")
                .iter()
                .map(sample)
                .collect()),
            other => Err(format!("{expression} is a {other:?}")),
        }
    }

    /// The series of the alerts that fire now.
    ///
    /// # Panics
    /// As [`Prometheus::query`].
    #[must_use]
    pub fn firing(&self, alert: &str) -> Vec<BTreeMap<String, String>> {
        let query = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
        let found = self.query(&query).expect("the query is valid");
        found.into_iter().map(|sample| sample.labels).collect()
    }

    /// The names of all alerts that have fired since it was started.
    ///
    /// # Panics
    /// As [`Prometheus::query`].
    #[must_use]
    pub fn fired(&self) -> BTreeSet<String> {
        let query = "count by (alertname) (count_over_time(ALERTS{alertstate=\"firing\"}[1d]))";
        let found = self.query(query).expect("the query is valid");
        let names = found
            .into_iter()
            .filter_map(|mut sample| sample.labels.remove("alertname"));
        names.collect()
    }

    /// The address of its page.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until an alert fires, or does not.
    ///
    /// # Panics
    /// When it does not within `limit`.
    #[track_caller]
    pub fn wait_alert(&self, alert: &str, fires: bool, limit: Duration) {
        let as_expected = eventually(limit, || self.firing(alert).is_empty() != fires);
        let word = if fires {
            "does not fire"
        } else {
            "still fires"
        };
        assert!(
            as_expected,
            "{alert} {word} after {limit:?}: {:?}\n{}",
            self.query("ALERTS"),
            self.log()
        );
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn find_address(&self) -> Option<SocketAddr> {
        let text = fs::read_to_string(&self.log).ok()?;
        let line = text
            .lines()
            .find(|line| line.contains("msg=\"Listening on\""))?;
        line.rsplit_once("address=")?.1.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sample(element: &Value) -> PromSample {
    let labels = element["metric"]
        .as_object()
        .expect("an element has labels");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    PromSample {
        labels: labels
            .iter()
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        value: text(&element["value"][1])
            .parse()
            .expect("a value is a number"),
    }
}
