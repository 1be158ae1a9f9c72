//! Attaches sandboxes to networks: through CNI, or to the gateway's bridges by the daemon itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_cni::{self as cni, Attachment};
use switchyard_core::backend::OccupiedPort;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::{
    HostPort, Link, NetworkName, PodNetwork, PortMapping, SandboxSpec, not_forwarded,
};
use switchyard_core::trace::{Span, traced};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::process::ProcessId;
use switchyard_namespaces::{self as namespaces, Ns};
use tokio::sync::RwLock;

use crate::base::error::{from_cni, from_namespaces};
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;
use crate::context::Context;

mod behind;
pub(crate) mod bridge;
mod cluster_bridge_names;
pub(crate) mod cluster_bridges;
mod forwarding;
mod garbage;
mod journal;
pub(crate) mod kept_ports;
pub(crate) mod listeners;
pub(crate) mod native;
pub(crate) mod node_networks;
pub(crate) mod own_ipv6;
pub(crate) mod plugin_runs;
pub(crate) mod pod_bridge;
mod predecessor_plugins;
pub(crate) mod ranges;
mod request;
mod routes;

pub(crate) use journal::{may_be_of_network, ports_of_journal};

use bridge::BridgeNetwork;
use cluster_bridges::ClusterBridges;
use kept_ports::KeptPorts;
use native::{NativeBridges, NativeRequest};
use node_networks::NodeNetworks;
use ranges::Ranges;
use request::{INTERFACE, add_capabilities, attachment};

/// An attachment that is saved in the sandbox's journal and not made yet.
pub(crate) struct PlannedAttachment {
    list: Arc<cni::NetworkList>,
    by: AttachedBy,
    attachment: Box<Attachment>,
    owner: Owner,
    /// The host ports that are to be forwarded.
    ports: Vec<PortMapping>,
}

impl PlannedAttachment {
    /// The name of the network.
    pub(crate) fn network(&self) -> &str {
        &self.list.name
    }
}

/// Party that makes an attachment.
enum AttachedBy {
    /// The plugins of the network, which may be a bridge of the gateway.
    Plugins { is_of_bridge: bool },
    /// The daemon itself, on a bridge of the gateway.
    Daemon(NativeRequest),
}

// === impl AttachedBy ===

impl AttachedBy {
    /// The kind of error that says of an attachment that asks for addresses that they are not to be had. CNI has no error code for an
    /// address in use, so a plugin that fails counts as that.
    const fn refusal(&self) -> ErrorKind {
        match self {
            Self::Plugins { is_of_bridge: _ } => ErrorKind::Internal,
            Self::Daemon(_) => ErrorKind::FailedPrecondition,
        }
    }

    /// Returns whether an attachment may have failed for want of an address.
    fn may_lack_address(&self, error: &Error) -> bool {
        error.kind() == self.refusal() || error.kind() == ErrorKind::ResourceExhausted
    }
}

/// The networks that sandboxes are attached to.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    /// The node's own networks, and the bridge of pods.
    pub(crate) of_node: NodeNetworks,
    pub(crate) plugins: cni::Plugins,
    /// Shared by the runs of plugins for attachments; GC has it alone.
    pub(crate) plugin_turn: RwLock<()>,
    /// The gateway's own bridge network.
    pub(crate) bridge: BridgeNetwork,
    /// The bridges to which the daemon attaches sandboxes itself.
    pub(crate) native: Arc<NativeBridges>,
    /// The bridges of networks that clusters define.
    pub(crate) cluster_bridges: Arc<ClusterBridges>,
    pub(crate) ranges: Arc<Ranges>,
    /// The sockets that keep published ports.
    pub(crate) kept_ports: Arc<KeptPorts>,
    /// CNI plugin processes that a predecessor started, by sandbox.
    pub(crate) predecessor_plugins: Mutex<HashMap<SandboxId, Vec<ProcessId>>>,
}

