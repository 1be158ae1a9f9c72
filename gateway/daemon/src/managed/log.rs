//! The log of a managed process: its rotation, and its last line for error messages.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::blocking;
use switchyard_linux::files::{self, Durable};

/// The size in bytes above which a log is rotated.
const LIMIT: u64 = 16 << 20;

/// Bytes of its end that are read for a message.
const TAIL: u64 = 4096;

/// Destination of the output of a program for which there is no space to create a log.
const NOWHERE: &str = "/dev/null";

/// The log of a program that is about to be started.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub(super) path: PathBuf,
    pub(super) file: fs::File,
}

impl OpenLog {
    /// Opens a log whose writer has not been started yet, and rotates it if it is long. On a full disk neither may be
    /// possible: then it grows further, and without any log the output is discarded, because the program matters more.
    ///
    /// # Errors
    /// Those of opening [`NOWHERE`].
    pub(super) fn of_start(log: &Path) -> io::Result<Self> {
        let opened = if is_long(log) { rotate(log) } else { open(log) };
        match opened {
            Ok(file) => Ok(Self {
                path: log.to_owned(),
                file,
            }),
            Err(error) => {
                tracing::warn!(log = %log.display(), %error, "cannot open the log of a managed process: its output is discarded");
                let file = fs::OpenOptions::new().append(true).open(NOWHERE)?;
                Ok(Self {
                    path: NOWHERE.into(),
                    file,
                })
            }
        }
    }
}

fn open(log: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
}

/// Renames a log and opens a new one; if there is no space for one, output continues in the same file.
fn rotate(log: &Path) -> io::Result<fs::File> {
    let aside = log.with_extension("log.1");
    if let Err(error) = files::rename(log, &aside, Durable::No) {
        tracing::warn!(log = %log.display(), %error, "cannot rotate the log of a managed process, which keeps growing");
        return open(log);
    }
    reach(CrashPoint::LogPutAside);
    open(log).or_else(|error| {
        tracing::warn!(log = %log.display(), %error, "cannot create the log of a managed process: output continues in the former one");
        files::rename(&aside, log, Durable::No)?;
        open(log)
    })
}

/// Periodically rotates the log of a running process, so that it does not grow without bound. Cancel-safe.
pub(super) async fn rotate_periodically(log: &Path, every: Duration) -> std::convert::Infallible {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(every).await;
        let path = log.to_owned();
        let cut = blocking("the rotation of a log", move || {
            if is_long(&path) {
                copy_truncate(&path, available(&path))
            } else {
                Ok(())
            }
        });
        let cut = cut.await;
        let has_failed = std::mem::replace(&mut is_failing, cut.is_err());
        if let Err(error) = cut
            && !has_failed
        {
            tracing::warn!(log = %log.display(), %error, "cannot rotate the log of a managed process, which keeps growing");
        }
    }
}

/// Copies and truncates a log that its writer has open. The writer appends, so it continues at the beginning;
/// what it writes between the two operations is lost. `available`: the free bytes of its disk. If the copy would fill
/// that, the log is truncated without one, which frees space, and the former copy stays.
fn copy_truncate(log: &Path, available: u64) -> io::Result<()> {
    let copy = log.with_extension("log.1");
    let len = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    let fits = available.saturating_add(len(&copy)) >= len(log).saturating_mul(2);
    let copied = if fits {
        fs::copy(log, &copy).map(drop)
    } else {
        Err(io::ErrorKind::StorageFull.into())
    };
    match copied {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) =>
        {
            tracing::warn!(log = %log.display(), "the log of a managed process is emptied without a copy: its disk is full");
            if fits {
                // It is a part of a log only.
                fs::remove_file(&copy)?;
            }
        }
        Err(error) => return Err(error),
    }
    fs::OpenOptions::new().write(true).open(log)?.set_len(0)
}

/// The free bytes of the disk that a file is on; as many as can be if that is unknown.
fn available(file: &Path) -> u64 {
    statvfs(file).map_or(u64::MAX, |stat| {
        stat.blocks_available().saturating_mul(stat.fragment_size())
    })
}

fn is_long(log: &Path) -> bool {
    fs::metadata(log).is_ok_and(|meta| meta.len() > LIMIT)
}

/// The last line of a log, for a message about the end of its writer.
pub(super) fn last_line(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut tail = Vec::new();
        file.take(TAIL).read_to_end(&mut tail)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    };
    match read() {
        Ok(tail) => tail
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("its log is empty")
            .into(),
        Err(error) => format!("its log {} cannot be read: {error}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A log that is long enough to be rotated, without content on the disk.
    fn long_log(dir: &Path) -> PathBuf {
        let log = dir.join("program.log");
        fs::File::create(&log).unwrap().set_len(LIMIT + 1).unwrap();
        log
    }

    #[test]
    fn log_without_space_for_its_copy_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let log = long_log(dir.path());
        // Nothing can be written to this device, as to a full disk.
        symlink("/dev/full", log.with_extension("log.1")).unwrap();
        fs::write(&log, "long").unwrap();
        copy_truncate(&log, u64::MAX).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "");
        assert!(
            !log.with_extension("log.1").is_symlink(),
            "what was copied of it goes"
        );
    }

    #[test]
    fn log_that_cannot_be_put_aside_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let log = long_log(dir.path());
        fs::create_dir_all(log.with_extension("log.1").join("in-the-way")).unwrap();
        assert_eq!(OpenLog::of_start(&log).unwrap().path, log);
        assert!(is_long(&log));
    }

    #[test]
    fn program_starts_without_a_log_that_cannot_be_created() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("missing/program.log");
        assert_eq!(OpenLog::of_start(&log).unwrap().path, Path::new(NOWHERE));
    }

    #[test]
    fn log_is_emptied_without_a_copy_where_that_would_fill_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        let copy = dir.path().join("a.log.1");
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        fs::write(&log, "0123456789").unwrap();
        copy_truncate(&log, 20).unwrap();
        assert_eq!(
            (read(&log), read(&copy)),
            (String::new(), "0123456789".to_owned())
        );
        fs::write(&log, "abcdefghijklmno").unwrap();
        copy_truncate(&log, 19).unwrap();
        assert_eq!(
            (read(&log), read(&copy)),
            (String::new(), "0123456789".to_owned())
        );
        // The former copy makes way for the next.
        fs::write(&log, "abcdefghijklmno").unwrap();
        copy_truncate(&log, 20).unwrap();
        assert_eq!(
            (read(&log), read(&copy)),
            (String::new(), "abcdefghijklmno".to_owned())
        );
        assert!(available(&log) < u64::MAX);
    }
}
