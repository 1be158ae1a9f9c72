//! The network of an allocation, where the driver is to make it: a sandbox without tasks, that the tasks of the group join.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::spec::{CgroupPlacement, IpcMode, SandboxNetwork, SandboxPid, SandboxSpec, UtsMode};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::identity::{network_meta, network_name};
use crate::to_proto;

impl Driver {
    /// Makes the namespace of an allocation; the agent connects it. Idempotent.
    ///
    /// # Errors
    /// `InvalidArgument`; those of [`Scope::create_sandbox`](switchyard_core::gateway::Scope::create_sandbox). Nothing is left.
    pub(super) async fn make_network(
        &self,
        alloc_id: &str,
        hostname: &str,
    ) -> Result<nomad::CreateNetworkResponse> {
        if alloc_id.is_empty() {
            return Err(Error::invalid("alloc_id", "it is missing"));
        }
        let scope = &self.shared.scope;
        let held = scope.sandbox_named(&network_name(alloc_id))?;
        if let Some(sandbox) = held {
            if sandbox.state.is_ready() {
                let isolation_spec = Some(to_proto::isolation(&sandbox));
                return Ok(nomad::CreateNetworkResponse { isolation_spec, created: false });
            }
            // It broke, as by a restart of the node.
            scope.remove_sandbox(&sandbox.id.to_string()).await?;
        }
        let sandbox = scope.create_sandbox(network(alloc_id, hostname)).await?;
        let isolation_spec = Some(to_proto::isolation(&sandbox));
        Ok(nomad::CreateNetworkResponse { isolation_spec, created: true })
    }

    /// Takes the namespace of an allocation away. Idempotent. Cancel-safe: the work goes on.
    ///
    /// # Errors
    /// Those of [`Scope::remove_sandbox`](switchyard_core::gateway::Scope::remove_sandbox); it can be tried again.
    pub(super) async fn remove_network(&self, alloc_id: String) -> Result<nomad::DestroyNetworkResponse> {
        let scope = &self.shared.scope;
        if let Some(sandbox) = scope.sandbox_named(&network_name(&alloc_id))? {
            scope.remove_sandbox(&sandbox.id.to_string()).await?;
        }
        Ok(nomad::DestroyNetworkResponse {})
    }
}

/// A namespace with loopback alone.
fn network(alloc_id: &str, hostname: &str) -> SandboxSpec {
    SandboxSpec {
        meta: network_meta(alloc_id, hostname, SystemTime::now()),
        handler: String::new(),
        hostname: hostname.to_owned(),
        network: SandboxNetwork::Isolated,
        uts: UtsMode::Network,
        ipc: IpcMode::Shared,
        pid: SandboxPid::PerTask,
        dns: None,
        extra_hosts: Vec::new(),
        sysctls: BTreeMap::new(),
        shm_size_bytes: switchyard_core::spec::DEFAULT_SHM_BYTES,
        log_dir: PathBuf::new(),
        cgroup: CgroupPlacement::default(),
        privileged: false,
        annotations: BTreeMap::new(),
        selinux: None,
        users: None,
    }
}
