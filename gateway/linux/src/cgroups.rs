//! Version of control groups that the node has.

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// The mount point of the hierarchies, at which runtimes and service managers look for them.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Returns whether the unified hierarchy (cgroup v2) has the controllers that limit containers: the file system at [`ROOT`] is
/// its own. That is how the OCI runtimes decide, which make the groups.
///
/// Neither the mounts nor `cgroup.controllers` say so. A hierarchy of v1 may be mounted beside v2, for its one controller that v2
/// lacks (`net_cls`, `net_prio`); and in the hybrid layout, where v1 has the controllers, v2 has those that nobody has
/// mounted, such as `hugetlb`.
#[must_use]
pub fn is_unified() -> bool {
    // If there is nothing, there is no hierarchy of v2 either.
    statfs(ROOT).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::mounts::MountTable;

    #[test]
    fn version_is_that_of_the_file_system_at_the_root() {
        let table = MountTable::of_this_process().unwrap();
        let mount = table.containing(Path::new(ROOT)).unwrap();
        assert_eq!(is_unified(), mount.fs_type == "cgroup2", "{mount:?}");
    }
}
