//! Tolerant readers of other programs' files, for the few values that matter here.

use std::path::PathBuf;

use serde_json::Value;

/// The value of a key at the top level of a YAML file: a scalar on the key's own line.
pub(super) fn yaml_value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.split(" #").next().unwrap_or(value).trim();
    let bare = value.trim_matches(['"', '\'']);
    (!bare.is_empty()).then_some(bare)
}

/// The value of a key at the top level of a YAML file, which may be written as JSON: a scalar.
pub(super) fn top_level_value(text: &str, key: &str) -> Option<String> {
    if !text.trim_start().starts_with('{') {
        return yaml_value(text, key).map(str::to_owned);
    }
    let object: Value = serde_json::from_str(text).ok()?;
    match object.get(key)? {
        Value::String(value) => (!value.is_empty()).then(|| value.clone()),
        value @ (Value::Bool(_) | Value::Number(_)) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The first and the last number of a range, separated by blanks or a dash.
pub(super) fn port_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text
        .trim()
        .split(|c: char| c.is_whitespace() || c == '-')
        .filter(|part| !part.is_empty());
    let first = numbers.next()?.parse().ok()?;
    let last = match numbers.next() {
        Some(last) => last.parse().ok()?,
        None => first,
    };
    Some((first, last))
}

/// Paths in a sentence.
pub(super) fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

/// At most `max` words in a sentence, and how many more there are.
pub(super) fn first_of(words: &[String], max: usize) -> String {
    let more = words.len().saturating_sub(max);
    let shown = words.get(..max).unwrap_or(words).join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_values_of_the_top_level_are_found() {
        let text = "kind: KubeletConfiguration\n  cgroupDriver: nested\ncgroupDriver: \"systemd\" # why\nempty:\n";
        assert_eq!(yaml_value(text, "cgroupDriver"), Some("systemd"));
        assert_eq!(yaml_value(text, "kind"), Some("KubeletConfiguration"));
        assert_eq!(yaml_value(text, "empty"), None);
        assert_eq!(yaml_value(text, "kin"), None);
    }

    #[test]
    fn values_of_json_are_found_too() {
        let text = " {\"a\": {\"b\": 1}, \"b\": \"x\", \"c\": false, \"d\": 2, \"e\": \"\", \"f\": null}\n";
        let value = |key| top_level_value(text, key);
        assert_eq!(value("b").as_deref(), Some("x"));
        assert_eq!(value("c").as_deref(), Some("false"));
        assert_eq!(value("d").as_deref(), Some("2"));
        for key in ["a", "e", "f", "g"] {
            assert_eq!(value(key), None, "{key}");
        }
        assert_eq!(top_level_value("b: x\n", "b").as_deref(), Some("x"));
        assert_eq!(top_level_value("{b: x", "b"), None);
    }

    #[test]
    fn ranges_have_one_or_two_numbers() {
        assert_eq!(port_range("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(port_range("30000-32767"), Some((30000, 32767)));
        assert_eq!(port_range("80"), Some((80, 80)));
        assert_eq!(port_range(""), None);
        assert_eq!(port_range("a-b"), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let words = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(first_of(&words, 3), "a, b, c");
        assert_eq!(first_of(&words, 1), "a and 2 more");
    }
}
