//! Small files that a daemon writes at its start, for other processes of this boot. A full disk refuses one: it is written
//! when there is space again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::blocking;
use switchyard_linux::files::{self, Durable};

/// The first and the longest pause between two tries.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// A file that every user may read.
#[derive(Debug)]
pub(crate) struct RunFile {
    path: PathBuf,
    contents: Vec<u8>,
    /// For people: what does not work without it.
    without: &'static str,
    /// True if one of an earlier daemon misleads its readers.
    misleads: bool,
}

impl RunFile {
    /// A file that is not written yet; `without` says what does not work until it is.
    pub(crate) fn new(path: PathBuf, contents: impl Into<Vec<u8>>, without: &'static str) -> Self {
        Self {
            path,
            contents: contents.into(),
            without,
            misleads: false,
        }
    }

    /// The same, with an address: that of an earlier daemon may be another program's now.
    pub(crate) fn with_address(self) -> Self {
        Self {
            misleads: true,
            ..self
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what does not work without it.
    pub(crate) const fn without(&self) -> &'static str {
        self.without
    }

    /// Replaces the file. If that fails, one that misleads is removed. Not durable: it is of this boot. Blocks.
    pub(crate) fn write(&self) -> io::Result<()> {
        let replaced = files::replace(&self.path, &self.contents, 0o644, Durable::No, || {
            reach(CrashPoint::AddressDrafted)
        });
        if let Err(error) = replaced.map_err(io::Error::from) {
            let removed = self
                .misleads
                .then(|| files::if_present(fs::remove_file(&self.path)));
            return Err(match removed {
                Some(Err(left)) => {
                    let text = format!(
                        "{error}; that of an earlier daemon, which misleads its readers, cannot be removed either: {left}"
                    );
                    io::Error::new(error.kind(), text)
                }
                Some(Ok(_)) | None => error,
            });
        }
        reach(CrashPoint::AddressWritten);
        Ok(())
    }

    /// Tries to write a file that could not be written, until it is. Cancel-safe: a try that has begun continues.
    pub(crate) async fn write_later(self) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let file = Arc::new(self);
        let path = file.path.display();
        loop {
            backoff.wait().await;
            let written = Arc::clone(&file);
            match blocking("write a file of the start", move || written.write()).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(%path, %error, "a file of the start cannot be written yet")
                }
            }
        }
        tracing::info!(%path, "a file of the start that could not be written is in its place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn file_that_cannot_be_written_at_first_is_in_its_place_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/admin.addr");
        let file = RunFile::new(path.clone(), "127.0.0.1:1\n", "nothing works");
        file.write().unwrap_err();
        let mut later = Box::pin(file.write_later());
        let minute = Duration::from_secs(60);
        tokio::time::timeout(minute, &mut later).await.unwrap_err();
        fs::create_dir(dir.path().join("run")).unwrap();
        tokio::time::timeout(minute, later).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1:1\n");
    }

    #[test]
    fn address_of_an_earlier_daemon_is_removed_if_it_cannot_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, is_address: bool| {
            let path = dir.path().join(name);
            fs::write(&path, "earlier").unwrap();
            fs::create_dir(files::draft_of(&path)).unwrap();
            let file = RunFile::new(path.clone(), "new", "nothing works");
            let file = if is_address {
                file.with_address()
            } else {
                file
            };
            file.write().unwrap_err();
            path.exists()
        };
        assert!(!write("admin.addr", true));
        assert!(write("daemon.json", false));
    }
}
