//! Finds the line of a key in a TOML file.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use toml_edit::{DocumentMut, ImDocument, Item, TomlError, Value};

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// The default.
    Default,
    /// A line of a file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A command line flag.
    Flag(String),
    /// The default of this node, which this file says.
    Node(PathBuf),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Node(file) => write!(f, "default of this node: {}", file.display()),
        }
    }
}

/// A parsed TOML file with the positions of its keys.
#[derive(Debug)]
pub(super) struct Document {
    root: ImDocument<String>,
}

impl Document {
    /// Parses a file's text.
    ///
    /// # Errors
    /// The line of the syntax error, and the parser's message.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let parsed = ImDocument::parse(text.to_owned());
        let root = parsed.map_err(|error: TomlError| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            (line, error.message().trim().replace('\n', ", "))
        })?;
        Ok(Self { root })
    }

    /// The file, to be edited.
    pub(super) fn into_mut(self) -> DocumentMut {
        self.root.into_mut()
    }

    /// The line of the key of this path; `None` if the file does not set it.
    pub(super) fn line_of(&self, path: &[String]) -> Option<usize> {
        let mut item = self.root.as_item();
        let mut span = None;
        for step in path {
            let (key_span, next) = child(item, step)?;
            // A table that exists only by the keys below it has no position: the position of a key is used.
            span = key_span.or(span);
            item = next.item()?;
        }
        Some(line_at(
            self.root.raw(),
            span.or_else(|| first_span(item))?.start,
        ))
    }
}

/// The item that a path element leads to; values inside arrays have no items.
enum Next<'a> {
    Item(&'a Item),
    Leaf,
}

impl<'a> Next<'a> {
    fn item(self) -> Option<&'a Item> {
        const NONE: &Item = &Item::None;
        match self {
            Self::Item(item) => Some(item),
            Self::Leaf => Some(NONE),
        }
    }
}

fn child<'a>(item: &'a Item, step: &str) -> Option<(Option<Range<usize>>, Next<'a>)> {
    if let Some(table) = item.as_table_like() {
        let (key, value) = table.get_key_value(step)?;
        return Some((key.span().or_else(|| value.span()), Next::Item(value)));
    }
    let index: usize = step.parse().ok()?;
    if let Some(tables) = item.as_array_of_tables() {
        return Some((tables.get(index)?.span(), Next::Leaf));
    }
    Some((
        item.as_array()?.get(index).and_then(Value::span),
        Next::Leaf,
    ))
}

fn first_span(item: &Item) -> Option<Range<usize>> {
    item.span().or_else(|| {
        item.as_table_like()?
            .iter()
            .filter_map(|(_, below)| first_span(below))
            .min_by_key(|s| s.start)
    })
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
        + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, path: &str, line: Option<usize>) {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        assert_eq!(Document::parse(text).unwrap().line_of(&path), line);
    }

    #[test]
    fn keys_are_found_in_tables_inline_tables_dotted_keys_and_arrays() {
        let text = "version = 1\n\n[a]\n# note\nx = 1\ny = { z = 2 }\nl = [\n 1,\n 2,\n]\n[b.c]\nk.m = 3\n";
        check(text, "version", Some(1));
        check(text, "a", Some(3));
        check(text, "a.x", Some(5));
        check(text, "a.y.z", Some(6));
        check(text, "a.l.1", Some(9));
        check(text, "b.c", Some(11));
        check(text, "b.c.k.m", Some(12));
        check(text, "a.nothing", None);
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let (line, message) = Document::parse("a = 1\nb = = 2\n").unwrap_err();
        assert_eq!(line, 2);
        assert!(!message.is_empty() && !message.contains('\n'), "{message}");
    }
}
