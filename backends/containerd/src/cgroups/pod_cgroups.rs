//! The parent cgroups of tasks. A runtime creates missing ancestors of a task's cgroup and never removes
//! them. If a sandbox names a parent that did not exist before, the parent is ours and is removed with the
//! last sandbox that uses it; a cgroup that existed before is never touched.

use std::collections::HashMap;

use parking_lot::Mutex;
use switchyard_cgroup::{Group, Reader};
use switchyard_core::id::SandboxId;

/// The cgroups that were created for sandboxes, by sandbox; each list begins with the deepest.
#[derive(Debug, Default)]
pub(crate) struct PodCgroups {
    made: Mutex<HashMap<SandboxId, Vec<Group>>>,
}

impl PodCgroups {
    /// Claims those of `group` and its ancestors that will be created for a sandbox, or that were created for
    /// another sandbox. Returns them, the deepest first.
    pub(crate) fn claim(&self, id: SandboxId, group: Group, cgroups: &Reader) -> Vec<Group> {
        let mut made = self.made.lock();
        let mut own = Vec::new();
        let mut next = Some(group);
        while let Some(group) = next {
            let ours = made.values().any(|groups| groups.contains(&group));
            if !ours && cgroups.hierarchy().exists(&group) {
                break;
            }
            next = group.parent();
            own.push(group);
        }
        if !own.is_empty() {
            made.insert(id, own.clone());
        }
        own
    }

    /// Claims the cgroups that the record of an adopted sandbox names.
    pub(crate) fn adopt(&self, id: SandboxId, groups: Vec<Group>) {
        if !groups.is_empty() {
            self.made.lock().insert(id, groups);
        }
    }

    /// Drops a sandbox's claims, and removes those of its cgroups that no other sandbox claims, unless they
    /// are in use. Idempotent. Blocks, and holds the lock meanwhile, so that no other sandbox claims a cgroup
    /// that is being removed.
    pub(crate) fn release(&self, id: SandboxId, cgroups: &Reader) {
        let mut made = self.made.lock();
        let groups = made.remove(&id).unwrap_or_default();
        remove_unclaimed(&made, groups, cgroups);
    }

    /// Removes cgroups that were created for a sandbox, unless a sandbox claims them. Idempotent. Blocks as
    /// [`PodCgroups::release`] does.
    pub(crate) fn remove_if_unclaimed(&self, groups: Vec<Group>, cgroups: &Reader) {
        remove_unclaimed(&self.made.lock(), groups, cgroups);
    }
}

/// Removes cgroups, the deepest first, up to the first that a sandbox claims or that is in use.
fn remove_unclaimed(made: &HashMap<SandboxId, Vec<Group>>, groups: Vec<Group>, cgroups: &Reader) {
    for group in groups {
        if made.values().any(|groups| groups.contains(&group)) {
            break;
        }
        match cgroups.remove_empty(&group) {
            Ok(true) => {}
            // Another program uses it by now, and so its ancestors too.
            Ok(false) => break,
            Err(fault) => {
                tracing::warn!(%group, error = %fault, "a cgroup that was created for a sandbox cannot be removed");
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use switchyard_cgroup::Hierarchy;

    use super::*;

    fn group(path: &str) -> Group {
        Group::from_path(Path::new(path)).unwrap()
    }

    fn paths(groups: &[Group]) -> Vec<String> {
        groups.iter().map(ToString::to_string).collect()
    }

    /// A directory tree like a cgroup hierarchy, in which `/kube` existed before.
    fn node() -> (tempfile::TempDir, Reader) {
        let dir = tempfile::tempdir().unwrap();
        for hierarchy in ["memory", "cpu"] {
            std::fs::create_dir_all(dir.path().join(hierarchy).join("kube")).unwrap();
        }
        let reader = Reader::new(Hierarchy::at(dir.path()).unwrap());
        (dir, reader)
    }

    #[test]
    fn what_was_there_is_not_ours_and_stays() {
        let (dir, reader) = node();
        let groups = PodCgroups::default();
        let id = SandboxId::from_bytes([1; 32]);
        assert!(groups.claim(id, group("/kube"), &reader).is_empty());
        assert_eq!(
            paths(&groups.claim(id, group("/kube/pod/inner"), &reader)),
            ["/kube/pod/inner", "/kube/pod"]
        );
        std::fs::create_dir_all(dir.path().join("memory/kube/pod/inner")).unwrap();
        groups.release(id, &reader);
        assert!(!dir.path().join("memory/kube/pod").exists());
        assert!(dir.path().join("memory/kube").exists() && dir.path().join("cpu/kube").exists());
        groups.release(id, &reader);
    }

    #[test]
    fn what_two_sandboxes_share_goes_with_the_last() {
        let (dir, reader) = node();
        let groups = PodCgroups::default();
        let one = SandboxId::from_bytes([1; 32]);
        let two = SandboxId::from_bytes([2; 32]);
        groups.claim(one, group("/pod"), &reader);
        std::fs::create_dir_all(dir.path().join("memory/pod")).unwrap();
        assert_eq!(paths(&groups.claim(two, group("/pod"), &reader)), ["/pod"]);
        groups.release(one, &reader);
        assert!(dir.path().join("memory/pod").exists());
        groups.release(two, &reader);
        assert!(!dir.path().join("memory/pod").exists());
    }

    #[test]
    fn what_somebody_uses_stays() {
        let (dir, reader) = node();
        let groups = PodCgroups::default();
        let id = SandboxId::from_bytes([1; 32]);
        groups.adopt(id, vec![group("/pod/inner"), group("/pod")]);
        std::fs::create_dir_all(dir.path().join("memory/pod/inner/theirs")).unwrap();
        groups.release(id, &reader);
        assert!(dir.path().join("memory/pod/inner/theirs").exists());
    }

    #[test]
    fn what_was_in_use_at_the_release_goes_later_unless_a_sandbox_has_it_by_then() {
        let (dir, reader) = node();
        let groups = PodCgroups::default();
        let one = SandboxId::from_bytes([1; 32]);
        let two = SandboxId::from_bytes([2; 32]);
        let made = groups.claim(one, group("/pod"), &reader);
        std::fs::create_dir_all(dir.path().join("memory/pod/busy")).unwrap();
        groups.claim(two, group("/pod"), &reader);
        groups.release(one, &reader);
        std::fs::remove_dir(dir.path().join("memory/pod/busy")).unwrap();
        groups.remove_if_unclaimed(made.clone(), &reader);
        assert!(dir.path().join("memory/pod").exists());
        groups.adopt(two, vec![group("/another")]);
        groups.remove_if_unclaimed(made, &reader);
        assert!(!dir.path().join("memory/pod").exists());
    }
}
