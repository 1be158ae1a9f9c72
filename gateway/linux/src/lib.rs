//! What every crate needs of Linux and of errors, in one place. It is below all other crates, and depends on none of them.

mod limits;
mod report;

pub use limits::raise_open_files_limit;
pub use report::report;
