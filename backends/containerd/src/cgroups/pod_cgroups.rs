//! The parent cgroups of tasks. A runtime creates missing ancestors of a task's cgroup and never removes
//! them. If a sandbox names a parent that did not exist before, the parent is ours and is removed with the
//! last sandbox that uses it; a cgroup that existed before is never touched.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use switchyard_cgroup::{EmptyRemoval, Group, Reader, busy_pauses};
use switchyard_core::id::SandboxId;

/// The cgroups that were created for sandboxes, by sandbox; each list begins with the deepest.
#[derive(Debug, Default)]
pub(crate) struct PodCgroups {
    /// Never locked over a call to the kernel.
    made: Mutex<HashMap<SandboxId, Vec<Group>>>,
    /// Held from the look at a cgroup until the claim or the removal that follows from it, so that no sandbox claims a
    /// cgroup that is being removed. Taken on blocking threads only, and not held while a removal pauses.
    turn: Mutex<()>,
}

impl PodCgroups {
    fn made(&self) -> MutexGuard<'_, HashMap<SandboxId, Vec<Group>>> {
        self.made.lock()
    }

    /// Claims those of `group` and its ancestors that will be created for a sandbox, or that were created for
    /// another sandbox. Returns them, the deepest first. Blocks.
    pub(crate) fn claim(&self, id: SandboxId, group: Group, cgroups: &Reader) -> Vec<Group> {
        let _turn = self.turn.lock();
        let mut own = Vec::new();
        let mut next = Some(group);
        while let Some(group) = next {
            if !self.is_claimed(&group, None) && cgroups.hierarchy().exists(&group) {
                break;
            }
            next = group.parent();
            own.push(group);
        }
        self.adopt(id, own.clone());
        own
    }

    /// Claims the cgroups that the record of an adopted sandbox names.
    pub(crate) fn adopt(&self, id: SandboxId, groups: Vec<Group>) {
        if !groups.is_empty() {
            self.made().insert(id, groups);
        }
    }

    /// Removes those of a sandbox's cgroups that no other sandbox claims, unless they are in use, and drops the
    /// sandbox's claims. Idempotent. Blocks for up to a second while the kernel reports one as busy.
    pub(crate) fn release(&self, id: SandboxId, cgroups: &Reader) {
        self.release_pausing(id, cgroups, std::thread::sleep);
    }

    fn release_pausing(&self, id: SandboxId, cgroups: &Reader, pause: impl FnMut(Duration)) {
        let groups = self.made().get(&id).cloned().unwrap_or_default();
        self.remove_unclaimed(Some(id), &groups, cgroups, pause);
    }

    /// Removes cgroups that were created for a sandbox, unless a sandbox claims them. Idempotent. Blocks as
    /// [`PodCgroups::release`] does.
    pub(crate) fn remove_if_unclaimed(&self, groups: &[Group], cgroups: &Reader) {
        self.remove_unclaimed(None, groups, cgroups, std::thread::sleep);
    }

    /// Removes cgroups, the deepest first, up to the first that a sandbox claims or that is in use. The claims of
    /// `holder` do not count, and are dropped with its last attempt: a sandbox that needs a cgroup during a pause
    /// shares it.
    fn remove_unclaimed(
        &self,
        holder: Option<SandboxId>,
        groups: &[Group],
        cgroups: &Reader,
        mut pause: impl FnMut(Duration),
    ) {
        let mut pauses = busy_pauses();
        loop {
            let turn = self.turn.lock();
            let is_busy = self.try_remove_unclaimed(holder, groups, cgroups);
            let Some(length) = is_busy.then(|| pauses.next()).flatten() else {
                if let Some(holder) = holder {
                    self.made().remove(&holder);
                }
                return;
            };
            drop(turn);
            pause(length);
        }
    }

    /// One attempt; `true` if it has to be repeated, because a cgroup is busy.
    fn try_remove_unclaimed(
        &self,
        holder: Option<SandboxId>,
        groups: &[Group],
        cgroups: &Reader,
    ) -> bool {
        for group in groups {
            if self.is_claimed(group, holder) {
                return false;
            }
            match cgroups.remove_empty(group) {
                Ok(EmptyRemoval::Removed) => {}
                // Another program uses it by now, and so its ancestors too.
                Ok(EmptyRemoval::InUse) => return false,
                Ok(EmptyRemoval::Busy) => return true,
                Err(fault) => {
                    tracing::warn!(%group, error = %fault, "a cgroup that was created for a sandbox cannot be removed");
                    return false;
                }
            }
        }
        false
    }

    /// Returns whether a sandbox other than `except` claims a cgroup.
    fn is_claimed(&self, group: &Group, except: Option<SandboxId>) -> bool {
        self.made()
            .iter()
            .any(|(id, groups)| Some(*id) != except && groups.contains(group))
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
        groups.remove_if_unclaimed(&made, &reader);
        assert!(dir.path().join("memory/pod").exists());
        groups.adopt(two, vec![group("/another")]);
        groups.remove_if_unclaimed(&made, &reader);
        assert!(!dir.path().join("memory/pod").exists());
    }

    #[test]
    fn a_claim_does_not_wait_for_a_busy_cgroup_and_keeps_it() {
        let (dir, reader) = node();
        let groups = PodCgroups::default();
        let one = SandboxId::from_bytes([1; 32]);
        let two = SandboxId::from_bytes([2; 32]);
        groups.claim(one, group("/pod"), &reader);
        let pod = dir.path().join("memory/pod");
        std::fs::create_dir_all(&pod).unwrap();
        // A file makes `rmdir` fail, as a process that is just exiting does.
        std::fs::write(pod.join("busy"), "").unwrap();
        std::thread::scope(|scope| {
            let (pausing, paused) = std::sync::mpsc::channel();
            let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
            let groups = &groups;
            let reader = &reader;
            let release = scope.spawn(move || {
                groups.release_pausing(one, reader, |_| {
                    pausing.send(()).unwrap();
                    goes_on.recv().unwrap();
                });
            });
            paused.recv().unwrap();
            assert_eq!(paths(&groups.claim(two, group("/pod"), reader)), ["/pod"]);
            std::fs::remove_file(pod.join("busy")).unwrap();
            go_on.send(()).unwrap();
            release.join().unwrap();
        });
        assert!(pod.exists(), "the second sandbox claims it");
        groups.release(two, &reader);
        assert!(!pod.exists());
    }
}
