//! The files of a copy that are to be on disk when it is complete.
//!
//! Each is synced by itself: a sync of the whole file system would also write what others have changed on it, however much
//! that is. They are synced some at a time, since a journal that is written for one of them has the inodes of all.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fsync;
use rustix::io::Errno;

/// Maximum number of files that are kept open before they are synced.
const BATCH: usize = 64;

/// Files that are not synced yet.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    files: Vec<OwnedFd>,
    /// Number of files and directories that were synced.
    synced: u64,
}

impl Unsynced {
    /// Takes a file whose content and attributes are complete.
    pub(crate) fn add(&mut self, file: OwnedFd) -> Result<(), Errno> {
        self.files.push(file);
        if self.files.len() < BATCH {
            Ok(())
        } else {
            self.sync()
        }
    }

    /// Syncs a directory whose entries are complete.
    pub(crate) fn sync_dir(&mut self, dir: impl AsFd) -> Result<(), Errno> {
        fsync(dir)?;
        self.synced += 1;
        Ok(())
    }

    /// Syncs the files so far.
    pub(crate) fn sync(&mut self) -> Result<(), Errno> {
        for file in self.files.drain(..) {
            fsync(file)?;
            self.synced += 1;
        }
        Ok(())
    }

    pub(crate) const fn synced(&self) -> u64 {
        self.synced
    }
}
