//! The keys of `config.toml`.

use crate::DOCUMENTED;

/// The keys of the documented configuration, those that are commented out too, each with the words behind
/// it.
pub(crate) fn keys() -> Vec<(String, String)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in DOCUMENTED.lines() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = format!("{name}.");
            continue;
        }
        let line = line.strip_prefix("# ").unwrap_or(line);
        let Some((key, value)) = line.split_once(" = ") else {
            continue;
        };
        if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            let words = value.rsplit_once("  # ").map_or("", |(_, words)| words);
            keys.push((format!("{section}{key}"), words.to_owned()));
        }
    }
    keys
}
