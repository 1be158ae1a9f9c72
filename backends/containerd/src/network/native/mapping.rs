//! Requests to the drivers of the gateway's bridges, and their results, in the forms of the drivers and of CNI. Pure.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use switchyard_cni as cni;
use switchyard_core::id::Owner;
use switchyard_core::spec::{Bandwidth, MacAddress, PortMapping, Protocol, Subnet, not_forwarded};
use switchyard_core::{Error, Result};
use switchyard_linux::report;
use switchyard_network::addresses::RangeLimits;
use switchyard_network::driver::{
    Attached, BridgeSettings, BridgeSubnet, LimitBits, Limits, PublishedPort,
};
use switchyard_network::netlink::{LinkName, Mac};
use switchyard_network::nft::{BridgeName, Isolation, NftError, TableName, Transport};

use crate::base::config::{BridgeConfig, IsolationChoice};
use crate::network::cluster_bridge_names::is_interface_name;
use crate::network::request::{INTERFACE, MAX_BURST_BITS};

/// The argument of CNI by which a client asks for an address.
const IP_ARGUMENT: &str = "IP";

/// Digits of the hash in the name of a table.
const DIGITS: usize = 8;

/// The plugin `bridge` in the configuration list of a bridge of the gateway; the other plugins of the list are the same for all.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BridgePlugin {
    #[serde(rename = "type")]
    kind: String,
    bridge: String,
    is_gateway: bool,
    ip_masq: bool,
    mtu: Option<u32>,
    ipam: HostLocal,
}

/// The configuration of its plugin `host-local`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HostLocal {
    data_dir: PathBuf,
    /// One set for each family, of one range.
    ranges: Vec<[PoolRange; 1]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolRange {
    subnet: String,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

/// Rules for who has which bridge, and for what other machines reach.
#[derive(Debug)]
pub(super) struct BridgePolicy {
    /// The name of the gateway's own bridge.
    pub(super) own: String,
    /// The name of the bridge of pods.
    pub(super) pods: String,
    /// `network.direct_routing`.
    pub(super) direct_routing: bool,
}

impl BridgePolicy {
    /// The bridge that a configuration list of the gateway describes, with its owner. Pods are reached from other nodes by the routes to their
    /// `podCIDR`. The own bridge has several owners, so that it is one of its own; so is one that nothing describes any more, as that of pods
    /// after it got another name.
    ///
    /// # Errors
    /// Those of [`bridge_settings`].
    pub(super) fn settings(&self, list: &cni::NetworkList) -> Result<BridgeSettings> {
        let (owner, is_open) = match &list.name {
            name if *name == self.own => ("", false),
            name if *name == self.pods => (Owner::Kubernetes.as_str(), true),
            name if is_interface_name(name) => (Owner::Swarm.as_str(), false),
            name => (name.as_str(), false),
        };
        Ok(BridgeSettings {
            owner: owner.to_owned(),
            direct_routing: is_open || self.direct_routing,
            ..bridge_settings(list)?
        })
    }
}

/// The bridge that a configuration list of the gateway describes, without its owner.
///
/// # Errors
/// `InvalidArgument` for a list of another form.
fn bridge_settings(list: &cni::NetworkList) -> Result<BridgeSettings> {
    let name = &list.name;
    let unfit = |why: String| Error::invalid(format!("network {name}"), why);
    let first = list.plugins.first().cloned().unwrap_or_default();
    let BridgePlugin {
        kind,
        bridge,
        is_gateway,
        ip_masq,
        mtu,
        ipam,
    } = serde_json::from_value(first.into()).map_err(|fault| {
        unfit(format!(
            "its first plugin makes no bridge of the gateway: {fault}"
        ))
    })?;
    if kind != "bridge" || bridge != *name {
        let why = format!(
            "its first plugin is {kind:?} with the bridge {bridge:?}, not the bridge {name:?}"
        );
        return Err(unfit(why));
    }
    let subnet = |[range]: [PoolRange; 1]| -> Result<BridgeSubnet> {
        Ok(BridgeSubnet {
            subnet: range.subnet.parse::<Subnet>()?,
            limits: RangeLimits {
                first: range.range_start,
                last: range.range_end,
                gateway: range.gateway,
            },
        })
    };
    Ok(BridgeSettings {
        name: LinkName::new(name).map_err(|error| unfit(report(&error)))?,
        subnets: ipam.ranges.into_iter().map(subnet).collect::<Result<_>>()?,
        is_gateway,
        has_masquerade: ip_masq,
        mtu,
        addresses_dir: ipam.data_dir,
        owner: String::new(),
        direct_routing: true,
    })
}

/// The name of the tables of a gateway, after its own bridge. Names with other characters than those that a table's name has get a hash behind them, so that
/// bridges whose names differ have tables of their own.
///
/// # Errors
/// [`NftError::TableName`] for a name that no device has.
pub(super) fn table_of(bridge: &str) -> Result<TableName, NftError> {
    if bridge == BridgeConfig::default().name {
        return Ok(TableName::default());
    }
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut name: String = bridge
        .chars()
        .map(|c| if is_allowed(c) { c } else { '_' })
        .collect();
    if name != bridge {
        let digits = hex::encode(Sha256::digest(bridge));
        name = format!("{name}_{}", &digits[..DIGITS]);
    }
    TableName::of_instance(&name)
}

/// Maps the choice of the bridges that reach each other to that of the drivers.
pub(super) const fn isolation(choice: IsolationChoice) -> Isolation {
    match choice {
        IsolationChoice::None => Isolation::None,
        IsolationChoice::Bridge => Isolation::Bridge,
        IsolationChoice::Owner => Isolation::Owner,
    }
}

/// The pairs of bridges that reach each other all the same.
///
/// # Errors
/// [`NftError::BridgeName`] for a name that no bridge has.
pub(super) fn allowed_pairs(
    pairs: &[(String, String)],
) -> Result<Vec<(BridgeName, BridgeName)>, NftError> {
    let names = |(a, b): &(String, String)| -> Result<_, NftError> {
        Ok((BridgeName::new(a)?, BridgeName::new(b)?))
    };
    pairs.iter().map(names).collect()
}

/// The addresses that a sandbox is to get: those that it had before, and that which its client asks for by an argument of CNI. None
/// leaves the choice to the driver.
///
/// # Errors
/// `InvalidArgument` for an argument that is no address.
pub(super) fn wanted_addresses(
    wanted: &[IpAddr],
    args: &[(String, String)],
) -> Result<Vec<IpAddr>> {
    let mut all = wanted.to_vec();
    for (_, text) in args.iter().filter(|(key, _)| key == IP_ARGUMENT) {
        // As the plugin host-local takes it: also with a prefix length.
        let address = text.split('/').next().unwrap_or_default();
        let address: IpAddr = address
            .parse()
            .map_err(|_| Error::invalid(IP_ARGUMENT, format!("{text:?} is no address")))?;
        if !all.contains(&address) {
            all.push(address);
        }
    }
    Ok(all)
}

/// A hardware address as the driver takes it.
///
/// # Errors
/// `InvalidArgument` for one that no device can have.
pub(super) fn hardware_address(mac: MacAddress) -> Result<Mac> {
    let parsed = mac.to_string().parse::<Mac>();
    parsed.map_err(|error| Error::invalid("mac_address", report(&error)))
}

/// The ports that the driver publishes for a sandbox whose addresses have the families of these. As with plugins, those that cannot be
/// forwarded are left out.
pub(super) fn published_ports(ports: &[PortMapping], ips: &[IpAddr]) -> Vec<PublishedPort> {
    let is_forwarded =
        |port: &&PortMapping| not_forwarded(std::slice::from_ref(*port), ips).is_none();
    ports
        .iter()
        .filter(is_forwarded)
        .map(published_port)
        .collect()
}

fn published_port(port: &PortMapping) -> PublishedPort {
    let PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip,
    } = port;
    PublishedPort {
        protocol: match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => Transport::Sctp,
        },
        // Packets have it in the form of its family.
        at: host_ip.map(|ip| ip.to_canonical()),
        port: *host_port,
        to_port: *container_port,
    }
}

