//! The targets of the audit log: a file, or the journal.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use switchyard_telemetry::{JournalEntry, JournalSocket, Priority, SendWait};

use super::line::AuditLine;
use crate::line_file;

/// Time for the journal to accept a line.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a rotation that has renamed the file to make the next one, with the owner and mode of its own.
const ROTATION: Duration = Duration::from_millis(100);
/// The program in entries of the journal.
const PROGRAM: &str = "switchyard-audit";

/// A place for lines.
#[derive(Debug)]
pub(super) enum Sink {
    /// systemd's journal, with the identifier `switchyard-audit`.
    Journal(JournalSocket),
    /// A file, opened for the first line, and again when it was renamed or removed, and after errors.
    File(PathBuf, Option<File>),
    /// The daemon's own log.
    Log,
}

impl Sink {
    /// The journal at this socket; the daemon's own log on a node without a journal.
    pub(super) fn journal(socket: &Path) -> Self {
        let mut journal = JournalSocket::new(socket.to_owned(), SendWait::AtMost(JOURNAL_TIMEOUT));
        match journal.connect() {
            Ok(()) => Self::Journal(journal),
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
            Self::Journal(journal) => journal.path().display().to_string(),
            Self::File(path, _) => path.display().to_string(),
            Self::Log => "the daemon's log".to_owned(),
        }
    }

    /// Writes one line as a whole.
    pub(super) fn write(&mut self, line: &AuditLine) -> io::Result<()> {
        let json = line.to_json();
        match self {
            Self::Journal(journal) => {
                let mut entry = JournalEntry::new(Priority::Info, PROGRAM, &json);
                for (name, value) in line.log_fields() {
                    entry.field(name, value);
                }
                journal.send(&entry)
            }
            Self::File(path, open) => {
                // After an error, the next line opens the file again, and ends a torn line before it.
                let mut file = match open.take().filter(|file| is_at(file, path)) {
                    Some(file) => file,
                    None => open_file(path)?,
                };
                file.write_all(format!("{json}\n").as_bytes())?;
                *open = Some(file);
                Ok(())
            }
            Self::Log => {
                tracing::info!(target: "audit", line = json);
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

fn open_file(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).mode(0o640);
    let (mut file, metadata) = line_file::open(&mut options, path)?;
    if line_file::is_torn(&file, metadata.len())? {
        file.write_all(b"\n")?;
    }
    Ok(file)
}
