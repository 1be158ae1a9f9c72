//! Which file systems are on disks of this node.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// File systems on disks whose devices are not numbered as disks are.
const UNNUMBERED: [&str; 3] = ["bcachefs", "btrfs", "zfs"];

/// A mount point of each file system that is on disks of this node, from the text of `/proc/self/mountinfo`.
/// Mount points that another mount covers are left out: opening them would lead to that one.
pub(super) fn on_disks(mountinfo: &str) -> Vec<PathBuf> {
    let mut uppermost = BTreeMap::new();
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let Some(device) = fields.nth(2) else { continue };
        let Some(point) = fields.nth(1) else { continue };
        let Some(kind) = fields.skip_while(|field| *field != "-").nth(1) else { continue };
        let of_disk = !device.starts_with("0:") && !kind.starts_with("fuse");
        uppermost.insert(point, (of_disk || UNNUMBERED.contains(&kind)).then_some(device));
    }
    let mut seen = BTreeSet::new();
    let on_disk = uppermost.into_iter().filter_map(|(point, device)| Some((point, device?)));
    on_disk.filter(|(_, device)| seen.insert(*device)).map(|(point, _)| unescape(point)).collect()
}

/// A path as it is: mountinfo has some characters as a backslash and three octal digits.
fn unescape(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_network_nor_memory_nor_what_is_covered_is_synced() {
        let mountinfo = "\
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
        let found: Vec<_> = on_disks(mountinfo).into_iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/", "/btrfs", "/data disk"]);
        assert!(on_disks("").is_empty());
        assert_eq!(unescape("/a\\134b\\x"), PathBuf::from("/a\\b\\x"));
    }
}
