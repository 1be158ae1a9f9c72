//! Removes trees that containers have written to, with a bound on the number of tries.
//!
//! A removal that fails, or in which the daemon dies, is repeated by a client or by the next start. So that
//! one tree does not occupy them for ever, the number of tries is stored in an extended attribute of the
//! tree, and after the last try the tree is set aside for an operator. Where it cannot be stored, as on a node in
//! a user namespace, each process counts its own tries.
//!
//! ```text
//! <state>/set-aside/<name>-<random>/    could not be removed; the daemon does not touch it again
//! <run>/set-aside/<name>-<random>/      the same for trees below <run>, since a rename stays on a file system
//! ```

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::files::{self, Durable};
use switchyard_tree::Cancel;

use crate::base::fs::{cancellable, create_private_dir_blocking, io_error, remove_tree_blocking};
use crate::base::random::fill_random;

/// Maximum number of tries of the removal of one tree.
const MAX_TRIES: u8 = 5;
/// The extended attribute of a tree that counts the tries. Containers cannot write `trusted` attributes; on a node in a user namespace
/// nobody can.
const TRIES_XATTR: &str = "trusted.switchyard.removals";
/// The most trees whose tries are counted in memory: a node never has so many sandboxes and tasks. Others are tried without a limit.
const MAX_COUNTED: usize = 10_000;
/// The directory of the trees that could not be removed.
const SET_ASIDE: &str = "set-aside";

/// Removes trees that containers have written to.
#[derive(Debug)]
pub(crate) struct Trees {
    /// The directories that trees are below; each has a directory for those that are set aside.
    bases: [PathBuf; 2],
    set_aside: Mutex<Vec<PathBuf>>,
    /// Number of failures of this process to remove each tree on which the number cannot be stored.
    unstored: Mutex<HashMap<PathBuf, u8>>,
}

impl Trees {
    /// Reads which trees predecessors have set aside. Blocks.
    pub(crate) fn new(state: &Path, run: &Path) -> Self {
        let bases = [state.to_path_buf(), run.to_path_buf()];
        let found = bases
            .iter()
            .flat_map(|base| fs::read_dir(base.join(SET_ASIDE)).into_iter().flatten());
        let set_aside: Vec<_> = found.flatten().map(|entry| entry.path()).collect();
        if !set_aside.is_empty() {
            tracing::warn!(trees = ?set_aside, "these trees could not be removed and use disk space: remove them by hand");
        }
        Self {
            bases,
            set_aside: Mutex::new(set_aside),
            unstored: Mutex::default(),
        }
    }

    /// Removes a tree; succeeds if there is none, and if it was set aside. Idempotent. Dropping the future
    /// stops the removal.
    pub(crate) async fn remove(self: &Arc<Self>, path: &Path) -> Result<()> {
        let trees = Arc::clone(self);
        let path = path.to_path_buf();
        cancellable(move |cancel| trees.remove_blocking(&path, cancel)).await
    }

    /// Forgets the trees that an operator has removed since they were set aside. Blocks.
    pub(crate) fn forget_removed(&self) {
        let all = self.set_aside.lock().clone();
        let is_gone = |path: &PathBuf| {
            path.symlink_metadata()
                .is_err_and(|fault| fault.kind() == std::io::ErrorKind::NotFound)
        };
        let gone: Vec<_> = all.into_iter().filter(is_gone).collect();
        if !gone.is_empty() {
            self.set_aside.lock().retain(|path| !gone.contains(path));
        }
    }

    /// The paths of the trees that are set aside, for the status. It is called on async workers, so the disk is not
    /// looked at here.
    pub(crate) fn list(&self) -> Vec<String> {
        let all = self.set_aside.lock();
        all.iter().map(|path| path.display().to_string()).collect()
    }

    fn remove_blocking(&self, path: &Path, cancel: &Cancel) -> Result<()> {
        let before = self.tries(path);
        if before >= MAX_TRIES {
            let why = Error::internal(
                "no try has finished: the daemon was killed or crashed during each of them",
            );
            return self.set_aside(path, why);
        }
        let is_stored = record_tries(path, before + 1);
        match remove_tree_blocking(path, cancel) {
            Ok(()) => {
                self.unstored.lock().remove(path);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                record_tries(path, before);
                Err(error)
            }
            Err(error) if before + 1 >= MAX_TRIES => self.set_aside(path, error),
            Err(error) => {
                if !is_stored {
                    self.count(path, before + 1);
                }
                Err(error)
            }
        }
    }

