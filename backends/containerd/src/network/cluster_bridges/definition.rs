//! The node's realisation of a cluster's bridge network: its bridge, its addresses, its configuration list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use switchyard_core::spec::{
    BridgeAddresses, ClusterBridge, Ipv6BridgeAddresses, NetworkName, Subnet,
};
use switchyard_core::{Error, Result};

use crate::network::bridge::{BridgeList, IPV6_MTU_MIN, conflist};

/// Pool of the networks without a subnet: 256 ranges of 254 addresses. Documented in `docs/swarm.md`.
const POOL: Ipv4Addr = Ipv4Addr::new(172, 29, 0, 0);
const POOL_PREFIX: u8 = 24;

/// A network as this node has made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    id: String,
    name: String,
    addresses: BridgeAddresses,
    /// True if this node has chosen the addresses of IPv4.
    is_chosen: bool,
    ipv6: Option<Ipv6BridgeAddresses>,
    is_internal: bool,
    has_masquerade: bool,
    mtu: Option<u16>,
}

/// The contents of its file. Fields that are not known are ignored.
#[derive(Serialize, Deserialize)]
struct DefinitionFile {
    id: String,
    name: String,
    subnet: String,
    range: Option<String>,
    gateway: Ipv4Addr,
    is_chosen: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv6: Option<Ipv6InFile>,
    is_internal: bool,
    has_masquerade: bool,
    mtu: Option<u16>,
}

/// The addresses of IPv6 in the file.
#[derive(Serialize, Deserialize)]
struct Ipv6InFile {
    subnet: String,
    gateway: Ipv6Addr,
}

impl Definition {
    /// Defines a network with the requested addresses, or with free ones. `conflict` returns the present user
    /// of addresses of a subnet. Pure.
    ///
    /// # Errors
    /// `FailedPrecondition` if the addresses are taken, or no free ones are left.
    pub(super) fn new(
        asked: &ClusterBridge,
        conflict: impl Fn(&Subnet) -> Option<String>,
    ) -> Result<Self> {
        let ClusterBridge {
            id,
            name,
            addresses,
            ipv6,
            is_internal,
            has_masquerade,
            mtu,
        } = asked;
        let fixed = addresses.iter().map(BridgeAddresses::subnet);
        let mut fixed = fixed.chain(ipv6.iter().map(Ipv6BridgeAddresses::subnet));
        if let Some((subnet, holder)) = fixed.find_map(|subnet| Some((subnet, conflict(subnet)?))) {
            return Err(Error::failed_precondition(format!(
                "network {name:?}: {subnet} is taken on this node: {holder}; create the network with another subnet"
            )));
        }
        let made = match addresses {
            Some(addresses) => *addresses,
            None => free_addresses(id, conflict).ok_or_else(|| {
                let pool = Subnet::of_v4(POOL, 16);
                Error::failed_precondition(format!(
                    "network {name:?}: the node has a route to every part of {pool}: create the network with a subnet"
                ))
            })?,
        };
        Ok(Self {
            id: id.as_str().to_owned(),
            name: name.clone(),
            addresses: made,
            is_chosen: addresses.is_none(),
            ipv6: *ipv6,
            is_internal: *is_internal,
            has_masquerade: *has_masquerade,
            mtu: *mtu,
        })
    }

