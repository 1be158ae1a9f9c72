//! Reads files of the node that somebody else than the daemon writes: configurations of networks, devices and
//! registries, certificates, tokens, the host's resolver configuration.
//!
//! Whoever writes such a file can put something else in its place: a FIFO, whose opening waits for a writer, a link
//! to an endless device, a file without bounds. So what is opened here is opened without waiting, is refused unless it
//! is a regular file, and is read up to a limit.
//!
//! All functions block on the file system, and on one that hangs for ever: an asynchronous caller needs a thread for
//! them, and a limit in time.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

#[cfg(test)]
mod tests;

/// Reason why a file or a directory was not read. The texts name neither: the caller knows the path.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is a directory, a FIFO or the like.
    #[error("it is no regular file but {found}")]
    NotRegular {
        /// Type of the file, with an article.
        found: &'static str,
    },
    /// The file has more bytes than the caller accepts.
    #[error("it is longer than {max} bytes")]
    TooLarge {
        /// The most that it may have, in bytes.
        max: u64,
    },
    /// The file is no text.
    #[error("it is not valid UTF-8")]
    NotText,
    /// The directory has more entries than the caller accepts.
    #[error("it has more than {max} entries")]
    TooMany {
        /// The most that it may have.
        max: usize,
    },
}

/// An open regular file.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    metadata: Metadata,
}

/// The content of a regular file of at most `max` bytes. Links are followed.
///
/// # Errors
/// [`ReadError::Io`] if there is none, or the file system fails; [`ReadError::NotRegular`], [`ReadError::TooLarge`].
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    RegularFile::open(path)?.read(max)
}

/// The text of a regular file of at most `max` bytes. Links are followed.
///
/// # Errors
/// Those of [`read`], and [`ReadError::NotText`].
pub fn read_text(path: &Path, max: u64) -> Result<String, ReadError> {
    String::from_utf8(read(path, max)?).map_err(|_| ReadError::NotText)
}

/// The paths in a directory with at most `max` entries, sorted.
///
/// # Errors
/// [`ReadError::Io`] if there is none, or the file system fails; [`ReadError::TooMany`].
pub fn list(dir: &Path, max: usize) -> Result<Vec<PathBuf>, ReadError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        if paths.len() == max {
            return Err(ReadError::TooMany { max });
        }
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

// === impl ReadError ===

impl ReadError {
    /// Returns whether the reason is that there is no such file or directory.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io(fault) if fault.kind() == io::ErrorKind::NotFound)
    }
}

impl From<ReadError> for io::Error {
    /// `InvalidInput` for a file that is not regular, `FileTooLarge`, `InvalidData`, or the kind of the I/O
    /// error.
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::Io(fault) => return fault,
            ReadError::NotRegular { .. } => io::ErrorKind::InvalidInput,
            ReadError::TooLarge { .. } | ReadError::TooMany { .. } => io::ErrorKind::FileTooLarge,
            ReadError::NotText => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

// === impl RegularFile ===

impl RegularFile {
    /// Opens a regular file for reading. Links are followed.
    ///
    /// # Errors
    /// [`ReadError::Io`], [`ReadError::NotRegular`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::open_with(path, OFlags::empty())
    }

    /// As [`RegularFile::open`]; a link at the path itself is not followed.
    ///
    /// # Errors
    /// Those of [`RegularFile::open`]; the file system's `ELOOP` for a link.
    pub fn open_no_link(path: &Path) -> Result<Self, ReadError> {
        Self::open_with(path, OFlags::NOFOLLOW)
    }

    fn open_with(path: &Path, more: OFlags) -> Result<Self, ReadError> {
        // O_NONBLOCK: opening a FIFO would wait for a writer, and opening some devices for a carrier. O_NOCTTY: a
        // terminal must not become the daemon's.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
        let file = File::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        // Of the open file: what is at the path may be another one by now.
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ReadError::NotRegular {
                found: kind(metadata.file_type()),
            });
        }
        Ok(Self { file, metadata })
    }

    /// The metadata of the file when it was opened.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its content, which has at most `max` bytes.
    ///
    /// # Errors
    /// [`ReadError::Io`], [`ReadError::TooLarge`].
    pub fn read(self, max: u64) -> Result<Vec<u8>, ReadError> {
        let mut content = Vec::new();
        // The size is not asked for: files of /proc have none, and others may grow meanwhile.
        self.file
            .take(max.saturating_add(1))
            .read_to_end(&mut content)?;
        if u64::try_from(content.len()).is_ok_and(|length| length > max) {
            return Err(ReadError::TooLarge { max });
        }
        Ok(content)
    }

    /// The open file, whose reading is up to the caller.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }
}

/// The name of a type that is no regular file, with an article.
fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a FIFO"
    } else if found.is_char_device() {
        "a character device"
    } else if found.is_block_device() {
        "a block device"
    } else {
        "something else"
    }
}
