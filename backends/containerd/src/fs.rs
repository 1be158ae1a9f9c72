//! Small things about errors of files and threads.

use std::error::Error as StdError;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use switchyard_core::threads::bulk;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_namespaces::files::write_atomic;
use switchyard_tree::Cancel;

/// As many entries of a tree are walked as a short call.
const SHORT_WALK_ENTRIES: u32 = 1000;

/// The error of a file operation, with what was being done to which file.
pub(crate) fn io_error(doing: &str, path: &Path, fault: io::Error) -> Error {
    let full = matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Internal };
    Error::new(kind, format!("{doing} {}", path.display())).with_source(fault)
}

/// The kind of an error that has `otherwise`, unless something in its chain of causes says that a disk is full. Plugins, shims and
/// processes of our own tell of that in words only.
pub(crate) fn disk_full_or(otherwise: ErrorKind, error: &(dyn StdError + 'static)) -> ErrorKind {
    let mut next = Some(error);
    while let Some(cause) = next {
        if mentions_disk_full(&cause.to_string()) {
            return ErrorKind::ResourceExhausted;
        }
        next = cause.source();
    }
    otherwise
}

/// Whether a text tells of a full disk, or of a quota that is used up.
pub(crate) fn mentions_disk_full(text: &str) -> bool {
    const FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];
    let text = text.to_lowercase();
    FULL.iter().any(|part| text.contains(part))
}

/// Writes a small file, so that a reader sees the old one or the new one, and the new one is on disk afterwards. Blocks.
pub(crate) fn write_durable(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write_atomic(path, bytes, mode).map_err(crate::sandbox::from_namespaces)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let synced = [path, dir].into_iter().try_for_each(|part| std::fs::File::open(part)?.sync_all());
    synced.map_err(|fault| io_error("sync", path, fault))
}

/// Removes a directory tree; one that is gone is removed. Dropping this stops it. What containers have written goes by
/// [`crate::trees::Trees`].
pub(crate) async fn remove_tree(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    cancellable(move |cancel| remove_tree_blocking(&path, cancel)).await
}

/// As [`remove_tree`]. Blocks.
pub(crate) fn remove_tree_blocking(path: &Path, cancel: &Cancel) -> Result<()> {
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

/// Runs the removal of a tree on a thread that may block, and cancels it when this is dropped. Most trees are small: a removal begins as a
/// short call, which waits for no bulk work, and goes on as [`bulk`] work if the tree has more entries than a short call may take. `work`
/// is called once more then: it goes on with what is left.
pub(crate) async fn cancellable<T: Send + 'static>(
    work: impl Fn(&Cancel) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let guard = CancelOnDrop::default();
    let work = Arc::new(work);
    let brief = guard.cancel().after(SHORT_WALK_ENTRIES);
    let begun = Arc::clone(&work);
    match blocking(move || begun(&brief)).await {
        // Only the number of entries has ended it: while this runs nobody cancels.
        Err(error) if error.kind() == ErrorKind::Cancelled => {}
        done => return done,
    }
    let cancel = guard.cancel();
    bulk(move || work(&cancel)).await
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
pub(crate) fn create_private_dir_blocking(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|fault| io_error("make directory", path, fault))
}

/// As [`make_private`], on a thread that may block.
pub(crate) async fn create_private_dir(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    blocking(move || create_private_dir_blocking(&path)).await
}

/// Runs short file operations on a thread that may block. What may take long is [`bulk`] work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| {
        Err(Error::internal("a thread for file operations broke off").with_source(fault))
    })
}

/// What a file below `/proc/sys/kernel` says.
pub(crate) fn read_kernel_sysctl(name: &str) -> Result<String> {
    let path = Path::new("/proc/sys/kernel").join(name);
    std::fs::read_to_string(&path)
        .map(|text| text.trim().to_owned())
        .map_err(|fault| io_error("read", &path, fault))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    use switchyard_core::threads::BULK;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_tree_waits_for_no_bulk_work_and_a_large_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let tree = |name: &str, files: u32| {
            let tree = dir.path().join(name);
            fs::create_dir(&tree).unwrap();
            (0..files).for_each(|file| fs::write(tree.join(file.to_string()), "").unwrap());
            tree
        };
        let small = tree("small", SHORT_WALK_ENTRIES / 2);
        let large = tree("large", SHORT_WALK_ENTRIES * 2);
        let (begun, begins) = mpsc::channel();
        let mut answers = Vec::new();
        for _ in 0..BULK {
            let (answer, asked) = mpsc::channel::<()>();
            answers.push(answer);
            let begun = begun.clone();
            tokio::spawn(bulk(move || {
                begun.send(()).unwrap();
                let _ = asked.recv();
                Ok(())
            }));
        }
        tokio::task::spawn_blocking(move || begins.iter().take(BULK).count()).await.unwrap();
        remove_tree(&small).await.unwrap();
        assert!(!small.exists());
        let left = || fs::read_dir(&large).map_or(0, Iterator::count);
        let removed = large.clone();
        let removal = tokio::spawn(async move { remove_tree(&removed).await });
        // It has a few entries more or less to see than there are files.
        while left() > 1100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            tokio::task::spawn_blocking(|| ()).await.unwrap();
        }
        assert!(left() >= 900 && !removal.is_finished(), "{} files are left", left());
        drop(answers);
        removal.await.unwrap().unwrap();
        assert!(!large.exists());
    }

    #[test]
    fn a_full_disk_is_told_apart_however_deep_it_is_told() {
        let deep = Error::internal("plugin")
            .with_source(Error::internal("write").with_source(io::Error::from_raw_os_error(28)));
        assert_eq!(disk_full_or(ErrorKind::Internal, &deep), ErrorKind::ResourceExhausted);
        let quota = io::Error::from_raw_os_error(122);
        assert_eq!(disk_full_or(ErrorKind::Internal, &quota), ErrorKind::ResourceExhausted);
        let other = io::Error::from_raw_os_error(13);
        assert_eq!(disk_full_or(ErrorKind::Unavailable, &other), ErrorKind::Unavailable);
    }
}
