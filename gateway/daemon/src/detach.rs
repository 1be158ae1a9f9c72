//! `switchyard detach`: executes a program that outlives the daemon.
//!
//! The process starts a new session, writes its pid file and then executes the program. So the pid file names
//! the program before its first instruction, and a daemon that is killed right after the start does not lose
//! track of it. The pid file is written under a lock, and not if it names a live process, so that two
//! successive daemons start one program. On a full disk it is overwritten in place.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable, if_present};
use switchyard_linux::process::ProcessId;

use crate::lock::lock_within;

/// The exit status if the pid file names another process that runs. The program was not started.
pub const ALREADY_RUNNING: u8 = 3;

/// Limit for another start to release the pid file's lock, which it holds while it checks and writes that file. It is
/// shorter than the time in which the program has to answer, so that the program's log has the reason.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of a pid file that are overwritten; it has one line of two numbers.
const MOST_TEXT: usize = 64;

/// Environment variables for the daemon alone, which children must not inherit: those of the service manager, and the
/// name in its traces, which would be that of containerd too.
const NOT_INHERITED: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "OTEL_SERVICE_NAME",
];

/// The program to execute.
#[derive(Debug, Clone)]
pub struct Detach {
    /// The pid file.
    pub pid_file: PathBuf,
    /// The log file for its output.
    pub log: PathBuf,
    /// The program and its arguments; not empty.
    pub command: Vec<String>,
}

/// The reason why the program was not started.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// The file names a process that runs.
    #[error("{} names process {} which runs", path.display(), process.pid)]
    AlreadyRunning {
        /// The file.
        path: PathBuf,
        /// The process.
        process: ProcessId,
    },
    /// Another start holds the lock.
    #[error(
        "{} is held for longer than {limit:?}: another start of the program hangs: find its process (fuser), and end it",
        path.display()
    )]
    Locked {
        /// The file of the lock.
        path: PathBuf,
        /// Time for which it was awaited.
        limit: Duration,
    },
    /// A file cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// This process cannot start a new session.
    #[error("cannot start a new session")]
    Session(#[source] io::Error),
    /// The program cannot be executed.
    #[error("cannot execute {program:?}: is it installed?")]
    Exec {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Executes the program; returns only if that fails.
#[must_use]
pub fn run(detach: &Detach) -> DetachError {
    match prepare(detach) {
        Ok(mut command) => {
            let program = command.get_program().to_string_lossy().into_owned();
            DetachError::Exec {
                program,
                source: command.exec(),
            }
        }
        Err(error) => error,
    }
}

fn prepare(detach: &Detach) -> Result<Command, DetachError> {
    // setsid fails for a process group leader, which is already separated from its parent's signals.
    match nix::unistd::setsid() {
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(DetachError::Session(errno.into())),
    }
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| DetachError::File { path, source }
    };
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&detach.log)
        .map_err(file(&detach.log))?;
    let errors = log.try_clone().map_err(file(&detach.log))?;
    claim(&detach.pid_file, LOCK_LIMIT)?;
    let (program, args) = detach
        .command
        .split_first()
        .expect("the command line asks for a program");
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .current_dir("/");
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    Ok(command)
}

/// Writes this process into the pid file, unless the file names another process that runs. Waits for the lock for at
/// most `limit`.
fn claim(path: &Path, limit: Duration) -> Result<(), DetachError> {
    let fail = |source| DetachError::File {
        path: path.to_owned(),
        source,
    };
    let lock_path = path.with_extension("lock");
    let lock = File::create(&lock_path).map_err(fail)?;
    lock_within(&lock, limit).map_err(|error| match error {
        TryLockError::WouldBlock => DetachError::Locked {
            path: lock_path,
            limit,
        },
        TryLockError::Error(source) => fail(source),
    })?;
    let own = i32::try_from(std::process::id())
        .ok()
        .and_then(ProcessId::of);
    let own = own.ok_or_else(|| fail(io::Error::other("this process is not in /proc")))?;
    let named = read_pid_file(path).map_err(fail)?;
    if let Some(process) = named.filter(|process| *process != own && process.is_alive()) {
        return Err(DetachError::AlreadyRunning {
            path: path.to_owned(),
            process,
        });
    }
    // Without a file to overwrite, the first error is the one that helps.
    replace(path, own)
        .or_else(|error| overwrite(path, own).map_err(|_| error))
        .map_err(fail)
}

