//! Watches sandboxes that have a process of their own.

use std::sync::Arc;

use super::Sandboxes;
use crate::error::ErrorKind;
use crate::object::Sandbox;

impl Sandboxes {
    /// Watches a sandbox that has a process of its own, until it fails, is no longer ready, or the gateway
    /// shuts down.
    pub(in crate::gateway) fn watch(self: &Arc<Self>, sandbox: &Sandbox) {
        if sandbox.details.pid.is_none() || !sandbox.state.is_ready() {
            return;
        }
        let sandboxes = Arc::clone(self);
        let id = sandbox.id;
        let pid = sandbox.details.pid;
        self.context.watchers.spawn(async move {
            let context = &sandboxes.context;
            let mut backoff = context.limits.get().backoff();
            let reason = loop {
                let waited = tokio::select! {
                    waited = context.backend.wait_sandbox(id) => waited,
                    () = context.unwatched.cancelled() => return,
                };
                let error = match waited {
                    Ok(reason) => break reason,
                    Err(error) if error.kind() == ErrorKind::NotFound => return,
                    Err(error) => error,
                };
                tracing::debug!(sandbox = %id, error = error.report(), "waiting for a sandbox failed: retrying");
                if !backoff.wait_unless(&context.unwatched).await {
                    return;
                }
                if context.table.sandbox(id).is_none_or(|sandbox| !sandbox.state.is_ready()) {
                    return;
                }
            };
            // A stop ends the process as well, and then its exit is expected. The sandbox may also have a new
            // process by now.
            let is_unexpected = |sandbox: &Sandbox| sandbox.state.is_ready() && sandbox.details.pid == pid;
            if context.table.sandbox_failed(id, is_unexpected, &reason) {
                tracing::warn!(sandbox = %id, reason, "a sandbox has failed");
            }
        });
    }
}
