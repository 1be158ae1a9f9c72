//! Why a source tree could not be read.

use std::path::PathBuf;

/// Why a source tree could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A file is not Rust.
    #[error("parsing {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        source: syn::Error,
    },
}
