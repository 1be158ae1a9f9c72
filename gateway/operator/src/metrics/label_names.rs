//! Names that come from outside as values of a label: so many, and the rest as one.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The most names that are values of their own.
const MOST: usize = 20;

/// The longest name that is a value of its own, in bytes.
const LONGEST: usize = 255;

/// The value for all other names. No registry can have this name, and no common plugin has.
const OTHER: &str = "other";

/// The names that are values of a label, in the order in which they were met. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelNames(Arc<Mutex<BTreeSet<Arc<str>>>>);

// === impl LabelNames ===

impl LabelNames {
    /// The value for a name: the name itself if it is well-formed and one of the first, else `other`.
    pub(super) fn value(&self, name: &str) -> Arc<str> {
        if !is_name(name) {
            return Arc::from(OTHER);
        }
        let mut names = self.0.lock();
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        if names.len() >= MOST {
            return Arc::from(OTHER);
        }
        let known: Arc<str> = Arc::from(name);
        names.insert(Arc::clone(&known));
        known
    }
}

/// Returns whether this can be the host of a registry, with its port, or the file of a plugin.
fn is_name(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_names_are_values_and_the_rest_is_other() {
        let names = LabelNames::default();
        let shared = names.clone();
        for number in 0..MOST {
            let name = format!("r{number}.example:5000");
            assert_eq!(&*names.value(&name), name);
        }
        assert_eq!(&*shared.value("r7.example:5000"), "r7.example:5000");
        assert_eq!(&*shared.value("late.example"), OTHER);
        assert_eq!(names.0.lock().len(), MOST);
    }

    #[test]
    fn malformed_names_take_no_place() {
        let names = LabelNames::default();
        let long = "a".repeat(LONGEST + 1);
        for name in ["", "a\"b", "a b", "ä", "a/b", long.as_str()] {
            assert_eq!(&*names.value(name), OTHER, "{name}");
        }
        assert!(names.0.lock().is_empty());
        assert_eq!(&*names.value("[::1]:5000"), "[::1]:5000");
        assert_eq!(&*names.value("host-local"), "host-local");
    }
}
