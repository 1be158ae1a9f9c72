//! Attachments to bridges of the gateway that the daemon makes itself, without plugins and without a program: to its own bridge, to that of
//! pods, and to those of clusters.
//!
//! ```text
//! plan    journal with the name of the driver      before anything is made
//! attach  driver ──> journal with the result       a failure is undone at once, or later by the journal
//! detach  journal ──> driver ──> no journal        by whoever made it, whatever the key says by now
//! start   journals ──adopt──> tables ──restore──> kernel; then `watch` keeps them as they should be
//! ```
//!
//! Each bridge has a driver, made of the configuration list by which plugins would make it, which is also in the journal of each sandbox. So a
//! bridge is found again by its sandboxes, whatever the configuration says by then.
//!
//! The driver of the own bridge is always there, since a predecessor may have used it. Until it is needed it opens no socket and makes nothing: on a node
//! that has neither such attachments nor the key, never.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_cni as cni;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::PodNetwork;
use switchyard_core::{Error, Result, threads};
use switchyard_linux::report;
use switchyard_namespaces::Ns;
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{self, AttachRequest, BridgeDriver, BridgeTables, DriverError};
use switchyard_network::nft::NftFamily;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::journal::mappings;
use super::request::INTERFACE;
use crate::base::config::{NetworkConfig, PinChoice};
use crate::base::error::{from_cni, from_network};
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;

mod left;
mod mapping;
mod pins;
mod plugins;
mod recovery;
mod watch;

use mapping::BridgePolicy;
use pins::AttachedSandbox;

/// The devices of the node, as the kernel shows them.
pub(super) const DEVICES: &str = "/sys/class/net";
/// The name of this driver in journals.
const NATIVE: &str = "native";
/// Limit of concurrent calls of drivers: they wait for each other in the kernel, and all of them if that or the disk with the
/// addresses hangs. The other threads for short calls are left to others.
const THREADS: usize = 4;
/// Limit for waiting until one of them ends.
const THREAD_LIMIT: Duration = Duration::from_secs(60);

/// The gateway's bridges, as far as the daemon attaches sandboxes to them itself.
#[derive(Debug)]
pub(crate) struct NativeBridges {
    tables: Arc<BridgeTables>,
    /// The driver of the gateway's own bridge.
    own: Arc<BridgeDriver>,
    /// Rules for which owner has which bridge.
    policy: BridgePolicy,
    /// Those of other bridges, by name, as they were last described.
    others: Mutex<BTreeMap<String, Arc<BridgeDriver>>>,
    /// On a node whose pods have the network of CNI: the file that says that this gateway had them on their bridge before.
    pod_mark: Option<PathBuf>,
    /// True if the configuration asks for it.
    is_wanted: bool,
    /// The reason why the kernel cannot do what the driver needs, if it was asked.
    fault: Option<String>,
    /// Choice of the sandboxes that send with their own addresses alone.
    pin: PinChoice,
    /// The reason why the kernel cannot see to it, if it was asked: no more sandboxes are pinned then. Those that are stay so, since it could
    /// when they were attached, and a reboot ends them.
    pin_fault: Option<String>,
    /// Cancelled as soon as there is something that others could take away; used as a one-shot signal.
    in_use: CancellationToken,
    /// True if the journals of all predecessors are read, and need no further look.
    knows_all: AtomicBool,
    /// Notified when connections may go on to where a port led before.
    past_flows: Notify,
    /// Notified when an attachment has found a table that cannot be restored: [`NativeBridges::watch`] tries it again, and logs it.
    fell_behind: Notify,
    /// Notified when a bridge, or a subnet of one, has got its first container or is gone: filters of iptables may drop what it forwards, or have
    /// rules for it.
    bridges_changed: Notify,
    threads: Arc<Semaphore>,
    /// For the journals of all sandboxes, and the look for pods on a bridge that is left: a disk that hangs keeps one thread, and none of those.
    files: BlockingPool,
}

/// Attachment that the daemon is to make to a bridge.
#[derive(Debug, Clone)]
pub(super) struct NativeRequest {
    driver: Arc<BridgeDriver>,
    request: Arc<AttachRequest>,
    dirs: SandboxDirs,
}

