//! Removes, copies and labels directory trees that were written by containers, or that come from images.
//!
//! Containers choose the depth, names and size of such a tree, and may change it during the walk. So every
//! walk here
//!
//! - is a loop, not a recursion: its stack does not grow with the depth of the tree,
//! - keeps a bounded number of descriptors open, whatever the depth, and for each further level remembers a
//!   device and an inode number,
//! - opens each directory by a single name relative to an open descriptor, and follows no symlink. It goes up
//!   by `..`, and checks that this is the directory it came from. It builds no paths, so none is too long,
//! - does not enter file systems that are mounted in the tree,
//! - checks before each entry whether it is cancelled.
//!
//! All functions block.

mod budget;
mod cancel;
mod copy;
mod data;
mod dir;
mod error;
mod relabel;
mod remove;
mod unsynced;
mod xattrs;

pub use budget::Budget;
pub use cancel::Cancel;
pub use copy::{CopyReport, copy, copy_durably};
pub use dir::{open, open_below};
pub use error::{Error, Place};
pub use relabel::{Label, RelabelReport, relabel};
pub use remove::{empty, remove};
