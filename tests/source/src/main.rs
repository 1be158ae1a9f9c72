//! Prints the figures of Rust source trees side by side, as a Markdown table.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what it prints is what a person reads"
)]

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use switchyard_source::figures::Figures;
use switchyard_source::imports::imports;
use switchyard_source::tree::Tree;
use switchyard_source::{Error, Module, circles};

/// The length from which a function counts as long.
const LONG: usize = 40;

fn main() -> ExitCode {
    let trees: Vec<OsString> = std::env::args_os().skip(1).collect();
    if trees.is_empty() {
        eprintln!("measure: name the directories of one or more source trees");
        return ExitCode::FAILURE;
    }
    let mut columns = Vec::new();
    for tree in trees {
        match column(Path::new(&tree)) {
            Ok(column) => columns.push(column),
            Err(error) => {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
                eprintln!("measure: {error}{}", source.unwrap_or_default());
                return ExitCode::FAILURE;
            }
        }
    }
    print!("{}", table(&columns));
    ExitCode::SUCCESS
}

/// Returns the figures of a tree, from top to bottom.
fn column(root: &Path) -> Result<Vec<(&'static str, String)>, Error> {
    let tree = Tree::read(root)?;
    let mut figures = Figures::default();
    for path in &tree.sources {
        let text = read(path)?;
        figures.add(Figures::of(&text).map_err(|source| Error::Parse {
            path: path.clone(),
            source,
        })?);
    }
    let mut found = Vec::new();
    for path in &tree.roots {
        found.extend(circles(&imports(&Module::read(path)?)));
    }
    let name = fs::canonicalize(root)
        .ok()
        .and_then(|path| path.file_name().map(OsString::from));
    let mut column = vec![("", name.unwrap_or_default().to_string_lossy().into_owned())];
    column.extend(rows(&figures));
    column.extend(circle_rows(&found));
    column.extend(word_rows(root, &tree.documents)?);
    Ok(column)
}

fn rows(figures: &Figures) -> Vec<(&'static str, String)> {
    let mut lengths = figures.functions.clone();
    lengths.sort_unstable();
    let at = |percent: usize| {
        lengths
            .get((lengths.len() * percent / 100).min(lengths.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    let long = lengths.iter().filter(|length| **length > LONG).count();
    vec![
        ("files", figures.files.to_string()),
        ("lines of code", figures.lines.to_string()),
        (
            "characters per line",
            ratio(figures.characters, figures.lines, 1),
        ),
        ("functions", figures.functions.len().to_string()),
        (
            "lines per function: median, p90, most",
            format!("{}, {}, {}", at(50), at(90), at(100)),
        ),
        (
            "functions of more than 40 lines, per 100",
            ratio(long, figures.functions.len(), 100),
        ),
        (
            "named closures per 1,000 lines",
            ratio(figures.named_closures, figures.lines, 1000),
        ),
        (
            "lines with comments per 100 lines in functions",
            ratio(
                figures.comments_in_functions,
                figures.lines_in_functions,
                100,
            ),
        ),
        (
            "doc comments that begin with a question, per 100",
            ratio(figures.question_comments, figures.doc_comments, 100),
        ),
    ]
}

fn circle_rows(circles: &[Vec<PathBuf>]) -> Vec<(&'static str, String)> {
    let most = circles.iter().map(Vec::len).max().unwrap_or(0);
    let files: usize = circles.iter().map(Vec::len).sum();
    vec![(
        "circles of files: number, files, largest",
        format!("{}, {files}, {most}", circles.len()),
    )]
}

/// The words of documents: decisions and changelogs grow with each release, so they have rows of their own.
fn word_rows(root: &Path, documents: &[PathBuf]) -> Result<Vec<(&'static str, String)>, Error> {
    let mut words = 0;
    let mut decisions = 0;
    let mut changes = 0;
    let mut glossary = 0;
    for path in documents {
        let text = read(path)?;
        let count = text.split_whitespace().count();
        let below = path.strip_prefix(root).unwrap_or(path);
        if below.components().any(|part| part.as_os_str() == "adr") {
            decisions += count;
        } else if below.ends_with("CHANGELOG.md") {
            changes += count;
        } else {
            words += count;
            glossary += glossary_entries(&text);
        }
    }
    Ok(vec![
        ("words of documents", words.to_string()),
        ("words of decision records", decisions.to_string()),
        ("words of changelogs", changes.to_string()),
        ("entries of the glossary", glossary.to_string()),
    ])
}

/// The list items with a term in bold below a heading with the word "Glossary".
fn glossary_entries(text: &str) -> usize {
    let mut is_inside = false;
    let mut entries = 0;
    for line in text.lines() {
        if line.starts_with('#') {
            is_inside = line.contains("Glossary");
        }
        entries += usize::from(is_inside && line.starts_with("- **"));
    }
    entries
}

fn read(path: &Path) -> Result<String, Error> {
    let text = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `part` of `whole`, times `factor`, with one decimal.
fn ratio(part: usize, whole: usize, factor: usize) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = (part * factor * 10 + whole / 2) / whole;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn table(columns: &[Vec<(&'static str, String)>]) -> String {
    let mut text = String::new();
    let Some(first) = columns.first() else {
        return text;
    };
    for (number, (name, _)) in first.iter().enumerate() {
        let cells: Vec<&str> = columns
            .iter()
            .map(|column| column[number].1.as_str())
            .collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|---|{}", "---|".repeat(columns.len()));
        }
    }
    text
}
