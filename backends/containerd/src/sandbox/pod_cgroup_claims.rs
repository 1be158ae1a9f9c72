//! The cgroups that a sandbox needs, and their removal.

use std::path::PathBuf;
use std::sync::Arc;

use switchyard_cgroup::Group;
use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_runtime_spec::CgroupDriver;

use super::SandboxEntry;
use crate::base::fs::blocking;
use crate::sandbox::Sandboxes;

impl SandboxEntry {
    /// The parent cgroups that were created for this sandbox, the deepest first.
    pub(crate) fn made_groups(&self) -> Vec<Group> {
        self.record
            .groups
            .iter()
            .filter_map(|path| Group::from_path(path).ok())
            .collect()
    }
}

impl Sandboxes {
    /// Claims the parent cgroups that will be created for a new sandbox, and returns their paths for its
    /// record. None with systemd, which manages slices itself.
    pub(super) async fn claim_groups(
        &self,
        id: SandboxId,
        entry: &SandboxEntry,
    ) -> Result<Vec<PathBuf>> {
        let named = entry
            .record
            .cgroup_parent
            .as_deref()
            .is_some_and(|parent| !parent.as_os_str().is_empty());
        if !named || self.context.host.cgroup_driver != CgroupDriver::Fs {
            return Ok(Vec::new());
        }
        let path = entry.cgroup_location(&self.context, &id.to_string())?.path;
        let Some(parent) = Group::from_cgroups_path(&path)
            .ok()
            .and_then(|group| group.parent())
        else {
            return Ok(Vec::new());
        };
        let groups = Arc::clone(&self.cgroups.pods);
        let cgroups = Arc::clone(&self.cgroups.reader);
        let claimed = blocking(move || Ok(groups.claim(id, parent, &cgroups))).await?;
        Ok(claimed
            .iter()
            .map(|group| group.relative().to_owned())
            .collect())
    }

    /// Adopts the claims in a sandbox's record, if it is of this boot: no cgroup outlives a boot.
    pub(crate) fn adopt_groups(&self, id: SandboxId, entry: &SandboxEntry) {
        if entry.record.boot == self.context.boot {
            self.cgroups.pods.adopt(id, entry.made_groups());
        }
    }

    /// Removes the parent cgroups that only this sandbox claims. Idempotent.
    pub(super) async fn release_groups(&self, id: SandboxId) -> Result<()> {
        let groups = Arc::clone(&self.cgroups.pods);
        let cgroups = Arc::clone(&self.cgroups.reader);
        blocking(move || {
            groups.release(id, &cgroups);
            Ok(())
        })
        .await
    }
}