    /// The number of tries to remove a tree so far, as far as they are known.
    fn tries(&self, path: &Path) -> u8 {
        let counted = self.unstored.lock().get(path).copied();
        stored_tries(path).max(counted.unwrap_or(0))
    }

    /// Keeps the number of tries of a tree on which it cannot be stored.
    fn count(&self, path: &Path, tries: u8) {
        let mut unstored = self.unstored.lock();
        if unstored.len() < MAX_COUNTED || unstored.contains_key(path) {
            unstored.insert(path.to_path_buf(), tries);
        }
    }

    /// Renames a tree into the `set-aside` directory; fails with `why` if it cannot be renamed.
    fn set_aside(&self, path: &Path, why: Error) -> Result<()> {
        let Some(base) = self.bases.iter().find(|base| path.starts_with(base)) else {
            return Err(why);
        };
        let mut random = [0; 8];
        fill_random(&mut random);
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let target = base
            .join(SET_ASIDE)
            .join(format!("{name}-{}", hex::encode(random)));
        let moved = create_private_dir_blocking(&base.join(SET_ASIDE)).and_then(|()| {
            files::rename(path, &target, Durable::No)
                .map_err(|fault| io_error("set aside", path, fault))
        });
        if let Err(error) = moved {
            tracing::warn!(path = %path.display(), error = error.report(), "a tree that cannot be removed cannot be set aside either");
            return Err(why);
        }
        tracing::error!(
            path = %path.display(),
            set_aside = %target.display(),
            tries = MAX_TRIES,
            error = why.report(),
            "a tree cannot be removed and is set aside: remove it by hand"
        );
        self.unstored.lock().remove(path);
        self.set_aside.lock().push(target);
        Ok(())
    }
}

/// Returns the number of tries to remove a tree that is stored; 0 where its file system has no such attributes.
fn stored_tries(path: &Path) -> u8 {
    let mut value = [0];
    match lgetxattr(path, TRIES_XATTR, &mut value[..]) {
        Ok(1) => value[0],
        Ok(_) | Err(_) => 0,
    }
}

