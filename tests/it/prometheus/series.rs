//! Series as Prometheus writes them, and the words that are values of their labels.

use std::collections::BTreeMap;
use std::fmt;

use switchyard_core::ErrorKind;
use switchyard_core::backend::Trouble;
use switchyard_core::id::Owner;
use switchyard_core::operation::OperationKind;

/// The name of a series with its labels, without a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LabelledName {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
}

// === impl LabelledName ===

impl LabelledName {
    /// Reads `name{label="value",…}`.
    pub(super) fn parse(text: &str) -> Self {
        let (name, mut rest) = text.split_once('{').unwrap_or((text, ""));
        let mut labels = BTreeMap::new();
        while let Some((label, quoted)) = rest.split_once("=\"") {
            let (value, after) = unquoted(quoted);
            let label = label.trim_start_matches([',', ' ']);
            labels.insert(label.to_owned(), value);
            rest = after;
        }
        Self {
            name: name.to_owned(),
            labels,
        }
    }

    /// Returns whether the page of the daemon has the name; that of containers has names of its own.
    pub(super) fn is_of_daemon(&self) -> bool {
        is_of_daemon(&self.name)
    }
}

impl fmt::Display for LabelledName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.labels.iter();
        let labels: Vec<String> = labels
            .map(|(label, value)| format!("{label}={value:?}"))
            .collect();
        write!(f, "{}{{{}}}", self.name, labels.join(","))
    }
}

/// Returns whether the page of the daemon has this name.
pub(super) fn is_of_daemon(name: &str) -> bool {
    (name.starts_with("switchyard_") || name.starts_with("process_"))
        && name != "switchyard_container_scrape_success"
}

/// The text before the closing quotation mark without its escapes, and what follows the mark.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped)) => value.push(escaped),
                None => break,
            },
            plain => value.push(plain),
        }
    }
    panic!("a quotation mark has no partner: {text}")
}

/// The selectors of series of the daemon in an expression, such as `switchyard_backend_up{part="disk"}`.
pub(super) fn selectors(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(|c: char| c == '"' || c.is_ascii_alphabetic()) {
        rest = &rest[at..];
        if let Some(quoted) = rest.strip_prefix('"') {
            (_, rest) = unquoted(quoted);
            continue;
        }
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        if is_of_daemon(name) {
            let matchers = after
                .strip_prefix('{')
                .and_then(|inner| inner.split_once('}'));
            match matchers {
                Some((matchers, after)) => {
                    found.push(format!("{name}{{{matchers}}}"));
                    rest = after;
                }
                None => found.push(name.to_owned()),
            }
        }
    }
    found
}

/// All values that a label of a metric can have; `None` if they are not a closed set, or a live page alone can tell.
pub(super) fn words(name: &str, label: &str) -> Option<Vec<&'static str>> {
    let outcomes = ["ok", "failed", "dropped"];
    let words: Vec<&'static str> = match label {
        "owner" => Owner::ALL
            .into_iter()
            .map(Owner::as_str)
            .chain(["node"])
            .collect(),
        "operation" => OperationKind::ALL
            .iter()
            .map(|kind| kind.as_str())
            .collect(),
        "kind" if name == "switchyard_troubles" => Trouble::ALL.map(Trouble::as_str).to_vec(),
        "kind" if name.ends_with("_failures_total") => error_kinds().collect(),
        "result" if name == "switchyard_image_pulls_total" => error_kinds().chain(["ok"]).collect(),
        "result" if name == "switchyard_cni_runs_total" => outcomes.to_vec(),
        "result" if name.starts_with("switchyard_operation_duration_seconds") => outcomes.to_vec(),
        "protocol" => vec!["cri", "nomad", "device_plugin", "device_host"],
        _ => return None,
    };
    Some(words)
}

fn error_kinds() -> impl Iterator<Item = &'static str> {
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::InvalidArgument,
        ErrorKind::FailedPrecondition,
        ErrorKind::Unavailable,
        ErrorKind::ResourceExhausted,
        ErrorKind::Unauthenticated,
        ErrorKind::DeadlineExceeded,
        ErrorKind::Cancelled,
        ErrorKind::Unimplemented,
        ErrorKind::Internal,
    ];
    kinds.into_iter().map(ErrorKind::as_str)
}

#[test]
fn series_and_selectors_are_read_with_their_quotes() {
    for (text, name, labels) in [
        ("up", "up", &[][..]),
        ("a{}", "a", &[][..]),
        (
            r#"a{b="c, d",e="}\"\\"}"#,
            "a",
            &[("b", "c, d"), ("e", "}\"\\")][..],
        ),
    ] {
        let read = LabelledName::parse(text);
        let expected: BTreeMap<String, String> = labels
            .iter()
            .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(read.name, name, "{text}");
        assert_eq!(read.labels, expected, "{text}");
        assert_eq!(LabelledName::parse(&read.to_string()), read, "{text}");
    }
    let expression = r#"label_replace(sum by (switch) (rate(switchyard_a_total{b=~"c|d", e!="f"}[5m])), "process_x", "1", "", "")
        / on (instance) process_y unless instance:switchyard_z:max == 1 and switchyard_container_scrape_success"#;
    assert_eq!(
        selectors(expression),
        [r#"switchyard_a_total{b=~"c|d", e!="f"}"#, "process_y"]
    );
}
