//! Tolerant readers of other programs' files, for the few values that matter here.

use std::path::PathBuf;

/// The value of a key at the top level of a YAML file: a scalar on the key's own line.
pub(super) fn yaml_value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.split(" #").next().unwrap_or(value).trim();
    let bare = value.trim_matches(['"', '\'']);
    (!bare.is_empty()).then_some(bare)
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
