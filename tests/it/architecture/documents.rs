//! References in documents exist: the files and headings of their links, and the commands of the command line
//! with their options. Those that are read as a whole are short.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchyard_tests::daemon::binary;

use super::files::files;
use super::repository;

/// Documents that are read as a whole, with the most lines that they may have.
const SHORT: [(&str, usize); 2] = [("ARCHITECTURE.md", 250), ("docs/glossary.md", 150)];

/// The most columns that a line of such a document may have.
const MOST_COLUMNS: usize = 110;

/// The checked parts of a document.
#[derive(Debug, Default)]
struct Document {
    /// The targets of its links, with the line.
    links: Vec<(usize, String)>,
    /// The anchors that can follow a `#` in a link to it.
    headings: BTreeSet<String>,
    /// Its calls of `switchyard`, with the line.
    commands: Vec<(usize, String)>,
}

/// Reads as much of Markdown as the documents use.
fn parse(text: &str) -> Document {
    let mut document = Document::default();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code || line.starts_with("    ") {
            document
                .commands
                .extend(command(line).map(|command| (number, command)));
        } else {
            if let Some(heading) = line.strip_prefix('#') {
                document
                    .headings
                    .insert(slug(heading.trim_start_matches('#').trim()));
            }
            let spans = line.split('`').skip(1).step_by(2);
            document
                .commands
                .extend(spans.filter_map(command).map(|command| (number, command)));
            document
                .links
                .extend(targets(line).map(|target| (number, target)));
        }
    }
    document
}

/// The call of `switchyard` that a line of a shell begins with, as far as its words are known.
fn command(line: &str) -> Option<String> {
    let line = line.trim().trim_start_matches(['#', '$']).trim();
    let rest = line.strip_prefix("switchyard ")?;
    let is_end = |word: &&str| !word.starts_with(['#', '|', '\\', '…', '>', ';', '&', '(', '[']);
    Some(
        rest.split_whitespace()
            .take_while(is_end)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// The targets of the links in a line.
fn targets(line: &str) -> impl Iterator<Item = String> + '_ {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(str::to_owned)
}

/// The name of a heading, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

fn documents() -> BTreeMap<PathBuf, Document> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a document can be read");
        (path, parse(&text))
    };
    files(&[".md"]).into_iter().map(read).collect()
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part.as_os_str().to_str() {
            Some("..") => drop(plain.pop()),
            Some(".") => {}
            _ => plain.push(part),
        }
    }
    plain
}

#[test]
fn links_of_documents_lead_somewhere() {
    let all = documents();
    let mut broken = Vec::new();
    for (path, document) in &all {
        for (line, target) in &document.links {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let dir = path.parent().expect("a file is in a directory");
            let file = if file.is_empty() {
                path.clone()
            } else {
                plain(&dir.join(file))
            };
            let has_heading = heading.is_empty()
                || all
                    .get(&file)
                    .is_some_and(|document| document.headings.contains(heading));
            if !file.exists() || !has_heading {
                let shown = path.strip_prefix(repository()).unwrap_or(path).display();
                broken.push(format!("{shown}:{line}: {target}"));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}",
        broken.join("\n")
    );
}

#[test]
fn documents_that_are_read_as_a_whole_are_short() {
    for (name, most) in SHORT {
        let text = fs::read_to_string(repository().join(name)).expect("the document is there");
        let lines = text.lines().count();
        assert!(lines <= most, "{name} has {lines} lines, more than {most}");
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            let number = index + 1;
            assert!(
                columns <= MOST_COLUMNS,
                "{name}:{number} has {columns} columns, more than {MOST_COLUMNS}"
            );
        }
    }
}

/// The outputs of `switchyard WORDS --help`, once for each command.
#[derive(Debug, Default)]
struct Help(BTreeMap<Vec<String>, String>);

impl Help {
    fn of(&mut self, words: &[String]) -> &str {
        self.0.entry(words.to_vec()).or_insert_with(|| {
            let output = Command::new(binary()).args(words).arg("--help").output();
            String::from_utf8(output.expect("the binary exists").stdout).expect("it is text")
        })
    }

    /// The commands below one.
    fn commands(&mut self, words: &[String]) -> BTreeSet<String> {
        let listed = self
            .of(words)
            .split("\nCommands:\n")
            .nth(1)
            .unwrap_or_default();
        let listed = listed.lines().take_while(|line| !line.is_empty());
        listed
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    }

    /// The part of a call that does not exist.
    fn fault(&mut self, call: &str) -> Option<String> {
        let mut path: Vec<String> = Vec::new();
        for word in call.split(' ').filter(|word| !word.is_empty()) {
            let below = self.commands(&path);
            if let Some(option) = word.strip_prefix("--") {
                let name = option.split('=').next().unwrap_or_default();
                if !name.is_empty() && !self.of(&path).contains(&format!("--{name}")) {
                    return Some(format!("{path:?} has no option --{name}"));
                }
            } else if below.contains(word) {
                path.push(word.to_owned());
            } else if !below.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
            {
                let called = [&path[..], &[word.to_owned()]].concat();
                // A command that people do not call is not listed.
                if self.of(&called).is_empty() {
                    return Some(format!("{path:?} has no command {word}"));
                }
                path = called;
            }
        }
        None
    }
}

#[test]
fn commands_in_documents_exist_with_their_options() {
    let mut help = Help::default();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (path, document) in documents() {
        for (line, call) in document.commands {
            seen += 1;
            if let Some(fault) = help.fault(&call) {
                let shown = path.strip_prefix(repository()).unwrap_or(&path).display();
                wrong.push(format!("{shown}:{line}: switchyard {call}: {fault}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} calls were found");
}

#[test]
fn markdown_is_read() {
    let text = "# A `b` (c)\nSee [x](y.md#z) and [w](http://a/), `switchyard ps --owner nomad`, `switchyardx`.\n\
                ```sh\nswitchyard config dump --origin   # all\n[no](link)\n```\n## A-b, c\n\n    switchyard top | head\n";
    let document = parse(text);
    assert_eq!(
        document.headings,
        ["a-b-c", "a-b-c"].map(str::to_owned).into()
    );
    assert_eq!(
        document.links,
        [(2, "y.md#z".to_owned()), (2, "http://a/".to_owned())]
    );
    let commands: Vec<&str> = document
        .commands
        .iter()
        .map(|(_, command)| command.as_str())
        .collect();
    assert_eq!(
        commands,
        ["ps --owner nomad", "config dump --origin", "top"]
    );
    assert_eq!(plain(Path::new("/a/b/../c/./d")), Path::new("/a/c/d"));
}
