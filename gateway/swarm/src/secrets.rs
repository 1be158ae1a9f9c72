//! The files of tasks with their secrets and configs: on a tmpfs, so that they are on no disk.
//!
//! ```text
//! <run directory>/swarm/                a tmpfs, root's alone
//!   <task>/<number>                     a file, bound read-only into the task
//! ```
//!
//! The tmpfs is a mount of its own also where the run directory is on one: services bring as many files as they like,
//! and the run directory belongs to all of the node. It is not swapped out where the kernel has that (`noswap`, Linux
//! 6.4); elsewhere what is swapped out is on the swap device.
//!
//! Files go when their task has ended. What a killed daemon left goes at the next start, if its task does not run.
//! All tasks of the node share the directory, and many start at once: whoever mounts, writes or unmounts there has the
//! turn, so that one makes the mount, and nobody ends it under another one's files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{Gid, Uid, fchown, geteuid};
use parking_lot::Mutex;
use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;

use crate::from_proto::check_id;
use crate::plan::TaskFile;

#[cfg(test)]
pub(crate) mod mount_model;
#[cfg(test)]
mod tests;

/// Limits of the mount for all files together: a tenth of the node's memory, and the kernel's memory for so
/// many files and directories.
const BOUNDS: &str = "mode=0700,size=10%,nr_inodes=16384";

/// Failed action that is reported when they do not fit.
const WRITE: &str = "write the secrets and configs of the task (all tasks have a tenth of the node's memory for theirs) to";

/// The directory of the files of all tasks. Clones share it. Its methods block on the file system.
#[derive(Debug, Clone)]
pub(crate) struct SecretFiles {
    dir: PathBuf,
    mounter: Arc<dyn TmpfsMounter>,
    /// Held to mount, to write and to unmount.
    turn: Arc<Mutex<()>>,
}

/// Makes and ends the mount on the directory. Tests of other things have a model of it, which needs no root.
pub(crate) trait TmpfsMounter: std::fmt::Debug + Send + Sync {
    /// Returns whether something is mounted on the directory, which exists.
    fn is_mounted(&self, dir: &Path) -> Result<bool>;

    /// Mounts a tmpfs there.
    fn mount(&self, dir: &Path) -> Result<()>;

    /// Unmounts what was mounted last.
    fn unmount(&self, dir: &Path) -> Result<()>;
}

/// The kernel's mounts.
#[derive(Debug)]
struct KernelMounter;

// === impl SecretFiles ===

impl SecretFiles {
    /// The files below this directory, which need not exist yet.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self::over(dir, Arc::new(KernelMounter))
    }

    fn over(dir: PathBuf, mounter: Arc<dyn TmpfsMounter>) -> Self {
        Self {
            dir,
            mounter,
            turn: Arc::default(),
        }
    }

    /// Writes the files of a task, in place of those of an earlier try, and returns their paths in order.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is no tmpfs: then nothing is written. `ResourceExhausted` if it is full.
    pub(crate) fn write(&self, task_id: &str, files: &[TaskFile]) -> Result<Vec<PathBuf>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let _turn = self.turn.lock();
        self.prepare()?;
        self.remove(task_id)?;
        let dir = self.of_task(task_id)?;
        let written = make_private_dir(&dir).and_then(|()| {
            let numbered = files.iter().enumerate();
            numbered
                .map(|(number, file)| write_file(&dir.join(number.to_string()), file))
                .collect()
        });
        written.map_err(|fault| {
            // What was written is of no use; if it stays, the next try or the next start removes it.
            let _ = self.remove(task_id);
            failed(WRITE, &dir, fault)
        })
    }

    /// Removes the files of a task. Idempotent.
    ///
    /// # Errors
    /// They can be removed again.
    pub(crate) fn remove(&self, task_id: &str) -> Result<()> {
        let dir = self.of_task(task_id)?;
        if_present(fs::remove_dir_all(&dir))
            .map(drop)
            .map_err(|fault| failed("remove", &dir, fault))
    }

    /// Removes the files of all tasks but these.
    ///
    /// # Errors
    /// The first of those that cannot be removed; the others are.
    pub(crate) fn retain(&self, keeps: impl Fn(&str) -> bool) -> Result<()> {
        let _turn = self.turn.lock();
        self.retain_some(keeps).map(drop)
    }

    /// Removes the files of all tasks but these, and the directory with its tmpfs if none are left. Idempotent.
    ///
    /// # Errors
    /// Something cannot be removed, or a program uses the directory.
    pub(crate) fn close(&self, keeps: impl Fn(&str) -> bool) -> Result<()> {
        let _turn = self.turn.lock();
        let dir = &self.dir;
        // Daemons of before could mount it more than once.
        loop {
            let is_empty = self.retain_some(&keeps)?;
            let exists = dir
                .try_exists()
                .map_err(|fault| failed("read", dir, fault))?;
            if !is_empty || !exists {
                return Ok(());
            }
            if !self.mounter.is_mounted(dir)? {
                return if_present(fs::remove_dir(dir))
                    .map(drop)
                    .map_err(|fault| failed("remove", dir, fault));
            }
            self.mounter.unmount(dir)?;
        }
    }

    /// Removes the files of all tasks but these; returns whether none are left. The turn is held.
    fn retain_some(&self, keeps: impl Fn(&str) -> bool) -> Result<bool> {
        let entries = if_present(fs::read_dir(&self.dir))
            .map_err(|fault| failed("read", &self.dir, fault))?;
        let Some(entries) = entries else {
            return Ok(true);
        };
        let mut is_empty = true;
        let mut result = Ok(());
        for entry in entries {
            let entry = entry.map_err(|fault| failed("read", &self.dir, fault))?;
            if entry.file_name().to_str().is_some_and(&keeps) {
                is_empty = false;
                continue;
            }
            let removed = if_present(fs::remove_dir_all(entry.path())).map(drop);
            result = result.and(removed.map_err(|fault| failed("remove", &entry.path(), fault)));
        }
        result.map(|()| is_empty)
    }

    fn of_task(&self, task_id: &str) -> Result<PathBuf> {
        check_id("id", task_id)?;
        Ok(self.dir.join(task_id))
    }

    /// Makes the directory, with a tmpfs on it. The turn is held.
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
        // An earlier version has mounted none where the run directory is on a tmpfs: its files would be hidden, and stay.
        if !self.mounter.is_mounted(dir)? && is_empty(dir)? {
            self.mounter.mount(dir)?;
        }
        check_private(dir)
    }
}

