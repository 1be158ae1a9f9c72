//! Data about the node and its configuration that all components share, and pure conclusions from it.

use std::sync::Arc;

use containerd_client::services::v1 as api;
use prost_types::Any;
use switchyard_core::backend::BackendObserver;
use switchyard_core::reload::Reloadable;
use switchyard_core::spec::CgroupPlacement;
use switchyard_core::{Error, Result, SpecPart};
use switchyard_proto::containerd::runc::v1 as runc;
use switchyard_runtime_spec::cgroups_path::{CgroupLocation, cgroups_path};
use switchyard_runtime_spec::{self as runtime_spec, Host, SandboxUsers};

use crate::base::config::{ContainerdMode, RUNC_TYPE, Runtime, Settings};
use crate::base::crash_points::Faults;
use crate::base::layout::Layout;

/// The name prefix of the systemd scopes and default slices that this backend asks for.
const CGROUP_PREFIX: &str = "switchyard";

/// The values that all components share. Set up once, before anything else; a reload of the configuration
/// replaces the settings.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) settings: Reloadable<Settings>,
    pub(crate) layout: Layout,
    /// The features of this node.
    pub(crate) host: Host,
    /// The reason why mounts cannot be changed by mount_setattr(2); `None` if they can be.
    pub(crate) no_mount_setattr: Option<String>,
    pub(crate) host_name: String,
    /// The kernel's boot id: records of another boot name cgroups and processes that no longer exist.
    pub(crate) boot: String,
    /// The epoch of the run directory; `None` if it is not known.
    pub(crate) epoch: Option<String>,
    /// The steps that tests make fail.
    pub(crate) faults: Faults,
    /// Receives this backend's events.
    pub(crate) observer: Arc<dyn BackendObserver>,
}

impl Context {
    /// The settings in force.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.get()
    }

    /// The configured runtime of this handler name; an empty name means the default.
    pub(crate) fn runtime(&self, handler: &str) -> Result<Runtime> {
        let settings = self.settings();
        let config = &settings.containerd;
        let name = if handler.is_empty() {
            &config.default_runtime
        } else {
            handler
        };
        config.runtimes.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = config.runtimes.keys().map(String::as_str).collect();
            Error::invalid(
                "runtime_handler",
                format!(
                    "{name:?} is not configured; configured are: {}",
                    known.join(", ")
                ),
            )
            .about(SpecPart::Handler)
        })
    }

    /// Returns whether the main processes of a runtime handler are processes of this node, with the pids that
    /// its shim reports.
    pub(crate) fn has_host_processes(&self, handler: &str) -> bool {
        self.runtime(handler)
            .is_ok_and(|runtime| runtime.type_ == RUNC_TYPE)
    }

    pub(crate) fn cgroup_at(
        &self,
        placement: &CgroupPlacement,
        id: &str,
    ) -> Result<CgroupLocation> {
        let placement = match (placement, self.host.cgroup_driver) {
            // The default parent is a name; with systemd it is a slice.
            (CgroupPlacement::Parent(parent), runtime_spec::CgroupDriver::Systemd)
                if *parent == std::path::Path::new(&self.settings().cgroup.default_parent)
                    && parent.extension().is_none() =>
            {
                CgroupPlacement::Parent(parent.with_extension("slice"))
            }
            (placement, _) => placement.clone(),
        };
        cgroups_path(&placement, id, self.host.cgroup_driver, CGROUP_PREFIX)
    }

    /// The `runtime` field of a container object, whose sandbox has this user namespace.
    pub(crate) fn runtime_of(
        &self,
        runtime: &Runtime,
        users: Option<&SandboxUsers>,
    ) -> api::container::Runtime {
        let systemd = self.host.cgroup_driver == runtime_spec::CgroupDriver::Systemd;
        api::container::Runtime {
            name: runtime.type_.clone(),
            options: self.runtime_options(runtime, systemd, users),
        }
    }

    /// The options of a runc-like shim; `None` for other shims, whose options are left to their own
    /// configuration. `io_uid` and `io_gid` make the root user of the user namespace the owner of a process's
    /// streams.
    pub(crate) fn runtime_options(
        &self,
        runtime: &Runtime,
        systemd: bool,
        users: Option<&SandboxUsers>,
    ) -> Option<Any> {
        if runtime.type_ != RUNC_TYPE {
            return None;
        }
        let options = runc::Options {
            binary_name: runtime.binary.clone(),
            systemd_cgroup: systemd,
            root: self.runtime_root(),
            io_uid: users.map_or(0, |users| users.map.uids.root()),
            io_gid: users.map_or(0, |users| users.map.gids.root()),
            ..Default::default()
        };
        Some(Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: prost::Message::encode_to_vec(&options),
        })
    }

    /// The options as JSON, for inspection; empty for other shims.
    pub(crate) fn options_json(&self, runtime: &Runtime, systemd: bool) -> String {
        if runtime.type_ != RUNC_TYPE {
            return String::new();
        }
        serde_json::json!({
            "binary_name": runtime.binary,
            "systemd_cgroup": systemd,
            "root": self.runtime_root(),
        })
        .to_string()
    }

    /// The SELinux label of containerd's snapshots, if this daemon sets one: an external containerd has its own.
    pub(crate) fn snapshots_label(&self) -> Option<&str> {
        let is_managed = self.settings().containerd.mode == ContainerdMode::Managed;
        let labels = self.host.selinux.as_ref().filter(|_| is_managed);
        labels.map(|labels| labels.file.as_str())
    }

    /// The directory in which a runtime keeps its state; empty for the runtime's default.
    fn runtime_root(&self) -> String {
        let settings = self.settings();
        match settings.containerd.mode {
            // The default directory would be shared with the node's own containerd, if it has one.
            ContainerdMode::Managed => settings.run.join("oci").display().to_string(),
            ContainerdMode::External => String::new(),
        }
    }
}
