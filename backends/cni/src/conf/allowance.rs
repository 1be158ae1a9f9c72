//! Bounds on reading a configuration directory.

use std::path::Path;

use switchyard_node_files::ReadError;

use crate::error::ConfError;

/// The longest file, in bytes: networks have a few KiB.
const FILE_MAX: u64 = 1 << 20;
/// The most that is read of all files of a directory at once, in bytes.
const SUM_MAX: u64 = 8 << 20;

/// Number of bytes that may still be read.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: SUM_MAX }
    }
}

impl Allowance {
    /// Reads a file. Blocks on the file system.
    ///
    /// # Errors
    /// [`ConfError::Read`], also if it is no regular file or too long; [`ConfError::Sum`] if nothing may be read any more.
    pub(super) fn read(&mut self, path: &Path) -> Result<Vec<u8>, ConfError> {
        let max = FILE_MAX.min(self.left);
        let read = switchyard_node_files::read(path, max);
        let used = match &read {
            Ok(raw) => u64::try_from(raw.len()).unwrap_or(u64::MAX),
            // What was read of it counts too, or a thousand files that are too long would take a thousand times as much.
            Err(ReadError::TooLarge { max }) => *max,
            Err(_) => 0,
        };
        self.left = self.left.saturating_sub(used);
        match read {
            Err(ReadError::TooLarge { max }) if max < FILE_MAX => {
                Err(ConfError::Sum { max: SUM_MAX })
            }
            read => read.map_err(|error| ConfError::Read(error.into())),
        }
    }
}
