//! Data of attachments: the bridge, the requests, and what is known of an attachment afterwards.

use std::net::IpAddr;
use std::path::PathBuf;

use switchyard_core::spec::Subnet;

use super::error::DriverError;
use crate::addresses::{AddressRange, AssignedAddress, Holder, RangeLimits};
use crate::netlink::{LinkName, Mac};
use crate::nft::{BridgeName, BridgeRules, NftSubnet, Transport};

/// A bridge of this node. Its containers have addresses of its subnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The name of the bridge, and of the network in host-local's directory.
    pub name: LinkName,
    /// Its subnets, of each family at most one.
    pub subnets: Vec<BridgeSubnet>,
    /// True if the bridge has the gateway's address of each subnet, by which containers reach the node and others. Else they reach each other
    /// alone.
    pub is_gateway: bool,
    /// True if connections to others have the address of the node.
    pub has_masquerade: bool,
    /// The largest packet, in bytes without the Ethernet header; else the kernel's default.
    pub mtu: Option<u32>,
    /// The directory of host-local, `dataDir` in its configuration.
    pub addresses_dir: PathBuf,
    /// The owner of its containers, in any spelling: only whether two are equal counts.
    pub owner: String,
    /// True if other machines reach containers by their addresses, without a published port.
    pub direct_routing: bool,
}

/// A subnet of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeSubnet {
    /// All its addresses.
    pub subnet: Subnet,
    /// Limits of those that containers get, and the one that is the gateway's.
    pub limits: RangeLimits,
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
    /// Number of bits that may pass at once after a pause.
    pub burst_bits: u64,
}

/// The limits of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit of what it receives.
    pub into: Option<LimitBits>,
    /// Limit of what it sends.
    pub out: Option<LimitBits>,
}

/// Container that is to be attached, and its settings.
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
    /// True if it can send only with the addresses that it gets, until [`super::BridgeDriver::unpin`].
    pub is_pinned: bool,
}

/// Result of an attachment: what the container has got.
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
    /// The hardware address with which it sends, together with its addresses; `None` if it may send with any, or if that is not on record.
    pub pin: Option<Mac>,
}

// === impl BridgeSubnet ===

impl From<Subnet> for BridgeSubnet {
    /// The subnet whose gateway has the first address, and whose containers have the others.
    fn from(subnet: Subnet) -> Self {
        let limits = RangeLimits::default();
        Self { subnet, limits }
    }
}

// === impl BridgeSettings ===

impl BridgeSettings {
    /// The range of addresses of each subnet.
    pub(super) fn ranges(&self) -> Result<Vec<AddressRange>, DriverError> {
        let ranges = self.subnets.iter();
        let ranges = ranges.map(|one| AddressRange::new(one.subnet, one.limits));
        Ok(ranges.collect::<Result<_, _>>()?)
    }

    /// Returns what the tables need to know of it.
    pub(super) fn rules(&self) -> Result<BridgeRules, DriverError> {
        let subnets = self.subnets.iter();
        let subnets = subnets.map(|one| NftSubnet::new(one.subnet.first(), one.subnet.prefix()));
        Ok(BridgeRules {
            name: BridgeName::new(self.name.as_str())?,
            owner: self.owner.clone(),
            subnets: subnets.collect::<Result<_, _>>()?,
            is_gateway: self.is_gateway,
            masquerade: self.has_masquerade,
            direct_routing: self.direct_routing,
        })
    }
}
