//! Takes over what predecessors have attached without plugins, as the journals of all sandboxes say.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};
use switchyard_linux::report;
use switchyard_network::driver::BridgeTables;

use super::pins::{AttachedSandbox, has_net_admin, is_pinned, noted};
use super::{NATIVE, NativeAttachment, NativeBridges};
use crate::base::error::{from_cni, from_network};
use crate::base::fs::ids_below;
use crate::base::layout::{Layout, SandboxDirs};

/// Limit for reading the journals of predecessors, and for a look at what they have left.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(30);

/// The attachments that predecessors have made without plugins.
#[derive(Debug, Default)]
pub(super) struct FoundAttachments {
    pub(super) all: Vec<NativeAttachment>,
    /// True if a journal could not be read.
    pub(super) has_unread: bool,
}

impl NativeAttachment {
    /// The sandbox, whose note is looked at once more after pins were added. Also one that is not to be pinned by its journal and its note: an
    /// earlier look at them may have added its pins.
    pub(super) fn sandbox(&self, layout: &Layout) -> AttachedSandbox {
        AttachedSandbox {
            driver: Arc::clone(&self.driver),
            holder: self.attachment.holder.clone(),
            dirs: layout.sandbox(self.id),
        }
    }
}

impl NativeBridges {
    /// Takes over what predecessors have attached, and restores the tables for it. Before anything is attached or detached. Idempotent:
    /// recovery may be tried again. What fails is logged, and tried again by [`NativeBridges::watch`]; until then no port of others is
    /// withdrawn.
    pub(crate) async fn recover(self: &Arc<Self>, layout: &Layout) {
        let Some(adopted) = self.take_over(layout, true).await else {
            return;
        };
        match self.call(BridgeTables::restore).await {
            Ok(Ok(_)) => tracing::debug!(
                adopted,
                "the rules of the gateway's bridges are as they should be"
            ),
            // The watch looks at the tables right after this, and logs it.
            Ok(Err(error)) => tracing::debug!(
                error = report(&error),
                "the rules of the gateway's bridges are not restored yet: trying again"
            ),
            Err(error) => log_not_restored(&error),
        }
    }

    /// Takes over the attachments of all journals. Returns how many there are; `None` if nobody needs this driver. The first failure is
    /// logged as an error.
    pub(super) async fn take_over(
        self: &Arc<Self>,
        layout: &Layout,
        is_first: bool,
    ) -> Option<usize> {
        let found = self.found(layout, is_first).await;
        let found = found.unwrap_or_else(|error| {
            if is_first {
                tracing::error!(
                    error = error.report(),
                    "cannot read the network journals of sandboxes: their published ports stay as they are, and come back after a change by others only when the journals can be read"
                );
            }
            FoundAttachments {
                has_unread: true,
                ..FoundAttachments::default()
            }
        });
        let FoundAttachments { all, has_unread } = found;
        self.knows_all.store(!has_unread, Ordering::Relaxed);
        if all.is_empty() && !has_unread && !self.is_chosen() {
            return None;
        }
        let adopted = all.len();
        let attached: Vec<_> = all.iter().map(|one| one.sandbox(layout)).collect();
        let adopt = move |tables: &BridgeTables| {
            let all = all.iter();
            tables.adopt(all.map(|one| (&*one.driver, &one.attachment)), !has_unread);
        };
        let taken_over = async {
            self.call(adopt).await?;
            self.unpin_overtaken(layout, attached).await
        };
        if let Err(error) = taken_over.await {
            self.knows_all.store(false, Ordering::Relaxed);
            log_not_restored(&error);
        }
        self.in_use.cancel();
        Some(adopted)
    }

