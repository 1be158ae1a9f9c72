//! The row of an incident in the table: what was seen of it, in few words.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The most characters of a cell.
const MOST: usize = 300;
/// The beginning of the path of a private root, and the number of digits after it.
const ROOT: (&str, usize) = ("/tmp/sw-", 8);
/// Hex digits of an id, of which so many are kept.
const ID: (usize, usize) = (32, 12);

/// The cells of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// Its number.
    pub number: u8,
    /// The report of a user, in a line.
    pub symptom: String,
    /// The place where it was made, or the reason why it was not.
    pub made: String,
    /// True if it was made, and has shown.
    pub is_seen: bool,
    /// The alerts that fired, with the time that each waits as shipped.
    pub alerts: Vec<String>,
    /// The answer of `switchyard status`.
    pub status: String,
    /// The first new finding of `switchyard doctor`.
    pub doctor: String,
    /// The last line of `switchyard history` about the object, or of `switchyard events` where there is no such command.
    pub history: String,
    /// The report of the orchestrator.
    pub orchestrator: String,
}

/// A finding of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DoctorFinding {
    /// Its code.
    pub code: String,
    /// The text.
    pub found: String,
}

// === impl Row ===

impl Row {
    /// The headings of the cells.
    pub const HEADINGS: [&'static str; 8] = [
        "incident",
        "symptom",
        "made",
        "alerts",
        "status",
        "doctor",
        "history",
        "orchestrator",
    ];

    /// The row of an incident that was not made, and why.
    #[must_use]
    pub fn not_made(number: u8, symptom: &str, why: &str) -> Self {
        Self {
            number,
            symptom: symptom.to_owned(),
            made: shortened(why, MOST),
            ..Self::default()
        }
    }

    /// Its cells, separated by tabs.
    #[must_use]
    pub fn tsv(&self) -> String {
        let Self {
            number,
            symptom,
            made,
            is_seen: _,
            alerts,
            status,
            doctor,
            history,
            orchestrator,
        } = self;
        let cells = [
            number.to_string(),
            symptom.clone(),
            made.clone(),
            alerts.join(", "),
            status.clone(),
            doctor.clone(),
            history.clone(),
            orchestrator.clone(),
        ];
        let cells = cells.map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                shortened(&cell, MOST)
            }
        });
        cells.join("\t")
    }

    /// The row as an object.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "incident": self.number,
            "symptom": self.symptom,
            "made": self.made,
            "seen": self.is_seen,
            "alerts": self.alerts,
            "status": self.status,
            "doctor": self.doctor,
            "history": self.history,
            "orchestrator": self.orchestrator,
        })
    }
}

/// A text in one line of at most so many characters: paths of a private root and long ids are cut, since they differ from run to run.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = without_ids(&without_roots(&words.join(" ")));
    if line.chars().count() <= most {
        return line;
    }
    let kept: String = line.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Names private roots alike.
fn without_roots(text: &str) -> String {
    let (begin, digits) = ROOT;
    let mut parts = text.split(begin);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_root = part.len() >= digits
            && part
                .bytes()
                .take(digits)
                .all(|byte| byte.is_ascii_hexdigit());
        if is_root {
            named.push_str("<root>");
            named.push_str(&part[digits..]);
        } else {
            named.push_str(begin);
            named.push_str(part);
        }
    }
    named
}

/// Cuts long ids.
fn without_ids(text: &str) -> String {
    let (least, kept) = ID;
    let mut cut = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest
            .find(|char: char| !char.is_ascii_hexdigit())
            .unwrap_or(rest.len());
        let (digits, after) = rest.split_at(length);
        if length >= least {
            cut.push_str(&digits[..kept]);
            cut.push('…');
        } else {
            cut.push_str(digits);
        }
        let mut chars = after.chars();
        cut.extend(chars.next());
        rest = chars.as_str();
    }
    cut
}

/// The alerts of a file of rules with the time that each waits, `0m` if it does not wait.
#[must_use]
pub fn waits(rules: &str) -> BTreeMap<String, String> {
    let mut waits = BTreeMap::new();
    let mut alert = None;
    for line in rules.lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            waits.insert(name.to_owned(), "0m".to_owned());
            alert = Some(name.to_owned());
        } else if let Some(wait) = line.trim().strip_prefix("for: ")
            && let Some(alert) = alert.take()
        {
            waits.insert(alert, wait.to_owned());
        }
    }
    waits
}

/// The alerts that fired with these waits, without those that fired before.
#[must_use]
pub fn alerts_since(
    before: &BTreeSet<String>,
    now: &BTreeSet<String>,
    waits: &BTreeMap<String, String>,
) -> Vec<String> {
    let new = now.difference(before);
    new.map(|alert| match waits.get(alert) {
        Some(wait) => format!("{alert} ({wait})"),
        None => alert.clone(),
    })
    .collect()
}

/// Cuts the answer of `switchyard status` down to a line: whether the node is ready, and the first part that failed; or else
/// the first trouble.
#[must_use]
pub fn status_line(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let ready = match first.split_once(" is ") {
        Some((_, rest)) => rest.split(',').next().unwrap_or_default(),
        None => first,
    };
    let failed = text
        .lines()
        .skip(1)
        .find(|line| line.split_whitespace().any(|word| word == "failed"));
    let trouble = text
        .lines()
        .skip_while(|line| !line.starts_with("TROUBLE "))
        .nth(1);
    let line = match failed.or(trouble) {
        Some(wrong) => format!("{ready}; {wrong}"),
        None => ready.to_owned(),
    };
    shortened(&line, MOST)
}

/// The findings in the doctor's JSON that are worse than a note.
#[must_use]
pub fn findings(report: &Value) -> Vec<DoctorFinding> {
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|finding| finding["severity"] != "note")
        .map(|finding| DoctorFinding {
            code: text(finding, "code"),
            found: text(finding, "found"),
        })
        .collect()
}

/// The first finding whose code was not there before, and how many more there are.
#[must_use]
pub fn doctor_line(before: &[DoctorFinding], now: &[DoctorFinding]) -> String {
    let known: BTreeSet<&str> = before.iter().map(|finding| finding.code.as_str()).collect();
    let mut new = now
        .iter()
        .filter(|finding| !known.contains(finding.code.as_str()));
    let Some(DoctorFinding { code, found }) = new.next() else {
        return String::new();
    };
    let line = shortened(&format!("{code}: {found}"), MOST);
    match new.count() {
        0 => line,
        more => format!("{line} (+{more})"),
    }
}

/// The last line of a list that names an object.
#[must_use]
pub fn line_about(list: &str, object: &str) -> String {
    let found = list.lines().rfind(|line| line.contains(object));
    shortened(found.unwrap_or_default(), MOST)
}

/// The first failure that an orchestrator reported, or else its last line.
#[must_use]
pub fn reported_line(lines: &[String]) -> String {
    let failure = lines.iter().find(|line| line.contains("rpc error"));
    let line = failure.or_else(|| lines.last());
    shortened(line.map(String::as_str).unwrap_or_default(), MOST)
}
