//! File systems that are on disks of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use switchyard_linux::mounts::MountTable;

/// File systems on disks whose devices are not numbered as disks are.
const UNNUMBERED: [&str; 3] = ["bcachefs", "btrfs", "zfs"];

/// A mount point of each file system that is on disks of this node.
/// Mount points that another mount covers are left out: opening them would lead to that one.
pub(super) fn on_disks(mounts: &MountTable) -> Vec<PathBuf> {
    let mut uppermost = BTreeMap::new();
    for mount in mounts.iter() {
        let of_disk = !mount.device.starts_with("0:") && !mount.fs_type.starts_with("fuse");
        let is_on_disk = of_disk || UNNUMBERED.contains(&&*mount.fs_type);
        uppermost.insert(mount.point, is_on_disk.then_some(mount.device));
    }
    let mut seen = BTreeSet::new();
    let on_disk = uppermost
        .into_iter()
        .filter_map(|(point, device)| Some((point, device?)));
    on_disk
        .filter(|(_, device)| seen.insert(*device))
        .map(|(point, _)| point.into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_network_nor_memory_nor_what_is_covered_is_synced() {
        let text = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:44 / /mnt/nfs rw master:1 - nfs4 server:/export rw
25 22 8:17 / /data\\040disk rw - xfs /dev/sdb1 rw
26 22 8:1 /sub /elsewhere rw - ext4 /dev/sda1 rw
27 22 0:31 /@ /btrfs rw - btrfs /dev/sdc rw
28 22 8:33 / /covered rw - ext4 /dev/sdd1 rw
29 22 0:45 / /covered rw - nfs4 server:/export rw
30 22 7:3 / /ntfs rw - fuseblk /dev/loop3 rw
short line
";
        let found: Vec<_> = on_disks(&MountTable::from_text(text))
            .into_iter()
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(found, ["/", "/btrfs", "/data disk"]);
        assert!(on_disks(&MountTable::default()).is_empty());
    }
}
