//! Calls to the shim of a task that do not go through containerd.

use super::TaskEntry;
use crate::backend::Inner;
use crate::shim::ShimClient;

impl Inner {
    /// Connects to the shim of a running task; does not wait. `None` if the shim cannot be called directly,
    /// or the logkeeper is down: containerd is to be asked. Cancel-safe.
    pub(crate) async fn shim_client(&self, task: &TaskEntry) -> Option<ShimClient> {
        self.health.check_logkeeper().ok()?;
        match ShimClient::connect(&task.shim()?, self.client.namespace()).await {
            Ok(shim) => Some(shim),
            Err(fault) => {
                tracing::debug!(task.id = %task.id, error = %fault, "a shim cannot be called directly: containerd is asked");
                None
            }
        }
    }
}
