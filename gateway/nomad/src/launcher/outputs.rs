//! Keeps the output FIFOs of a task open while its start is repeated.
//!
//! An agent's log collector reads a FIFO up to its first end of file, and never again until the agent starts the task once more.
//! A daemon keeps the FIFOs open while it removes what a start that was cut off has made of the task; one that is killed
//! meanwhile closes them, and the output of the task would be read by nobody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use prost::Message;
use switchyard_linux::blocking;
use switchyard_proto::nomad::drivers::proto as nomad;

/// Limit for the FIFOs to be opened.
const LIMIT: Duration = Duration::from_secs(2);

/// Opens the FIFOs of the task of a `StartTask` request for writing; those that nobody reads have no end of file to see, and
/// are left out. One that is closed again is an end of file, also to a collector that waited for its first writer: a caller
/// keeps them until another process has them open, or the start has failed. `request` is the message without its prefix.
pub(super) async fn keep_open(request: &[u8]) -> Vec<File> {
    // The daemon reports what is wrong with a request that cannot be decoded.
    let Some(task) = nomad::StartTaskRequest::decode(request)
        .ok()
        .and_then(|request| request.task)
    else {
        return Vec::new();
    };
    let paths = [task.stdout_path, task.stderr_path];
    let open = move || {
        let open = |path: &String| {
            let opened = open_writer(Path::new(path));
            opened
                .inspect_err(
                    |error| tracing::debug!(path, %error, "the output of a task is not kept open"),
                )
                .ok()
                .flatten()
        };
        Ok::<_, io::Error>(paths.iter().filter_map(open).collect())
    };
    let opened = tokio::time::timeout(LIMIT, blocking("open the output of a task", open)).await;
    opened.ok().and_then(Result::ok).unwrap_or_default()
}

/// Opens a FIFO that somebody reads, without blocking for a reader; `None` for what is no FIFO.
fn open_writer(path: &Path) -> io::Result<Option<File>> {
    if !path.symlink_metadata()?.file_type().is_fifo() {
        return Ok(None);
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits())
        .open(path)?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[tokio::test]
    async fn collector_sees_no_end_of_file_while_the_fifos_are_kept_open() {
        let dir = tempfile::tempdir().unwrap();
        let [stdout, stderr] = ["out", "err"].map(|name| dir.path().join(name));
        mkfifo(&stdout, Mode::S_IRWXU).unwrap();
        // Whatever is written to a file that is no FIFO, it is not touched.
        std::fs::write(&stderr, "kept").unwrap();
        let request = nomad::StartTaskRequest {
            task: Some(nomad::TaskConfig {
                stdout_path: stdout.display().to_string(),
                stderr_path: stderr.display().to_string(),
                ..Default::default()
            }),
        };
        let request = request.encode_to_vec();
        assert!(keep_open(&request).await.is_empty(), "nobody reads it");
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&stdout)
            .unwrap();
        let kept = keep_open(&request).await;
        assert_eq!(kept.len(), 1);
        let mut byte = [0];
        let error = reader.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(kept);
        assert_eq!(reader.read(&mut byte).unwrap(), 0, "that is the end");
        assert_eq!(std::fs::read(&stderr).unwrap(), b"kept");
        assert!(keep_open(b"\xff").await.is_empty());
    }
}
