//! Removes cgroups, children first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::files::{MAX_DEPTH, children, is_gone};

/// Number of times a removal is tried again while the kernel reports a group as busy.
const PAUSES: usize = 7;

/// The pause after the first attempt; each next one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(5);

/// Removes directories of cgroup hierarchies with all their descendants. Only `rmdir` is used: no file is
/// ever deleted.
pub(crate) fn remove_trees(dirs: impl Iterator<Item = PathBuf>) -> Result<()> {
    remove_patiently(dirs.collect(), MAX_DEPTH)
}

/// Removes a directory of a cgroup hierarchy without children; tried once. `false` if the kernel reports it as busy, which
/// may pass soon.
pub(crate) fn try_remove_one(dir: &Path) -> Result<bool> {
    match remove_below(dir, 0) {
        Ok(()) => Ok(true),
        Err(error) if may_pass(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The pauses between the attempts to remove a cgroup that the kernel reports as busy, 635 ms in total.
pub fn busy_pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(FIRST_WAIT), |wait| Some(*wait * 2)).take(PAUSES)
}

/// Removes all of these directories, and retries those whose failure may be temporary, all together with one
/// pause. Returns the first failure.
fn remove_patiently(mut dirs: Vec<PathBuf>, depth: usize) -> Result<()> {
    let mut outcome = Ok(());
    let mut pauses = busy_pauses();
    loop {
        let pause = pauses.next();
        let mut busy = Vec::new();
        for dir in dirs {
            match remove_below(&dir, depth) {
                Ok(()) => {}
                Err(error) if pause.is_some() && may_pass(&error) => busy.push(dir),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let Some(pause) = pause.filter(|_| !busy.is_empty()) else {
            return outcome;
        };
        std::thread::sleep(pause);
        dirs = busy;
    }
}

fn remove_below(dir: &Path, depth: usize) -> Result<()> {
    if depth > 0 {
        let mut below = Ok(());
        for child in children(dir)? {
            below = below.and(remove_below(&child, depth - 1));
        }
        below?;
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) if errno(&source) == Some(Errno::EBUSY) => Err(Error::Busy {
            path: dir.to_owned(),
            source,
        }),
        Err(source) => Err(Error::File {
            path: dir.to_owned(),
            source,
        }),
    }
}

/// Returns whether a failed removal may succeed soon: the kernel detaches a process from its cgroup a little
/// after its parent was notified of the exit, and another program may just have created a child.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Busy { .. } => true,
        Error::File { source, .. } => errno(source) == Some(Errno::ENOTEMPTY),
        Error::NoHierarchy | Error::InvalidGroup { .. } | Error::Restless { .. } => false,
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}
