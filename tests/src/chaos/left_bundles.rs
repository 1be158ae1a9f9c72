//! Tells bundles that an external containerd has left by itself from what the daemon leaves.
//!
//! containerd 1.6 and 1.7 leave the bundle of a task if they are killed while they make it and its shim ends before the runtime was
//! named in the bundle: the shim's `delete` command fails then, at each later start of containerd as well. Every version
//! leaves one whose `delete` command takes more than five seconds. The daemon does not know the directories of an external
//! containerd, and nothing in containerd's API leads to such a bundle.

use std::collections::{BTreeSet, HashSet};

use crate::leak_scan::NAMESPACE;

/// The directory of bundles, in containerd's state and in its root directory.
const BUNDLES: &str = "io.containerd.runtime.v2.task";

/// Takes the directories of bundles out of the findings of a leak scan whose ids are in no other finding: there is no container,
/// task, shim, mount or cgroup of theirs. Returns their ids. Takes none if containerd could not be asked. Pure.
pub(super) fn take_left_bundles(findings: &mut Vec<String>) -> BTreeSet<String> {
    if findings
        .iter()
        .any(|finding| finding.starts_with("unknown"))
    {
        return BTreeSet::new();
    }
    let others: Vec<&String> = findings
        .iter()
        .filter(|finding| bundle_id(finding).is_none())
        .collect();
    let ids: HashSet<&str> = findings
        .iter()
        .filter_map(|finding| bundle_id(finding))
        .collect();
    let left: BTreeSet<String> = ids
        .into_iter()
        .filter(|id| !others.iter().any(|finding| finding.contains(id)))
        .map(str::to_owned)
        .collect();
    findings.retain(|finding| bundle_id(finding).is_none_or(|id| !left.contains(id)));
    left
}

/// The id of the bundle whose directory a finding reports; `None` if it reports something else.
fn bundle_id(finding: &str) -> Option<&str> {
    let path = finding.strip_prefix("directory ")?;
    let (parent, id) = path.rsplit_once('/')?;
    let parent = parent.strip_suffix(NAMESPACE)?.strip_suffix('/')?;
    parent.ends_with(BUNDLES).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "/tmp/r/run/containerd/state/io.containerd.runtime.v2.task/k8s.io";
    const ROOT: &str = "/tmp/r/state/containerd/root/io.containerd.runtime.v2.task/k8s.io";

    #[test]
    fn only_bundles_of_which_nothing_else_is_left_are_those_of_containerd() {
        let dirs = [(STATE, "aa"), (ROOT, "aa"), (STATE, "bb")]
            .map(|(dir, id)| format!("directory {dir}/{id}"));
        let [of_state, of_root, of_another] = dirs.each_ref().map(String::as_str);
        let cases: [(&str, Vec<&str>, &[&str]); 10] = [
            ("both directories", vec![of_state, of_root], &["aa"]),
            ("one of them", vec![of_root], &["aa"]),
            ("a container", vec![of_state, "container aa"], &[]),
            ("a task", vec![of_state, of_root, "task aa"], &[]),
            (
                "a shim",
                vec![of_state, "shim 7: containerd-shim-runc-v2 -id aa"],
                &[],
            ),
            (
                "a mount in it",
                vec![of_state, "mount /tmp/r/run/aa/rootfs (overlay)"],
                &[],
            ),
            (
                "files of the daemon",
                vec![of_state, "directory /tmp/r/run/tasks/aa"],
                &[],
            ),
            (
                "beside a bundle of another container",
                vec![of_state, of_another, "snapshot bb Active"],
                &["aa"],
            ),
            (
                "containerd is not there",
                vec![of_state, "unknown: containerd cannot be asked: gone"],
                &[],
            ),
            ("no bundle", vec!["directory /tmp/r/run/tasks/aa"], &[]),
        ];
        for (case, findings, expected) in cases {
            let mut findings: Vec<String> = findings.into_iter().map(str::to_owned).collect();
            let before = findings.len();
            let left = take_left_bundles(&mut findings);
            let expected: BTreeSet<String> = expected.iter().map(|id| (*id).to_owned()).collect();
            assert_eq!(left, expected, "{case}");
            let is_left = |finding: &String| expected.iter().any(|id| finding.contains(id));
            assert!(!findings.iter().any(is_left), "{case}: {findings:?}");
            assert_eq!(findings.len() == before, expected.is_empty(), "{case}");
        }
    }
}
