//! Files of lines that the daemon appends to: the audit log, and the segments of the history.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Opens an ordinary file to append lines to it.
///
/// # Errors
/// Those of the file system; `InvalidInput` if it is no ordinary file.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<(File, Metadata)> {
    // Whoever may write to the directory could place a link or a FIFO there; only an ordinary file is written.
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    options.read(true).append(true).custom_flags(flags.bits());
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not an ordinary file",
        ));
    }
    Ok((file, metadata))
}

/// Returns whether a file of this length ends amid a line: its disk was full, or the daemon was killed.
///
/// # Errors
/// Those of the file system.
pub(crate) fn is_torn(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else {
        return Ok(false);
    };
    let mut end = [0];
    file.read_exact_at(&mut end, last)?;
    Ok(end != *b"\n")
}
