//! The network of an allocation, if the driver creates it: a sandbox without tasks, whose namespace the tasks
//! of the group join.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::spec::{
    CgroupPlacement, HostPorts, IpcMode, Meta, SandboxNetwork, SandboxPid, SandboxSpec, UtsMode,
};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use super::unfinished::Disposal;
use crate::identity::{Record, allocation_of, check_part, network_meta, network_name, task_key};
use crate::session::Session;
use crate::to_proto;

impl Driver {
    /// Creates the network namespace of an allocation; the agent connects it. Idempotent. Cancel-safe: the
    /// work continues.
    ///
    /// # Errors
    /// `InvalidArgument`; those of
    /// [`ScopedSandboxes::create`](switchyard_core::gateway::ScopedSandboxes::create). Nothing is left behind.
    pub(super) async fn make_network(
        &self,
        session: Option<&Session>,
        alloc_id: &str,
        hostname: &str,
    ) -> Result<nomad::CreateNetworkResponse> {
        check_part("alloc_id", alloc_id)?;
        let name = network_name(alloc_id);
        let mut agents = session
            .map(|session| self.shared.references.agents(&session.id))
            .unwrap_or_default();
        let agent = agents.pop().filter(|_| agents.is_empty());
        if let Some(session) = session {
            self.shared.references.note_network(&session.id, &name);
        }
        let spec = network(
            network_meta(alloc_id, hostname, agent.as_ref(), SystemTime::now()),
            hostname,
        );
        let driver = self.clone();
        let what = format!("network of allocation {alloc_id}");
        let work = Box::pin(async move {
            let _turn = driver.shared.task_locks.lock(name.clone()).await;
            driver.make_namespace(&name, spec).await
        });
        let made = self.shared.scope.run_detached(what, work).await?;
        if let Some(session) = session {
            // Note it again: it did not exist yet when it was first named, and may have been dropped as gone.
            self.shared
                .references
                .note_network(&session.id, &network_name(alloc_id));
        }
        Ok(made)
    }

    /// The network of another task of the allocation, for the task with this id.
    ///
    /// # Errors
    /// `FailedPrecondition` if it does not run: an agent may retry. `Unimplemented` if it is on the host's network, in which
    /// the kernel parameters of this task would be the node's.
    pub(super) fn network_of_sibling(&self, id: &str, sibling: &str) -> Result<SandboxNetwork> {
        let scope = &self.shared.scope;
        let key = format!("{}/{sibling}", allocation_of(id));
        for sandbox in scope.sandboxes().with_prefix(&key)? {
            let name = &sandbox.meta.name;
            if task_key(name) != key || !sandbox.state.is_ready() {
                continue;
            }
            let task = scope.tasks().named(name)?;
            let runs = task.is_some_and(|task| task.state.is_running());
            if !runs {
                continue;
            }
            return match &sandbox.details.netns {
                Some(path) => Ok(SandboxNetwork::Joined(path.clone())),
                None => Err(Error::unimplemented(format!(
                    "network_mode: task {sibling:?} is on the host's network: give this task network_mode \"host\" as well"
                ))),
            };
        }
        Err(Error::failed_precondition(format!(
            "network_mode: task {sibling:?} of the allocation does not run: it has to start first, as its lifecycle block can say"
        )))
    }

    /// The caller holds the lock of the name.
    async fn make_namespace(
        &self,
        name: &str,
        spec: SandboxSpec,
    ) -> Result<nomad::CreateNetworkResponse> {
        let scope = &self.shared.scope;
        if let Some(sandbox) = scope.sandboxes().named(name)? {
            if sandbox.state.is_ready() {
                let isolation_spec = Some(to_proto::isolation(&sandbox));
                return Ok(nomad::CreateNetworkResponse {
                    isolation_spec,
                    created: false,
                });
            }
            // It has failed, for example through a restart of the node.
            scope.sandboxes().remove(&sandbox.id.to_string()).await?;
        }
        let sandbox = scope.sandboxes().create(spec).await?;
        let isolation_spec = Some(to_proto::isolation(&sandbox));
        Ok(nomad::CreateNetworkResponse {
            isolation_spec,
            created: true,
        })
    }

    /// Removes the network namespace of an allocation. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`ScopedSandboxes::remove`](switchyard_core::gateway::ScopedSandboxes::remove); the removal is completed
    /// in the background.
    pub(super) async fn remove_network(
        &self,
        alloc_id: &str,
    ) -> Result<nomad::DestroyNetworkResponse> {
        let name = network_name(alloc_id);
        self.shared.references.forget(&name);
        self.remove_unused_network(name)
            .await
            .map(|()| nomad::DestroyNetworkResponse {})
    }

    /// Removes the network of this name, unless an agent has requested it and its allocation still exists.
    /// Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// As [`Driver::remove_network`].
    pub(crate) async fn remove_unused_network(&self, name: String) -> Result<()> {
        let driver = self.clone();
        let what = format!("removal of {name}");
        let work = async move {
            let _turn = driver.shared.task_locks.lock(name.clone()).await;
            match driver.shared.scope.sandboxes().named(&name)? {
                Some(sandbox)
                    if !driver.shared.references.knows_network(&name)
                        || driver.is_cleared(&Record::of(&sandbox.meta)).await =>
                {
                    driver.dispose_eventually(&sandbox, Disposal::REMOVE).await
                }
                Some(_) | None => Ok(()),
            }
        };
        self.shared.scope.run_detached(what, work).await
    }
}

/// A namespace with loopback only.
fn network(meta: Meta, hostname: &str) -> SandboxSpec {
    SandboxSpec {
        meta,
        handler: String::new(),
        hostname: hostname.to_owned(),
        network: SandboxNetwork::Isolated,
        // The host ports of the group are known only with its first task.
        host_ports: HostPorts::default(),
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
