//! A trial of an overlay on the disk of containerd's snapshotter. containerd does not make one: on a disk on which each mount of a
//! container then fails, such as NFS, another overlay, or ZFS before 2.2, its plugin counts as working.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use containerd_client::types::Mount;
use nix::errno::Errno;
use parking_lot::Mutex;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::mounts::MountTable;
use switchyard_namespaces::with_own_mounts;
use switchyard_tree::Cancel;

use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, io_error, remove_tree_blocking};
use crate::base::mount::mount_all;

/// The beginning of the name of the trial's directory, in that of the snapshotter; the name of the gateway ends it.
const PLACE: &str = "switchyard-trial";

/// Limit for a trial, on a disk that may hang.
const LIMIT: Duration = Duration::from_secs(10);

/// The mount option that an overlay needs in a user namespace (Linux 5.11), and that others do not.
const ATTEMPTS: [Option<&str>; 2] = [None, Some("userxattr")];

/// Held during a trial: a second one would remove its directory. One that hangs keeps all later ones from the disk.
static TRYING: Mutex<()> = Mutex::new(());

/// Tries whether the kernel mounts an overlay whose upper directory is in this one, the snapshotter's. Returns why not, or
/// `None` if it does. The mount is in a mount namespace of its own; a directory that a killed daemon left is removed by the
/// next trial.
///
/// # Errors
/// If it cannot be tried, as on a disk that is full, read-only or hangs.
pub(super) async fn overlay_fault(root: &Path, instance: &str) -> Result<Option<String>> {
    let dir = root.join(format!("{PLACE}-{instance}"));
    let tried = blocking(move || try_at(&dir));
    let late = |_| {
        let root = root.display();
        Error::deadline(format!(
            "try an overlay on {root}: not done within {LIMIT:?}"
        ))
    };
    tokio::time::timeout(LIMIT, tried).await.map_err(late)?
}

/// Tries it in a directory that is made and removed. Blocks.
fn try_at(dir: &Path) -> Result<Option<String>> {
    let Some(_trying) = TRYING.try_lock() else {
        return Err(Error::unavailable("another trial of an overlay runs"));
    };
    let clear = || remove_tree_blocking(dir, &Cancel::default());
    clear()?;
    let tried =
        make(dir).and_then(|()| with_own_mounts(|| mount_fault(dir)).map_err(from_namespaces)?);
    clear()?;
    tried
}

/// Makes the directories, in one that exists.
fn make(dir: &Path) -> Result<()> {
    let names = ["", "lower", "upper", "work", "merged"];
    names.into_iter().try_for_each(|name| {
        let path = dir.join(name);
        fs::create_dir(&path).map_err(|fault| io_error("make directory", &path, fault))
    })
}

fn mount_fault(dir: &Path) -> Result<Option<String>> {
    let mut first = None;
    for attempt in ATTEMPTS {
        match mount_all(&[overlay(dir, attempt)], &dir.join("merged")) {
            Ok(()) => return Ok(None),
            Err(error) if is_of_this_process(&error) => return Err(error),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Ok(first.map(|error| told(dir, &error)))
}

/// Returns whether an error says nothing of the disk: there are too many mounts, or a security module forbids this one to the
/// daemon, which containerd may be allowed to make.
fn is_of_this_process(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    error.kind() == ErrorKind::ResourceExhausted || cause == Some(&Errno::EACCES)
}

fn overlay(dir: &Path, attempt: Option<&str>) -> Mount {
    let at = |key: &str, name: &str| format!("{key}={}", dir.join(name).display());
    let mut options = vec![
        at("lowerdir", "lower"),
        at("upperdir", "upper"),
        at("workdir", "work"),
    ];
    options.extend(attempt.map(str::to_owned));
    Mount {
        r#type: "overlay".to_owned(),
        source: "overlay".to_owned(),
        options,
        ..Default::default()
    }
}

/// The kernel's error, and the disk that it is about.
fn told(dir: &Path, error: &Error) -> String {
    let cause = error
        .source()
        .map_or_else(|| error.report(), |cause| cause.to_string());
    let place = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let fs_type = MountTable::of_this_thread().ok().and_then(|table| {
        let mount = table.containing(&place)?;
        Some(mount.fs_type.into_owned())
    });
    format!(
        "the kernel mounts no overlay on a disk of the type {}, at {}: {cause}; `dmesg` may say more",
        fs_type.as_deref().unwrap_or("?"),
        dir.parent().unwrap_or(dir).display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::exhausted_or;

    #[test]
    fn overlay_is_tried_on_the_disk_of_the_directory_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("trial");
        assert_eq!(try_at(&dir).unwrap(), None);
        // A killed daemon left parts of it.
        fs::create_dir_all(dir.join("work/work/x")).unwrap();
        assert_eq!(try_at(&dir).unwrap(), None);
        assert!(!dir.exists());

        // As in a container whose data are not on a volume: no overlay is above another one.
        let below = root.path().join("below");
        fs::create_dir(&below).unwrap();
        make(&below.join("trial")).unwrap();
        let text = with_own_mounts(|| {
            let own = below.join("trial");
            mount_all(&[overlay(&own, None)], &own.join("merged")).unwrap();
            try_at(&own.join("merged/trial"))
        });
        let text = text.unwrap().unwrap().expect("it is refused");
        assert!(text.contains("of the type overlay, at "), "{text}");
        assert!(text.contains("Invalid argument"), "{text}");

        // What cannot be looked at is not known.
        assert!(try_at(&root.path().join("none/trial")).is_err());
        fs::write(root.path().join("file"), "").unwrap();
        assert!(try_at(&root.path().join("file/trial")).is_err());
        for (errno, is_ours) in [
            (Errno::EACCES, true),
            (Errno::ENOSPC, true),
            (Errno::EINVAL, false),
            (Errno::EPERM, false),
            (Errno::ENODEV, false),
        ] {
            let kind = exhausted_or(ErrorKind::Internal, &errno);
            let error = Error::new(kind, "mount overlay").with_source(errno);
            assert_eq!(is_of_this_process(&error), is_ours, "{errno}");
        }
        let trying = TRYING.lock();
        assert!(try_at(&dir).is_err());
        drop(trying);
    }
}
