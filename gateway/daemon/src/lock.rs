//! One daemon per directory: an exclusive lock on a file in it, which the kernel releases when the process
//! ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for which a lock may outlive its holder: a child that a killed daemon was starting shares the lock's
/// descriptor until its exec.
const LINGER: Duration = Duration::from_secs(1);

/// The pause between two attempts to take a lock that is held.
const POLL: Duration = Duration::from_millis(5);

/// A directory that no other daemon uses, until this is dropped.
#[derive(Debug)]
pub struct DirLock {
    // The kernel keeps the lock as long as this file is open.
    _file: File,
}

/// The locks of a daemon's directories. Whoever runs the daemon keeps them until nothing works for it any more, because
/// the next daemon begins when they are gone.
#[derive(Debug, Default)]
pub struct DirLocks(Vec<DirLock>);

/// The reason why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon holds the lock.
    #[error(
        "{} is in use by {holder}: stop that daemon, or give this one directories of its own (paths.state, paths.run)",
        dir.display()
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// The holder, as far as it is known.
        holder: String,
    },
    /// The directory is on a read-only file system, without what a daemon has made there before.
    #[error(
        "{} is on a read-only file system: find out why (findmnt, dmesg: the kernel makes a file system read-only after an error of its disk), and mount it writable",
        dir.display()
    )]
    ReadOnly {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory or its lock file cannot be used.
    #[error("cannot make or lock {}", path.display())]
    File {
        /// The directory or file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl LockError {
    /// The error of `path`, which is this directory or its lock file.
    pub(crate) fn at(dir: &Path, path: PathBuf, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::ReadOnlyFilesystem {
            return Self::ReadOnly {
                dir: dir.to_owned(),
            };
        }
        Self::File { path, source }
    }
}

impl DirLock {
    /// Locks the directory, which must exist, by its file `lock`. Blocks for up to a second if another
    /// process holds the lock. On a read-only file system the file must exist.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process still holds it after that.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let fail = |source: io::Error| LockError::at(dir, path.clone(), source);
        let (mut file, is_writable) = open(&path).map_err(fail)?;
        match lock_within(&file, LINGER) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(fail)?;
                let holder = match pid.trim() {
                    "" => "another switchyard".to_owned(),
                    pid => format!("switchyard process {pid}"),
                };
                return Err(LockError::Held {
                    dir: dir.to_owned(),
                    holder,
                });
            }
            Err(TryLockError::Error(source)) => return Err(fail(source)),
        }
        if let Err(error) = note_holder(&mut file, is_writable) {
            // The process id is for the message of another daemon alone.
            tracing::warn!(path = %path.display(), %error, "cannot write the process id into a lock");
        }
        switchyard_crash_points::reach(switchyard_crash_points::CrashPoint::DirLocked);
        Ok(Self { _file: file })
    }
}

impl DirLocks {
    /// Locks these directories too, as [`DirLock::acquire`] does.
    ///
    /// # Errors
    /// Those of [`DirLock::acquire`]; the locks before it are kept.
    pub fn acquire(&mut self, dirs: [&Path; 2]) -> Result<(), LockError> {
        for dir in dirs {
            self.0.push(DirLock::acquire(dir)?);
        }
        Ok(())
    }
}

/// Locks a file; blocks for up to `limit` if another process holds the lock.
///
/// # Errors
/// `WouldBlock` if another process still holds it after that.
pub(crate) fn lock_within(file: &File, limit: Duration) -> Result<(), TryLockError> {
    let deadline = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(POLL),
            locked => return locked,
        }
    }
}

/// Opens or creates a lock file, and returns whether it can be written. On a read-only file system, where the
/// kernel locks files too, it cannot.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path)
            .map(|file| (file, false))
            .map_err(|_| error),
        opened => opened.map(|file| (file, true)),
    }
}

/// Writes the process id into a lock that is held. It is written over the former one, so that a full disk, whose
/// blocks other processes would take at once, need not give a new block for it.
fn note_holder(file: &mut File, is_writable: bool) -> io::Result<()> {
    if !is_writable {
        return Err(io::ErrorKind::ReadOnlyFilesystem.into());
    }
    let holder = format!("{}\n", std::process::id());
    let written = file
        .rewind()
        .and_then(|()| file.write_all(holder.as_bytes()));
    // Without it nothing stays there, so that no former holder is named.
    let length = if written.is_ok() { holder.len() } else { 0 };
    written.and(file.set_len(u64::try_from(length).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_daemon_is_rejected_naming_the_lock_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "in use by switchyard process {}:",
                std::process::id()
            )),
            "{error}"
        );
        drop(lock);
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn directory_is_locked_although_its_disk_is_full() {
        let dir = tempfile::tempdir().unwrap();
        // Nothing can be written to this device, as to a full disk.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("lock")).unwrap();
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn shorter_process_id_replaces_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "123456789012\n").unwrap();
        let _lock = DirLock::acquire(dir.path()).unwrap();
        let holder = std::fs::read_to_string(dir.path().join("lock")).unwrap();
        assert_eq!(holder, format!("{}\n", std::process::id()));
    }

    #[test]
    fn lock_briefly_outliving_its_holder_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DirLock::acquire(dir.path()).map(drop));
            sleep(POLL * 4);
            drop(lock);
            next.join().unwrap().unwrap();
        });
    }
}
