//! Namespaces that mostly follow from others, where somebody wants them otherwise.

/// The namespace of host and domain name of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UtsMode {
    /// The host's with the network of the host, else one of its own.
    #[default]
    FollowsNetwork,
    /// One of its own.
    Own,
    /// The host's.
    Host,
}

/// The cgroup namespace of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupNamespace {
    /// Its own with cgroup v2 unless it is privileged, else the host's.
    #[default]
    Usual,
    /// Its own.
    Private,
    /// The host's.
    Host,
}
