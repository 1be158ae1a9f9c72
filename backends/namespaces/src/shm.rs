//! The tmpfs that a sandbox's tasks share as `/dev/shm`.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::mount::{MsFlags, mount as mount_fs};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use switchyard_linux::files::if_present;

use switchyard_crash_points::{CrashPoint, reach};

use crate::error::Error;
use crate::mounts;

/// Mounts a tmpfs of at most `size_bytes` on `dir` (created if missing): mode 1777, nosuid, nodev, noexec.
///
/// Idempotent: a tmpfs that is mounted there already is kept, with its contents and size.
///
/// # Errors
/// [`Error::Invalid`] for a size of 0, which the kernel would take as "no limit"; [`Error::File`],
/// [`Error::Mount`]. A directory that a failed call created remains until [`unmount`].
pub fn mount(dir: &Path, size_bytes: u64) -> Result<(), Error> {
    if size_bytes == 0 {
        return Err(Error::Invalid {
            what: "shared memory size",
            value: "0".to_owned(),
            why: "means no limit; give bytes",
        });
    }
    // The tmpfs has a mode of its own; through this directory only root can reach it.
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(Error::file("make the directory", dir))?;
    reach(CrashPoint::ShmPlaced);
    if is_mounted(dir)? {
        return Ok(());
    }
    let options = format!("mode=1777,size={size_bytes}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_fs(
        Some("shm"),
        dir,
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )
    .map_err(Error::mount("mount shared memory on", dir))
}

/// Unmounts the tmpfs and removes `dir`. Idempotent; tasks that still have it mounted keep it.
///
/// # Errors
/// [`Error::Mount`], [`Error::StillMounted`], or [`Error::File`] if `dir` contains other files.
pub fn unmount(dir: &Path) -> Result<(), Error> {
    mounts::detach(dir)?;
    if_present(fs::remove_dir(dir))
        .map(drop)
        .map_err(Error::file("remove the directory", dir))
}

/// Returns whether `dir` is itself the mount point of a tmpfs.
fn is_mounted(dir: &Path) -> Result<bool, Error> {
    let real = dir.canonicalize().map_err(Error::file("resolve", dir))?;
    let is_tmpfs = statfs(&real)
        .map_err(Error::mount("stat", &real))?
        .filesystem_type()
        == TMPFS_MAGIC;
    Ok(is_tmpfs && mounts::is_mount_point(&real)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use switchyard_linux::mounts::MountTable;

    use super::*;
    use crate::testing::in_private_mounts;

    #[test]
    fn shm_has_size_and_mode_and_is_removed() {
        in_private_mounts(|temp| {
            let dir = temp.join("shm");
            mount(&dir, 1 << 20).unwrap();
            let fs = statfs(&dir).unwrap();
            assert_eq!(
                fs.blocks() * u64::try_from(fs.block_size()).unwrap(),
                1 << 20
            );
            assert_eq!(
                fs::metadata(&dir).unwrap().permissions().mode() & 0o7777,
                0o1777
            );
            let table = MountTable::of_this_thread().unwrap();
            let options = table
                .iter()
                .find(|mount| mount.point == dir)
                .unwrap()
                .options;
            for option in ["nosuid", "nodev", "noexec"] {
                assert!(options.has(option), "{options:?}");
            }

            fs::write(dir.join("kept"), "x").unwrap();
            mount(&dir, 2 << 20).unwrap();
            assert!(
                dir.join("kept").exists(),
                "a second mount must not hide the first"
            );
            unmount(&dir).unwrap();
            assert!(!dir.exists());
            unmount(&dir).unwrap();
        });
    }

    #[test]
    fn unlimited_shm_is_rejected() {
        in_private_mounts(|temp| {
            assert!(matches!(
                mount(&temp.join("shm"), 0),
                Err(Error::Invalid { .. })
            ));
            assert!(!temp.join("shm").exists());
        });
    }

    #[test]
    fn foreign_files_are_not_removed() {
        in_private_mounts(|temp| {
            let dir = temp.join("shm");
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("theirs"), "x").unwrap();
            assert!(matches!(unmount(&dir), Err(Error::File { .. })));
            assert!(dir.join("theirs").exists());
        });
    }
}