/// Puts a new pid file in place of the old one. Not durable: it names a process of this boot.
fn replace(path: &Path, own: ProcessId) -> io::Result<()> {
    let text = format!("{own}\n");
    files::replace(path, text.as_bytes(), 0o644, Durable::No, || {
        reach(CrashPoint::PidDrafted)
    })?;
    reach(CrashPoint::PidWritten);
    Ok(())
}

/// Writes into the pid file that is there, which takes no space: with one write within one page, which a kill cannot
/// tear. Blanks replace what is left of a longer text.
fn overwrite(path: &Path, own: ProcessId) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len())
        .unwrap_or(usize::MAX)
        .clamp(1, MOST_TEXT);
    let text = own.to_string();
    file.write_all(format!("{text:<width$}\n", width = length - 1).as_bytes())?;
    reach(CrashPoint::PidWritten);
    Ok(())
}

/// The process in a pid file, whether or not it runs; `None` if the file does not exist or names no process.
///
/// # Errors
/// If it cannot be read: it may name a process that runs.
pub fn read_pid_file(path: &Path) -> io::Result<Option<ProcessId>> {
    let Some(bytes) = if_present(fs::read(path))? else {
        return Ok(None);
    };
    Ok(String::from_utf8_lossy(&bytes).parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_file_is_overwritten_where_no_new_one_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program.pid");
        // As on a full disk, there is no draft: its name is taken.
        fs::create_dir(files::draft_of(&path)).unwrap();
        assert!(
            matches!(claim(&path, LOCK_LIMIT), Err(DetachError::File { .. })),
            "there is nothing to overwrite"
        );
        let own = i32::try_from(std::process::id())
            .ok()
            .and_then(ProcessId::of)
            .unwrap();
        let ended = ProcessId {
            pid: own.pid,
            started: own.started + 1,
        };
        for before in [
            format!("{ended}\n"),
            format!("{ended}                    \n"),
            "1 2\n".to_owned(),
        ] {
            fs::write(&path, &before).unwrap();
            claim(&path, LOCK_LIMIT).unwrap();
            assert_eq!(read_pid_file(&path).unwrap(), Some(own), "after {before:?}");
        }
    }

    #[test]
    fn pid_files_of_the_first_version_are_read_and_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program.pid");
        let process = ProcessId {
            pid: 4711,
            started: 81_234,
        };
        // New, and in place of a longer text.
        replace(&path, process).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4711 81234\n");
        assert_eq!(read_pid_file(&path).unwrap(), Some(process));
        fs::write(&path, "1234567 7654321\n").unwrap();
        overwrite(&path, process).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4711 81234     \n");
        assert_eq!(read_pid_file(&path).unwrap(), Some(process));
    }

    #[test]
    fn start_that_hangs_does_not_hold_up_the_next_one_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program.pid");
        let lock = File::create(dir.path().join("program.lock")).unwrap();
        lock.lock().unwrap();
        let held = claim(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(held, DetachError::Locked { .. }), "{held}");
        assert!(held.to_string().contains("program.lock"), "{held}");
        assert_eq!(read_pid_file(&path).unwrap(), None);
        drop(lock);
        claim(&path, LOCK_LIMIT).unwrap();
    }

    #[test]
    fn pid_file_that_cannot_be_read_may_name_a_process_and_a_damaged_one_names_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program.pid");
        assert_eq!(read_pid_file(&path).unwrap(), None);
        for damaged in [&b""[..], b"\0\0", b"\xff\xfe", b"1\n"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(read_pid_file(&path).unwrap(), None, "{damaged:?}");
        }
        // As on a disk that fails, there is something that cannot be read.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read_pid_file(&path).is_err());
        assert!(
            matches!(claim(&path, LOCK_LIMIT), Err(DetachError::File { .. })),
            "another one may run"
        );
    }
}
