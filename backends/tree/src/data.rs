//! Copies the contents of files, without their holes.

use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, seek};
use rustix::io::{Errno, pread, pwrite};

use crate::budget::Budget;
use crate::cancel::Cancel;
use crate::error::Error;

/// Amount that is copied between two checks for cancellation, in bytes.
const PIECE: u64 = 1 << 20;
/// The buffer size for copying by read and write, in bytes.
const BUFFER: usize = 128 << 10;

/// Copies contents, with `copy_file_range` as long as that works.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The buffer for reading and writing, once `copy_file_range` has failed.
    buffer: Option<Vec<u8>>,
}

/// Reason why contents could not be copied.
pub(crate) enum Fault {
    Kernel(Errno),
    Other(Error),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl Contents {
    pub(crate) const fn new() -> Self {
        Self { buffer: None }
    }

    /// Copies the first `size` bytes of a file to an empty one. Holes stay holes.
    pub(crate) fn copy(
        &mut self,
        from: impl AsFd,
        to: impl AsFd,
        size: u64,
        budget: &mut Budget,
        cancel: &Cancel,
    ) -> Result<(), Fault> {
        let from = from.as_fd();
        let to = to.as_fd();
        let mut at = 0;
        while at < size {
            let data = match seek(from, SeekFrom::Data(at)) {
                Ok(data) => data,
                // There is only a hole up to the end.
                Err(Errno::NXIO) => break,
                // The file system does not support holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(errno) => return Err(errno.into()),
            };
            let hole = match seek(from, SeekFrom::Hole(data)) {
                Ok(hole) => hole,
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => size,
                Err(errno) => return Err(errno.into()),
            };
            let end = hole.min(size);
            if data >= end {
                break;
            }
            // Holes take no space.
            budget.take_bytes(end - data)?;
            at = data;
            while at < end {
                cancel.check()?;
                let copied = self.piece(from, to, at, PIECE.min(end - at))?;
                if copied == 0 {
                    // The file has become shorter.
                    break;
                }
                at += copied;
            }
            at = end;
        }
        Ok(ftruncate(to, size)?)
    }

    /// Copies up to `length` bytes at an offset, and returns how many.
    fn piece(
        &mut self,
        from: impl AsFd,
        to: impl AsFd,
        at: u64,
        length: u64,
    ) -> Result<u64, Errno> {
        if self.buffer.is_none() {
            let mut read = at;
            let mut written = at;
            let wanted = usize::try_from(length).unwrap_or(BUFFER);
            match copy_file_range(&from, Some(&mut read), &to, Some(&mut written), wanted) {
                // Some file systems answer 0 although there is data: a read decides.
                Ok(0)
                | Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) =>
                    {}
                Ok(copied) => return Ok(copied.try_into().unwrap_or(u64::MAX)),
                Err(errno) => return Err(errno),
            }
        }
        let buffer = self.buffer.get_or_insert_with(|| vec![0; BUFFER]);
        let wanted = usize::try_from(length).map_or(BUFFER, |length| length.min(BUFFER));
        let read = pread(from, &mut buffer[..wanted], at)?;
        let mut written = 0;
        while written < read {
            written += pwrite(
                &to,
                &buffer[written..read],
                at + u64::try_from(written).unwrap_or(u64::MAX),
            )?;
        }
        Ok(read.try_into().unwrap_or(u64::MAX))
    }
}
