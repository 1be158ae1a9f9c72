//! The file with the join token, which the configuration names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::threads;
use switchyard_node_files::{ReadError, RegularFile};

use crate::error::Error;
use crate::token::JoinToken;

/// The largest file that is read: several times the longest token.
const FILE_MAX: u64 = 4096;

/// The mode bits that the file may not have: only its owner may write it, and others have no access.
const FORBIDDEN: u32 = 0o027;

/// Limit for reading the file.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Version of the file: inode, size, and the times of the last changes; `None` if it does not exist.
pub(super) type FileStamp = Option<[i64; 6]>;

/// The file, with the one thread on which it is looked at: its file system may hang.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    thread: BlockingPool,
}

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            thread: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
        }
    }

    /// Reads the token. Cancel-safe.
    pub(super) async fn read(&self) -> Result<JoinToken, Error> {
        let path = self.path.clone();
        let read = self
            .thread
            .run(self.object(), move || Ok(read_blocking(&path)))
            .await;
        read.unwrap_or_else(|hangs| Err(unusable(&self.path, hangs.report())))
    }

    /// Returns the present version of the file. Cancel-safe.
    pub(super) async fn stamp(&self) -> FileStamp {
        let path = self.path.clone();
        // A file system that hangs looks like a file that is away.
        self.thread
            .run(self.object(), move || Ok(stamp_blocking(&path)))
            .await
            .ok()
            .flatten()
    }

    fn object(&self) -> String {
        format!("the join token in {}", self.path.display())
    }
}

fn unusable(path: &Path, reason: impl Into<String>) -> Error {
    Error::TokenFile {
        path: PathBuf::from(path),
        reason: reason.into(),
    }
}

fn stamp_blocking(path: &Path) -> FileStamp {
    let metadata = fs::metadata(path).ok()?;
    let [inode, size] = [metadata.ino(), metadata.size()].map(u64::cast_signed);
    let changed = [metadata.ctime(), metadata.ctime_nsec()];
    Some([
        inode,
        size,
        metadata.mtime(),
        metadata.mtime_nsec(),
        changed[0],
        changed[1],
    ])
}

fn read_blocking(path: &Path) -> Result<JoinToken, Error> {
    let fail = |fault: ReadError| unusable(path, format!("it cannot be read: {fault}"));
    let file = RegularFile::open(path).map_err(fail)?;
    let metadata = file.metadata();
    check_access(metadata.mode(), metadata.uid(), geteuid().as_raw())
        .map_err(|reason| unusable(path, reason))?;
    let text = file.read(FILE_MAX).map_err(fail)?;
    // The parser shows nothing of it either.
    String::from_utf8_lossy(&text)
        .parse()
        .map_err(|error: Error| unusable(path, error.to_string()))
}

/// Checks that only root or the daemon's own user can write a file, and that others cannot read it.
fn check_access(mode: u32, uid: u32, own: u32) -> Result<(), String> {
    if mode & FORBIDDEN != 0 {
        return Err(format!(
            "its mode is {:04o}, and others must not read it nor its group write it: chmod 0600 it",
            mode & 0o7777
        ));
    }
    if uid != 0 && uid != own {
        return Err(format!("it belongs to uid {uid}: chown it to root"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str =
        "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";

    fn refusal(path: &Path) -> String {
        read_blocking(path)
            .map(|token| token.to_string())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn token_is_read_from_a_file_that_is_safe_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(refusal(&path).contains("cannot be read"));
        assert_eq!(stamp_blocking(&path), None);
        fs::write(&path, format!("{TOKEN}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_blocking(&path).unwrap().as_sent(), TOKEN);
        let first = stamp_blocking(&path);
        assert!(first.is_some() && first == stamp_blocking(&path));
        for mode in [0o604, 0o620, 0o622] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(refusal(&path).contains("chmod 0600"), "{mode:o}");
        }
        assert_ne!(stamp_blocking(&path), first);
        assert!(check_access(0o100_600, 7, 7).is_ok());
        assert!(check_access(0o100_640, 0, 7).is_ok());
        assert!(check_access(0o100_600, 8, 7).unwrap_err().contains("uid 8"));
    }

    #[test]
    fn other_content_and_other_files_are_refused_without_being_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(refusal(dir.path()).contains("no regular file but a directory"));
        for content in [&b"hunter2"[..], &[b'x'; 5000], &[0xff; 40], b""] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let text = refusal(&path);
            assert!(
                !text.contains("hunter2") && !text.contains("xxx") && text.len() < 300,
                "{text}"
            );
        }
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(refusal(&dir.path().join("fifo")).contains("no regular file but a FIFO"));
    }

    /// The clock stands still: nothing here waits for real time.
    #[tokio::test(start_paused = true)]
    async fn file_system_that_hangs_costs_one_thread_however_often_the_file_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::new(dir.path().join("token"));
        let (began, begins) = tokio::sync::oneshot::channel();
        let (answers, answer) = std::sync::mpsc::channel::<()>();
        let hangs = file.thread.run(file.object(), move || {
            began.send(()).expect("the test waits for it");
            let _ = answer.recv();
            Ok(())
        });
        let hangs = async {
            let (hung, ()) = tokio::join!(hangs, async {
                begins.await.unwrap();
                tokio::time::advance(READ_LIMIT).await;
            });
            hung.unwrap_err()
        };
        hangs.await;
        for _ in 0..3 {
            assert_eq!(file.stamp().await, None);
            let text = file
                .read()
                .await
                .map(|token| token.to_string())
                .unwrap_err()
                .to_string();
            assert!(
                text.contains("still hangs") && text.contains("token"),
                "{text}"
            );
        }
        drop(answers);
    }
}
