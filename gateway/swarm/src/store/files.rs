//! How the files of a membership are read, replaced and removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use switchyard_node_files::ReadError;
use switchyard_steps::{Step, reach};

use super::Store;
use crate::error::Error;

/// The largest file that is read: twice the largest chain.
const FILE_MAX: u64 = 128 << 10;

impl Store {
    pub(super) fn remove_dir_if_empty(&self) -> Result<(), Error> {
        match fs::remove_dir(&self.dir) {
            Err(fault) if !matches!(fault.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                Err(self.failed("remove", "")(fault))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Replaces a file by one with these contents, and syncs it to disk.
    pub(super) fn replace(&self, name: &'static str, contents: &[u8]) -> Result<(), Error> {
        let path = self.dir.join(name);
        let draft = self.draft_of(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(self.failed("create", ""))?;
        self.remove_path(&draft)?;
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(contents)?;
            file.sync_all()
        };
        write().map_err(|cause| {
            // It may have a part of the private key. If it stays, the next start removes it.
            let _ = fs::remove_file(&draft);
            self.failed("write", name)(cause)
        })?;
        self.reach(Step::SwarmFileDrafted);
        fs::rename(&draft, &path)
            .inspect_err(|_| drop(fs::remove_file(&draft)))
            .and_then(|()| File::open(&self.dir)?.sync_all())
            // The directory may be new as well.
            .and_then(|()| File::open(self.dir.parent().unwrap_or(Path::new("/")))?.sync_all())
            .map_err(self.failed("replace", name))
    }

    /// The content of a file; `None` if there is none.
    pub(super) fn read(&self, name: &'static str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.dir.join(name);
        match switchyard_node_files::read(&path, FILE_MAX) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(ReadError::Io(fault)) => Err(self.failed("read", name)(fault)),
            Err(error) => Err(Error::InvalidFile { path, reason: error.to_string() }),
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Error> {
        self.remove_path(&self.draft_of(name))?;
        self.remove_path(&self.dir.join(name))
    }

    /// The path at which a file is written before it gets its name.
    pub(super) fn draft_of(&self, name: &str) -> PathBuf {
        self.dir.join(name).with_extension("new")
    }

    pub(super) fn remove_path(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(Error::File { verb: "remove", path: path.to_owned(), cause })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A step is reached, at which tests kill the process, or hold the thread.
    pub(super) fn reach(&self, step: Step) {
        reach(step);
        #[cfg(test)]
        self.held.pass(step);
    }

    pub(super) fn failed(&self, verb: &'static str, name: &str) -> impl Fn(io::Error) -> Error + use<> {
        let path = if name.is_empty() { self.dir.clone() } else { self.dir.join(name) };
        move |cause| Error::File { verb, path: path.clone(), cause }
    }
}
