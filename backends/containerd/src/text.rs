//! Small things about errors of files and threads.

use std::io;
use std::path::Path;

use switchyard_core::{Error, ErrorKind, Result};

/// The error of a file operation, with what was being done to which file.
pub(crate) fn io_error(doing: &str, path: &Path, fault: io::Error) -> Error {
    let full = matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Internal };
    Error::new(kind, format!("{doing} {}", path.display())).with_source(fault)
}

/// Removes a directory tree; one that is gone is removed.
pub(crate) async fn remove_tree(path: &Path) -> Result<()> {
    match tokio::fs::remove_dir_all(path).await {
        Ok(()) => Ok(()),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(fault) => Err(io_error("remove", path, fault)),
    }
}

/// Makes a directory and those above it.
pub(crate) async fn make_dir(path: &Path) -> Result<()> {
    tokio::fs::create_dir_all(path).await.map_err(|fault| io_error("make directory", path, fault))
}

/// Runs file operations on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| {
        Err(Error::internal("a thread for file operations broke off").with_source(fault))
    })
}
