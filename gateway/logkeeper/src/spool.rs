//! A spool: the file through which one stream's output passes on its way from the FIFO into the log.
//!
//! Output is moved by splice(2), which takes bytes out of the FIFO exactly as far as it has put them into the
//! file. One call does both, and a kill takes effect before or after it, so every byte is at each moment either
//! in the FIFO or in the spool. Offsets only grow; what has been logged is given back by punching holes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, SpliceFFlags, fallocate, splice};
use nix::unistd::{Whence, lseek};
use switchyard_steps::{Step, reach};

/// How many logged bytes may stay in a spool while its stream is busy.
pub(crate) const BUSY_SLACK: u64 = 256 * 1024;

/// The unit in which holes are punched; less than this may stay in an idle spool.
pub(crate) const PAGE: u64 = 4096;

/// One stream's spool file.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    /// The file's size: where the next bytes go.
    end: u64,
    /// Everything before this has been logged.
    logged: u64,
    /// Everything before this has been given back to the file system.
    freed: u64,
}

// === impl Spool ===

impl Spool {
    /// Creates an empty spool.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, end: 0, logged: 0, freed: 0 })
    }

    /// Takes up a spool left by an earlier keeper; `logged` is `None` if how far it was logged is not known, and
    /// then what it holds counts as logged.
    pub(crate) fn recover(path: &Path, logged: Option<u64>) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let end = file.metadata()?.len();
        let freed = first_byte(&file, end)?;
        Ok(Self { file, end, logged: logged.unwrap_or(end).min(end), freed })
    }

    /// Moves up to `len` bytes from a FIFO to the end of the spool; 0 means that the FIFO has no writer.
    ///
    /// # Errors
    /// `WouldBlock` if the FIFO is empty, and what writing to the spool's file system gives.
    pub(crate) fn receive(&mut self, fifo: impl AsFd, len: usize) -> io::Result<usize> {
        let mut offset = i64::try_from(self.end).map_err(io::Error::other)?;
        let moved = splice(fifo, None, &self.file, Some(&mut offset), len, SpliceFFlags::SPLICE_F_NONBLOCK)?;
        self.end += u64::try_from(moved).map_err(io::Error::other)?;
        Ok(moved)
    }

    /// How many bytes wait to be logged.
    pub(crate) const fn pending(&self) -> u64 {
        self.end - self.logged
    }

    /// The offset up to which bytes have been logged.
    pub(crate) const fn logged(&self) -> u64 {
        self.logged
    }

    /// Reads waiting bytes into `buffer`, as many as there are and fit.
    pub(crate) fn read_pending(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.pending()).unwrap_or(usize::MAX).min(buffer.len());
        self.file.read_exact_at(&mut buffer[..len], self.logged)?;
        Ok(len)
    }

    /// Counts the next `len` waiting bytes as logged.
    pub(crate) fn advance(&mut self, len: u64) {
        self.logged = self.end.min(self.logged + len);
    }

    /// Where the next bytes go: all before are in the spool or have been given back.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Everything from here on is still in the spool.
    pub(crate) const fn floor(&self) -> u64 {
        self.freed
    }

    /// Another descriptor of the file, to read from.
    pub(crate) fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives logged bytes but the last `keep` back to the file system once there are more than `slack`.
    pub(crate) fn release(&mut self, keep: u64, slack: u64) -> io::Result<()> {
        let until = self.logged.saturating_sub(keep) / PAGE * PAGE;
        let len = until.saturating_sub(self.freed);
        if len == 0 || len < slack {
            return Ok(());
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let from = i64::try_from(self.freed).map_err(io::Error::other)?;
        fallocate(&self.file, flags, from, i64::try_from(len).map_err(io::Error::other)?)?;
        reach(Step::SpoolReleased);
        self.freed = until;
        Ok(())
    }
}

/// The offset of the first byte that has not been given back.
fn first_byte(file: &File, end: u64) -> io::Result<u64> {
    match lseek(file, 0, Whence::SeekData) {
        Ok(offset) => u64::try_from(offset).map_err(io::Error::other),
        // Nothing but a hole is left.
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
        Self { file, end, logged, freed: 0 }
    }
}
