//! Contact with containerd: the result of a health check, which clients use too.

/// The result of a health check of containerd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contact {
    /// containerd answers.
    Up {
        /// Its version.
        version: String,
    },
    /// containerd does not answer.
    Down {
        /// The reason, for messages.
        reason: String,
    },
}
