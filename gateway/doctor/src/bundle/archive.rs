//! The archive of a bundle: a compressed tar file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

/// The directory that all parts are in.
const DIRECTORY: &str = "switchyard-support";

/// An archive that is being written.
pub(super) struct Archive {
    builder: Builder<GzEncoder<File>>,
    modified: u64,
}

impl Archive {
    /// Creates the file, which must not exist yet; only its owner can read it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let modified = now.map(|since| since.as_secs()).unwrap_or_default();
        Ok(Self {
            builder: Builder::new(GzEncoder::new(file, Compression::default())),
            modified,
        })
    }

    /// Appends a file.
    pub(super) fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_size(u64::try_from(bytes.len()).map_err(io::Error::other)?);
        header.set_mode(0o600);
        header.set_mtime(self.modified);
        self.builder
            .append_data(&mut header, format!("{DIRECTORY}/{name}"), bytes)
    }

    /// Completes the file.
    pub(super) fn finish(self) -> io::Result<()> {
        self.builder.into_inner()?.finish()?.sync_all()
    }
}
