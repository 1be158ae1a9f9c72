//! The archive of a checkpoint: a file without a name until it is complete.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;
use tar::{Builder, EntryType, Header};

use super::{check_deadline, deadline_or_io_error};
use crate::base::fs::io_error;

/// The permissions of the archive: it contains all secrets of the task.
const MODE: u32 = 0o600;

/// An unnamed file in the directory where it is to be named; it vanishes if it is not.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    dir: PathBuf,
    location: PathBuf,
}

/// Something to put into an archive under a name.
#[derive(Debug)]
pub(super) enum CheckpointEntry {
    /// These bytes.
    Bytes(String, Vec<u8>),
    /// A file, if it exists.
    IfThere(String, PathBuf),
    /// The regular files of a directory.
    Directory(String, PathBuf),
}

/// Reads exactly the announced number of bytes, and fails after the deadline.
pub(super) struct ExactReader<R> {
    inner: R,
    left: u64,
    until: Instant,
}

// === impl Draft ===

impl Draft {
    /// Creates a file that has no name yet. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` if `location` is not the absolute path of a file; `AlreadyExists`;
    /// `FailedPrecondition` if its directory does not exist.
    pub(super) fn begin(location: &Path) -> Result<Self> {
        let dir = match (location.parent(), location.file_name()) {
            (Some(dir), Some(_)) if location.is_absolute() => dir.to_path_buf(),
            (Some(_) | None, Some(_) | None) => {
                let why = format!(
                    "{:?} is not the absolute path of a file",
                    location.display()
                );
                return Err(Error::invalid("location", why));
            }
        };
        if location.symlink_metadata().is_ok() {
            return Err(exists(location));
        }
        let mut options = OpenOptions::new();
        options
            .write(true)
            .mode(MODE)
            .custom_flags(OFlag::O_TMPFILE.bits());
        let file = options.open(&dir).map_err(|fault| {
            if matches!(
                fault.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) {
                let why = format!(
                    "the directory {} of the archive does not exist",
                    dir.display()
                );
                Error::failed_precondition(why).with_source(fault)
            } else {
                io_error("create a file in", &dir, fault)
            }
        })?;
        Ok(Self {
            file,
            dir,
            location: location.to_path_buf(),
        })
    }

    /// Writes all parts. Blocks.
    pub(super) fn fill(self, parts: &[CheckpointEntry], until: Instant) -> Result<Self> {
        let failed = |fault| deadline_or_io_error("write", &self.location, fault);
        let mut builder = Builder::new(BufWriter::new(&self.file));
        for part in parts {
            part.append(&mut builder, until).map_err(failed)?;
        }
        builder
            .into_inner()
            .and_then(|mut buffer| buffer.flush())
            .map_err(failed)?;
        Ok(self)
    }

    /// Syncs the file and gives it its name, which survives a power failure. Blocks.
    pub(super) fn finish(self) -> Result<()> {
        let failed = |fault| io_error("write", &self.location, fault);
        self.file.sync_all().map_err(failed)?;
        let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let named = linkat(
            AT_FDCWD,
            nameless.as_str(),
            AT_FDCWD,
            self.location.as_path(),
            AtFlags::AT_SYMLINK_FOLLOW,
        );
        named.map_err(|fault| {
            if fault == nix::errno::Errno::EEXIST {
                exists(&self.location)
            } else {
                failed(fault.into())
            }
        })?;
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)
    }
}

fn exists(location: &Path) -> Error {
    Error::already_exists(format!(
        "{} exists already: give the archive another name",
        location.display()
    ))
}

// === impl CheckpointEntry ===

