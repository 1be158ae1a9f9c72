//! Project quotas: a file system accounts the files of a project together, whoever owns them, and limits
//! their total size.
//!
//! ext4 and xfs have them when they are mounted with `prjquota`. A new file inherits the project of its
//! directory.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::error::Error;
use crate::helper::command;

/// The helper's exit code if the file system does not enforce project quotas.
const NO_QUOTA: i32 = 3;

/// The first project from `first` on that is unused on the file system of `dir`: it has no files and no
/// limit.
///
/// # Errors
/// [`Error::NoProjectQuota`]; [`Error::Project`] with the kernel's error; [`Error::Program`].
pub fn unused(dir: &Path, first: u32) -> Result<u32, Error> {
    let said = run(
        dir,
        &[
            "unused".as_ref(),
            first.to_string().as_ref(),
            dir.as_os_str(),
        ],
    )?;
    said.parse().map_err(|_| Error::Project {
        path: dir.to_owned(),
        said: format!("not a project id: {said:?}"),
    })
}

/// Sets the project of `dir` and of all files and directories below it on the same file system; files that
/// are created there later inherit it. Symlinks, devices and the like are skipped: they use no space.
/// Idempotent.
///
/// # Errors
/// [`Error::Project`] with the kernel's error: a part of the files may be in the project then.
/// [`Error::Program`].
pub fn join(dir: &Path, project: u32) -> Result<(), Error> {
    run(
        dir,
        &[
            "join".as_ref(),
            project.to_string().as_ref(),
            dir.as_os_str(),
        ],
    )
    .map(drop)
}

/// Limits the space of a project on the file system of `dir`, rounded up to whole KiB; `None` lifts the
/// limit. Idempotent.
///
/// # Errors
/// [`Error::NoProjectQuota`]; [`Error::Project`] with the kernel's error; [`Error::Program`].
pub fn limit(dir: &Path, project: u32, bytes: Option<u64>) -> Result<(), Error> {
    // To the kernel, 0 means no limit.
    let kib = bytes.map_or(0, |bytes| bytes.div_ceil(1024).max(1));
    let project = project.to_string();
    let kib = kib.to_string();
    run(
        dir,
        &[
            "limit".as_ref(),
            project.as_ref(),
            kib.as_ref(),
            dir.as_os_str(),
        ],
    )
    .map(drop)
}

/// The mount point of the file system of `path`: its uppermost ancestor on the same device.
///
/// # Errors
/// [`Error::File`] if an ancestor cannot be read.
pub fn mount_point(path: &Path) -> Result<PathBuf, Error> {
    let device = |path: &Path| {
        path.metadata()
            .map(|data| data.dev())
            .map_err(Error::file("stat", path.to_owned()))
    };
    let own = device(path)?;
    let mut point = path;
    while let Some(parent) = point
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        if device(parent)? != own {
            break;
        }
        point = parent;
    }
    Ok(point.to_owned())
}

/// Runs the helper and returns its output.
fn run(dir: &Path, words: &[&OsStr]) -> Result<String, Error> {
    let output = command(words)?
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Program { source })?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else if output.status.code() == Some(NO_QUOTA) {
        Err(Error::NoProjectQuota {
            mount: mount_point(dir)?,
        })
    } else if output.status.signal() == Some(Signal::SIGALRM as i32) {
        Err(Error::Project {
            path: dir.to_owned(),
            said: "not finished within two minutes".to_owned(),
        })
    } else {
        Err(Error::Project {
            path: dir.to_owned(),
            said: text(&output.stderr),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_without_quotas_is_named_by_mount() {
        // procfs has no project quotas.
        let dir = Path::new("/proc/self/task");
        for refused in [
            unused(dir, 1 << 24).map(drop),
            limit(dir, 1 << 24, Some(1)),
            limit(dir, 1 << 24, None),
        ] {
            match refused {
                Err(Error::NoProjectQuota { mount }) => assert_eq!(mount, Path::new("/proc")),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(join(dir, 1 << 24), Err(Error::Project { .. })));
    }

    /// Deeper than the limit of open descriptors, and than a recursion within the stack could go.
    #[test]
    fn project_id_is_set_on_trees_of_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY;
        let mode = nix::sys::stat::Mode::S_IRWXU;
        let mut below = nix::fcntl::open(dir.path(), flags, mode).unwrap();
        for _ in 0..10_000 {
            nix::sys::stat::mkdirat(&below, "d", mode).unwrap();
            below = nix::fcntl::openat(&below, "d", flags, mode).unwrap();
        }
        // Project 0 is that of all files without a project, so every file system accepts it.
        join(dir.path(), 0).unwrap();
        std::fs::create_dir_all(dir.path().join("wide/1/2")).unwrap();
        for number in 0..2_000 {
            std::fs::create_dir(dir.path().join("wide").join(format!("n{number}"))).unwrap();
        }
        join(&dir.path().join("wide"), 0).unwrap();
        let path = dir.keep();
        // The standard library cannot remove a tree this deep.
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(&path)
            .status()
            .unwrap();
        assert!(removed.success());
    }

    #[test]
    fn missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let error = unused(&gone, 1 << 24).unwrap_err();
        assert!(
            error.to_string().contains("gone") && error.to_string().contains("No such file"),
            "{error}"
        );
    }
}
