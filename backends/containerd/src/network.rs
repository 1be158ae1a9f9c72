//! Attaches sandboxes to networks through CNI.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value};
use switchyard_cni::{self as cni, Attachment, Capabilities};
use switchyard_core::backend::OccupiedPort;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::{
    Bandwidth, CgroupPlacement, Dns, HOST_PORTS_MAX, HostPort, HostPorts, ID_PLACEHOLDER, Link,
    NetworkName, PodNetwork, PortMapping, Protocol, SandboxSpec, Subnet, not_forwarded,
};
use switchyard_core::trace::{Span, traced};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::process::ProcessId;
use switchyard_namespaces::{self as namespaces, Ns};

use crate::base::error::{from_cni, from_namespaces};
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;
use crate::context::Context;

pub(crate) mod bridge;
pub(crate) mod cluster_bridges;
mod forwarding;
pub(crate) mod kept_ports;
pub(crate) mod listeners;
pub(crate) mod node_networks;
pub(crate) mod plugin_runs;
mod predecessor_plugins;
pub(crate) mod ranges;
mod routes;

use bridge::BridgeNetwork;
use cluster_bridges::ClusterBridges;
use forwarding::port_mapping;
use kept_ports::KeptPorts;
use node_networks::NodeNetworks;
use ranges::Ranges;

/// The name of a sandbox's interface.
const INTERFACE: &str = "eth0";
/// The burst of a rate limit, in bits: the largest that the kernel takes.
const MAX_BURST_BITS: u64 = u32::MAX as u64;

/// An attachment that is saved in the sandbox's CNI journal and not made yet.
pub(crate) struct PlannedAttachment {
    network: cni::Network,
    attachment: Attachment,
    owner: Owner,
    /// The host ports that plugins are to forward.
    ports: Vec<PortMapping>,
}

/// The networks that sandboxes are attached to.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    /// The node's own networks.
    pub(crate) of_node: NodeNetworks,
    pub(crate) plugins: cni::Plugins,
    /// The gateway's own bridge network.
    pub(crate) bridge: BridgeNetwork,
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
        let list = match &network.link {
            Link::Node => self.of_node.default_network().await?,
            Link::Bridge => self.bridge.ready()?,
            Link::Named(name) => self.named(name, network).await?,
            Link::ClusterBridge(asked) => self.cluster_bridges.acquire(id, asked).await?,
        };
        let ports = network.ports.clone();
        let mut attachment = attachment(id, network, dirs, wanted);
        add_capabilities(
            &mut attachment.capabilities,
            spec,
            &self.ranges.of(spec.meta.owner),
        );
        let network = cni::Network::new(list, self.plugins.clone());
        // Saved before ADD begins: a daemon that is killed during it finds here what DEL needs.
        network
            .save(&dirs.cni_journal(), &attachment)
            .await
            .map_err(from_cni)?;
        Ok(PlannedAttachment {
            network,
            attachment,
            owner: spec.meta.owner,
            ports,
        })
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

    /// Attaches a sandbox's own network namespace as planned and returns its addresses.
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
    ) -> Result<Vec<IpAddr>> {
        let PlannedAttachment {
            network,
            attachment,
            owner,
            ports,
        } = planned;
        // Before they are translated, so that no program gets in between.
        self.keep_ports(id, *owner, ports.iter().map(HostPort::of).collect())
            .await;
        let list = network.list();
        let journal = dirs.cni_journal();
        let added = async {
            network
                .add_saved(&journal, attachment)
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
        let result = traced("cni_add", describe, added).await.map_err(|error| {
            // CNI has no error code for an address in use, so a plugin that fails with wanted addresses
            // counts as that.
            let refused = !wanted.is_empty() && error.kind() == ErrorKind::Internal;
            if refused {
                address_unavailable(wanted).with_source(error)
            } else {
                error
            }
        })?;
        let ips = result.pod_ips(INTERFACE);
        if ips.is_empty() {
            let name = &network.list().name;
            return Err(Error::internal(format!(
                "the network {name:?} gave sandbox {id} no address"
            )));
        }
        // A plugin that does not support requested addresses chooses others, and succeeds.
        if wanted.iter().any(|ip| !ips.contains(ip)) {
            let why = format!("the network {:?} gives {ips:?}", network.list().name);
            return Err(address_unavailable(wanted).with_source(Error::internal(why)));
        }
        if let Some((port, why)) = not_forwarded(ports, &ips) {
            let text = format!("host port {port} cannot be forwarded: {why}");
            match owner {
                // As on containerd, whose plugins are the same. The gateway announces it.
                Owner::Kubernetes => {}
                Owner::Nomad | Owner::Swarm | Owner::Host => {
                    return Err(Error::failed_precondition(text));
                }
            }
        }
        Ok(ips)
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
        let netns = dirs.pins.join(Ns::Net.file_name());
        let there = namespaces::is_namespace_file(&netns).map_err(from_namespaces)?;
        // CNI allows a DEL without a namespace, which still frees addresses and rules of the host.
        let netns = there.then_some(netns);
        let journal = dirs.cni_journal();
        if let Some(netns) = &netns
            && let Err(error) = restore_removed_ipv6(&journal, netns).await
        {
            tracing::debug!(sandbox = %id, error = error.report(), "IPv6 that a sandbox has disabled cannot be enabled for the plugins");
        }
        let deleted = async {
            cni::del_saved(&journal, &self.plugins, netns.as_deref())
                .await
                .map_err(from_cni)
        };
        traced("cni_del", |_| (), deleted).await?;
        self.kept_ports.release(id);
        // Last: the bridge is deleted with its last holder, and DEL still works on it.
        self.cluster_bridges.release(id).await
    }
}