impl CheckpointEntry {
    fn append<W: Write>(&self, builder: &mut Builder<W>, until: Instant) -> io::Result<()> {
        match self {
            Self::Bytes(name, bytes) => {
                let length = u64::try_from(bytes.len()).map_err(io::Error::other)?;
                builder.append_data(
                    &mut plain(length),
                    name,
                    ExactReader::new(bytes.as_slice(), length, until),
                )
            }
            Self::IfThere(name, path) => match if_present(File::open(path))? {
                Some(file) => append_file(builder, Path::new(name), file, until),
                None => Ok(()),
            },
            Self::Directory(name, path) => {
                let mut header = plain(0);
                header.set_entry_type(EntryType::Directory);
                header.set_mode(0o700);
                builder.append_data(&mut header, name, io::empty())?;
                let mut entries = std::fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
                entries.sort_by_key(std::fs::DirEntry::file_name);
                for entry in entries
                    .into_iter()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
                {
                    let inside = Path::new(name).join(entry.file_name());
                    append_file(builder, &inside, File::open(entry.path())?, until)?;
                }
                Ok(())
            }
        }
    }
}

fn append_file<W: Write>(
    builder: &mut Builder<W>,
    name: &Path,
    file: File,
    until: Instant,
) -> io::Result<()> {
    let length = file.metadata()?.len();
    builder.append_data(
        &mut plain(length),
        name,
        ExactReader::new(file, length, until),
    )
}

/// The header of a regular file that belongs to root.
pub(super) fn plain(length: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(MODE);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(length);
    header
}

// === impl ExactReader ===

impl<R> ExactReader<R> {
    pub(super) const fn new(inner: R, length: u64, until: Instant) -> Self {
        Self {
            inner,
            left: length,
            until,
        }
    }
}

impl<R: Read> Read for ExactReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        check_deadline(self.until)?;
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.inner.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        self.left = self
            .left
            .saturating_sub(u64::try_from(read).map_err(io::Error::other)?);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use switchyard_core::ErrorKind;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn an_archive_has_its_name_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("images");
        let location = dir.path().join("c.tar");
        std::fs::create_dir(&images).unwrap();
        std::fs::write(images.join("pages-1.img"), vec![7; 100_000]).unwrap();
        let parts = [
            CheckpointEntry::Bytes("config.dump".to_owned(), b"{}".to_vec()),
            CheckpointEntry::IfThere("dump.log".to_owned(), dir.path().join("none")),
            CheckpointEntry::Directory("checkpoint".to_owned(), images),
        ];
        let filled = Draft::begin(&location)
            .unwrap()
            .fill(&parts, soon())
            .unwrap();
        assert!(!location.exists());
        filled.finish().unwrap();
        let mut archive = tar::Archive::new(File::open(&location).unwrap());
        let sizes: BTreeMap<String, u64> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.path().unwrap().display().to_string(), entry.size()))
            .collect();
        let expected = [
            ("checkpoint", 0),
            ("checkpoint/pages-1.img", 100_000),
            ("config.dump", 2),
        ];
        assert_eq!(
            sizes,
            expected.map(|(name, size)| (name.to_owned(), size)).into()
        );
        assert_eq!(
            Draft::begin(&location).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let location = dir.path().join("c.tar");
        let parts = [CheckpointEntry::Directory(
            "checkpoint".to_owned(),
            dir.path().join("none"),
        )];
        assert!(
            Draft::begin(&location)
                .unwrap()
                .fill(&parts, soon())
                .is_err()
        );
        let parts = [CheckpointEntry::Bytes(
            "config.dump".to_owned(),
            b"{}".to_vec(),
        )];
        let late = Draft::begin(&location)
            .unwrap()
            .fill(&parts, Instant::now())
            .unwrap_err();
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        // A file that exists already keeps its name.
        let draft = Draft::begin(&location).unwrap();
        std::fs::write(&location, "first").unwrap();
        assert_eq!(draft.finish().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&location).unwrap(), "first");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        for wrong in ["", "relative.tar", "/"] {
            assert_eq!(
                Draft::begin(Path::new(wrong)).unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
        }
        let nowhere = Draft::begin(&dir.path().join("none/c.tar")).unwrap_err();
        assert_eq!(nowhere.kind(), ErrorKind::FailedPrecondition);
    }
}