/// Stores the number of tries; `false` without extended attributes, without space for them, and on a node in a user namespace, where the
/// kernel lets nobody write those that containers cannot write.
fn record_tries(path: &Path, tries: u8) -> bool {
    match lsetxattr(path, TRIES_XATTR, &[tries], XattrFlags::empty()) {
        // There is nothing to remove.
        Ok(()) | Err(Errno::NOENT) => true,
        Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::DQUOT | Errno::PERM) => false,
        Err(errno) => {
            tracing::debug!(path = %path.display(), error = %errno, "the tries of a removal cannot be stored");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn trees(dir: &Path) -> (Arc<Trees>, PathBuf) {
        let tree = dir.join("tasks/one");
        fs::create_dir_all(tree.join("below")).unwrap();
        (Arc::new(Trees::new(dir, Path::new("/nowhere"))), tree)
    }

    /// Runs `work` on a thread in its own mount namespace, with a mount: one in the tree is an obstacle that makes removals fail.
    fn with_a_mount(kind: &str, at: &Path, work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let mounted = move || {
                let none = None::<&str>;
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
                mount(Some(kind), at, Some(kind), MsFlags::empty(), none).unwrap();
                work();
            };
            scope.spawn(mounted).join().unwrap();
        });
    }

    #[test]
    fn a_tree_that_cannot_be_removed_is_set_aside_and_told_until_a_person_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let (all, tree) = trees(dir.path());
        with_a_mount("tmpfs", &tree.join("below"), || {
            for _ in 1..MAX_TRIES {
                assert!(all.remove_blocking(&tree, &Cancel::default()).is_err());
                assert!(tree.exists() && all.list().is_empty());
            }
            all.remove_blocking(&tree, &Cancel::default()).unwrap();
        });
        assert!(!tree.exists());
        let told = all.list();
        let aside = PathBuf::from(&told[0]);
        assert!(
            aside.join("below").exists() && aside.starts_with(dir.path().join(SET_ASIDE)),
            "{told:?}"
        );
        // The next daemon reports it too, and does not touch it.
        assert_eq!(trees(dir.path()).0.list(), told);
        all.forget_removed();
        assert_eq!(all.list(), told);
        fs::remove_dir_all(&aside).unwrap();
        all.forget_removed();
        assert!(all.list().is_empty());
    }

    /// As on a node in a user namespace: the file system `ramfs` has no extended attributes.
    #[test]
    fn tries_are_counted_where_they_cannot_be_stored() {
        let dir = tempfile::tempdir().unwrap();
        with_a_mount("ramfs", dir.path(), || {
            let (all, tree) = trees(dir.path());
            let below = tree.join("below");
            assert!(!record_tries(&tree, 1) && stored_tries(&tree) == 0);
            let fails = || assert!(all.remove_blocking(&tree, &Cancel::default()).is_err());
            // It goes after the second try, and another one has its path.
            with_a_mount("tmpfs", &below, || (0..2).for_each(|_| fails()));
            assert_eq!(all.tries(&tree), 2);
            let stopped = Cancel::default();
            stopped.cancel();
            assert!(all.remove_blocking(&tree, &stopped).is_err());
            assert_eq!(all.tries(&tree), 2, "what was stopped is no try");
            all.remove_blocking(&tree, &Cancel::default()).unwrap();
            assert!(!tree.exists() && all.tries(&tree) == 0);
            fs::create_dir_all(&below).unwrap();
            with_a_mount("tmpfs", &below, || {
                (1..MAX_TRIES).for_each(|_| fails());
                assert!(tree.exists() && all.list().is_empty());
                all.remove_blocking(&tree, &Cancel::default()).unwrap();
            });
            assert!(!tree.exists() && all.list().len() == 1);
            assert!(all.unstored.lock().is_empty());
        });
    }

    #[test]
    fn a_tree_on_which_one_daemon_after_the_other_dies_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (all, tree) = trees(dir.path());
        // Each daemon has counted its try and died in it.
        record_tries(&tree, MAX_TRIES);
        all.remove_blocking(&tree, &Cancel::default()).unwrap();
        assert!(!tree.exists() && !all.list().is_empty());
    }

    #[test]
    fn a_removal_that_was_stopped_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (all, tree) = trees(dir.path());
        let stopped = Cancel::default();
        stopped.cancel();
        for _ in 0..=MAX_TRIES {
            assert_eq!(
                all.remove_blocking(&tree, &stopped).unwrap_err().kind(),
                ErrorKind::Cancelled
            );
        }
        assert_eq!(all.tries(&tree), 0);
        all.remove_blocking(&tree, &Cancel::default()).unwrap();
        assert!(!tree.exists() && all.list().is_empty());
        all.remove_blocking(&tree, &Cancel::default()).unwrap();
    }

    #[tokio::test]
    async fn a_removal_that_nobody_waits_for_any_more_stops() {
        let began = Arc::new(std::sync::Barrier::new(2));
        let at_work = Arc::clone(&began);
        let (told, heard) = std::sync::mpsc::channel();
        let calls = AtomicU32::new(0);
        let work = cancellable(move |cancel| {
            let is_bulk = calls.fetch_add(1, Ordering::Relaxed) == 1;
            if is_bulk {
                at_work.wait();
            }
            let dir = tempfile::tempdir().unwrap();
            let tree = dir.path().join("tree");
            // Ends only when the walk has visited enough entries for a short call, or is cancelled.
            let ended = loop {
                fs::create_dir(&tree).unwrap();
                fs::write(tree.join("file"), "").unwrap();
                if let Err(error) = remove_tree_blocking(&tree, cancel) {
                    break error;
                }
            };
            if is_bulk {
                told.send(ended.kind()).unwrap();
            }
            Err::<(), _>(ended)
        });
        let work = tokio::spawn(work);
        tokio::task::spawn_blocking(move || began.wait())
            .await
            .unwrap();
        work.abort();
        let ended = tokio::task::spawn_blocking(move || heard.recv().unwrap())
            .await
            .unwrap();
        assert_eq!(ended, ErrorKind::Cancelled);
    }
}
