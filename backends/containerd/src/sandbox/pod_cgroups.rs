//! The cgroups above those of tasks: a runtime makes what is missing on the way to a task's own and leaves it there. Where a sandbox
//! names a parent that nobody made, it is ours, and goes with the last sandbox in it; what was there before is never touched.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use switchyard_cgroup::{Group, Reader};
use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_runtime_spec::CgroupDriver;

use super::SandboxEntry;
use crate::backend::Inner;
use crate::fs::blocking;

/// The groups that are ours, by the sandboxes that had them made; each list begins with the deepest.
#[derive(Debug, Default)]
pub(crate) struct PodCgroups {
    made: Mutex<HashMap<SandboxId, Vec<Group>>>,
}

impl PodCgroups {
    /// Notes which of `group` and those above will be made for a sandbox: those that are not there, and those that another sandbox
    /// had made.
    fn claim(&self, id: SandboxId, group: Group, cgroups: &Reader) -> Vec<Group> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Notes what a predecessor had made for a sandbox.
    pub(crate) fn adopt(&self, id: SandboxId, groups: Vec<Group>) {
        if !groups.is_empty() {
            self.made.lock().unwrap_or_else(PoisonError::into_inner).insert(id, groups);
        }
    }

    /// Removes those of a sandbox's groups that no other sandbox has, unless something is in them. Idempotent. Blocks, with others
    /// waiting who would make them anew meanwhile.
    fn release(&self, id: SandboxId, cgroups: &Reader) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = made.remove(&id).unwrap_or_default();
        remove_unclaimed(&made, groups, cgroups);
    }

    /// Removes groups that a sandbox had made, which has not released them if it stands. Idempotent. Blocks as the release does.
    pub(crate) fn remove_if_unclaimed(&self, groups: Vec<Group>, cgroups: &Reader) {
        remove_unclaimed(&self.made.lock().unwrap_or_else(PoisonError::into_inner), groups, cgroups);
    }
}

/// Removes groups, the deepest first, up to one that a sandbox has, or that somebody uses.
fn remove_unclaimed(made: &HashMap<SandboxId, Vec<Group>>, groups: Vec<Group>, cgroups: &Reader) {
    for group in groups {
        if made.values().any(|groups| groups.contains(&group)) {
            break;
        }
        match cgroups.remove_empty(&group) {
            Ok(true) => {}
            // Somebody else uses it by now, and those above with it.
            Ok(false) => break,
            Err(fault) => {
                tracing::warn!(%group, error = %fault, "a cgroup that was made for a sandbox is left");
                break;
            }
        }
    }
}

impl SandboxEntry {
    /// The groups above those of its tasks that it had made, the deepest first.
    pub(crate) fn made_groups(&self) -> Vec<Group> {
        self.record.groups.iter().filter_map(|path| Group::from_path(path).ok()).collect()
    }
}

impl Inner {
    /// Notes which groups above those of its tasks a new sandbox will have made, for its record. systemd keeps slices by itself.
    pub(super) fn claim_groups(&self, id: SandboxId, entry: &SandboxEntry) -> Result<Vec<PathBuf>> {
        let named =
            entry.record.cgroup_parent.as_deref().is_some_and(|parent| !parent.as_os_str().is_empty());
        if !named || self.host.cgroup_driver != CgroupDriver::Fs {
            return Ok(Vec::new());
        }
        let path = self.cgroup_of(entry, &id.to_string())?.path;
        let parent = Group::from_cgroups_path(&path).ok().and_then(|group| group.parent());
        let claimed =
            parent.map(|group| self.pod_cgroups.claim(id, group, &self.cgroups)).unwrap_or_default();
        Ok(claimed.iter().map(|group| group.relative().to_owned()).collect())
    }

    /// Takes over what a predecessor noted, if it was in this boot: no cgroup outlives one.
    pub(crate) fn adopt_groups(&self, id: SandboxId, entry: &SandboxEntry) {
        if entry.record.boot == self.boot {
            self.pod_cgroups.adopt(id, entry.made_groups());
        }
    }

    /// Removes the groups that only this sandbox had made. Idempotent.
    pub(super) async fn release_groups(&self, id: SandboxId) -> Result<()> {
        let groups = Arc::clone(&self.pod_cgroups);
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || {
            groups.release(id, &cgroups);
            Ok(())
        })
        .await
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

    /// A tree of directories, where `/kube` is somebody else's.
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
