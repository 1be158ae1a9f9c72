//! Output that goes into FIFOs made by a client: their paths are passed to the shim, and this daemon does not
//! relay the output.
//!
//! The shim opens both ends of each FIFO, so that no process ends when the reader goes away. But its open for
//! writing blocks until there is a reader: this daemon is that reader until the shim has opened the FIFOs.
//! And a reader that has seen the end of file does not open the FIFO again: while the shim of an interrupted
//! start is cleaned up, this daemon keeps a write end open as well, until the shim of the next start has
//! opened the FIFOs. Symbolic links are refused: the output of the task is written by root, and whoever
//! placed the link could direct it to any file.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind as Fault;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use switchyard_core::{Error, Result};

use crate::base::fs::{blocking, io_error};

/// The flags with which a FIFO is opened: without blocking, and without following a symbolic link.
const NO_LINK: OFlag = OFlag::O_NONBLOCK.union(OFlag::O_NOFOLLOW);

/// Opens the FIFOs among `paths` for reading, so that opening them for writing does not block. Does not block
/// itself.
///
/// # Errors
/// `FailedPrecondition` if a path does not exist, or cannot be written to.
pub(super) fn open_readers(paths: &[PathBuf]) -> Result<Vec<File>> {
    paths
        .iter()
        .map(|path| open(path))
        .filter_map(Result::transpose)
        .collect()
}

/// Opens the FIFOs among `paths` at both ends, so that their readers see no end of file. A FIFO that cannot
/// be opened is skipped: it has no reader either.
pub(crate) fn keep_open(paths: &[PathBuf]) -> Vec<File> {
    let is_fifo = |path: &&PathBuf| {
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
    };
    let open = |path: &PathBuf| {
        let mut both = OpenOptions::new();
        both.read(true)
            .write(true)
            .custom_flags(NO_LINK.bits())
            .open(path)
            .ok()
    };
    paths.iter().filter(is_fifo).filter_map(open).collect()
}

/// `None` for a file or device, which needs no reader.
fn open(path: &Path) -> Result<Option<File>> {
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(fault) if fault.kind() == Fault::NotFound => {
            return Err(unfit(
                path,
                "does not exist: the collector of the output has to create it first",
            ));
        }
        Err(fault) => return Err(io_error("read the metadata of", path, fault)),
    };
    if kind.is_symlink() {
        return Err(unfit(
            path,
            "is a symbolic link: it has to be the FIFO itself",
        ));
    }
    if !kind.is_fifo() {
        let fit = kind.is_file() || kind.is_char_device();
        return if fit {
            Ok(None)
        } else {
            Err(unfit(path, "is neither a FIFO nor a file"))
        };
    }
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(NO_LINK.bits())
        .open(path);
    opened
        .map(Some)
        .map_err(|fault| io_error("open the FIFO", path, fault))
}

fn unfit(path: &Path, why: &str) -> Error {
    Error::failed_precondition(format!("the output of the task: {} {why}", path.display()))
}

/// Creates a directory, and FIFOs in it that only this daemon and the shim can open; existing ones are kept.
pub(crate) async fn make_fifos(dir: PathBuf, fifos: Vec<PathBuf>) -> Result<()> {
    let make = |path: &PathBuf| match nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(fault) => Err(io_error("create the FIFO", path, fault.into())),
    };
    blocking(move || {
        crate::base::fs::create_private_dir_blocking(&dir)?;
        fifos.iter().try_for_each(make)
    })
    .await
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use switchyard_core::ErrorKind;

    use super::*;

    #[test]
    fn a_fifo_is_held_and_a_device_needs_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("out");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let held = open_readers(&[fifo.clone(), PathBuf::from("/dev/null")]).unwrap();
        assert_eq!(held.len(), 1);
        // The FIFO has a reader, so this returns at once.
        OpenOptions::new()
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&fifo)
            .unwrap();
    }

    #[test]
    fn a_reader_sees_no_end_while_a_fifo_is_kept_open() {
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("out");
        let mut byte = [0];
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&fifo)
            .unwrap();
        let writer = OpenOptions::new().write(true).open(&fifo).unwrap();
        let kept = keep_open(&[fifo, dir.path().join("missing")]);
        assert_eq!(kept.len(), 1);
        drop(writer);
        assert_eq!(
            reader.read(&mut byte).unwrap_err().kind(),
            Fault::WouldBlock
        );
        drop(kept);
        assert_eq!(reader.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn what_is_missing_or_unfit_is_told_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        assert!(keep_open(std::slice::from_ref(&link)).is_empty());
        for path in [dir.path().join("missing"), dir.path().to_owned(), link] {
            let error = open_readers(std::slice::from_ref(&path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
            assert!(
                error.to_string().contains(&path.display().to_string()),
                "{error}"
            );
        }
    }
}
