//! Attachments to the gateway's own bridge that the daemon makes itself, without plugins and without a program.
//!
//! ```text
//! plan    journal with the name of the driver      before anything is made
//! attach  driver ──> journal with the result       a failure is undone at once, or later by the journal
//! detach  journal ──> driver ──> no journal        by whoever made it, whatever the key says by now
//! start   journals ──adopt──> driver ──restore──> tables; then `watch` keeps them as they should be
//! ```
//!
//! The driver is always there, since a predecessor may have used it. Until it is needed it opens no socket and makes nothing: on a node
//! that has neither such attachments nor the key, never.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{PodNetwork, Subnet};
use switchyard_core::{Error, Result};
use switchyard_linux::report;
use switchyard_namespaces::{self as namespaces, Ns};
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{self, AttachRequest, BridgeDriver, BridgeSettings};
use switchyard_network::netlink::LinkName;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::journal::mappings;
use super::request::INTERFACE;
use crate::base::config::{BridgeConfig, BridgeDriverChoice};
use crate::base::error::{from_cni, from_network};
use crate::base::fs::{blocking, ids_below};
use crate::base::layout::{Layout, SandboxDirs};

mod mapping;
mod watch;

/// The name of this driver in journals.
const NATIVE: &str = "native";
/// Limit for reading the journals of predecessors.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// The gateway's own bridge, as far as the daemon attaches sandboxes to it itself.
#[derive(Debug)]
pub(crate) struct NativeBridge {
    driver: Arc<BridgeDriver>,
    /// The name of the bridge.
    name: String,
    /// An address of each range: sandboxes have the families of these.
    families: Vec<IpAddr>,
    /// True if the configuration asks for it.
    is_wanted: bool,
    /// The reason why the kernel cannot do what the driver needs, if it was asked.
    fault: Option<String>,
    /// Cancelled as soon as there is something that others could take away; used as a one-shot signal.
    in_use: CancellationToken,
    /// True if the attachments of all predecessors are known.
    knows_all: AtomicBool,
    /// Notified when connections may go on to where a port led before.
    past_flows: Notify,
}

/// The attachments that predecessors have made by this driver.
#[derive(Debug, Default)]
struct FoundAttachments {
    /// Those whose namespace is there; one that was cut off has no addresses on record.
    there: Vec<driver::Attachment>,
    /// True if there are journals of others.
    has_others: bool,
    /// True if a journal could not be read.
    has_unread: bool,
}

impl NativeBridge {
    /// The bridge of this configuration. Asks the kernel what it can do if the configuration asks for this driver; makes nothing. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` for a configuration of a bridge that the kernel cannot have.
    pub(crate) fn new(config: &BridgeConfig, subnets: &[Subnet]) -> Result<Self> {
        let refused = |report: String| Error::invalid("network.bridge", report);
        let settings = BridgeSettings {
            name: LinkName::new(&config.name).map_err(|error| refused(report(&error)))?,
            subnets: subnets.to_vec(),
            mtu: Some(config.mtu).filter(|mtu| *mtu != 0),
            addresses_dir: config.addresses_dir.clone(),
            table: mapping::table_of(&config.name).map_err(|error| refused(report(&error)))?,
        };
        let driver = BridgeDriver::new(settings).map_err(|error| refused(report(&error)))?;
        let is_wanted = config.driver == BridgeDriverChoice::Native;
        let fault = is_wanted.then(|| driver.probe().err()).flatten();
        let fault = fault.map(|error| report(&error));
        if let Some(reason) = &fault {
            tracing::warn!(
                reason,
                "network.bridge.driver asks for \"native\", which this kernel cannot do: CNI plugins attach sandboxes to the bridge"
            );
        }
        Ok(Self {
            driver: Arc::new(driver),
            name: config.name.clone(),
            families: subnets.iter().map(Subnet::first).collect(),
            is_wanted,
            fault,
            in_use: CancellationToken::new(),
            knows_all: AtomicBool::new(false),
            past_flows: Notify::new(),
        })
    }