/// Attachment that the daemon has made to a bridge, or was about to make.
#[derive(Debug)]
pub(super) struct NativeAttachment {
    id: SandboxId,
    driver: Arc<BridgeDriver>,
    /// One that was cut off has no addresses on record.
    attachment: driver::Attachment,
}

/// Looks whether the kernel can do what a driver of this bridge needs for addresses of both families. Blocks.
///
/// # Errors
/// What it cannot do.
pub(super) fn check_kernel(bridge: &str) -> std::result::Result<(), DriverError> {
    BridgeTables::new(mapping::table_of(bridge)?).probe(&NftFamily::ALL)
}

// === impl NativeRequest ===

impl NativeRequest {
    /// An address of each range of the bridge.
    pub(super) fn families(&self) -> Vec<IpAddr> {
        families_of(&self.driver)
    }
}

// === impl NativeBridges ===

impl NativeBridges {
    /// The bridges of a gateway with this configuration, whose own bridge this list describes. Asks the kernel what it can do if the
    /// configuration asks for it; makes nothing. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` for a configuration of a bridge that the kernel cannot have.
    pub(crate) fn new(network: &NetworkConfig, own: &cni::NetworkList) -> Result<Self> {
        let refused = |report: String| Error::invalid("network.bridge", report);
        let is_wanted = network.bridge.is_native();
        let table = mapping::table_of(&own.name).map_err(|error| refused(report(&error)))?;
        let allow = mapping::allowed_pairs(&network.isolation_allow)
            .map_err(|error| Error::invalid("network.isolation_allow", report(&error)))?;
        let isolation = mapping::isolation(network.isolation());
        let tables = Arc::new(BridgeTables::new(table).with_isolation(isolation, allow));
        let policy = BridgePolicy {
            own: own.name.clone(),
            pods: network.pods.name.clone(),
            direct_routing: network.direct_routing(),
        };
        let settings = policy
            .settings(own)
            .map_err(|error| refused(error.report()))?;
        let own = BridgeDriver::new(settings, Arc::clone(&tables))
            .map_err(|error| refused(report(&error)))?;
        let families = || -> Vec<NftFamily> {
            // Those of a swarm always have IPv4.
            let needed =
                |family: &NftFamily| *family == NftFamily::Ip4 || own.families().contains(family);
            NftFamily::ALL.into_iter().filter(needed).collect()
        };
        let can_do = || {
            let probed = tables.probe(&families());
            probed.and_then(|()| own.check_device())
        };
        let fault = is_wanted.then(|| can_do().err()).flatten();
        let fault = fault.map(|error| report(&error));
        if let Some(reason) = &fault {
            tracing::warn!(
                reason,
                "the driver \"native\" of the gateway's bridges (network.bridge.driver, or the default of this node) cannot work here: until the next start CNI plugins attach sandboxes to them, without network.isolation, network.direct_routing and network.bridge.pin"
            );
        }
        let is_chosen = is_wanted && fault.is_none();
        let pin = network.bridge.pin;
        let pin_fault = is_chosen.then(|| pins::fault(&tables, pin)).flatten();
        let bridges = Self {
            tables,
            own: Arc::new(own),
            policy,
            others: Mutex::default(),
            pod_mark: None,
            is_wanted,
            fault,
            pin,
            pin_fault,
            in_use: CancellationToken::new(),
            knows_all: AtomicBool::new(false),
            past_flows: Notify::new(),
            fell_behind: Notify::new(),
            bridges_changed: Notify::new(),
            threads: Arc::new(Semaphore::new(THREADS)),
            files: BlockingPool::new(threads::FILES_POOL, recovery::READ_LIMIT),
        };
        if is_chosen {
            let kept = bridges.own.keep();
            kept.map_err(|error| refused(report(&error)))?;
        }
        Ok(bridges)
    }

    /// Returns whether the configuration asks for it.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns whether it attaches new sandboxes.
    pub(crate) fn is_chosen(&self) -> bool {
        self.is_wanted && self.fault.is_none()
    }

