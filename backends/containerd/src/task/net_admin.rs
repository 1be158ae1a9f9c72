//! Tasks with the capability NET_ADMIN, whose networks may send with any address.

use switchyard_core::id::SandboxId;
use switchyard_core::{ErrorKind, Result};
use switchyard_runtime_spec::has_net_admin;

use super::Tasks;
use crate::sandbox::SandboxEntry;

impl Tasks {
    /// Before a task with NET_ADMIN is created in a sandbox: lets the network that the task will be in send with any address. That may be the
    /// network of another sandbox. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if that cannot be noted; `Internal` with the kernel's text.
    pub(super) async fn allow_net_admin(&self, sandbox: &SandboxEntry) -> Result<()> {
        let layout = &self.context.layout;
        let netns = sandbox.netns();
        let Some(owner) = netns.and_then(|netns| layout.owner_of_network(&netns)) else {
            return Ok(());
        };
        let native = &self.sandboxes.network.native;
        native.allow_net_admin(owner, &layout.sandbox(owner)).await
    }

    /// Before a stopped sandbox is started again: notes that a task of it has NET_ADMIN. Nothing says so yet of a task that was created while
    /// the sandbox was not pinned, or by a version without pins. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if that cannot be noted; those of containerd.
    pub(crate) async fn note_net_admin(&self, id: SandboxId) -> Result<()> {
        let native = &self.sandboxes.network.native;
        let dirs = self.context.layout.sandbox(id);
        if !native.pins(&dirs).await? {
            return Ok(());
        }
        for task in self.table.of_sandbox(id) {
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
}
