//! The file with the join token, which the configuration names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::error::Error;
use crate::token::JoinToken;

/// The largest file that is read: several times the longest token.
const FILE_MAX: u64 = 4096;

/// The mode bits that the file may not have: only its owner may write it, and others have no access.
const FORBIDDEN: u32 = 0o027;

/// How long the file may take to be read.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// What tells one content of the file from another: inode, size, and the times of the last changes; `None` if there
/// is no such file.
pub(super) type FileStamp = Option<[i64; 6]>;

/// Reads the token.
pub(super) async fn read(path: &Path) -> Result<JoinToken, Error> {
    let owned = path.to_owned();
    let read = move || read_blocking(&owned);
    in_time(path, read).await.unwrap_or_else(|reason| Err(unusable(path, reason)))
}

/// What the file is like now.
pub(super) async fn stamp(path: &Path) -> FileStamp {
    let owned = path.to_owned();
    // A file system that hangs looks like a file that is away.
    in_time(path, move || stamp_blocking(&owned)).await.ok().flatten()
}

async fn in_time<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match timeout(READ_LIMIT, spawn_blocking(work)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(fault)) => Err(fault.to_string()),
        Err(_) => Err(format!("{} did not answer within {} s", path.display(), READ_LIMIT.as_secs())),
    }
}

fn unusable(path: &Path, reason: impl Into<String>) -> Error {
    Error::TokenFile { path: PathBuf::from(path), reason: reason.into() }
}

fn stamp_blocking(path: &Path) -> FileStamp {
    let metadata = fs::metadata(path).ok()?;
    let [inode, size] = [metadata.ino(), metadata.size()].map(u64::cast_signed);
    let changed = [metadata.ctime(), metadata.ctime_nsec()];
    Some([inode, size, metadata.mtime(), metadata.mtime_nsec(), changed[0], changed[1]])
}

fn read_blocking(path: &Path) -> Result<JoinToken, Error> {
    let fail = |fault: io::Error| unusable(path, format!("it cannot be read: {fault}"));
    // A FIFO without a writer would hold the thread.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(fail)?;
    // Of the open file, which cannot be exchanged any more.
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return Err(unusable(path, "it is not a regular file"));
    }
    check_access(metadata.mode(), metadata.uid(), geteuid().as_raw())
        .map_err(|reason| unusable(path, reason))?;
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(fail)?;
    if text.len() as u64 > FILE_MAX {
        return Err(unusable(path, format!("it has more than {FILE_MAX} bytes")));
    }
    // The parser shows nothing of it either.
    String::from_utf8_lossy(&text).parse().map_err(|error: Error| unusable(path, error.to_string()))
}

/// Whether only root, or the daemon's own user, decides on the content of a file, and others cannot read it.
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
        read_blocking(path).map(|token| token.to_string()).unwrap_err().to_string()
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
        assert!(refusal(dir.path()).contains("not a regular file"));
        for content in [&b"hunter2"[..], &[b'x'; 5000], &[0xff; 40], b""] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let text = refusal(&path);
            assert!(!text.contains("hunter2") && !text.contains("xxx") && text.len() < 300, "{text}");
        }
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(refusal(&dir.path().join("fifo")).contains("not a regular file"));
    }
}