    /// Removes the pins of sandboxes in which a task with NET_ADMIN was created while their journals were read.
    ///
    /// # Errors
    /// Those of [`NativeBridges::unpin_noted`]; `Internal` if the disk does not tell, `Unavailable` if it hangs.
    async fn unpin_overtaken(&self, layout: &Layout, attached: Vec<AttachedSandbox>) -> Result<()> {
        let dir = layout.all_sandbox_state();
        let object = format!("the notes of NET_ADMIN in {}", dir.display());
        let noted = self.files.run(object, move || noted(attached)).await?;
        self.unpin_noted(noted).await
    }

    /// Reads the journals of all sandboxes on a thread of its own.
    ///
    /// # Errors
    /// Those of [`NativeBridges::find`]; `Unavailable` if the disk hangs.
    async fn found(self: &Arc<Self>, layout: &Layout, is_first: bool) -> Result<FoundAttachments> {
        let dir = layout.all_sandbox_state();
        let object = format!("the network journals in {}", dir.display());
        let bridges = Arc::clone(self);
        let all = layout.clone();
        let find = move || bridges.find(&all, is_first);
        self.files.run(object, find).await
    }

    /// Reads the journals of all sandboxes, also of those that containerd does not know. Blocks.
    ///
    /// # Errors
    /// The directory of sandboxes cannot be listed.
    pub(super) fn find(&self, layout: &Layout, is_first: bool) -> Result<FoundAttachments> {
        let mut found = FoundAttachments::default();
        for id in ids_below::<SandboxId>(&layout.all_sandbox_state())?.into_values() {
            match self.find_one(id, &layout.sandbox(id)) {
                Ok(attachment) => found.all.extend(attachment),
                Err(error) => {
                    found.has_unread = true;
                    if is_first {
                        tracing::error!(sandbox = %id, error = error.report(), "cannot read how a sandbox was attached to its network: if it was to a bridge of the gateway, its published ports do not come back after a change by others");
                    }
                }
            }
        }
        Ok(found)
    }

    /// The attachment of a sandbox, if its journal is of this driver. Blocks.
    ///
    /// # Errors
    /// The journal cannot be read, or is of an unknown driver; or the disk does not tell whether a task of the sandbox has NET_ADMIN.
    fn find_one(&self, id: SandboxId, dirs: &SandboxDirs) -> Result<Option<NativeAttachment>> {
        let journal = dirs.cni_journal();
        let Some(saved) = cni::Saved::read(&journal).map_err(from_cni)? else {
            return Ok(None);
        };
        if saved.driver() != Some(NATIVE) {
            saved.check_made_by_plugins(&journal).map_err(from_cni)?;
            return Ok(None);
        }
        let result = saved.result(&journal).map_err(from_cni)?;
        let list = saved.list(&journal).map_err(from_cni)?;
        let mut found = self.described(id, &saved, &list, result.as_ref())?;
        if found.attachment.pin.is_some() && !is_pinned(self.pin, has_net_admin(dirs)?) {
            found.attachment.pin = None;
        }
        Ok(Some(found))
    }

    /// Removes ends of network devices that belong to no attachment, and a bridge of pods that nobody needs any more. When recovery is complete;
    /// the first not unless it knows all attachments.
    pub(crate) async fn sweep(self: &Arc<Self>) {
        if self.in_use.is_cancelled() {
            self.sweep_devices().await;
        }
        // What was swept counted as a pod on it.
        if let Some(mark) = &self.pod_mark {
            self.remove_pod_bridge(mark).await;
        }
    }

    async fn sweep_devices(self: &Arc<Self>) {
        let swept = self.call(BridgeTables::sweep).await;
        match swept.and_then(|swept| swept.map_err(from_network)) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(
                removed,
                "removed network devices of sandboxes that are gone from the gateway's bridges"
            ),
            Err(error) => tracing::warn!(
                error = error.report(),
                "cannot remove network devices of sandboxes that are gone: trying again at the next start"
            ),
        }
    }
}

fn log_not_restored(error: &Error) {
    tracing::warn!(
        error = error.report(),
        "cannot restore the rules of the gateway's bridges: trying again"
    );
}
