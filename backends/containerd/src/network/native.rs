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
use switchyard_namespaces::Ns;
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{self, AttachRequest, BridgeDriver, BridgeSettings};
use switchyard_network::netlink::LinkName;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::journal::mappings;
use super::request::INTERFACE;
use crate::base::config::BridgeConfig;
use crate::base::error::{from_cni, from_network};
use crate::base::fs::{blocking, ids_below};
use crate::base::layout::{Layout, SandboxDirs};

mod mapping;
mod watch;

/// The name of this driver in journals.
const NATIVE: &str = "native";
/// Limit for reading the journals of predecessors.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// How many calls of the driver there are at a time: they wait for each other in the kernel, and all of them if that or the disk with the
/// addresses hangs. The other threads for short calls are left to others.
const THREADS: usize = 4;
/// Limit for waiting until one of them ends.
const THREAD_LIMIT: Duration = Duration::from_secs(60);

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
    /// True if the journals of all predecessors are read, and need no further look.
    knows_all: AtomicBool,
    /// Notified when connections may go on to where a port led before.
    past_flows: Notify,
    threads: Arc<Semaphore>,
}

/// The attachments that predecessors have made by this driver.
#[derive(Debug, Default)]
struct FoundAttachments {
    /// One that was cut off has no addresses on record.
    all: Vec<driver::Attachment>,
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
        let is_wanted = config.is_native();
        let settings = BridgeSettings {
            name: LinkName::new(&config.name).map_err(|error| refused(report(&error)))?,
            subnets: subnets.to_vec(),
            mtu: Some(config.mtu).filter(|mtu| *mtu != 0),
            addresses_dir: config.addresses_dir.clone(),
            table: mapping::table_of(&config.name).map_err(|error| refused(report(&error)))?,
            is_used: is_wanted,
        };
        let driver = BridgeDriver::new(settings).map_err(|error| refused(report(&error)))?;
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
            threads: Arc::new(Semaphore::new(THREADS)),
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
        let asked = Arc::clone(request);
        let attached = self.call(move |driver| driver.attach(&asked)).await?;
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
        let detached = self.call(move |driver| driver.detach(&attachment)).await?;
        self.past_flows.notify_one();
        detached.map_err(from_network)?;
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

    /// Runs a call of the driver on a thread. Cancel-safe: one that has begun is completed.
    ///
    /// # Errors
    /// `Unavailable` if no thread becomes free.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&BridgeDriver) -> T + Send + 'static,
    ) -> Result<T> {
        let thread = timeout(THREAD_LIMIT, Arc::clone(&self.threads).acquire_owned());
        let Ok(thread) = thread.await else {
            return Err(Error::unavailable(format!(
                "network {}: {THREADS} calls about it have not ended within {THREAD_LIMIT:?}: look whether the disk with network.bridge.addresses_dir hangs, and try again",
                self.name
            )));
        };
        let thread = thread.map_err(|closed| {
            Error::internal("wait for a thread for the gateway's own bridge").with_source(closed)
        })?;
        let driver = Arc::clone(&self.driver);
        blocking(move || {
            let _until_it_returns = thread;
            Ok(work(&driver))
        })
        .await
    }

    /// Takes over what predecessors have attached, and restores the tables for it. Before anything is attached or detached. Idempotent:
    /// recovery may be tried again. What fails is logged, and tried again by [`NativeBridge::watch`]; until then no port of others is
    /// withdrawn.
    pub(crate) async fn recover(self: &Arc<Self>, layout: &Layout) {
        let Some(adopted) = self.take_over(layout, true).await else {
            return;
        };
        match self.call(BridgeDriver::restore).await {
            Ok(Ok(_)) => tracing::debug!(
                adopted,
                "the rules of the gateway's own bridge are as they should be"
            ),
            Ok(Err(error)) => log_not_restored(&from_network(error)),
            Err(error) => log_not_restored(&error),
        }
    }

    /// Takes over the attachments of all journals. Returns how many there are; `None` if nobody needs this driver. The first failure is
    /// logged as an error.
    async fn take_over(self: &Arc<Self>, layout: &Layout, is_first: bool) -> Option<usize> {
        let bridge = Arc::clone(self);
        let layout = layout.clone();
        let find = self.call(move |_| bridge.find(&layout, is_first));
        let found = match timeout(READ_LIMIT, find).await {
            Ok(found) => found.flatten(),
            Err(_) => Err(Error::unavailable(format!(
                "the disk does not answer within {READ_LIMIT:?}"
            ))),
        };
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
        if let Err(error) = self
            .call(move |driver| driver.adopt(&all, !has_unread))
            .await
        {
            self.knows_all.store(false, Ordering::Relaxed);
            log_not_restored(&error);
        }
        self.in_use.cancel();
        Some(adopted)
    }

    /// Reads the journals of all sandboxes, also of those that containerd does not know. Blocks.
    ///
    /// # Errors
    /// The directory of sandboxes cannot be listed.
    fn find(&self, layout: &Layout, is_first: bool) -> Result<FoundAttachments> {
        let mut found = FoundAttachments::default();
        for id in ids_below::<SandboxId>(&layout.all_sandbox_state())?.into_values() {
            match self.find_one(id, &layout.sandbox(id)) {
                Ok(attachment) => found.all.extend(attachment),
                Err(error) => {
                    found.has_unread = true;
                    if is_first {
                        tracing::error!(sandbox = %id, error = error.report(), "cannot read how a sandbox was attached to its network: if it was to the gateway's own bridge, its published ports do not come back after a change by others");
                    }
                }
            }
        }
        Ok(found)
    }

    /// The attachment of a sandbox, if its journal is of this driver. Blocks.
    ///
    /// # Errors
    /// The journal cannot be read, or is of an unknown driver.
    fn find_one(&self, id: SandboxId, dirs: &SandboxDirs) -> Result<Option<driver::Attachment>> {
        let journal = dirs.cni_journal();
        let Some(saved) = cni::Saved::read(&journal).map_err(from_cni)? else {
            return Ok(None);
        };
        if saved.driver() != Some(NATIVE) {
            saved.check_made_by_plugins(&journal).map_err(from_cni)?;
            return Ok(None);
        }
        let result = saved.result(&journal).map_err(from_cni)?;
        self.described(id, &saved, result.as_ref()).map(Some)
    }

    /// Removes ends of network devices that belong to no attachment. When recovery is complete, unless it does not know all attachments.
    pub(crate) async fn sweep(&self) {
        if !self.in_use.is_cancelled() {
            return;
        }
        let swept = self.call(BridgeDriver::sweep).await;
        match swept.and_then(|swept| swept.map_err(from_network)) {
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

fn log_not_restored(error: &Error) {
    tracing::warn!(
        error = error.report(),
        "cannot restore the rules of the gateway's own bridge: trying again"
    );
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
