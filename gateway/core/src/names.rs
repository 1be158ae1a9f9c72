//! The names under which an orchestrator and its users know a sandbox or task: what lists, events, audit lines
//! and metrics show in place of [`Meta::name`](crate::spec::Meta::name), which serves idempotency.
//!
//! Each frontend gives them by one function, and chooses the labels, because the core knows no protocol.

use std::collections::BTreeMap;
use std::fmt;

/// The names of one sandbox or task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    display: String,
    labels: Vec<(&'static str, String)>,
}

impl Names {
    /// Names without labels; `display` is what people read.
    #[must_use]
    pub fn new(display: impl Into<String>) -> Self {
        Self {
            display: display.into(),
            labels: Vec::new(),
        }
    }

    /// Adds a label, unless its value is empty: an empty value says that the name is not known.
    #[must_use]
    pub fn with(mut self, label: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.labels.push((label, value));
        }
        self
    }

    /// The value of a label, if the name is known.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&str> {
        self.iter()
            .find(|(name, _)| *name == label)
            .map(|(_, value)| value)
    }

    /// The labels with their values, in the order of the frontend.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.labels
            .iter()
            .map(|(label, value)| (*label, value.as_str()))
    }

    /// The labels with their values, as records have them.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter()
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .collect()
    }
}

/// For people, on one line: control characters, which clients may have put into names, are escaped.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.display.chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                fmt::Write::write_char(f, c)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_and_unknown_names_are_left_out() {
        let names = Names::new("shop/web")
            .with("job", "shop")
            .with("group", "")
            .with("alloc", "3a7c");
        assert_eq!(
            names.iter().collect::<Vec<_>>(),
            [("job", "shop"), ("alloc", "3a7c")]
        );
        assert_eq!(
            (names.get("alloc"), names.get("group")),
            (Some("3a7c"), None)
        );
    }

    #[test]
    fn display_is_one_line_whatever_the_name_contains() {
        let names = Names::new("a\nb\u{1b}[31m\u{9b}c ü").with("job", "a\nb");
        assert_eq!(names.to_string(), "a\\nb\\u{1b}[31m\\u{9b}c ü");
        assert_eq!(names.get("job"), Some("a\nb"));
    }
}