/// Refuses a directory that is no tmpfs, or that others than root can reach.
fn check_private(dir: &Path) -> Result<()> {
    let shown = dir.display();
    if !is_tmpfs(dir)? {
        let why = "secrets are kept on a tmpfs alone, so that they touch no disk";
        return Err(Error::failed_precondition(format!(
            "{shown} is not on a tmpfs: {why}"
        )));
    }
    let metadata = fs::symlink_metadata(dir).map_err(|fault| failed("read", dir, fault))?;
    let own = geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != own || metadata.mode() & 0o077 != 0 {
        let why =
            format!("it must be a directory of user {own} with mode 0700, as the daemon makes it");
        return Err(Error::failed_precondition(format!(
            "{shown} cannot hold secrets: {why}"
        )));
    }
    Ok(())
}

fn is_tmpfs(dir: &Path) -> Result<bool> {
    let found =
        statfs(dir).map_err(|fault| failed("read the file system of", dir, fault.into()))?;
    Ok(found.filesystem_type() == TMPFS_MAGIC)
}

// === impl KernelMounter ===

impl TmpfsMounter for KernelMounter {
    fn is_mounted(&self, dir: &Path) -> Result<bool> {
        let device = |path: &Path| {
            let metadata =
                fs::symlink_metadata(path).map_err(|fault| failed("read", path, fault))?;
            Ok::<_, Error>(metadata.dev())
        };
        Ok(device(dir)? != device(dir.parent().unwrap_or(dir))?)
    }

    fn mount(&self, dir: &Path) -> Result<()> {
        mount_tmpfs(dir).map_err(|fault| failed("mount a tmpfs for secrets at", dir, fault.into()))
    }

    fn unmount(&self, dir: &Path) -> Result<()> {
        umount(dir).map_err(|fault| failed("unmount", dir, fault.into()))
    }
}

fn mount_tmpfs(dir: &Path) -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mounted = |options: &str| mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some(options));
    match mounted(&format!("{BOUNDS},noswap")) {
        Err(Errno::EINVAL) => {
            tracing::info!(
                path = %dir.display(),
                "this kernel has no tmpfs that is not swapped out: secrets of services may be written to swap"
            );
            mounted(BOUNDS)
        }
        result => result,
    }
}

fn is_empty(dir: &Path) -> Result<bool> {
    let mut entries = fs::read_dir(dir).map_err(|fault| failed("read", dir, fault))?;
    Ok(entries.next().is_none())
}

fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)
}

/// Writes a file, whose owner and mode are set before it has any content.
fn write_file(path: &Path, file: &TaskFile) -> io::Result<PathBuf> {
    let TaskFile {
        destination: _,
        content,
        uid,
        gid,
        mode,
    } = file;
    let mut written: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    fchown(
        &written,
        Some(Uid::from_raw(*uid)),
        Some(Gid::from_raw(*gid)),
    )?;
    written.write_all(content)?;
    // Last: a write removes the bits for set-user-id.
    written.set_permissions(fs::Permissions::from_mode(*mode))?;
    Ok(path.to_owned())
}

fn failed(what: &str, path: &Path, fault: io::Error) -> Error {
    let message = format!("{what} {}", path.display());
    let is_full = matches!(
        fault.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    let error = if is_full {
        Error::exhausted(message)
    } else {
        Error::failed_precondition(message)
    };
    error.with_source(fault)
}
