//! Budget of the space of a copy.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstatvfs;

use crate::error::Error;

/// The unit in which contents and directories are accounted, in bytes.
const BLOCK: u64 = 4096;

/// The bytes and inodes that copies may still use. Several copies can share one budget.
#[derive(Debug, Clone)]
pub struct Budget {
    bytes: Share,
    inodes: Share,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    most: u64,
    left: u64,
}

// === impl Share ===

impl Share {
    const fn new(most: u64) -> Self {
        Self { most, left: most }
    }

    /// Takes `number`; `None` if fewer are left.
    fn take(&mut self, number: u64) -> Option<()> {
        self.left = self.left.checked_sub(number)?;
        Some(())
    }
}

// === impl Budget ===

impl Budget {
    /// A budget of so many bytes, accounted in whole blocks, and inodes.
    #[must_use]
    pub const fn new(bytes: u64, inodes: u64) -> Self {
        Self {
            bytes: Share::new(bytes),
            inodes: Share::new(inodes),
        }
    }

    /// A budget of so many percent of the bytes and inodes that are free now on the disk of `dir`.
    ///
    /// # Errors
    /// If the free space cannot be read.
    pub fn of_free(dir: impl AsFd, percent: u64) -> io::Result<Self> {
        let disk = fstatvfs(dir)?;
        let part = |free: u64| free / 100 * percent;
        // A file system that allocates inodes dynamically reports 0.
        let inodes = if disk.f_files == 0 {
            u64::MAX
        } else {
            part(disk.f_ffree)
        };
        Ok(Self::new(
            part(disk.f_bfree.saturating_mul(disk.f_frsize)),
            inodes,
        ))
    }

    /// Takes an inode, for a new file, directory or link.
    pub(crate) fn take_inode(&mut self) -> Result<(), Error> {
        let too_large = Error::TooLarge {
            unit: "inodes",
            most: self.inodes.most,
        };
        self.inodes.take(1).ok_or(too_large)
    }

    /// Takes bytes, for contents, rounded up to whole blocks.
    pub(crate) fn take_bytes(&mut self, bytes: u64) -> Result<(), Error> {
        let too_large = Error::TooLarge {
            unit: "bytes",
            most: self.bytes.most,
        };
        self.bytes
            .take(bytes.div_ceil(BLOCK).saturating_mul(BLOCK))
            .ok_or(too_large)
    }
}
