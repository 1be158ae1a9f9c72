//! The node's null device, which an OCI runtime may give to the user of a container.
//!
//! The standard input of a process without input, and that of the runtime itself, is the node's `/dev/null`, as the shim opens
//! it. crun before 1.24 makes the user of the process the owner of its standard streams, whatever they are: the first user of
//! a user namespace, and the user of an exec. Whoever owns the device may close it to the rest of the node, so it is given
//! back to root after each step of a runtime that may have changed it (ADR 111).

use std::fs::{File, Metadata, OpenOptions, Permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

/// Path at which every program of the node finds it.
const PATH: &str = "/dev/null";

/// The numbers of the device.
const NUMBERS: (u64, u64) = (1, 3);

/// The bits of a mode by which everybody may read and write it.
const OPEN_TO_ALL: u32 = 0o666;

/// True once a change of it was logged as a warning.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Owner of the device, and its mode, before it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FormerState {
    uid: u32,
    mode: u32,
}

/// Gives the null device back to root, open to all, if a runtime, or what ran in a container, has changed that. It waits for
/// nothing: the device is on a file system in the kernel's memory.
pub(crate) fn give_back() {
    match give_back_at(Path::new(PATH)) {
        Ok(None) => {}
        Ok(Some(FormerState { uid, mode })) => {
            let mode = format!("{mode:04o}");
            if HAS_WARNED.swap(true, Ordering::Relaxed) {
                tracing::debug!(uid, mode, "/dev/null was given back to root");
            } else {
                tracing::warn!(
                    uid,
                    mode,
                    "/dev/null belonged to another user, as crun before 1.24 makes it, or was closed: it was given back to root"
                );
            }
        }
        // As on a node that is a container in a user namespace: the device is its host's.
        Err(error) => tracing::debug!(%error, "/dev/null cannot be given back to root"),
    }
}

/// Gives the null device at this path back to root; `None` if there is none, or it is as it should be.
fn give_back_at(path: &Path) -> io::Result<Option<FormerState>> {
    let seen = symlink_metadata(path)?;
    if to_be_given_back(&seen).is_none() {
        return Ok(None);
    }
    let device: File = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    // What was opened may be another file than what was seen.
    let Some(former) = to_be_given_back(&device.metadata()?) else {
        return Ok(None);
    };
    // The owner first: from then on nobody else can change the mode.
    fchown(&device, Some(0), Some(0))?;
    device.set_permissions(Permissions::from_mode(OPEN_TO_ALL))?;
    Ok(Some(former))
}

/// The state of a null device that is not root's, or not open to all; `None` for another one, or another file. Pure.
fn to_be_given_back(file: &Metadata) -> Option<FormerState> {
    let numbers = (major(file.rdev()), minor(file.rdev()));
    let mode = file.mode() & 0o7777;
    let is_well = file.uid() == 0 && mode & OPEN_TO_ALL == OPEN_TO_ALL;
    (file.file_type().is_char_device() && numbers == NUMBERS && !is_well).then_some(FormerState {
        uid: file.uid(),
        mode,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// A device with these numbers, of this user and with this mode.
    fn device(path: &Path, numbers: (u64, u64), uid: u32, mode: u32) {
        let number = makedev(numbers.0, numbers.1);
        mknod(path, SFlag::S_IFCHR, Mode::empty(), number).unwrap();
        chown(path, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn state(path: &Path) -> (u32, u32, u32) {
        let file = symlink_metadata(path).unwrap();
        (file.uid(), file.gid(), file.mode() & 0o7777)
    }

    #[test]
    fn null_device_of_another_user_is_given_back_and_nothing_else_is_touched() {
        let well = (0, 0, 0o666);
        for (numbers, uid, mode, expected) in [
            (NUMBERS, 0, 0o666, None),
            // The root of a user namespace, a user in it, and that of an exec.
            (NUMBERS, 100_000, 0o666, Some(well)),
            (NUMBERS, 100_007, 0o666, Some(well)),
            (NUMBERS, 1000, 0o666, Some(well)),
            // What an owner may do, also before it lost the device.
            (NUMBERS, 100_000, 0, Some(well)),
            (NUMBERS, 0, 0o644, Some(well)),
            (NUMBERS, 0, 0o600, Some(well)),
            // /dev/zero, and a device of somebody.
            ((1, 5), 1000, 0o600, None),
            ((5, 0), 0, 0o620, None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("device");
            device(&path, numbers, uid, mode);
            let before = state(&path);
            let former = give_back_at(&path).unwrap();
            assert_eq!(
                former,
                expected.map(|_| FormerState { uid, mode }),
                "{numbers:?} {uid} {mode:o}"
            );
            assert_eq!(state(&path), expected.unwrap_or(before));
            assert_eq!(give_back_at(&path).unwrap(), None);
        }
    }

    #[test]
    fn files_and_links_in_the_place_of_the_device_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        device(&target, NUMBERS, 1000, 0o600);
        let link = dir.path().join("link");
        symlink(&target, &link).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        for path in [&link, &file] {
            assert_eq!(give_back_at(path).unwrap(), None, "{}", path.display());
        }
        assert_eq!(state(&target), (1000, 1000, 0o600));
        assert_eq!(state(&file).2, 0o600);
        assert!(give_back_at(&dir.path().join("missing")).is_err());
    }
}
