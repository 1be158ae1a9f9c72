//! A spool: the file through which one stream's output passes on its way from the FIFO to the log.
//!
//! Output is moved by splice(2), which takes exactly as many bytes out of the FIFO as it has stored in the
//! file. One call does both, and a kill takes effect before or after it, so at each moment every byte is
//! either in the FIFO or in the spool. Offsets only grow; logged output is released by punching holes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, SpliceFFlags, fallocate, splice};
use nix::unistd::{Whence, lseek};
use switchyard_crash_points::{CrashPoint, reach};

/// Maximum number of logged bytes that stay in a spool while its stream is busy.
pub(crate) const BUSY_SLACK: u64 = 256 * 1024;

/// The unit in which holes are punched; less than this may remain in an idle spool.
pub(crate) const PAGE: u64 = 4096;

/// One stream's spool file.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    /// The file's size: the offset at which the next bytes are stored.
    end: u64,
    /// Everything before this has been logged.
    logged: u64,
    /// Everything before this has been released to the file system.
    freed: u64,
}

// === impl Spool ===

impl Spool {
    /// Creates an empty spool.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            file,
            end: 0,
            logged: 0,
            freed: 0,
        })
    }

    /// Recovers the spool of an earlier logkeeper. `logged` is `None` if it is unknown how far it was logged;
    /// its content then counts as logged.
    pub(crate) fn recover(path: &Path, logged: Option<u64>) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let end = file.metadata()?.len();
        let freed = first_byte(&file, end)?;
        // The record is not trusted: its offset may lie beyond the end of the file.
        Ok(Self {
            file,
            end,
            logged: logged.unwrap_or(end).min(end),
            freed,
        })
    }

    /// Moves up to `len` bytes from a FIFO to the end of the spool; 0 means that the FIFO has no writer.
    ///
    /// # Errors
    /// `WouldBlock` if the FIFO is empty, and the errors of writing to the spool's file system.
    pub(crate) fn receive(&mut self, fifo: impl AsFd, len: usize) -> io::Result<usize> {
        let mut offset = i64::try_from(self.end).map_err(io::Error::other)?;
        let moved = splice(
            fifo,
            None,
            &self.file,
            Some(&mut offset),
            len,
            SpliceFFlags::SPLICE_F_NONBLOCK,
        )?;
        self.end += u64::try_from(moved).map_err(io::Error::other)?;
        Ok(moved)
    }

    /// Number of bytes that are not logged yet.
    pub(crate) const fn pending(&self) -> u64 {
        self.end - self.logged
    }

    /// The offset up to which bytes have been logged.
    pub(crate) const fn logged(&self) -> u64 {
        self.logged
    }

    /// Reads unlogged bytes into `buffer`, as many as there are and fit.
    pub(crate) fn read_pending(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.pending())
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        self.file.read_exact_at(&mut buffer[..len], self.logged)?;
        Ok(len)
    }

    /// Marks the next `len` bytes as logged.
    pub(crate) fn advance(&mut self, len: u64) {
        self.logged = self.end.min(self.logged + len);
    }

    /// The offset at which the next bytes are stored.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// The first offset that is still in the spool.
    pub(crate) const fn floor(&self) -> u64 {
        self.freed
    }

    /// Another descriptor of the file, for reading.
    pub(crate) fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Releases logged bytes except for the last `keep`, once there are more than `slack`.
    pub(crate) fn release(&mut self, keep: u64, slack: u64) -> io::Result<()> {
        // A hole in a part of a page frees nothing.
        let until = self.logged.saturating_sub(keep) / PAGE * PAGE;
        let len = until.saturating_sub(self.freed);
        if len == 0 || len < slack {
            return Ok(());
        }
        // The size stays, because it is the offset of the next output.
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let from = i64::try_from(self.freed).map_err(io::Error::other)?;
        fallocate(
            &self.file,
            flags,
            from,
            i64::try_from(len).map_err(io::Error::other)?,
        )?;
        reach(CrashPoint::SpoolReleased);
        self.freed = until;
        Ok(())
    }
}

/// The offset of the first byte that has not been released.
fn first_byte(file: &File, end: u64) -> io::Result<u64> {
    match lseek(file, 0, Whence::SeekData) {
        Ok(offset) => u64::try_from(offset).map_err(io::Error::other),
        // The whole file is a hole.
        Err(Errno::ENXIO) => Ok(end),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
impl Spool {
    /// A spool that can be read but not written.
    pub(crate) fn read_only(path: &Path, logged: u64) -> Self {
        let file = File::open(path).expect("the spool exists");
        let end = file.metadata().expect("an open file has metadata").len();
        Self {
            file,
            end,
            logged,
            freed: 0,
        }
    }
}
