//! The log of a managed process: its rotation, and its last line for error messages.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use switchyard_steps::{Step, reach};

/// The size in bytes above which a log is rotated.
const LIMIT: u64 = 16 << 20;

/// How much of its end is read for a message, in bytes.
const TAIL: u64 = 4096;

/// Rotates a log whose writer has not been started yet.
pub(super) fn rotate(log: &Path) -> io::Result<()> {
    if is_long(log) {
        fs::rename(log, log.with_extension("log.1"))?;
        reach(Step::LogPutAside);
    }
    Ok(())
}

/// Periodically rotates the log of a running process, so that it does not grow without bound. Cancel-safe.
pub(super) async fn rotate_periodically(log: &Path, every: Duration) -> std::convert::Infallible {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(every).await;
        let path = log.to_owned();
        let cut =
            tokio::task::spawn_blocking(move || if is_long(&path) { copy_truncate(&path) } else { Ok(()) });
        let cut = cut.await;
        let failed = matches!(cut, Ok(Err(_)));
        if let (Ok(Err(error)), false) = (cut, is_failing) {
            tracing::warn!(log = %log.display(), %error, "cannot rotate the log of a managed process, which keeps growing");
        }
        is_failing = failed;
    }
}

/// Copies and truncates a log that its writer has open. The writer appends, so it continues at the beginning;
/// what it writes between the two operations is lost.
fn copy_truncate(log: &Path) -> io::Result<()> {
    fs::copy(log, log.with_extension("log.1"))?;
    fs::OpenOptions::new().write(true).open(log)?.set_len(0)
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
        Ok(tail) => {
            tail.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("its log is empty").into()
        }
        Err(error) => format!("its log {} cannot be read: {error}", log.display()),
    }
}
