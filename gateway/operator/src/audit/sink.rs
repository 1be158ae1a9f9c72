//! The targets of the audit log: a file, or the journal.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Time for the journal to accept a line.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a rotation that has renamed the file to make the next one, with the owner and mode of its own.
const ROTATION: Duration = Duration::from_millis(100);
/// Maximum number of repeated sends of a line that signals interrupt.
const INTERRUPTIONS_MAX: usize = 8;

/// A place for lines.
#[derive(Debug)]
pub(super) enum Sink {
    /// systemd's journal, with the identifier `switchyard-audit`.
    Journal(UnixDatagram, PathBuf),
    /// A file, opened for the first line, and again when it was renamed or removed, and after errors.
    File(PathBuf, Option<File>),
    /// The daemon's own log.
    Log,
}

impl Sink {
    /// The journal at this socket; the daemon's own log on a node without a journal.
    pub(super) fn journal(socket: &Path) -> Self {
        let connected = UnixDatagram::unbound().and_then(|journal| {
            journal.connect(socket)?;
            journal.set_write_timeout(Some(JOURNAL_TIMEOUT))?;
            Ok(journal)
        });
        match connected {
            Ok(journal) => Self::Journal(journal, socket.to_owned()),
            Err(error) => {
                tracing::info!(socket = %socket.display(), %error, "there is no journal: the audit log is a part of this log");
                Self::Log
            }
        }
    }

    pub(super) const fn file(path: PathBuf) -> Self {
        Self::File(path, None)
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Journal(_, path) | Self::File(path, _) => path.display().to_string(),
            Self::Log => "the daemon's log".to_owned(),
        }
    }

    /// Writes one line, given without its newline, as a whole.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        match self {
            Self::Journal(journal, socket) => {
                let entry =
                    format!("PRIORITY=6\nSYSLOG_IDENTIFIER=switchyard-audit\nMESSAGE={line}\n");
                let send = || send_uninterrupted(|| journal.send(entry.as_bytes()));
                match send() {
                    Err(error) if is_gone(&error) => {
                        // The journal was restarted: its socket is another one now.
                        journal.connect(&*socket)?;
                        send()
                    }
                    sent => sent,
                }
            }
            Self::File(path, open) => {
                // After an error, the next line opens the file again, and ends a torn line before it.
                let mut file = match open.take().filter(|file| is_at(file, path)) {
                    Some(file) => file,
                    None => open_file(path)?,
                };
                file.write_all(format!("{line}\n").as_bytes())?;
                *open = Some(file);
                Ok(())
            }
            Self::Log => {
                tracing::info!(target: "audit", line);
                Ok(())
            }
        }
    }
}

/// Returns whether an open file still has this path. So a rotation needs neither a signal nor a command, and takes
/// effect with the next line. What cannot be looked at counts as unchanged.
fn is_at(file: &File, path: &Path) -> bool {
    let Ok(opened) = file.metadata() else {
        return true;
    };
    let named = || match fs::symlink_metadata(path) {
        Ok(named) => Some((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(true),
    };
    let retried = || {
        thread::sleep(ROTATION);
        named()
    };
    named().or_else(retried).unwrap_or(false)
}

/// Sends again what a signal has interrupted: the kernel does not resume a send with a timeout (signal(7)).
fn send_uninterrupted(mut send: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    for _ in 0..INTERRUPTIONS_MAX {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => return sent.map(drop),
        }
    }
    send().map(drop)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected
    )
}

fn open_file(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    }
    // Whoever may write to the directory could place a link or a FIFO there; only an ordinary file is written.
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags.bits());
    let mut file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not an ordinary file",
        ));
    }
    if is_torn(&file, metadata.len())? {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// Returns whether a file of this length ends amid a line: its disk was full, or the daemon was killed.
fn is_torn(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else {
        return Ok(false);
    };
    let mut end = [0];
    file.read_exact_at(&mut end, last)?;
    Ok(end != *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a line whose send is interrupted `times` times, and the number of sends.
    fn interrupted(times: usize) -> (Option<io::ErrorKind>, usize) {
        let mut sends = 0;
        let sent = send_uninterrupted(|| {
            sends += 1;
            if sends > times {
                Ok(1)
            } else {
                Err(io::ErrorKind::Interrupted.into())
            }
        });
        (sent.err().map(|error| error.kind()), sends)
    }

    #[test]
    fn interrupted_line_is_sent_again_within_a_bound() {
        assert_eq!(interrupted(0), (None, 1));
        assert_eq!(
            interrupted(INTERRUPTIONS_MAX),
            (None, INTERRUPTIONS_MAX + 1)
        );
        let failed = Some(io::ErrorKind::Interrupted);
        assert_eq!(interrupted(1000), (failed, INTERRUPTIONS_MAX + 1));
    }

    #[test]
    fn other_failure_is_told_at_once() {
        let mut sends = 0;
        let sent = send_uninterrupted(|| {
            sends += 1;
            Err(io::ErrorKind::TimedOut.into())
        });
        assert_eq!(
            (sent.map_err(|error| error.kind()), sends),
            (Err(io::ErrorKind::TimedOut), 1)
        );
    }
}
