//! What is requested of the driver of the gateway's own bridge, and what it has made, in the forms of the driver and of CNI. Pure.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use switchyard_core::spec::{Bandwidth, MacAddress, PortMapping, Protocol, not_forwarded};
use switchyard_core::{Error, Result};
use switchyard_linux::report;
use switchyard_network::driver::{Attached, LimitBits, Limits, PublishedPort};
use switchyard_network::netlink::Mac;
use switchyard_network::nft::{BridgeName, Isolation, NftError, TableName, Transport};

use crate::base::config::{BridgeConfig, IsolationChoice};
use crate::network::request::{INTERFACE, MAX_BURST_BITS};

/// The argument of CNI by which a client asks for an address.
const IP_ARGUMENT: &str = "IP";

/// Digits of the hash in the name of a table.
const DIGITS: usize = 8;

/// The name of the tables of a bridge. Names with other characters than those that a table's name has get a hash behind them, so that
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

/// Which bridges reach each other.
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

/// The result of an attachment as the plugins of the network would return it, in their version.
pub(super) fn cni_result(version: &str, bridge: &str, netns: &Path, attached: &Attached) -> Value {
    let Attached {
        host_link,
        host_mac,
        bridge_mac,
        mac,
        addresses,
    } = attached;
    let interfaces = json!([
        { "name": bridge, "mac": bridge_mac.to_string() },
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
