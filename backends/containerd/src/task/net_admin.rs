//! Tasks with the capability NET_ADMIN, whose networks may send with any address.

use switchyard_core::id::SandboxId;
use switchyard_core::{ErrorKind, Result};
use switchyard_runtime_spec::has_net_admin;

use super::Tasks;
use crate::record::NetworkRecord;
use crate::sandbox::SandboxEntry;

impl Tasks {
    /// Before a task with NET_ADMIN is created in a sandbox: lets the network that the task will be in send with any address. That may be the
    /// network of another sandbox. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if that cannot be noted; `Internal` with the kernel's text.
    pub(super) async fn allow_net_admin(&self, sandbox: &SandboxEntry) -> Result<()> {
        let Some(owner) = self.network_owner(sandbox) else {
            return Ok(());
        };
        let known = self.sandboxes.table.get(owner);
        // One that is being made is not known yet.
        if known.is_ok_and(|one| !matches!(one.record.network, NetworkRecord::Pod)) {
            return Ok(());
        }
        let native = &self.sandboxes.network.native;
        let dirs = self.context.layout.sandbox(owner);
        native.allow_net_admin(owner, &dirs).await
    }

    /// Before a stopped sandbox is started again: notes that a task in its network has NET_ADMIN, also one of a sandbox that joined it. Nothing
    /// says so yet of a task that was created while the sandbox was not pinned, or by a version without pins. Does nothing for a sandbox that is
    /// attached to no network of its own. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if there is no such sandbox; `Internal` or `ResourceExhausted` if that cannot be noted; those of containerd.
    pub(crate) async fn note_net_admin(&self, id: SandboxId) -> Result<()> {
        let sandbox = self.sandboxes.table.get(id)?;
        if !matches!(sandbox.record.network, NetworkRecord::Pod) {
            return Ok(());
        }
        let native = &self.sandboxes.network.native;
        let dirs = self.context.layout.sandbox(id);
        if !native.pins(&dirs).await? {
            return Ok(());
        }
        let sharing = self.sharing_network_of(id).into_iter();
        for task in sharing.flat_map(|one| self.table.of_sandbox(one)) {
            match self.client.stored_spec(&task.to_string()).await {
                Ok(spec) if has_net_admin(&spec) => return native.note_net_admin(&dirs).await,
                Ok(_) => {}
                // It is being removed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The sandbox whose network the tasks of this one are in, if the daemon has made it.
    fn network_owner(&self, sandbox: &SandboxEntry) -> Option<SandboxId> {
        self.context.layout.owner_of_network(&sandbox.netns()?)
    }

    /// The sandboxes whose tasks are in the network of this one, with itself.
    fn sharing_network_of(&self, owner: SandboxId) -> Vec<SandboxId> {
        let sandboxes = self.sandboxes.table.lock();
        let sharing = sandboxes
            .iter()
            .filter(|(_, sandbox)| self.network_owner(sandbox) == Some(owner));
        sharing.map(|(id, _)| *id).collect()
    }
}