    /// Returns who attaches new sandboxes, as the configuration names it.
    pub(crate) fn chosen(&self) -> &'static str {
        if self.is_chosen() { NATIVE } else { "cni" }
    }

    /// The reason why the kernel cannot do what the driver needs; `None` if it can, or was not asked, as without the key.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The driver of the bridge that a configuration list describes.
    ///
    /// # Errors
    /// `InvalidArgument` for a list of another form than those of the gateway's bridges, or for a bridge that the kernel cannot have.
    fn driver_of(&self, list: &cni::NetworkList) -> Result<Arc<BridgeDriver>> {
        if list.name == self.own.settings().name.as_str() {
            return Ok(Arc::clone(&self.own));
        }
        let settings = self.policy.settings(list)?;
        let mut others = self.others.lock();
        if let Some(driver) = others.get(&list.name)
            && *driver.settings() == settings
        {
            return Ok(Arc::clone(driver));
        }
        let driver = BridgeDriver::new(settings, Arc::clone(&self.tables)).map_err(from_network)?;
        // The own one may have addresses that the operator has given it.
        let driver = Arc::new(driver.without_former_addresses());
        others.insert(list.name.clone(), Arc::clone(&driver));
        Ok(driver)
    }

    /// Looks whether the node would lose what routers tell it with the bridge that a configuration list describes. Asks the kernel
    /// alone.
    ///
    /// # Errors
    /// `Unavailable` if it would; those of [`NativeBridges::request`].
    pub(super) fn keep_routers(&self, list: &cni::NetworkList) -> Result<()> {
        self.driver_of(list)?.keep_routers().map_err(from_network)
    }

    /// Returns what is to be made for a sandbox on the bridge that a configuration list describes.
    ///
    /// # Errors
    /// `InvalidArgument` for values that the kernel refuses.
    pub(super) async fn request(
        &self,
        list: &cni::NetworkList,
        id: SandboxId,
        network: &PodNetwork,
        dirs: &SandboxDirs,
        wanted: &[IpAddr],
    ) -> Result<NativeRequest> {
        let PodNetwork {
            link: _,
            mac,
            ports,
            bandwidth,
            args,
            // Those are of plugins.
            capabilities: _,
        } = network;
        let driver = self.driver_of(list)?;
        let request = AttachRequest {
            holder: holder(id)?,
            netns: dirs.pin(Ns::Net),
            mac: mac.map(mapping::hardware_address).transpose()?,
            addresses: mapping::wanted_addresses(wanted, args)?,
            ports: mapping::published_ports(ports, &families_of(&driver)),
            limits: mapping::limits(*bandwidth),
            is_pinned: self.pins(dirs).await?,
        };
        Ok(NativeRequest {
            driver,
            request: Arc::new(request),
            dirs: dirs.clone(),
        })
    }

    /// Saves in a new journal that a sandbox will be attached by this driver as requested. `list` are the plugins by which versions undo that
    /// which do not know the driver.
    ///
    /// # Errors
    /// Those of [`cni::save_for_driver`].
    pub(super) async fn save(
        journal: &Path,
        list: &cni::NetworkList,
        attachment: &cni::Attachment,
        asked: &NativeRequest,
    ) -> Result<()> {
        let driver = cni::Driver {
            name: NATIVE,
            is_pinned: asked.request.is_pinned,
        };
        cni::save_for_driver(journal, list, attachment, driver)
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
        asked: &NativeRequest,
        version: cni::SpecVersion,
        journal: &Path,
    ) -> Result<Vec<IpAddr>> {
        let NativeRequest {
            driver, request, ..
        } = asked.clone();
        let attach = move |tables: &BridgeTables| {
            let is_new = !tables.knows(&driver);
            let was_behind = tables.is_behind();
            let attached = driver.attach(&request);
            (is_new, !was_behind && tables.is_behind(), attached)
        };
        let (is_new, fell_behind, attached) = self.call(attach).await?;
        self.past_flows.notify_one();
        if fell_behind {
            self.fell_behind.notify_one();
        }
        if is_new {
            self.bridges_changed.notify_one();
        }
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                if error.is_undone() {
                    remove_journal(journal).await;
                }
                return Err(from_network(error));
            }
        };
        let NativeRequest {
            driver,
            request,
            dirs,
        } = asked;
        if request.is_pinned {
            let sandbox = AttachedSandbox {
                driver: Arc::clone(driver),
                holder: request.holder.clone(),
                dirs: dirs.clone(),
            };
            // The journal stays after an error: the attachment is not undone.
            let noted = blocking(move || pins::noted(vec![sandbox])).await?;
            self.unpin_noted(noted).await?;
        }
        let settings = driver.settings();
        let result = mapping::cni_result(version.as_str(), settings, &request.netns, &attached);
        cni::save_result(journal, &result).await.map_err(from_cni)?;
        Ok(attached.addresses.iter().map(|one| one.address).collect())
    }

    /// Undoes the attachment of a sandbox, and removes its journal. Idempotent.
    ///
    /// # Errors
    /// `Internal` with the kernel's text; the journal stays then.
    pub(super) async fn detach(&self, attached: NativeAttachment, journal: &Path) -> Result<()> {
        let NativeAttachment {
            id: _,
            driver,
            attachment,
        } = attached;
        let detached = self.call(move |_| driver.detach(&attachment)).await?;
        self.past_flows.notify_one();
        detached.map_err(from_network)?;
        remove_journal(journal).await;
        Ok(())
    }

    /// Returns the attachment by this driver in the journal of a sandbox; `None` if it is of plugins, or of another driver. A result
    /// that cannot be understood is as one that was not written: the addresses are found by their holder.
    ///
    /// # Errors
    /// `Internal` for an id that no attachment has, and for a network that is none of the gateway's bridges.
    pub(super) fn attachment(
        &self,
        id: SandboxId,
        saved: &cni::Saved,
        journal: &Path,
    ) -> Result<Option<NativeAttachment>> {
        if saved.driver() != Some(NATIVE) {
            return Ok(None);
        }
        let result = saved.result(journal).unwrap_or_else(|error| {
            tracing::warn!(sandbox = %id, error = report(&error), "a result in a network journal is damaged: detaching without it");
            None
        });
        let list = saved.list(journal).map_err(from_cni)?;
        self.described(id, saved, &list, result.as_ref()).map(Some)
    }

    fn described(
        &self,
        id: SandboxId,
        saved: &cni::Saved,
        list: &cni::NetworkList,
        result: Option<&cni::CniResult>,
    ) -> Result<NativeAttachment> {
        let driver = self.driver_of(list)?;
        let addresses = result.map(|result| result.pod_ips(INTERFACE));
        let families = addresses.clone().unwrap_or_else(|| families_of(&driver));
        let pinned = result.filter(|_| saved.is_pinned());
        let attachment = driver::Attachment {
            holder: holder(id)?,
            ports: mapping::published_ports(&mappings(saved), &families),
            addresses,
            pin: pinned.and_then(pins::mac_of),
        };
        Ok(NativeAttachment {
            id,
            driver,
            attachment,
        })
    }

    /// Runs a call about the bridges on a thread. Cancel-safe: one that has begun is completed.
    ///
    /// # Errors
    /// `Unavailable` if no thread becomes free.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&BridgeTables) -> T + Send + 'static,
    ) -> Result<T> {
        let thread = timeout(THREAD_LIMIT, Arc::clone(&self.threads).acquire_owned());
        let Ok(thread) = thread.await else {
            return Err(Error::unavailable(format!(
                "network {}: {THREADS} calls about the gateway's bridges have not ended within {THREAD_LIMIT:?}: look whether the disk with network.bridge.addresses_dir hangs, or the kernel's work on network devices, and try again",
                self.own.settings().name
            )));
        };
        let thread = thread.map_err(|closed| {
            Error::internal("wait for a thread for the gateway's bridges").with_source(closed)
        })?;
        let tables = Arc::clone(&self.tables);
        blocking(move || {
            let _until_it_returns = thread;
            Ok(work(&tables))
        })
        .await
    }
}

/// An address of each range of a bridge: sandboxes have the families of these.
fn families_of(driver: &BridgeDriver) -> Vec<IpAddr> {
    let subnets = driver.settings().subnets.iter();
    subnets.map(|one| one.subnet.first()).collect()
}

/// Returns the holder of the addresses of a sandbox.
fn holder(id: SandboxId) -> Result<Holder> {
    Holder::new(&id.to_string(), INTERFACE).map_err(from_network)
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
