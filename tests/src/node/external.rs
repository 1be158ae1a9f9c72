//! A node whose containerd is not the daemon's own.

use super::TestNode;
use crate::daemon::Daemon;
use crate::external_containerd::ExternalContainerd;
use crate::root::PrivateRoot;

// === impl TestNode ===

impl TestNode {
    /// Starts a node beside a containerd that is not the daemon's own (`containerd.mode = "external"`), with
    /// more configuration.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_external(extra_toml: &str) -> Self {
        Self::beside_external(PrivateRoot::new(), extra_toml)
    }

    /// The same, with a root.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn beside_external(root: PrivateRoot, extra_toml: &str) -> Self {
        let socket = root.run().join("containerd/containerd.sock");
        let upstream = ExternalContainerd::start(&root, &socket);
        let mut config: toml::Table = extra_toml
            .parse()
            .expect("the configuration of a test is TOML");
        let section = config
            .entry("containerd")
            .or_insert_with(|| toml::Table::new().into());
        let section = section.as_table_mut().expect("it is a section");
        section.insert("mode".to_owned(), "external".into());
        section.insert(
            "address".to_owned(),
            socket.to_str().expect("the path is ASCII").into(),
        );
        let daemon = Daemon::start(&root, &config.to_string());
        Self::with_daemon(root, daemon, Some(upstream))
    }
}
