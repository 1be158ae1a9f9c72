//! The error of everything that parses a header block.

/// The block is not valid HPACK, or exceeds a limit: `h2` will close its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;