/// Gives the interface of a sandbox the IPv6 addresses again that the kernel removed when a kernel parameter of the sandbox
/// disabled IPv6: the plugin bridge finds the rules that it has to delete by the addresses that it sees. Cancel-safe.
async fn restore_removed_ipv6(journal: &Path, netns: &Path) -> Result<()> {
    let path = journal.to_owned();
    let given = blocking(move || {
        let saved = cni::Saved::read(&path).map_err(from_cni)?;
        let result = saved.map_or(Ok(None), |saved| saved.result(&path));
        Ok(result.map_err(from_cni)?.map_or_else(Vec::new, |result| {
            let ips = result.ips.iter();
            let nets = ips.map(|ip| (ip.address.ip, ip.address.prefix));
            nets.filter_map(|(ip, prefix)| match ip {
                IpAddr::V6(ip) => Some((ip, prefix)),
                IpAddr::V4(_) => None,
            })
            .collect()
        }))
    })
    .await?;
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

/// The attachment that is requested from CNI. The first wanted address is also passed as `IP` in `CNI_ARGS`,
/// for plugins that read it there, if `IgnoreUnknown` makes the others ignore it.
fn attachment(
    id: SandboxId,
    network: &PodNetwork,
    dirs: &SandboxDirs,
    wanted: &[IpAddr],
) -> Attachment {
    let PodNetwork {
        link: _,
        mac,
        ports,
        bandwidth,
        args,
        capabilities,
    } = network;
    let lenient = args
        .iter()
        .any(|(key, value)| key == "IgnoreUnknown" && matches!(value.as_str(), "1" | "true"));
    let id = id.to_string();
    let extra = capabilities
        .iter()
        .map(|(name, values)| {
            let values: Map<String, Value> = values
                .iter()
                .map(|(key, value)| (key.clone(), value.clone().into()))
                .collect();
            (name.clone(), Value::Object(values))
        })
        .collect();
    Attachment {
        container_id: id.clone(),
        netns: Some(dirs.pins.join(Ns::Net.file_name())),
        ifname: INTERFACE.to_owned(),
        args: args
            .iter()
            .map(|(key, value)| (key.clone(), value.replace(ID_PLACEHOLDER, &id)))
            .chain(
                wanted
                    .first()
                    .filter(|_| lenient)
                    .map(|ip| ("IP".to_owned(), ip.to_string())),
            )
            .collect(),
        capabilities: Capabilities {
            port_mappings: ports.iter().map(port_mapping).collect(),
            bandwidth: bandwidth.map(limits),
            ips: wanted.iter().map(ToString::to_string).collect(),
            mac: mac.map(|mac| mac.to_string()),
            extra,
            ..Capabilities::default()
        },
    }
}

/// Adds the values of well-known capabilities, which reach the plugins that declare them: the requested
/// resolver configuration and cgroup parent, and the owner's address ranges, one address from each.
fn add_capabilities(capabilities: &mut Capabilities, spec: &SandboxSpec, ranges: &[Subnet]) {
    capabilities.dns = spec.dns.as_ref().map(
        |Dns {
             servers,
             searches,
             options,
             host_defaults: _,
         }| {
            cni::Dns {
                servers: servers.clone(),
                searches: searches.clone(),
                options: options.clone(),
            }
        },
    );
    let (CgroupPlacement::Parent(group) | CgroupPlacement::Leaf { path: group, .. }) = &spec.cgroup;
    capabilities.cgroup_path = Some(group.display().to_string()).filter(|path| !path.is_empty());
    let pool = |range: &Subnet| {
        vec![cni::IpRange {
            subnet: range.to_string(),
            ..cni::IpRange::default()
        }]
    };
    capabilities.ip_ranges = ranges.iter().map(pool).collect();
}

/// The host ports that a journal maps; entries that cannot be parsed are skipped. None without a journal.
/// Blocks on the file system.
///
/// # Errors
/// Those of [`cni::Saved::read`].
pub(crate) fn ports_of_journal(path: &Path) -> Result<HostPorts> {
    let Some(saved) = cni::Saved::read(path).map_err(from_cni)? else {
        return Ok(HostPorts::default());
    };
    let attachment = saved.attachment();
    let mappings = attachment
        .capabilities
        .extra
        .get("portMappings")
        .and_then(Value::as_array);
    let port = |mapping: &Value| {
        let port = mapping
            .get("hostPort")?
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())?;
        let protocol = mapping
            .get("protocol")
            .and_then(Value::as_str)
            .map(str::to_ascii_lowercase);
        let protocol = Protocol::parse(protocol.as_deref().unwrap_or("tcp"))?;
        let ip = mapping
            .get("hostIP")
            .and_then(Value::as_str)
            .and_then(|ip| ip.parse().ok());
        (port != 0).then_some(HostPort { protocol, port, ip })
    };
    let ports = mappings
        .into_iter()
        .flatten()
        .filter_map(port)
        .take(HOST_PORTS_MAX)
        .collect();
    // The journal does not have the group: the ports are shared with no other sandbox.
    Ok(HostPorts {
        group: String::new(),
        ports,
    })
}

