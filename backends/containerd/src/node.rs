//! Capabilities and condition of this node, its containerd and its runtimes.

use std::sync::{Arc, Once};

use switchyard_core::id::TaskId;
use tokio::sync::{Notify, Semaphore};

use crate::base::config::Runtime;
use crate::base::disks::Disks;
use crate::client::Client;
use crate::client::features::ContainerdFeatures;
use crate::client::health::Health;
use crate::context::Context;
use crate::image::layer_usage::LayerUsageCache;

pub mod advisories;
mod advisory_log;
pub(crate) mod apparmor;
mod disk_watch;
pub(crate) mod runtime_probes;
mod runtime_watch;
pub(crate) mod userns;
mod userns_support;

use apparmor::FailedLoad;
use apparmor::ProfilePeers;
use runtime_probes::RuntimeProbes;

/// The abilities and the condition of this node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) features: ContainerdFeatures,
    pub(crate) probes: RuntimeProbes,
    /// Notified when the configured runtimes have changed.
    pub(crate) runtimes_changed: Notify,
    pub(crate) disks: Disks,
    pub(crate) layer_usage: Arc<LayerUsageCache>,
    /// Serialises loading of the default AppArmor profile: the callers after the first find it loaded.
    pub(crate) profile_lock: Semaphore,
    pub(crate) failed_load: FailedLoad,
    pub(crate) profile_peers: ProfilePeers,
    /// Logs once that SELinux options are ignored on this node.
    pub(crate) selinux_warned: Once,
}

impl Node {
    /// Returns whether the runtime of a handler supports recursively read-only mounts on this kernel.
    pub(crate) fn recursive_readonly(&self, runtime: &Runtime) -> bool {
        self.context.no_mount_setattr.is_none()
            && self.probes.features_of(&runtime.binary).recursive_readonly
    }

    /// Warns once that the SELinux options of a task are ignored, if SELinux is off on this node.
    pub(crate) fn warn_selinux_ignored(&self, id: TaskId) {
        if self.context.host.selinux.is_none() {
            self.selinux_warned.call_once(|| {
                tracing::warn!(task = %id, "SELinux is off on this node: its options are ignored, for this task and all others");
            });
        }
    }
}
