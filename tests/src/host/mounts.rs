//! The mount table: lists the mounts below a path, and unmounts them.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

/// How often the unmounting of a stacked or busy tree is repeated before it is given up.
const ROUNDS: usize = 16;

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of the file system, for example `nsfs` for a pinned namespace.
    pub kind: String,
}

/// The mounts at or below `path`, the newest first, which is also the order in which they can be unmounted.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn below(path: &Path) -> Vec<Mount> {
    let mut mounts: Vec<_> = all().into_iter().filter(|mount| mount.point.starts_with(path)).collect();
    mounts.reverse();
    mounts
}

/// The whole mount table of this process, oldest first.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn all() -> Vec<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    table.lines().filter_map(parse).collect()
}

/// Unmounts everything at or below `path`. Returns what is still mounted there.
#[must_use]
pub fn clear(path: &Path) -> Vec<Mount> {
    for _ in 0..ROUNDS {
        let mounts = below(path);
        if mounts.is_empty() {
            break;
        }
        for mount in mounts {
            // A failed unmount shows in the table, which is read again.
            let _ = umount2(&mount.point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        }
    }
    below(path)
}

fn parse(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    Some(Mount {
        point: PathBuf::from(unescape(front.split(' ').nth(4)?)),
        kind: back.split(' ').next()?.to_owned(),
    })
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
