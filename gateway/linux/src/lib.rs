//! What every crate needs of Linux and of errors, in one place. It is below all other crates, and depends on none of them.

mod report;

pub use report::report;
