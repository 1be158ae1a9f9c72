//! The reasons why a source tree could not be read.

use std::path::PathBuf;

/// The reason why a source tree could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file is not Rust.
    #[error("parsing {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and kind of the fault.
        source: syn::Error,
    },
}
