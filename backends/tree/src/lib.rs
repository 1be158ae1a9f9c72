//! Removes and copies directory trees that were written by containers, or that come from images.
//!
//! Whoever writes such a tree chooses its depth, its names and its size, and may change it meanwhile. So every walk here
//!
//! - is a loop, not a recursion: its stack does not grow with the depth of the tree,
//! - holds a bounded number of descriptors, whatever the depth, and for each further level a device and an inode number,
//! - goes from one directory to the next by a single name, beneath an open descriptor, and follows no symbolic link. It goes up by `..`,
//!   and checks that this is the directory it came from. No path is put together, so none is too long,
//! - does not enter what is mounted in the tree,
//! - asks before each entry whether it is cancelled.
//!
//! All functions block.

mod budget;
mod cancel;
mod copy;
mod data;
mod dir;
mod error;
mod remove;
mod xattrs;

pub use budget::Budget;
pub use cancel::Cancel;
pub use copy::{CopyReport, copy};
pub use dir::{open, open_below};
pub use error::{Error, Place};
pub use remove::{empty, remove};

/// How many levels of a tree have an open descriptor at once: the deepest ones.
const OPEN_LEVELS: usize = 16;