impl Network {
    fn predecessor_plugins(&self) -> MutexGuard<'_, HashMap<SandboxId, Vec<ProcessId>>> {
        self.predecessor_plugins.lock()
    }

    /// Saves in the journal how a sandbox will be attached, so that the attachment can be undone from it at
    /// any point.
    pub(crate) async fn plan_attachment(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        network: &PodNetwork,
        dirs: &SandboxDirs,
        wanted: &[IpAddr],
    ) -> Result<PlannedAttachment> {
        let owner = spec.meta.owner;
        let (list, is_of_bridge, is_native) = match &network.link {
            Link::Node => {
                let list = self.of_node.default_network().await?;
                let is_of_bridge = self.of_node.pods().is_some();
                let is_native = is_of_bridge && self.is_native(&list.name)?;
                (list, is_of_bridge, is_native)
            }
            Link::Named(name) => (self.named(name, network).await?, false, false),
            Link::Bridge => {
                let is_native = self.is_native(&self.bridge.list().name)?;
                (self.bridge.list_if_free().await?, true, is_native)
            }
            Link::ClusterBridge(asked) => {
                let is_native = self.is_native(&asked.name)?;
                let list = self.cluster_bridges.acquire(id, asked).await?;
                (list, true, is_native)
            }
        };
        let mut attachment = attachment(id, network, dirs, wanted);
        add_capabilities(&mut attachment.capabilities, spec, &self.ranges.of(owner));
        let by = if is_native {
            let request = self.native.request(&list, id, network, dirs, wanted);
            let request = request.await?;
            // Known before, so that there is nothing to undo.
            check_forwarded(owner, &network.ports, &request.families())?;
            AttachedBy::Daemon(request)
        } else {
            AttachedBy::Plugins { is_of_bridge }
        };
        let planned = PlannedAttachment {
            list,
            by,
            attachment: Box::new(attachment),
            owner,
            ports: network.ports.clone(),
        };
        self.save(&planned, &dirs.cni_journal()).await?;
        Ok(planned)
    }

    /// Saves a planned attachment in a new journal, before anything is made: a daemon that is killed meanwhile finds there what is to be
    /// undone, and by whom.
    async fn save(&self, planned: &PlannedAttachment, journal: &Path) -> Result<()> {
        let PlannedAttachment {
            list,
            by,
            attachment,
            owner: _,
            ports: _,
        } = planned;
        match by {
            AttachedBy::Plugins { is_of_bridge: _ } => {
                let network = cni::Network::new(Arc::clone(list), self.plugins.clone());
                let saved = network.save(journal, attachment).await;
                saved.map_err(from_cni)
            }
            AttachedBy::Daemon(request) => {
                NativeBridges::save(journal, list, attachment, request).await
            }
        }
    }

    /// Returns whether the daemon attaches a sandbox to a bridge of the gateway itself. Else plugins do, for which the programs are there.
    ///
    /// # Errors
    /// `Unavailable`, naming the network, if plugins would lack a program.
    fn is_native(&self, network: &str) -> Result<bool> {
        let is_native = self.native.is_chosen();
        if !is_native {
            self.native.check_programs(network)?;
        }
        Ok(is_native)
    }

    /// The node's network with this name, for a sandbox with these settings.
    async fn named(
        &self,
        name: &NetworkName,
        settings: &PodNetwork,
    ) -> Result<Arc<cni::NetworkList>> {
        let name = name.as_str();
        let list = self.of_node.named(name).await?;
        if !settings.ports.is_empty() && !list.has_capability("portMappings") {
            let why = "no plugin of it has the capability portMappings, so that no port of the node can lead into it";
            return Err(Error::failed_precondition(format!(
                "the CNI network {name:?}: {why}"
            )));
        }
        Ok(list)
    }

    /// Attaches a sandbox's own network namespace as planned and returns its addresses. What fails for want of an address is tried once
    /// more if `ended` says, after a wait for them, that there were others to give theirs back.
    ///
    /// # Errors
    /// `FailedPrecondition` if the network does not give all addresses in `wanted`, or if a host port of another client than
    /// a kubelet does not lead to one.
    pub(crate) async fn attach(
        &self,
        id: SandboxId,
        planned: &PlannedAttachment,
        dirs: &SandboxDirs,
        wanted: &[IpAddr],
        ended: impl Future<Output = bool>,
    ) -> Result<Vec<IpAddr>> {
        let PlannedAttachment {
            list,
            by,
            attachment: _,
            owner,
            ports,
        } = planned;
        // Before they are translated, so that no program gets in between.
        self.keep_ports(id, *owner, ports.iter().map(HostPort::of).collect())
            .await;
        let journal = dirs.cni_journal();
        let mut made = self.attach_once(planned, &journal).await;
        if made.as_ref().is_err_and(|error| by.may_lack_address(error))
            && ended.await
            // Not if a part of the first try is left, which has its journal still.
            && self
                .save(planned, &journal)
                .await
                .inspect_err(|fault| {
                    tracing::debug!(sandbox = %id, error = fault.report(), "an attachment that failed is not tried again");
                })
                .is_ok()
        {
            made = self.attach_once(planned, &journal).await;
        }
        let ips = made.map_err(|error| {
            if !wanted.is_empty() && error.kind() == by.refusal() {
                address_unavailable(wanted).with_source(error)
            } else {
                error
            }
        })?;
        let name = &list.name;
        if ips.is_empty() {
            return Err(Error::internal(format!(
                "the network {name:?} gave sandbox {id} no address"
            )));
        }
        // A plugin that does not support requested addresses chooses others, and succeeds.
        if wanted.iter().any(|ip| !ips.contains(ip)) {
            let why = format!("the network {name:?} gives {ips:?}");
            return Err(address_unavailable(wanted).with_source(Error::internal(why)));
        }
        check_forwarded(*owner, ports, &ips)?;
        Ok(ips)
    }

    /// Makes an attachment that is saved in the journal, and returns the sandbox's addresses.
    async fn attach_once(
        &self,
        planned: &PlannedAttachment,
        journal: &Path,
    ) -> Result<Vec<IpAddr>> {
        let list = &planned.list;
        match &planned.by {
            AttachedBy::Plugins { is_of_bridge } => {
                let made = self.attach_by_plugins(list, &planned.attachment, journal);
                made.await.map_err(|error| {
                    if *is_of_bridge {
                        self.native.explain(&list.name, error)
                    } else {
                        error
                    }
                })
            }
            AttachedBy::Daemon(request) => {
                let attached = self.native.attach(request, list.cni_version, journal);
                let describe =
                    |span: &mut Span| span.set_with("switchyard.network", || list.name.clone());
                traced("bridge_attach", describe, attached).await
            }
        }
    }

    /// Runs ADD of the plugins of a network, and returns the sandbox's addresses.
    async fn attach_by_plugins(
        &self,
        list: &Arc<cni::NetworkList>,
        attachment: &Attachment,
        journal: &Path,
    ) -> Result<Vec<IpAddr>> {
        let network = cni::Network::new(Arc::clone(list), self.plugins.clone());
        let added = async {
            let _not_beside_gc = self.plugin_turn.read().await;
            network
                .add_saved(journal, attachment)
                .await
                .map_err(from_cni)
        };
        let describe = |span: &mut Span| {
            span.set_with("switchyard.network", || list.name.clone());
            span.set(
                "switchyard.plugins",
                i64::try_from(list.plugins.len()).unwrap_or(i64::MAX),
            );
        };
        let result = traced("cni_add", describe, added).await?;
        Ok(result.pod_ips(INTERFACE))
    }

    /// Keeps the ports that are forwarded to a sandbox of this owner from programs of the node, until it is detached.
    pub(crate) async fn keep_ports(&self, id: SandboxId, owner: Owner, ports: Vec<HostPort>) {
        if ports.is_empty() || !KeptPorts::are_kept_for(owner) {
            return;
        }
        let kept = Arc::clone(&self.kept_ports);
        // Without a thread nothing is kept, and all else works.
        let occupied = blocking(move || Ok(kept.keep(id, &ports)))
            .await
            .unwrap_or_default();
        // A connection of a client may have the port as well, which is no harm.
        let listener = listeners::find_listener(&occupied, &self.kept_ports).await;
        if let Ok(Some(OccupiedPort { port, .. })) = listener {
            tracing::warn!(sandbox = %id, %port, "a program of the node listens on a port that is forwarded to a sandbox: it gets no connections");
        }
    }

    /// Detaches a sandbox, if its journal says that it is attached or was being attached.
    pub(crate) async fn detach(&self, id: SandboxId, dirs: &SandboxDirs) -> Result<()> {
        // An ADD of a predecessor that still runs could attach the sandbox after the DEL.
        self.wait_predecessor_plugins(id).await?;
        let netns = dirs.pin(Ns::Net);
        let there = namespaces::is_namespace_file(&netns).map_err(from_namespaces)?;
        // CNI allows a DEL without a namespace, which still frees addresses and rules of the host.
        let netns = there.then_some(netns);
        let journal = dirs.cni_journal();
        let path = journal.clone();
        // Of one that is damaged, `del_saved` says what is to be done.
        let read = blocking(move || Ok(cni::Saved::read(&path))).await?;
        let saved = match read {
            Err(error) if !error.is_journal_lost() => return Err(from_cni(error)),
            read => read.ok().flatten(),
        };
        let native = saved.as_ref().map_or(Ok(None), |saved| {
            self.native.attachment(id, saved, &journal)
        })?;
        match native {
            Some(attached) => {
                let detached = self.native.detach(attached, &journal);
                traced("bridge_detach", |_| (), detached).await?;
            }
            None => {
                self.detach_by_plugins(id, saved.as_ref(), &journal, netns.as_deref())
                    .await?;
            }
        }
        self.kept_ports.release(id);
        // Last: the bridge is deleted with its last holder, and a detachment still works on it.
        self.cluster_bridges.release(id).await
    }

    /// Runs DEL of the plugins that have attached a sandbox.
    async fn detach_by_plugins(
        &self,
        id: SandboxId,
        saved: Option<&cni::Saved>,
        journal: &Path,
        netns: Option<&Path>,
    ) -> Result<()> {
        if let (Some(saved), Some(netns)) = (saved, netns)
            && let Err(error) = restore_removed_ipv6(saved, journal, netns).await
        {
            tracing::debug!(sandbox = %id, error = error.report(), "IPv6 that a sandbox has disabled cannot be enabled for the plugins");
        }
        let deleted = async {
            let _not_beside_gc = self.plugin_turn.read().await;
            cni::del_saved(journal, &self.plugins, netns)
                .await
                .map_err(from_cni)
        };
        traced("cni_del", |_| (), deleted).await
    }
}

