//! Support of this node and its runtimes for sandboxes in user namespaces.

use switchyard_core::spec::{SandboxNetwork, SandboxSpec};
use switchyard_core::{Error, Result};

use crate::base::config::{RUNC_TYPE, Runtime, SandboxKind};
use crate::node::Node;

/// The snapshotter whose mounts can be idmapped.
const IDMAP_SNAPSHOTTER: &str = "overlayfs";

impl Node {
    /// Returns the reason why sandboxes of this runtime cannot have user namespaces; `None` if they can.
    pub(crate) fn userns_unavailable(&self, runtime: &Runtime) -> Option<String> {
        if runtime.type_ != RUNC_TYPE || runtime.sandbox == SandboxKind::Container {
            return Some(format!("its shim, {}, handles users itself", runtime.type_));
        }
        if !self.probes.features_of(&runtime.binary).users {
            return Some(format!(
                "{} cannot create them, or could not be queried",
                runtime.binary
            ));
        }
        let settings = self.context.settings();
        let snapshotter = match runtime.snapshotter.as_str() {
            "" => settings.containerd.snapshotter.as_str(),
            own => own,
        };
        if snapshotter != IDMAP_SNAPSHOTTER {
            return Some(format!(
                "mounts of the snapshotter {snapshotter} cannot be idmapped, only those of {IDMAP_SNAPSHOTTER}"
            ));
        }
        let no_setattr = self.context.no_mount_setattr.clone();
        no_setattr
            .or_else(|| self.probes.idmap_unavailable())
            .map(|why| format!("idmapped mounts do not work on this node: {why}"))
    }

    /// Checks that a sandbox with a user namespace can run with its runtime on this node.
    ///
    /// # Errors
    /// `InvalidArgument` for a network namespace outside of the user namespace; `Unimplemented` with the
    /// reason.
    pub(crate) async fn check_userns(&self, spec: &SandboxSpec, runtime: &Runtime) -> Result<()> {
        if matches!(spec.network, SandboxNetwork::Joined(_)) {
            return Err(Error::invalid(
                "users",
                "a user namespace needs the host's network, or a network namespace that is created inside of it",
            ));
        }
        self.probes.wait_completed().await;
        match self.userns_unavailable(runtime) {
            None => Ok(()),
            Some(why) => Err(Error::unimplemented(format!(
                "users: the handler {:?} of this node has no user namespaces, as Status says: {why}",
                spec.handler
            ))),
        }
    }
}
