//! Combines several patterns whose matches form one device each, as in generic-device-plugin.

use std::path::{Path, PathBuf};

/// The matches of one of the patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matches {
    /// In ascending order.
    pub(crate) paths: Vec<PathBuf>,
    /// Maximum number of devices with the same match.
    pub(crate) limit: usize,
    /// True if a device may lack a match.
    pub(crate) optional: bool,
}

/// The devices, each with its match of every pattern. Their number is that of the matches of the longest
/// pattern, but no more than every pattern that is not optional can serve.
pub(crate) fn combine(patterns: &[Matches]) -> Vec<Vec<Option<&Path>>> {
    let longest = patterns
        .iter()
        .map(|pattern| pattern.paths.len())
        .max()
        .unwrap_or(0);
    let served = patterns
        .iter()
        .filter(|pattern| !pattern.optional)
        .map(Matches::uses)
        .min();
    let count = longest.min(served.unwrap_or(longest));
    (0..count)
        .map(|device| patterns.iter().map(|pattern| pattern.of(device)).collect())
        .collect()
}

// === impl Matches ===

impl Matches {
    /// Returns the number of devices that it can serve.
    fn uses(&self) -> usize {
        self.paths.len().saturating_mul(self.limit)
    }

    fn of(&self, device: usize) -> Option<&Path> {
        if device >= self.uses() {
            return None;
        }
        Some(&self.paths[device % self.paths.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(paths: &[&str], limit: usize, optional: bool) -> Matches {
        Matches {
            paths: paths.iter().map(PathBuf::from).collect(),
            limit,
            optional,
        }
    }

    #[track_caller]
    fn check(patterns: &[Matches], expected: &[&str]) {
        let shown = |device: &Vec<Option<&Path>>| {
            device
                .iter()
                .map(|path| path.map_or("", |path| path.to_str().unwrap()))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let devices: Vec<String> = combine(patterns).iter().map(shown).collect();
        assert_eq!(devices, expected);
    }

    #[test]
    fn the_first_matches_are_one_device_and_the_second_ones_another() {
        check(
            &[
                matches(&["a0", "a1"], 1, false),
                matches(&["b0", "b1", "b2"], 1, false),
            ],
            &["a0 b0", "a1 b1"],
        );
        check(
            &[matches(&["a0", "a1"], 1, false), matches(&[], 1, false)],
            &[],
        );
        check(&[], &[]);
    }

    #[test]
    fn a_limit_lets_one_match_serve_several_devices() {
        let five = matches(&["a0", "a1", "a2", "a3", "a4"], 1, false);
        check(
            &[five.clone(), matches(&["c"], 10, false)],
            &["a0 c", "a1 c", "a2 c", "a3 c", "a4 c"],
        );
        check(&[five, matches(&["c"], 2, false)], &["a0 c", "a1 c"]);
    }

    #[test]
    fn a_device_goes_without_what_is_optional() {
        check(
            &[matches(&["a0", "a1"], 1, false), matches(&["b0"], 1, true)],
            &["a0 b0", "a1 "],
        );
        check(
            &[matches(&["a0"], 1, false), matches(&[], 1, true)],
            &["a0 "],
        );
    }
}
