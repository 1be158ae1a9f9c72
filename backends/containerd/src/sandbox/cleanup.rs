//! The cleanup of a sandbox whose creation failed, and the release of the network of one that is stopped.

use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_core::id::SandboxId;

use super::{SandboxEntry, Sandboxes};
use crate::cleanup::{Cleanup, upgrade};

/// Removes a sandbox whose creation failed or was interrupted.
#[derive(Debug)]
pub(crate) struct SandboxCleanup {
    sandboxes: Weak<Sandboxes>,
    id: SandboxId,
    entry: Arc<SandboxEntry>,
}

impl SandboxCleanup {
    pub(crate) fn new(sandboxes: &Sandboxes, id: SandboxId, entry: Arc<SandboxEntry>) -> Self {
        Self {
            sandboxes: Weak::clone(&sandboxes.weak),
            id,
            entry,
        }
    }
}

/// Releases the network of a sandbox that is stopped.
#[derive(Debug)]
pub(crate) struct SandboxRelease {
    sandboxes: Weak<Sandboxes>,
    id: SandboxId,
}

impl SandboxRelease {
    pub(crate) fn new(sandboxes: &Sandboxes, id: SandboxId) -> Self {
        Self {
            sandboxes: Weak::clone(&sandboxes.weak),
            id,
        }
    }
}

impl Cleanup for SandboxRelease {
    fn description(&self) -> String {
        format!("network of sandbox {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { upgrade(&self.sandboxes)?.finish_stop(self.id).await })
    }

    fn is_awaited(&self) -> bool {
        true
    }
}

impl Cleanup for SandboxCleanup {
    fn description(&self) -> String {
        format!("sandbox {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            upgrade(&self.sandboxes)?
                .destroy_entry(self.id, &self.entry)
                .await
        })
    }
}
