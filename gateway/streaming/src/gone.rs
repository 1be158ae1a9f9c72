//! The error of a stream whose client is gone.

/// The client has reset the stream, or has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has closed the stream")]
pub(crate) struct Gone;