/// Limits of bandwidth, with the burst that plugins are given.
pub(super) fn limits(bandwidth: Option<Bandwidth>) -> Limits {
    let limit = |rate: Option<u64>| {
        rate.filter(|rate| *rate > 0)
            .map(|bits_per_second| LimitBits {
                bits_per_second,
                burst_bits: MAX_BURST_BITS,
            })
    };
    Limits {
        into: limit(bandwidth.and_then(|bandwidth| bandwidth.ingress_bits)),
        out: limit(bandwidth.and_then(|bandwidth| bandwidth.egress_bits)),
    }
}

/// The result of an attachment to this bridge as the plugins of the network would return it, in their version.
pub(super) fn cni_result(
    version: &str,
    bridge: &BridgeSettings,
    netns: &Path,
    attached: &Attached,
) -> Value {
    let Attached {
        host_link,
        host_mac,
        bridge_mac,
        mac,
        addresses,
    } = attached;
    let interfaces = json!([
        { "name": bridge.name.as_str(), "mac": bridge_mac.to_string() },
        { "name": host_link.as_str(), "mac": host_mac.to_string() },
        { "name": INTERFACE, "mac": mac.to_string(), "sandbox": netns.display().to_string() },
    ]);
    let ips: Vec<Value> = addresses
        .iter()
        .map(|one| {
            json!({
                "address": format!("{}/{}", one.address, one.prefix),
                "gateway": one.gateway,
                "interface": 2,
            })
        })
        .collect();
    let routes: Vec<Value> = addresses
        .iter()
        .filter(|_| bridge.is_gateway)
        .map(|one| {
            let all = if one.address.is_ipv6() {
                "::/0"
            } else {
                "0.0.0.0/0"
            };
            json!({ "dst": all })
        })
        .collect();
    json!({
        "cniVersion": version,
        "interfaces": interfaces,
        "ips": ips,
        "routes": routes,
        "dns": {},
    })
}

#[cfg(test)]
mod tests;
