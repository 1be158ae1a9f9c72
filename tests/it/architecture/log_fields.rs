//! Log lines name their fields by one table: `FIELDS` and `DETAILS` of the telemetry, whose meanings `docs/log.md` has.

use std::collections::BTreeSet;
use std::fs;

use switchyard_telemetry::{DETAILS, FIELDS};

use super::files::files;
use super::repository;

/// The macros that make a line, and the one that makes a span.
const MACROS: [&str; 6] = [
    "trace!(",
    "debug!(",
    "info!(",
    "warn!(",
    "error!(",
    "info_span!(",
];

/// A field of a line: its name and the expression of its value.
type Named<'a> = (&'a str, &'a str);

/// The code of a file: without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The arguments of a call, from behind its bracket on.
fn arguments(call: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut is_text = false;
    let mut begin = 0;
    let mut chars = call.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if is_text => drop(chars.next()),
            '"' => is_text = !is_text,
            _ if is_text => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                found.push(call[begin..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(call[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The fields of the lines that a macro makes in some code.
fn fields<'a>(code: &'a str, name: &str) -> Vec<Named<'a>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(name) {
        let is_another = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_another {
            continue;
        }
        for argument in arguments(&code[at + name.len()..]) {
            let is_text = argument.starts_with('"');
            if is_text && name != "info_span!(" {
                break;
            }
            if is_text || argument.is_empty() || argument.starts_with("target:") {
                continue;
            }
            let (field, value) = argument.split_once(" =").unwrap_or((argument, argument));
            found.push((field.trim_start_matches(['%', '?']), value));
        }
    }
    found
}

/// The sources of the daemon and its other processes, without doubles for tests: name and code.
fn daemon_sources() -> Vec<(String, String)> {
    let all = files(&[".rs"]).into_iter().filter_map(|path| {
        let name = path.strip_prefix(repository()).ok()?.to_str()?.to_owned();
        let is_source = name.contains("/src/")
            && (name.starts_with("backends/") || name.starts_with("gateway/"))
            && !name.contains("/tests");
        let text = fs::read_to_string(&path).expect("a source file can be read");
        is_source.then(|| (name, code(&text)))
    });
    all.collect()
}

#[test]
fn fields_of_log_lines_are_named_by_one_table() {
    let known: BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
    let mut unused: BTreeSet<&str> = DETAILS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (file, code) in daemon_sources() {
        for (field, value) in MACROS.iter().flat_map(|name| fields(&code, name)) {
            if !known.contains(field) && !DETAILS.contains(&field) {
                wrong.push(format!("{file}: {field}"));
            }
            // An id is no name, and a name no id.
            if ["task", "sandbox", "object"].contains(&field) && value.contains("name") {
                wrong.push(format!("{file}: {field} is {value}"));
            }
            unused.remove(field);
        }
    }
    assert!(
        wrong.is_empty(),
        "name these as gateway/telemetry/src/fields.rs does, or add them there:\n{}",
        wrong.join("\n")
    );
    assert!(unused.is_empty(), "no line has these any more: {unused:?}");
}

#[test]
fn names_of_objects_are_fields() {
    let mut labels = BTreeSet::new();
    for owner in ["cri", "nomad", "swarm"] {
        let file = repository().join(format!("gateway/{owner}/src/names.rs"));
        let code = code(&fs::read_to_string(file).expect("the names of an owner are there"));
        labels.extend(
            code.split(".with(\"")
                .skip(1)
                .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
        );
    }
    assert!(labels.len() > 8, "{labels:?}");
    // The log has another name for it: see `log_name` of the operator.
    labels.remove("uid");
    labels.insert("pod_uid".to_owned());
    labels.retain(|label| FIELDS.iter().all(|field| field.name != label));
    assert!(labels.is_empty(), "these are no fields: {labels:?}");
}

#[test]
fn documented_fields_are_the_fields() {
    let text = fs::read_to_string(repository().join("docs/log.md")).expect("it is there");
    let documented: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let rows: Vec<String> = FIELDS
        .iter()
        .map(|field| format!("| `{}` | {} |", field.name, field.meaning))
        .collect();
    assert_eq!(documented, rows, "docs/log.md");
    let names: BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
    let details: BTreeSet<&str> = DETAILS.iter().copied().collect();
    assert_eq!(
        names.len() + details.len(),
        FIELDS.len() + DETAILS.len(),
        "a name occurs twice"
    );
    assert!(names.is_disjoint(&details));
    for name in names.union(&details) {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(
            name.chars().all(is_part),
            "{name} cannot be a field of the journal"
        );
    }
}

#[test]
fn fields_of_a_line_are_found() {
    let code = "tracing::warn!(task = %id, ?took, error = report(&error, \"x, y\"), \"a, b = {c}\", c);\n\
                x_warn!(lost);\n info_span!(\"rpc\", protocol = a, rpc = %path);\n debug!(\"none\");";
    let of = |name| -> Vec<&str> { fields(code, name).iter().map(|(field, _)| *field).collect() };
    assert_eq!(of("warn!("), ["task", "took", "error"]);
    assert_eq!(of("info_span!("), ["protocol", "rpc"]);
    assert!(of("debug!(").is_empty());
}