fn limits(bandwidth: Bandwidth) -> cni::Bandwidth {
    let Bandwidth {
        ingress_bits,
        egress_bits,
    } = bandwidth;
    let burst = |rate: Option<u64>| rate.map_or(0, |_| MAX_BURST_BITS);
    cni::Bandwidth {
        ingress_rate: ingress_bits.unwrap_or(0),
        ingress_burst: burst(ingress_bits),
        egress_rate: egress_bits.unwrap_or(0),
        egress_burst: burst(egress_bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_an_older_record_are_those_that_its_journal_maps() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("cni.json");
        assert_eq!(
            ports_of_journal(&path).expect("there is none"),
            HostPorts::default()
        );
        let mappings = serde_json::json!([
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.9" },
            { "hostPort": 70_000, "protocol": "tcp" },
            { "hostPort": 0, "protocol": "tcp" },
            { "hostPort": 1, "protocol": "quic" },
            "no mapping",
        ]);
        let journal = serde_json::json!({
            "version": 2,
            "network": { "name": "net", "cniVersion": "1.0.0", "plugins": [{ "type": "bridge" }] },
            "attachment": {
                "containerId": "x", "netns": null, "ifname": "eth0", "args": [],
                "capabilities": { "portMappings": mappings },
            },
        });
        std::fs::write(&path, journal.to_string()).expect("it can be written");
        let found = ports_of_journal(&path).expect("it can be read");
        let port = |protocol, port, ip| HostPort { protocol, port, ip };
        let expected = [
            port(Protocol::Tcp, 8080, None),
            port(Protocol::Udp, 53, Some([127, 0, 0, 9].into())),
        ];
        assert_eq!(
            (found.group.as_str(), found.ports.as_slice()),
            ("", &expected[..])
        );
        std::fs::write(&path, "nonsense").expect("it can be written");
        assert!(ports_of_journal(&path).is_err());
    }
}
