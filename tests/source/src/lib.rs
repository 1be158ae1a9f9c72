//! Rust source trees as syntax trees: the modules of a crate, which file imports which, and the figures that `tests/measure` prints.
//!
//! The architecture tests use it for this repository. `tests/measure` uses it for any tree, so it reads the layouts of other projects
//! too (`foo/mod.rs`, `#[path]`), and a module whose file is absent is passed over: it may be generated, or another platform's.

mod circles;
#[expect(clippy::wildcard_enum_match_arm, reason = "only some kinds of items and patterns matter")]
pub mod figures;
#[expect(clippy::wildcard_enum_match_arm, reason = "only some kinds of items matter")]
pub mod imports;
#[expect(clippy::wildcard_enum_match_arm, reason = "only some kinds of items matter")]
mod module;
pub mod tree;

pub use circles::circles;
pub use module::{Module, is_for_tests};

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
