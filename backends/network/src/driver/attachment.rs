//! What is attached: the bridge, the requests, and what is known of an attachment afterwards.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use switchyard_core::spec::Subnet;

use super::error::DriverError;
use crate::addresses::{AddressRange, AssignedAddress, Holder, RangeLimits};
use crate::netlink::{LinkName, Mac};
use crate::nft::{
    BridgeName, BridgeRules, Element, Isolation, NftSubnet, TableName, Transport, bridge_elements,
};

/// A bridge of this node. Its containers have addresses of its subnets, and reach others with the node's address.
#[derive(Debug, Clone)]
pub struct BridgeSettings {
    /// The name of the bridge, and of the network in host-local's directory.
    pub name: LinkName,
    /// Its subnets, of each family at most one. The bridge has the first address of each.
    pub subnets: Vec<Subnet>,
    /// The largest packet, in bytes without the Ethernet header; else the kernel's default.
    pub mtu: Option<u32>,
    /// The directory of host-local, `dataDir` in its configuration.
    pub addresses_dir: PathBuf,
    /// The tables of this instance of the daemon.
    pub table: TableName,
    /// Which bridges in these tables reach each other.
    pub isolation: Isolation,
    /// Pairs of bridges that reach each other all the same.
    pub isolation_allow: Vec<(BridgeName, BridgeName)>,
    /// Whether other machines reach containers by their addresses, without a published port.
    pub direct_routing: bool,
    /// Whether containers are attached by this driver. Else its tables are kept only while containers need them that were attached before.
    pub is_used: bool,
}

/// A port of the node that leads to a port of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedPort {
    /// The protocol.
    pub protocol: Transport,
    /// The address of the node on which it is published: `None` for all, `0.0.0.0` or `::` for all of one family.
    pub at: Option<IpAddr>,
    /// The port of the node.
    pub port: u16,
    /// The port of the container.
    pub to_port: u16,
}

/// A limit of what a container receives or sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitBits {
    /// The rate, in bits per second.
    pub bits_per_second: u64,
    /// What may pass at once after a pause, in bits.
    pub burst_bits: u64,
}

/// The limits of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of what it receives.
    pub into: Option<LimitBits>,
    /// Of what it sends.
    pub out: Option<LimitBits>,
}

/// What is to be attached.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    /// The container, and the name of its interface.
    pub holder: Holder,
    /// The file of its network namespace.
    pub netns: PathBuf,
    /// The hardware address that it gets; else one made of its address.
    pub mac: Option<Mac>,
    /// The addresses that it gets, of each subnet at most one; else free ones.
    pub addresses: Vec<IpAddr>,
    /// The ports of the node that lead to it.
    pub ports: Vec<PublishedPort>,
    /// Its limits of bandwidth.
    pub limits: Limits,
}

/// What a container has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The host's end of its pair of devices.
    pub host_link: LinkName,
    /// The hardware address of that end.
    pub host_mac: Mac,
    /// The hardware address of the bridge.
    pub bridge_mac: Mac,
    /// The hardware address of its interface.
    pub mac: Mac,
    /// Its addresses, in the order of the subnets.
    pub addresses: Vec<AssignedAddress>,
}

/// An attachment, as far as records have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The container, and the name of its interface.
    pub holder: Holder,
    /// Its addresses; `None` if it is not on record which it got.
    pub addresses: Option<Vec<IpAddr>>,
    /// The ports that were published for it, or were to be.
    pub ports: Vec<PublishedPort>,
}

// === impl BridgeSettings ===

impl BridgeSettings {
    /// The range of addresses of each subnet.
    pub(super) fn ranges(&self) -> Result<Vec<AddressRange>, DriverError> {
        let ranges = self.subnets.iter();
        let ranges = ranges.map(|subnet| AddressRange::new(*subnet, RangeLimits::default()));
        Ok(ranges.collect::<Result<_, _>>()?)
    }

    pub(super) fn elements(&self) -> Result<BTreeSet<Element>, DriverError> {
        let subnets = self.subnets.iter();
        let subnets = subnets.map(|subnet| NftSubnet::new(subnet.first(), subnet.prefix()));
        let rules = BridgeRules {
            name: BridgeName::new(self.name.as_str())?,
            owner: String::new(),
            subnets: subnets.collect::<Result<_, _>>()?,
            masquerade: true,
            direct_routing: self.direct_routing,
        };
        Ok(bridge_elements(
            &[rules],
            self.isolation,
            &self.isolation_allow,
        ))
    }
}
