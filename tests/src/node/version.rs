//! Nodes whose program is a copy in their root, which a test replaces by that of another version.

use std::path::Path;

use super::TestNode;
use crate::daemon::{Daemon, binary};
use crate::root::PrivateRoot;

/// The containerd of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containerd {
    /// Started by the daemon.
    Managed,
    /// Started by the test.
    External,
}

// === impl TestNode ===

impl TestNode {
    /// Starts a node whose daemon runs a copy of the binary in its root, which a test may delete.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with_copied_binary() -> Self {
        Self::start_with_copy_of(&binary())
    }

    /// The same with another binary, for example of another version.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with_copy_of(binary: &Path) -> Self {
        Self::start_version(binary, Containerd::Managed, |_| String::new())
    }

    /// The same with the configuration that `prepare` gives, which gets its root before the daemon runs.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_version(
        binary: &Path,
        containerd: Containerd,
        prepare: impl FnOnce(&PrivateRoot) -> String,
    ) -> Self {
        let root = PrivateRoot::new();
        root.put_program(binary);
        let extra = prepare(&root);
        match containerd {
            Containerd::Managed => {
                let daemon = Daemon::start(&root, &extra);
                Self::with_daemon(root, daemon, None)
            }
            Containerd::External => Self::beside_external(root, &extra),
        }
    }
}
