//! The filters of list calls. All conditions must match. Ids may be abbreviated to a unique prefix; a prefix
//! that is ambiguous or matches nothing gives an empty list.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::object::{Sandbox, Task};

/// Labels, by name.
type Labels = BTreeMap<String, String>;

/// The sandboxes of `all` with this id (or with the only id that has this prefix; empty for any) and all
/// these labels.
pub(crate) fn sandboxes(all: Vec<Arc<Sandbox>>, id: &str, labels: &Labels) -> Vec<Arc<Sandbox>> {
    narrow(all, id, |sandbox| sandbox.id)
        .into_iter()
        .filter(|sandbox| carries(&sandbox.meta.labels, labels))
        .collect()
}

/// The tasks of `all` with this id, in the one of `sandboxes` with the given id, and with all these labels.
pub(crate) fn tasks(
    all: Vec<Arc<Task>>,
    sandboxes: impl FnOnce() -> Result<Vec<Arc<Sandbox>>>,
    id: &str,
    sandbox: &str,
    labels: &Labels,
) -> Result<Vec<Arc<Task>>> {
    let mut found = narrow(all, id, |task| task.id);
    if !sandbox.is_empty() {
        let matching = narrow(sandboxes()?, sandbox, |sandbox| sandbox.id);
        found.retain(|task| matching.iter().any(|sandbox| sandbox.id == task.sandbox));
    }
    found.retain(|task| carries(&task.meta.labels, labels));
    Ok(found)
}

/// Returns whether an object with these labels has all those that are wanted.
pub(crate) fn carries(labels: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

fn narrow<T, I: Display>(all: Vec<Arc<T>>, prefix: &str, id: impl Fn(&T) -> I) -> Vec<Arc<T>> {
    if prefix.is_empty() {
        return all;
    }
    let mut found = all;
    found.retain(|object| id(object).to_string().starts_with(prefix));
    if found.len() > 1 {
        found.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(prefix: &str) -> Vec<&'static str> {
        let all = ["aa11", "aa22", "bb33"].map(Arc::new).to_vec();
        narrow(all, prefix, |text| *text)
            .into_iter()
            .map(|text| *text)
            .collect()
    }

    #[test]
    fn unique_id_prefix_matches() {
        assert_eq!(narrowed("bb"), ["bb33"]);
        assert_eq!(narrowed("aa22"), ["aa22"]);
        assert_eq!(narrowed(""), ["aa11", "aa22", "bb33"]);
    }

    #[test]
    fn ambiguous_or_unknown_id_matches_nothing() {
        assert!(narrowed("aa").is_empty());
        assert!(narrowed("zz").is_empty());
        assert!(narrowed("bb333").is_empty());
    }

    #[test]
    fn all_labels_must_match_exactly() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let carried = labels(&[("a", "1"), ("b", "2")]);
        assert!(carries(&carried, &labels(&[])));
        assert!(carries(&carried, &labels(&[("a", "1"), ("b", "2")])));
        assert!(!carries(&carried, &labels(&[("a", "1"), ("b", "3")])));
        assert!(!carries(&carried, &labels(&[("c", "")])));
    }
}
