//! The files of tasks with their secrets and configs: on a tmpfs, so that nothing of them touches a disk.
//!
//! ```text
//! <run directory>/swarm/files/          a tmpfs, root's alone
//!   <task>/<number>                     a file, bound read-only into the task
//! ```
//!
//! They go when the task has ended. What a killed daemon left goes at the next start, if its task does not run.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{Gid, Uid, fchown, geteuid};
use switchyard_core::{Error, Result};

use crate::from_proto::check_id;
use crate::plan::TaskFile;

/// The directory of the files of all tasks. Its methods block on the file system.
#[derive(Debug, Clone)]
pub(crate) struct SecretFiles {
    dir: PathBuf,
}

// === impl SecretFiles ===

impl SecretFiles {
    /// The files below this directory, which need not exist yet.
    pub(crate) const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Writes the files of a task, in place of those of an earlier try, and returns their paths in order.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no tmpfs: then nothing is written. `ResourceExhausted` if it is full.
    pub(crate) fn write(&self, task_id: &str, files: &[TaskFile]) -> Result<Vec<PathBuf>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        self.prepare()?;
        self.remove(task_id)?;
        let dir = self.of_task(task_id)?;
        let written = make_private_dir(&dir).and_then(|()| {
            let numbered = files.iter().enumerate();
            numbered.map(|(number, file)| write_file(&dir.join(number.to_string()), file)).collect()
        });
        written.map_err(|fault| {
            // What was written is of no use; if it stays, the next try or the next start removes it.
            let _ = self.remove(task_id);
            failed("write the secrets and configs of the task to", &dir, fault)
        })
    }

    /// Removes the files of a task. Idempotent.
    ///
    /// # Errors
    /// They can be removed again.
    pub(crate) fn remove(&self, task_id: &str) -> Result<()> {
        let dir = self.of_task(task_id)?;
        absent_is_fine(fs::remove_dir_all(&dir)).map_err(|fault| failed("remove", &dir, fault))
    }

    /// Removes the files of all tasks but these.
    ///
    /// # Errors
    /// The first of those that cannot be removed; the others are.
    pub(crate) fn retain(&self, keeps: impl Fn(&str) -> bool) -> Result<()> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(fault) => return Err(failed("read", &self.dir, fault)),
        };
        let mut result = Ok(());
        for entry in entries {
            let entry = entry.map_err(|fault| failed("read", &self.dir, fault))?;
            if entry.file_name().to_str().is_some_and(&keeps) {
                continue;
            }
            let removed = absent_is_fine(fs::remove_dir_all(entry.path()));
            result = result.and(removed.map_err(|fault| failed("remove", &entry.path(), fault)));
        }
        result
    }

    /// Removes the directory, and the tmpfs if it was mounted for it, when the node has left its swarm. Idempotent.
    ///
    /// # Errors
    /// Files of tasks are left, or something uses them.
    pub(crate) fn close(&self) -> Result<()> {
        let dir = &self.dir;
        let own = match fs::symlink_metadata(dir) {
            Ok(metadata) => metadata,
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(fault) => return Err(failed("read", dir, fault)),
        };
        let parent = fs::symlink_metadata(dir.parent().unwrap_or(dir))
            .map_err(|fault| failed("read the parent of", dir, fault))?;
        if own.dev() != parent.dev() {
            umount(dir).map_err(|fault| failed("unmount", dir, fault.into()))?;
        }
        absent_is_fine(fs::remove_dir(dir)).map_err(|fault| failed("remove", dir, fault))
    }

    fn of_task(&self, task_id: &str) -> Result<PathBuf> {
        check_id("id", task_id)?;
        Ok(self.dir.join(task_id))
    }

    /// Makes the directory, on a tmpfs.
    fn prepare(&self) -> Result<()> {
        let dir = &self.dir;
        let made = match make_private_dir(dir) {
            Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                let parent = dir.parent().unwrap_or(dir);
                fs::create_dir_all(parent).and_then(|()| make_private_dir(dir))
            }
            made => made,
        };
        made.map_err(|fault| failed("make", dir, fault))?;
        if !is_tmpfs(dir)? {
            mount_tmpfs(dir)?;
        }
        check_private(dir)
    }
}

/// Refuses a directory that is no tmpfs, or that others than root can reach.
fn check_private(dir: &Path) -> Result<()> {
    let shown = dir.display();
    if !is_tmpfs(dir)? {
        let why = "secrets are kept on a tmpfs alone, so that they touch no disk";
        return Err(Error::failed_precondition(format!("{shown} is not on a tmpfs: {why}")));
    }
    let metadata = fs::symlink_metadata(dir).map_err(|fault| failed("read", dir, fault))?;
    let own = geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != own || metadata.mode() & 0o077 != 0 {
        let why = format!("it must be a directory of user {own} with mode 0700, as the daemon makes it");
        return Err(Error::failed_precondition(format!("{shown} cannot hold secrets: {why}")));
    }
    Ok(())
}

fn is_tmpfs(dir: &Path) -> Result<bool> {
    let found = statfs(dir).map_err(|fault| failed("read the file system of", dir, fault.into()))?;
    Ok(found.filesystem_type() == TMPFS_MAGIC)
}

fn mount_tmpfs(dir: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some("mode=0700"))
        .map_err(|fault| failed("mount a tmpfs for secrets at", dir, fault.into()))
}

fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)
}

/// Writes a file, whose owner and mode are set before it has any content.
fn write_file(path: &Path, file: &TaskFile) -> io::Result<PathBuf> {
    let TaskFile { destination: _, content, uid, gid, mode } = file;
    let mut written: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    fchown(&written, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))?;
    written.write_all(content)?;
    // Last: a write removes the bits for set-user-id.
    written.set_permissions(fs::Permissions::from_mode(*mode))?;
    Ok(path.to_owned())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn failed(what: &str, path: &Path, fault: io::Error) -> Error {
    let message = format!("{what} {}", path.display());
    let is_full = matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let error = if is_full { Error::exhausted(message) } else { Error::failed_precondition(message) };
    error.with_source(fault)
}

#[cfg(test)]
mod tests;