    /// Returns whether the configuration asks for it.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns whether it attaches new sandboxes.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_wanted && self.fault.is_none()
    }

    /// Who attaches new sandboxes, as the configuration names it.
    pub(crate) fn chosen(&self) -> &'static str {
        if self.is_chosen() { NATIVE } else { "cni" }
    }

    /// The reason why the kernel cannot do what the driver needs; `None` if it can, or was not asked, as without the key.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// An address of each range of the bridge.
    pub(super) fn families(&self) -> &[IpAddr] {
        &self.families
    }

    /// What is to be made for a sandbox.
    ///
    /// # Errors
    /// `InvalidArgument` for values that the kernel refuses.
    pub(super) fn request(
        &self,
        id: SandboxId,
        network: &PodNetwork,
        dirs: &SandboxDirs,
        wanted: &[IpAddr],
    ) -> Result<AttachRequest> {
        let PodNetwork {
            link: _,
            mac,
            ports,
            bandwidth,
            args,
            // Those are of plugins.
            capabilities: _,
        } = network;
        Ok(AttachRequest {
            holder: holder(id)?,
            netns: netns_of(dirs),
            mac: mac.map(mapping::hardware_address).transpose()?,
            addresses: mapping::wanted_addresses(wanted, args)?,
            ports: mapping::published_ports(ports, &self.families),
            limits: mapping::limits(*bandwidth),
        })
    }

    /// Saves in a new journal that a sandbox will be attached by this driver. `list` are the plugins by which versions undo that which
    /// do not know the driver.
    ///
    /// # Errors
    /// Those of [`cni::save_for_driver`].
    pub(super) async fn save(
        journal: &Path,
        list: &cni::NetworkList,
        attachment: &cni::Attachment,
    ) -> Result<()> {
        cni::save_for_driver(journal, list, attachment, NATIVE)
            .await
            .map_err(from_cni)
    }

    /// Attaches a sandbox as its journal says, and returns its addresses. What fails is undone, and its journal removed, or the journal
    /// stays and says what is to be undone. A call that has begun is completed, also if the future is dropped.
    ///
    /// # Errors
    /// `FailedPrecondition` if an address that was asked for is taken or none of the bridge's, `ResourceExhausted` if none is free,
    /// `Internal` with the kernel's text.
    pub(super) async fn attach(
        &self,
        request: &Arc<AttachRequest>,
        version: cni::SpecVersion,
        journal: &Path,
    ) -> Result<Vec<IpAddr>> {
        let driver = Arc::clone(&self.driver);
        let asked = Arc::clone(request);
        let attached = blocking(move || Ok(driver.attach(&asked))).await?;
        self.past_flows.notify_one();
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                if error.is_undone() {
                    remove_journal(journal).await;
                }
                return Err(from_network(error));
            }
        };
        let result = mapping::cni_result(version.as_str(), &self.name, &request.netns, &attached);
        cni::save_result(journal, &result).await.map_err(from_cni)?;
        Ok(attached.addresses.iter().map(|one| one.address).collect())
    }

    /// Undoes the attachment of a sandbox, and removes its journal. Idempotent.
    ///
    /// # Errors
    /// `Internal` with the kernel's text; the journal stays then.
    pub(super) async fn detach(
        &self,
        attachment: driver::Attachment,
        journal: &Path,
    ) -> Result<()> {
        let driver = Arc::clone(&self.driver);
        let detached = blocking(move || driver.detach(&attachment).map_err(from_network)).await;
        self.past_flows.notify_one();
        detached?;
        remove_journal(journal).await;
        Ok(())
    }

    /// What the journal of a sandbox says of an attachment by this driver; `None` if it is of plugins, or of another driver. A result
    /// that cannot be understood is as one that was not written: the addresses are found by their holder.
    ///
    /// # Errors
    /// `Internal` for an id that no attachment has.
    pub(super) fn attachment(
        &self,
        id: SandboxId,
        saved: &cni::Saved,
        journal: &Path,
    ) -> Result<Option<driver::Attachment>> {
        if saved.driver() != Some(NATIVE) {
            return Ok(None);
        }
        let result = saved.result(journal).unwrap_or_else(|error| {
            tracing::warn!(sandbox = %id, error = report(&error), "a result in a network journal is damaged: detaching without it");
            None
        });
        self.described(id, saved, result.as_ref()).map(Some)
    }

    fn described(
        &self,
        id: SandboxId,
        saved: &cni::Saved,
        result: Option<&cni::CniResult>,
    ) -> Result<driver::Attachment> {
        let addresses = result.map(|result| result.pod_ips(INTERFACE));
        let families = addresses.as_deref().unwrap_or(&self.families);
        Ok(driver::Attachment {
            holder: holder(id)?,
            ports: mapping::published_ports(&mappings(saved), families),
            addresses,
        })
    }

    /// Takes over what predecessors have attached, and restores the tables for it. Before anything is attached or detached. Idempotent:
    /// recovery may be tried again. What fails is logged, and tried again by [`NativeBridge::watch`].
    pub(crate) async fn recover(self: &Arc<Self>, layout: &Layout) {
        let bridge = Arc::clone(self);
        let layout = layout.clone();
        let find = blocking(move || bridge.find(&layout));
        let found = match timeout(READ_LIMIT, find).await {
            Ok(Ok(found)) => found,
            // Nothing is restored: it would take their ports from those that are not known.
            Ok(Err(error)) => {
                tracing::error!(
                    error = error.report(),
                    "cannot look for the network journals of sandboxes: rules for them are not restored"
                );
                return;
            }
            Err(_) => {
                tracing::error!(after = ?READ_LIMIT, "the disk with the network journals of sandboxes does not answer: rules for them are not restored");
                return;
            }
        };
        self.knows_all.store(!found.has_unread, Ordering::Relaxed);
        if found.there.is_empty() && !found.has_others && !self.is_chosen() {
            return;
        }
        let adopted = found.there.len();
        let driver = Arc::clone(&self.driver);
        let restored = blocking(move || {
            driver.adopt(&found.there);
            driver.restore().map_err(from_network)
        });
        match restored.await {
            Ok(_) => tracing::debug!(
                adopted,
                "the rules of the gateway's own bridge are as they should be"
            ),
            Err(error) => tracing::warn!(
                error = error.report(),
                "cannot restore the rules of the gateway's own bridge: trying again"
            ),
        }
        self.in_use.cancel();
    }

    /// Reads the journals of all sandboxes, also of those that containerd does not know. Blocks.
    ///
    /// # Errors
    /// The directory of sandboxes cannot be listed.
    fn find(&self, layout: &Layout) -> Result<FoundAttachments> {
        let mut found = FoundAttachments::default();
        for id in ids_below::<SandboxId>(&layout.all_sandbox_state())?.into_values() {
            if let Err(error) = self.add_found(id, &layout.sandbox(id), &mut found) {
                found.has_unread = true;
                tracing::error!(sandbox = %id, error = error.report(), "cannot read how a sandbox was attached to its network: if it was to the gateway's own bridge, its published ports may not lead to it");
            }
        }
        Ok(found)
    }

    /// Adds the attachment of a sandbox, if its journal is of this driver. Blocks.
    ///
    /// # Errors
    /// The journal cannot be read, or is of an unknown driver.
    fn add_found(
        &self,
        id: SandboxId,
        dirs: &SandboxDirs,
        found: &mut FoundAttachments,
    ) -> Result<()> {
        let journal = dirs.cni_journal();
        let Some(saved) = cni::Saved::read(&journal).map_err(from_cni)? else {
            return Ok(());
        };
        if saved.driver() != Some(NATIVE) {
            return saved.check_made_by_plugins(&journal).map_err(from_cni);
        }
        let result = saved.result(&journal).map_err(from_cni)?;
        // After a reboot the namespace is gone, with all that the kernel had of it. One that cannot be looked at counts as there.
        let is_there = namespaces::is_namespace_file(&netns_of(dirs)).unwrap_or(true);
        if is_there {
            let attachment = self.described(id, &saved, result.as_ref())?;
            found.there.push(attachment);
        } else {
            found.has_others = true;
        }
        Ok(())
    }

    /// Removes ends of network devices that belong to no attachment. When recovery is complete, unless it does not know all attachments.
    pub(crate) async fn sweep(&self) {
        if !self.in_use.is_cancelled() || !self.knows_all.load(Ordering::Relaxed) {
            return;
        }
        let driver = Arc::clone(&self.driver);
        match blocking(move || driver.sweep().map_err(from_network)).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(
                removed,
                "removed network devices of sandboxes that are gone from the gateway's own bridge"
            ),
            Err(error) => tracing::warn!(
                error = error.report(),
                "cannot remove network devices of sandboxes that are gone: trying again at the next start"
            ),
        }
    }
}

/// Who has the addresses of a sandbox.
fn holder(id: SandboxId) -> Result<Holder> {
    Holder::new(&id.to_string(), INTERFACE).map_err(from_network)
}

fn netns_of(dirs: &SandboxDirs) -> PathBuf {
    dirs.pins.join(Ns::Net.file_name())
}

/// Removes the journal of an attachment that is undone. One that stays, as on a read-only disk, causes one detachment more.
async fn remove_journal(journal: &Path) {
    if let Err(error) = cni::remove_journal(journal).await {
        tracing::warn!(
            error = report(&error),
            "a network attachment is undone, and its journal stays"
        );
    }
}

#[cfg(test)]
mod tests;
