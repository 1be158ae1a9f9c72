//! Reading, replacement and removal of the files of a membership.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable};
use switchyard_node_files::ReadError;

use super::Store;
use crate::error::Error;

/// The largest file that is read: twice the largest chain.
const FILE_MAX: u64 = 128 << 10;

impl Store {
    pub(super) fn remove_dir_if_empty(&self) -> Result<(), Error> {
        match fs::remove_dir(&self.dir) {
            Err(fault)
                if !matches!(
                    fault.kind(),
                    ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty
                ) =>
            {
                Err(self.failed("remove", "")(fault))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Replaces a file by one with these contents, and syncs it to disk.
    pub(super) fn replace(&self, name: &'static str, contents: &[u8]) -> Result<(), Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(self.failed("create", ""))?;
        let drafted = || self.reach(CrashPoint::SwarmFileDrafted);
        files::replace(&self.dir.join(name), contents, 0o600, Durable::Yes, drafted)?;
        // The directory may be new as well.
        files::sync_dir(files::parent(&self.dir)).map_err(self.failed("sync", ""))
    }

    /// The content of a file; `None` if there is none.
    pub(super) fn read(&self, name: &'static str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.dir.join(name);
        match switchyard_node_files::read(&path, FILE_MAX) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(ReadError::Io(fault)) => Err(self.failed("read", name)(fault)),
            Err(error) => Err(Error::InvalidFile {
                path,
                reason: error.to_string(),
            }),
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Error> {
        self.remove_path(&self.draft_of(name))?;
        self.remove_path(&self.dir.join(name))
    }

    /// The path at which a file is written before it gets its name.
    pub(super) fn draft_of(&self, name: &str) -> PathBuf {
        files::draft_of(&self.dir.join(name))
    }

    pub(super) fn remove_path(&self, path: &Path) -> Result<(), Error> {
        let removed = files::if_present(fs::remove_file(path)).map(drop);
        removed.map_err(|cause| Error::File {
            verb: "remove",
            path: path.to_owned(),
            cause,
        })
    }

    /// A step is reached, at which tests kill the process, or hold the thread.
    pub(super) fn reach(&self, step: CrashPoint) {
        reach(step);
        #[cfg(test)]
        self.held.pass(step);
    }

    pub(super) fn failed(
        &self,
        verb: &'static str,
        name: &str,
    ) -> impl Fn(io::Error) -> Error + use<> {
        let path = if name.is_empty() {
            self.dir.clone()
        } else {
            self.dir.join(name)
        };
        move |cause| Error::File {
            verb,
            path: path.clone(),
            cause,
        }
    }
}
