//! The sandbox of a container that is converted.

use std::collections::BTreeMap;

use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{PidMode, UserNamespace};
use switchyard_proto::cri::v1 as cri;

use super::user_namespace::user_namespace;

/// The sandbox that a container is created in.
#[derive(Debug)]
pub(crate) struct Parent<'a> {
    /// The sandbox's id.
    pub(crate) id: SandboxId,
    /// The configuration in the sandbox's request.
    pub(crate) config: &'a cri::PodSandboxConfig,
    /// True if its handler supports recursive read-only mounts.
    pub(crate) recursive_readonly: bool,
    /// Names of volumes that the container requests, by the index of their mount; v1 has no field for them.
    pub(crate) volumes: &'a BTreeMap<u32, String>,
}

impl Parent<'_> {
    pub(super) fn security(&self) -> Option<&cri::LinuxSandboxSecurityContext> {
        self.config.linux.as_ref()?.security_context.as_ref()
    }

    /// Returns whether privileged containers may run in it.
    pub(super) fn privileged(&self) -> bool {
        self.security().is_some_and(|context| context.privileged)
    }

    /// The pod's own user namespace, if it has one.
    pub(super) fn users(&self) -> Result<Option<UserNamespace>> {
        let options = self
            .security()
            .and_then(|context| context.namespace_options.as_ref());
        let options = options.and_then(|options| options.userns_options.clone());
        user_namespace(options, "the pod's userns_options")
    }

    /// The pid namespace of a container that requests the pod's. If the sandbox has no shared one, each
    /// container has its own.
    pub(super) fn pid(&self) -> PidMode {
        let options = self
            .security()
            .and_then(|context| context.namespace_options.as_ref());
        match options.map_or(cri::NamespaceMode::Pod, cri::NamespaceOption::pid) {
            cri::NamespaceMode::Pod => PidMode::Sandbox,
            cri::NamespaceMode::Node => PidMode::Host,
            // Sandboxes with TARGET are refused.
            cri::NamespaceMode::Container | cri::NamespaceMode::Target => PidMode::Private,
        }
    }
}
