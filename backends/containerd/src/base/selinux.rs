//! Gives files SELinux labels.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{XattrFlags, lsetxattr};
use rustix::io::Errno;
use switchyard_core::{Error, Result};
use switchyard_tree::{Cancel, Error as TreeError, Label};

use crate::base::fs::{io_error, tree_error};

/// Gives a file or directory of the daemon's own its label, before any container uses it. On a file system that stores
/// no labels nothing is done.
pub(crate) fn set_label(path: &Path, label: &str) -> Result<()> {
    match lsetxattr(
        path,
        "security.selinux",
        label.as_bytes(),
        XattrFlags::empty(),
    ) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(match refusal(errno) {
            Some(why) => refused(path, label, why).with_source(io::Error::from(errno)),
            None => io_error("set the SELinux label of", path, errno.into()),
        }),
    }
}

/// Gives the file or directory `top`, which is that of `path`, and everything below it a label. A kill leaves a part of
/// them with it, and the next call continues. Blocks.
pub(crate) fn label_tree(top: impl AsFd, path: &Path, label: &str, cancel: &Cancel) -> Result<()> {
    let done = switchyard_tree::relabel(top, Label::selinux(label), cancel)
        .map_err(|error| not_labelled(path, label, error))?;
    if done.unsupported > 0 {
        tracing::debug!(path = %path.display(), "the file system stores no SELinux labels: its files keep the label that it was mounted with");
    }
    Ok(())
}

/// The error for a label that cannot be set.
fn not_labelled(path: &Path, label: &str, error: TreeError) -> Error {
    let errno = match &error {
        TreeError::Io { source, .. } => Errno::from_io_error(source),
        TreeError::Cancelled
        | TreeError::Mounted(_)
        | TreeError::Changing
        | TreeError::TooLarge { .. } => None,
    };
    match errno.and_then(refusal) {
        Some(why) => refused(path, label, why).with_source(error),
        None => tree_error("relabel", path, error),
    }
}

/// Returns what to do about a label that the node refuses; `None` for a fault of the disk or the daemon.
fn refusal(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::ROFS => Some(
            "its file system is read-only: label it where it is written, or mount it without relabelling",
        ),
        Errno::INVAL => Some(
            "the SELinux policy of this node has no such label: install container-selinux, or a policy with these types",
        ),
        Errno::ACCESS => Some(
            "the SELinux policy does not allow it to the daemon: `ausearch -m avc` shows the denial",
        ),
        Errno::PERM => Some(
            "its file system does not allow it: `lsattr` shows files that are immutable or append-only",
        ),
        _ => None,
    }
}

fn refused(path: &Path, label: &str, why: &str) -> Error {
    let path = path.display();
    Error::failed_precondition(format!(
        "{path} cannot get the SELinux label {label}: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::lgetxattr;
    use switchyard_core::ErrorKind;
    use switchyard_tree::Place;

    use super::*;

    #[test]
    fn refused_labels_say_what_to_do() {
        let of = |errno: Errno| TreeError::Io {
            doing: "label",
            place: Place {
                name: b"file".to_vec(),
                depth: 2,
            },
            source: errno.into(),
        };
        for (error, kind, text) in [
            (
                of(Errno::ROFS),
                ErrorKind::FailedPrecondition,
                "/srv/a cannot get the SELinux label u:r:t:s0: its file system is read-only",
            ),
            (
                of(Errno::INVAL),
                ErrorKind::FailedPrecondition,
                "/srv/a cannot get the SELinux label u:r:t:s0: the SELinux policy of this node has no such label",
            ),
            (
                of(Errno::ACCESS),
                ErrorKind::FailedPrecondition,
                "/srv/a cannot get the SELinux label u:r:t:s0: the SELinux policy does not allow it",
            ),
            (
                of(Errno::PERM),
                ErrorKind::FailedPrecondition,
                "/srv/a cannot get the SELinux label u:r:t:s0: its file system does not allow it",
            ),
            (
                of(Errno::NOSPC),
                ErrorKind::ResourceExhausted,
                "relabel /srv/a",
            ),
            (of(Errno::IO), ErrorKind::Internal, "relabel /srv/a"),
            (TreeError::Changing, ErrorKind::Internal, "relabel /srv/a"),
            (TreeError::Cancelled, ErrorKind::Cancelled, "relabel /srv/a"),
        ] {
            let made = not_labelled(Path::new("/srv/a"), "u:r:t:s0", error);
            assert_eq!(made.kind(), kind, "{made}");
            assert!(made.to_string().starts_with(text), "{made}");
        }
    }

    #[test]
    fn files_of_the_daemons_own_get_the_label() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        for path in [file.as_path(), dir.path()] {
            set_label(path, "u:r:t:s0").unwrap();
            let mut label = [0; 8];
            let length = lgetxattr(path, "security.selinux", &mut label[..]).unwrap();
            assert_eq!(&label[..length], b"u:r:t:s0");
        }
        let refused = set_label(&dir.path().join("missing"), "u:r:t:s0").unwrap_err();
        assert!(refused.to_string().contains("missing"), "{refused}");
    }
}