    /// Parses a file; `None` if it is malformed.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let DefinitionFile {
            id,
            name,
            subnet,
            range,
            gateway,
            is_chosen,
            ipv6,
            is_internal,
            has_masquerade,
            mtu,
        } = serde_json::from_slice(text).ok()?;
        let range = range
            .map(|range| range.parse::<Subnet>())
            .transpose()
            .ok()?;
        let addresses =
            BridgeAddresses::new(subnet.parse().ok()?, range, Some(gateway.into())).ok()?;
        let ipv6 = match ipv6 {
            Some(Ipv6InFile { subnet, gateway }) => {
                let subnet = subnet.parse().ok()?;
                Some(Ipv6BridgeAddresses::new(subnet, Some(gateway.into())).ok()?)
            }
            None => None,
        };
        Some(Self {
            id,
            name,
            addresses,
            is_chosen,
            ipv6,
            is_internal,
            has_masquerade,
            mtu,
        })
    }

    pub(super) fn to_json(&self) -> String {
        let Self {
            id,
            name,
            addresses,
            is_chosen,
            ipv6,
            is_internal,
            has_masquerade,
            mtu,
        } = self;
        let file = DefinitionFile {
            id: id.clone(),
            name: name.clone(),
            subnet: addresses.subnet().to_string(),
            range: addresses.range().map(ToString::to_string),
            gateway: addresses.gateway(),
            is_chosen: *is_chosen,
            ipv6: ipv6.map(|ipv6| Ipv6InFile {
                subnet: ipv6.subnet().to_string(),
                gateway: ipv6.gateway(),
            }),
            is_internal: *is_internal,
            has_masquerade: *has_masquerade,
            mtu: *mtu,
        };
        format!("{:#}\n", json!(file))
    }

    /// Checks that another sandbox asks for this network.
    ///
    /// # Errors
    /// `FailedPrecondition` if it asks for another one, or for other addresses or options.
    pub(super) fn check_same(&self, asked: &ClusterBridge) -> Result<()> {
        // A network is not changed in its cluster.
        let ClusterBridge {
            id,
            name,
            addresses,
            ipv6,
            is_internal,
            has_masquerade,
            mtu,
        } = asked;
        let has_addresses = self.ipv6 == *ipv6
            && match addresses {
                None => self.is_chosen,
                Some(asked) => !self.is_chosen && self.addresses == *asked,
            };
        let has_options = (self.is_internal, self.has_masquerade, self.mtu)
            == (*is_internal, *has_masquerade, *mtu);
        if self.id == id.as_str() && has_addresses && has_options {
            return Ok(());
        }
        Err(Error::failed_precondition(format!(
            "network {name:?}: tasks of this node use its bridge with other properties (network {:?}, {}): end them first",
            self.name,
            self.addresses.subnet()
        )))
    }

    /// All its addresses, of each family.
    pub(super) fn subnets(&self) -> impl Iterator<Item = &Subnet> {
        let six = self.ipv6.iter().map(Ipv6BridgeAddresses::subnet);
        [self.addresses.subnet()].into_iter().chain(six)
    }

    /// Returns its name for people.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The configuration list for the plugins. An internal network has neither a gateway nor a way out. The default MTU, which may be that of a
    /// bridge without IPv6, is raised where this network has it; 0 is the kernel's.
    pub(super) fn conflist(
        &self,
        interface: &str,
        addresses_dir: &Path,
        default_mtu: u32,
    ) -> Value {
        let mut pool = json!({ "subnet": self.addresses.subnet().to_string() });
        if let Some([first, last]) = self.addresses.pool() {
            pool["rangeStart"] = json!(first);
            pool["rangeEnd"] = json!(last);
        }
        if !self.is_internal {
            pool["gateway"] = json!(self.addresses.gateway());
        }
        let mut ranges = vec![json!([pool])];
        let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
        if let Some(ipv6) = &self.ipv6 {
            let mut pool = json!({ "subnet": ipv6.subnet().to_string() });
            if !self.is_internal {
                pool["gateway"] = json!(ipv6.gateway());
            }
            ranges.push(json!([pool]));
            routes.push(json!({ "dst": "::/0" }));
        }
        if self.is_internal {
            routes.clear();
        }
        let default_mtu = match default_mtu {
            1.. if self.ipv6.is_some() => default_mtu.max(IPV6_MTU_MIN),
            of_any => of_any,
        };
        conflist(BridgeList {
            name: interface,
            is_gateway: !self.is_internal,
            has_masquerade: self.has_masquerade && !self.is_internal,
            mtu: self.mtu.map_or(default_mtu, u32::from),
            addresses_dir,
            ranges,
            routes,
        })
    }
}

/// Chooses free addresses of the pool. The search begins at a place derived from the id, so that nodes with
/// the same routes choose the same, and a node chooses again what it had before.
fn free_addresses(
    id: &NetworkName,
    conflict: impl Fn(&Subnet) -> Option<String>,
) -> Option<BridgeAddresses> {
    let digest: [u8; 32] = Sha256::digest(id.as_str()).into();
    let [begin, ..] = digest;
    let [first, second, ..] = POOL.octets();
    (0..=u8::MAX)
        .map(|step| {
            Subnet::of_v4(
                Ipv4Addr::new(first, second, begin.wrapping_add(step), 0),
                POOL_PREFIX,
            )
        })
        .find(|subnet| conflict(subnet).is_none())
        .and_then(|subnet| BridgeAddresses::new(subnet, None, None::<IpAddr>).ok())
}

#[cfg(test)]
mod tests;
