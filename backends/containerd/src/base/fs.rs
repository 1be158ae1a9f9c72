//! Helpers for file operations: errors that name the file, durable writes, removals that can be cancelled,
//! and blocking threads.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use switchyard_core::threads::bulk;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::files::{Durable, if_present};
use switchyard_namespaces::files;
use switchyard_tree::Cancel;

use crate::base::error::exhausted_or;

/// Maximum number of entries of a tree that a removal visits before it counts as bulk work.
const SHORT_WALK_ENTRIES: u32 = 1000;

/// The error of a file operation: `doing` is the operation, as in "write". `ResourceExhausted` if a limit of the node is
/// reached, else `Internal`.
pub(crate) fn io_error(doing: &str, path: &Path, fault: io::Error) -> Error {
    let full = matches!(
        fault.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    let kind = if full {
        ErrorKind::ResourceExhausted
    } else {
        exhausted_or(ErrorKind::Internal, &fault)
    };
    Error::new(kind, format!("{doing} {}", path.display())).with_source(fault)
}

/// Replaces a small file atomically, also in a power cut, and syncs it and its directory. Blocks.
pub(crate) fn write_durable(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    files::write(path, bytes, mode, Durable::Yes).map_err(crate::base::error::from_namespaces)
}

/// Removes a directory tree; succeeds if there is none. Dropping the future stops the removal. Trees that
/// containers have written to are removed by [`crate::base::trees::Trees`] instead.
pub(crate) async fn remove_tree(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    cancellable(move |cancel| remove_tree_blocking(&path, cancel)).await
}

/// As [`remove_tree`], until `cancel`. Blocks.
pub(crate) fn remove_tree_blocking(path: &Path, cancel: &Cancel) -> Result<()> {
    switchyard_tree::remove(path, cancel).map_err(|error| tree_error("remove", path, error))
}

/// The error of an operation on a tree: `doing` is the operation, as in "remove".
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

/// Runs the removal of a tree on a blocking thread, and cancels it when this future is dropped. Most trees
/// are small, so a removal begins as a short call that does not wait for a [`bulk`] permit. If the tree has
/// more than [`SHORT_WALK_ENTRIES`] entries, `work` is called once more as bulk work and continues with what
/// remains.
pub(crate) async fn cancellable<T: Send + 'static>(
    work: impl Fn(&Cancel) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let guard = CancelOnDrop::default();
    let work = Arc::new(work);
    let brief = guard.cancel().after(SHORT_WALK_ENTRIES);
    let begun = Arc::clone(&work);
    match blocking(move || begun(&brief)).await {
        // It has reached the number of entries: nothing else cancels it while this future is alive.
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
    /// The flag that the work checks.
    pub(crate) fn cancel(&self) -> Cancel {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Creates a directory and its missing ancestors with mode 0700. An existing directory keeps its mode.
/// Blocks.
pub(crate) fn create_private_dir_blocking(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|fault| io_error("make directory", path, fault))
}

/// As [`create_private_dir_blocking`], on a blocking thread.
pub(crate) async fn create_private_dir(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    blocking(move || create_private_dir_blocking(&path)).await
}

/// The entries of `dir` whose names are ids, by name; none if `dir` does not exist. Blocks, for ever if its disk hangs.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn ids_below<I: FromStr>(dir: &Path) -> Result<BTreeMap<String, I>> {
    let mut ids = BTreeMap::new();
    let listed = std::fs::read_dir(dir).and_then(|entries| {
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Ok(id) = name.parse() {
                ids.insert(name, id);
            }
        }
        Ok(())
    });
    if_present(listed).map_err(|fault| io_error("list", dir, fault))?;
    Ok(ids)
}

/// Runs short file operations on a blocking thread. What may take long is [`bulk`] work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    switchyard_linux::blocking("a thread for file operations", work).await
}

/// The trimmed contents of a file below `/proc/sys/kernel`.
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

    #[test]
    fn limit_of_the_node_is_no_fault_of_it() {
        use nix::errno::Errno;
        let kind = |errno: Errno| io_error("write", Path::new("/x"), io::Error::from(errno)).kind();
        for limit in [Errno::ENOSPC, Errno::EDQUOT, Errno::EMFILE, Errno::ENFILE] {
            assert_eq!(kind(limit), ErrorKind::ResourceExhausted, "{limit}");
        }
        assert_eq!(kind(Errno::EIO), ErrorKind::Internal);
    }

    #[test]
    fn a_directory_that_cannot_be_listed_has_no_garbage_to_remove_now() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["7", "x", "12"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let expected = BTreeMap::from([("12".to_owned(), 12), ("7".to_owned(), 7)]);
        assert_eq!(ids_below::<u32>(dir.path()).unwrap(), expected);
        assert_eq!(
            ids_below::<u32>(&dir.path().join("none")).unwrap(),
            BTreeMap::new()
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = ids_below::<u32>(&file).unwrap_err().report();
        assert!(
            error.contains("list") && error.contains("Not a directory"),
            "{error}"
        );
    }

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
        tokio::task::spawn_blocking(move || begins.iter().take(BULK).count())
            .await
            .unwrap();
        remove_tree(&small).await.unwrap();
        assert!(!small.exists());
        let left = || fs::read_dir(&large).map_or(0, Iterator::count);
        let removed = large.clone();
        let removal = tokio::spawn(async move { remove_tree(&removed).await });
        // The walk counts a few entries more or less than there are files.
        while left() > 1100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            tokio::task::spawn_blocking(|| ()).await.unwrap();
        }
        assert!(
            left() >= 900 && !removal.is_finished(),
            "{} files are left",
            left()
        );
        drop(answers);
        removal.await.unwrap().unwrap();
        assert!(!large.exists());
    }
}
