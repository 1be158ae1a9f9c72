//! The options that shims are given for the OCI runtime they run.

use containerd_client::services::v1 as api;
use prost_types::Any;
use switchyard_proto::containerd::runc::v1 as runc;
use switchyard_runtime_spec::{self as runtime_spec, SandboxUsers};

use crate::backend::Inner;
use crate::config::RUNC_TYPE;
use crate::config::{ContainerdMode, Runtime};
use crate::sandbox::SandboxEntry;

impl Inner {
    /// The `runtime` field of a container object.
    pub(crate) fn runtime_of(&self, runtime: &Runtime, sandbox: &SandboxEntry) -> api::container::Runtime {
        let systemd = self.host.cgroup_driver == runtime_spec::CgroupDriver::Systemd;
        api::container::Runtime {
            name: runtime.type_.clone(),
            options: self.runtime_options(runtime, systemd, sandbox.users().as_ref()),
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

    /// The directory in which a runtime keeps its state; empty for the runtime's default.
    fn runtime_root(&self) -> String {
        match self.settings.containerd.mode {
            // The default directory would be shared with the node's own containerd, if it has one.
            ContainerdMode::Managed => self.settings.run.join("oci").display().to_string(),
            ContainerdMode::External => String::new(),
        }
    }
}
