//! File systems that are mounted without a place, and then moved to one: to mount a network file system takes as long as
//! its server does, and whoever gives up waiting leaves nothing behind.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::error::Error;

/// A mounted file system without a place. It is unmounted with its last descriptor.
#[derive(Debug)]
pub struct DetachedMount(OwnedFd);

// === impl DetachedMount ===

impl DetachedMount {
    /// Mounts a file system of this kind. Each option is a name, or `name=value`. Blocks as long as the server of a network
    /// file system does not answer. Needs Linux 5.2.
    ///
    /// # Errors
    /// [`Error::Mount`], with `ENODEV` if the kernel has no such file system.
    pub fn new(kind: &str, source: &str, options: &[String]) -> Result<Self, Error> {
        Self::make(kind, source, options)
            .map(Self)
            .map_err(|fault| Error::mount("mount", Path::new(source))(errno(fault)))
    }

    fn make(kind: &str, source: &str, options: &[String]) -> rustix::io::Result<OwnedFd> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(context.as_fd(), "source", source)?;
        for option in options {
            match option.split_once('=') {
                Some((name, value)) => fsconfig_set_string(context.as_fd(), name, value)?,
                None => fsconfig_set_flag(context.as_fd(), option.as_str())?,
            }
        }
        fsconfig_create(context.as_fd())?;
        fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )
    }

    /// Moves it to a directory. [`unmount_tree`](super::unmount_tree) removes it from there.
    ///
    /// # Errors
    /// [`Error::Mount`].
    pub fn move_to(self, target: &Path) -> Result<(), Error> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(self.0.as_fd(), "", CWD, target, flags)
            .map_err(|fault| Error::mount("mount at", target)(errno(fault)))
    }
}

fn errno(fault: rustix::io::Errno) -> Errno {
    Errno::from_raw(fault.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mounts::{mount_points_under, unmount_tree};

    fn options(list: &[&str]) -> Vec<String> {
        list.iter().map(|option| (*option).to_owned()).collect()
    }

    #[test]
    fn file_system_is_mounted_with_its_options_and_moved_to_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        fs::create_dir(&place).unwrap();
        let list = options(&["size=64k", "mode=711"]);
        let mounted = DetachedMount::new("tmpfs", "x", &list).unwrap();
        assert!(mount_points_under(dir.path()).unwrap().is_empty());
        mounted.move_to(&place).unwrap();
        assert_eq!(mount_points_under(dir.path()).unwrap().len(), 1);
        fs::write(place.join("file"), "x").unwrap();
        unmount_tree(dir.path()).unwrap();
        assert!(!place.join("file").exists());
    }

    #[test]
    fn file_system_that_is_given_up_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(DetachedMount::new("tmpfs", "x", &[]).unwrap());
        assert!(mount_points_under(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn what_the_kernel_does_not_know_is_an_error() {
        for (kind, list) in [
            ("no-such-file-system", &[][..]),
            ("tmpfs", &["no-such-option"]),
            ("tmpfs", &["size=much"]),
        ] {
            let fault = DetachedMount::new(kind, "x", &options(list)).unwrap_err();
            assert!(
                matches!(fault, Error::Mount { .. }),
                "{kind} {list:?}: {fault}"
            );
        }
    }
}