/// Checks that each host port leads to a sandbox with these addresses, or with some of the same families.
///
/// # Errors
/// `FailedPrecondition` if one does not, for other clients than a kubelet.
fn check_forwarded(owner: Owner, ports: &[PortMapping], ips: &[IpAddr]) -> Result<()> {
    let Some((port, why)) = not_forwarded(ports, ips) else {
        return Ok(());
    };
    match owner {
        // As on containerd, whose plugins are the same. The gateway announces it.
        Owner::Kubernetes => Ok(()),
        Owner::Nomad | Owner::Swarm | Owner::Host => Err(Error::failed_precondition(format!(
            "host port {port} cannot be forwarded: {why}"
        ))),
    }
}

/// Gives the interface of a sandbox the IPv6 addresses again that the kernel removed when a kernel parameter of the sandbox
/// disabled IPv6: the plugin bridge finds the rules that it has to delete by the addresses that it sees. Cancel-safe.
async fn restore_removed_ipv6(saved: &cni::Saved, journal: &Path, netns: &Path) -> Result<()> {
    let result = saved.result(journal).map_err(from_cni)?;
    let ips = result.iter().flat_map(|result| &result.ips);
    let nets = ips.map(|ip| (ip.address.ip, ip.address.prefix));
    let given: Vec<_> = nets
        .filter_map(|(ip, prefix)| match ip {
            IpAddr::V6(ip) => Some((ip, prefix)),
            IpAddr::V4(_) => None,
        })
        .collect();
    if given.is_empty() {
        return Ok(());
    }
    let there = namespaces::tasks::addresses(netns.to_owned())
        .await
        .map_err(from_namespaces)?;
    let removed: Vec<_> = given
        .into_iter()
        .filter(|(ip, _)| !there.contains(&IpAddr::V6(*ip)))
        .collect();
    if removed.is_empty() {
        return Ok(());
    }
    namespaces::tasks::restore_ipv6(netns.to_owned(), INTERFACE, removed)
        .await
        .map_err(from_namespaces)
}

/// The error for a restarted sandbox whose previous addresses are not available.
fn address_unavailable(ips: &[IpAddr]) -> Error {
    let ips: Vec<_> = ips.iter().map(ToString::to_string).collect();
    Error::failed_precondition(format!(
        "its address {} is not available any more, for instance because another sandbox has it: make a new sandbox",
        ips.join(" and ")
    ))
}
