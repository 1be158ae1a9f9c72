//! A trial of an overlay on the disk of containerd's snapshotter. containerd does not make one: on a disk on which each mount of a
//! container then fails, such as NFS, another overlay, or ZFS before 2.2, its plugin counts as working.

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use containerd_client::types::Mount;
use nix::errno::Errno;
use parking_lot::Mutex;
use switchyard_core::{Error, Result};
use switchyard_linux::mounts::MountTable;
use switchyard_namespaces::with_own_mounts;
use switchyard_tree::Cancel;

use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, io_error, remove_tree_blocking};
use crate::base::mount::{mount_all, unmount_all};

/// The beginning of the name of the trial's directory, in that of the snapshotter; the name of the gateway ends it.
const PLACE: &str = "switchyard-trial";

/// Limit for a trial, on a disk that may hang.
const LIMIT: Duration = Duration::from_secs(10);

/// The mount option that an overlay needs in a user namespace (Linux 5.11), and that others do not.
const ATTEMPTS: [Option<&str>; 2] = [None, Some("userxattr")];

/// The kernel's answers about an overlay on this disk. All others say nothing of it: the disk is full or fails, there are too many
/// mounts, or a security module forbids the daemon what it may allow containerd.
const ANSWERS: [Errno; 6] = [
    Errno::EINVAL,
    Errno::ENODEV,
    Errno::ENOSYS,
    Errno::EOPNOTSUPP,
    Errno::EPERM,
    Errno::EROFS,
];

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
    names
        .into_iter()
        .try_for_each(|name| make_dir(&dir.join(name)))
}

fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|fault| io_error("make directory", path, fault))
}

fn mount_fault(dir: &Path) -> Result<Option<String>> {
    let merged = dir.join("merged");
    let mut first = None;
    for attempt in ATTEMPTS {
        // Where the kernel cannot make its working directory, as on some network file systems, it mounts the overlay read-only.
        let tried = mount_all(&[overlay(dir, attempt)], &merged)
            .and_then(|()| make_dir(&merged.join("made")));
        match tried {
            Ok(()) => return Ok(None),
            Err(error) if is_answer(&error) => first = first.or(Some(error)),
            Err(error) => return Err(error),
        }
        unmount_all(&merged)?;
    }
    let Some(error) = first else {
        return Ok(None);
    };
    // So it does, or refuses, on a disk that is full or read-only by now, which says nothing of its type.
    make_dir(&dir.join("spare"))?;
    Ok(Some(told(dir, &error)))
}

/// Returns whether an error is one of [`ANSWERS`].
fn is_answer(error: &Error) -> bool {
    let cause = error.source();
    let errno = cause.and_then(|cause| {
        let of_call = cause.downcast_ref::<Errno>().copied();
        of_call.or_else(|| {
            let of_file = cause.downcast_ref::<io::Error>()?;
            of_file.raw_os_error().map(Errno::from_raw)
        })
    });
    errno.is_some_and(|errno| ANSWERS.contains(&errno))
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
        "the kernel mounts no overlay that can be written on a disk of the type {}, at {}: {cause}; `dmesg` may say more",
        fs_type.as_deref().unwrap_or("?"),
        dir.parent().unwrap_or(dir).display()
    )
}

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};

    use super::*;

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
        let trying = TRYING.lock();
        assert!(try_at(&dir).is_err());
        drop(trying);
    }

    /// A directory that the kernel cannot remove from the working directory keeps it from making its own there.
    #[test]
    fn overlay_that_is_mounted_read_only_is_told() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("trial");
        make(&dir).unwrap();
        let place = dir.join("work/work");
        fs::create_dir(&place).unwrap();
        let none = None::<&str>;
        let found = with_own_mounts(|| {
            mount(Some("none"), &place, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            [mount_fault(&dir), mount_fault(&dir)]
        });
        let [first, second] = found.unwrap();
        let text = first.unwrap().expect("nothing can be written");
        assert!(text.contains("Read-only file system"), "{text}");
        // As on a disk on which the spare directory cannot be made.
        assert!(second.is_err(), "{second:?}");
    }

    #[test]
    fn errors_that_say_nothing_of_the_disk_are_no_answers() {
        for (errno, expected) in [
            (Errno::EINVAL, true),
            (Errno::ENODEV, true),
            (Errno::EPERM, true),
            (Errno::EROFS, true),
            (Errno::EACCES, false),
            (Errno::ENOSPC, false),
            (Errno::ENOMEM, false),
            (Errno::EMFILE, false),
            (Errno::EIO, false),
            (Errno::ESTALE, false),
        ] {
            let of_call = Error::internal("mount overlay").with_source(errno);
            let of_file = io_error("make directory", Path::new("/x"), errno.into());
            for error in [of_call, of_file] {
                assert_eq!(is_answer(&error), expected, "{}", error.report());
            }
        }
        assert!(!is_answer(&Error::internal("without a cause")));
    }
}
