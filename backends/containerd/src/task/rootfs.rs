//! The check that the kernel has mounted the root file system of a task as requested.
//!
//! overlayfs needs a directory on the disk of its upper layer. If there is no inode left for it, the mount
//! succeeds, and the file system can only be read until it is mounted again, also when there is space again.

use std::path::Path;

use switchyard_core::id::TaskId;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::mounts::MountTable;

use crate::base::fs::blocking;

/// Checks a process that was created and not started, which has its root file system already.
///
/// # Errors
/// `ResourceExhausted` if the root file system can only be read although it has an upper layer.
pub(super) async fn check_root(id: TaskId, pid: u32) -> Result<()> {
    let mounts = blocking(move || Ok(MountTable::of_process(pid))).await?;
    // A process that has ended is noticed when it is started.
    let Ok(mounts) = mounts else { return Ok(()) };
    if !is_root_forced_read_only(&mounts) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::ResourceExhausted,
        format!(
            "the kernel has mounted the root file system of task {id} read-only, since it could not make a directory for overlayfs: \
             no space left on device, or no inode; see dmesg, and free some"
        ),
    ))
}

/// Returns whether the root of a mount namespace is an overlay that has an upper layer and is read-only as a
/// whole. A root that was requested read-only is so by its mount alone.
fn is_root_forced_read_only(mounts: &MountTable) -> bool {
    let Some(root) = mounts.iter().find(|mount| mount.point == Path::new("/")) else {
        return false;
    };
    let has_upper_layer = root
        .fs_options
        .iter()
        .any(|option| option.starts_with("upperdir="));
    root.fs_type == "overlay" && root.fs_options.has("ro") && has_upper_layer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_that_the_kernel_has_made_read_only_is_told_from_one_that_was_asked_to_be() {
        let line = |point: &str, mount: &str, kind: &str, file_system: &str| {
            format!(
                "501 400 0:99 / {point} {mount},relatime master:1 - {kind} overlay {file_system}\n"
            )
        };
        let proc = "502 501 0:100 / /proc rw,nosuid - proc proc rw\n";
        let upper = "lowerdir=/l,upperdir=/u,workdir=/w";
        for (root, forced) in [
            (line("/", "ro", "overlay", &format!("ro,{upper}")), true),
            (line("/", "rw", "overlay", &format!("ro,{upper}")), true),
            (line("/", "ro", "overlay", &format!("rw,{upper}")), false),
            (line("/", "rw", "overlay", &format!("rw,{upper}")), false),
            (line("/", "ro", "overlay", "ro,lowerdir=/l:/m"), false),
            (line("/", "ro", "erofs", "ro,upperdir=/u"), false),
            (
                line("/data", "rw", "overlay", &format!("ro,{upper}")),
                false,
            ),
            (String::new(), false),
            ("garbage\n1 2 3 4 / - \n".to_owned(), false),
        ] {
            let mounts = MountTable::from_text(format!("{root}{proc}"));
            assert_eq!(is_root_forced_read_only(&mounts), forced, "{root}");
        }
    }
}
