//! Small things about errors of files and threads.

use std::error::Error as StdError;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use switchyard_core::{Error, ErrorKind, Result};
use switchyard_namespaces::files::write_atomic;
use switchyard_tree::Cancel;

/// The error of a file operation, with what was being done to which file.
pub(crate) fn io_error(doing: &str, path: &Path, fault: io::Error) -> Error {
    let full = matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Internal };
    Error::new(kind, format!("{doing} {}", path.display())).with_source(fault)
}

/// The kind of an error that has `otherwise`, unless something in its chain of causes says that a disk is full. Plugins, shims and
/// processes of our own tell of that in words only.
pub(crate) fn full_or(otherwise: ErrorKind, error: &(dyn StdError + 'static)) -> ErrorKind {
    let mut next = Some(error);
    while let Some(cause) = next {
        if says_full(&cause.to_string()) {
            return ErrorKind::ResourceExhausted;
        }
        next = cause.source();
    }
    otherwise
}

/// Whether a text tells of a full disk, or of a quota that is used up.
pub(crate) fn says_full(text: &str) -> bool {
    const FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];
    let text = text.to_lowercase();
    FULL.iter().any(|part| text.contains(part))
}

/// Writes a small file, so that a reader sees the old one or the new one, and the new one is on disk afterwards. Blocks.
pub(crate) fn write_kept(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write_atomic(path, bytes, mode).map_err(crate::sandbox::from_namespaces)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let synced = [path, dir].into_iter().try_for_each(|part| std::fs::File::open(part)?.sync_all());
    synced.map_err(|fault| io_error("sync", path, fault))
}

/// Removes a directory tree; one that is gone is removed. Dropping this stops it. What containers have written goes by
/// [`crate::trees::Trees`].
pub(crate) async fn remove_tree(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    stoppable(move |cancel| remove_tree_now(&path, cancel)).await
}

/// As [`remove_tree`]. Blocks.
pub(crate) fn remove_tree_now(path: &Path, cancel: &Cancel) -> Result<()> {
    switchyard_tree::remove(path, cancel).map_err(|error| tree_error("remove", path, error))
}

/// The error of an operation on a tree, with what was being done to which.
pub(crate) fn tree_error(doing: &str, path: &Path, error: switchyard_tree::Error) -> Error {
    let kind = if error.is_full() {
        ErrorKind::ResourceExhausted
    } else if matches!(error, switchyard_tree::Error::Cancelled) {
        ErrorKind::Cancelled
    } else {
        ErrorKind::Internal
    };
    Error::new(kind, format!("{doing} {}", path.display())).with_source(error)
}

/// Runs work on trees on a thread that may block, and cancels it when this is dropped.
pub(crate) async fn stoppable<T: Send + 'static>(
    work: impl FnOnce(&Cancel) -> Result<T> + Send + 'static,
) -> Result<T> {
    let guard = CancelOnDrop::default();
    let cancel = guard.cancel();
    blocking(move || work(&cancel)).await
}

/// Cancels work on a tree when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(Cancel);

impl CancelOnDrop {
    /// What the work asks.
    pub(crate) fn cancel(&self) -> Cancel {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Makes a directory and those above it, for root alone. Blocks. One that is there keeps its mode.
pub(crate) fn make_private(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|fault| io_error("make directory", path, fault))
}

/// As [`make_private`], on a thread that may block.
pub(crate) async fn make_dir(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    blocking(move || make_private(&path)).await
}

/// Runs short file operations on a thread that may block. What may take long is [`bulk`](switchyard_core::threads::bulk) work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| {
        Err(Error::internal("a thread for file operations broke off").with_source(fault))
    })
}

/// What a file below `/proc/sys/kernel` says.
pub(crate) fn kernel_text(name: &str) -> Result<String> {
    let path = Path::new("/proc/sys/kernel").join(name);
    std::fs::read_to_string(&path)
        .map(|text| text.trim().to_owned())
        .map_err(|fault| io_error("read", &path, fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_however_deep_it_is_told() {
        let deep = Error::internal("plugin")
            .with_source(Error::internal("write").with_source(io::Error::from_raw_os_error(28)));
        assert_eq!(full_or(ErrorKind::Internal, &deep), ErrorKind::ResourceExhausted);
        let quota = io::Error::from_raw_os_error(122);
        assert_eq!(full_or(ErrorKind::Internal, &quota), ErrorKind::ResourceExhausted);
        let other = io::Error::from_raw_os_error(13);
        assert_eq!(full_or(ErrorKind::Unavailable, &other), ErrorKind::Unavailable);
    }
}
