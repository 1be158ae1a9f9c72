//! Rust source trees as syntax trees: the modules of a crate, which file imports which, and the figures that `tests/measure` prints.
//!
//! The architecture tests use it for this repository. `tests/measure` uses it for any tree, so it reads the layouts of other projects
//! too (`foo/mod.rs`, `#[path]`), and a module whose file is absent is passed over: it may be generated, or another platform's.

mod circles;
mod error;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only some kinds of items and patterns matter"
)]
pub mod figures;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only some kinds of items matter"
)]
pub mod imports;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only some kinds of items matter"
)]
mod module;
pub mod tree;

pub use circles::circles;
pub use error::Error;
pub use module::{Module, is_for_tests};
