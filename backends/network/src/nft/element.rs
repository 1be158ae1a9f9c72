//! The elements of a table, and their form in messages.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::family::{BridgeName, NftFamily, NftSubnet, Transport, octets};
use super::message::{NfWriter, attribute, attributes, number};
use super::sets::{KeyPart, TableSet, length};
use crate::netlink::Mac;

/// `NFTA_LIST_ELEM`.
pub(super) const LIST_ELEMENT: u16 = 1;
/// `NFTA_DATA_VALUE`.
pub(super) const DATA_VALUE: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
/// `NFTA_SET_ELEM_EXPIRATION`, `..._TIMEOUT`: the element would go by itself.
const ELEMENT_EXPIRES: [u16; 2] = [4, 5];
/// `NFT_SET_ELEM_INTERVAL_END`: the interval that began below ends before this key.
const INTERVAL_END: u32 = 1;
/// Padding after a hardware address in a key.
const MAC_PADDING: [u8; 2] = [0, 0];

/// An element of a set or map: what one more container, port or bridge adds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// A published port. In [`TableSet::PortsAt`] if it has an address of the node, else in [`TableSet::Ports`].
    Port {
        /// The address of the node, or all of them.
        at: Option<IpAddr>,
        /// The protocol.
        protocol: Transport,
        /// The port of the node.
        port: u16,
        /// The address of the container.
        to: IpAddr,
        /// The port of the container.
        to_port: u16,
    },
    /// The address of a container with published ports, in [`TableSet::Hairpins`].
    Hairpin(IpAddr),
    /// A subnet in [`TableSet::Masqueraded`]. Subnets of a table must not overlap.
    Masqueraded(NftSubnet),
    /// A subnet in [`TableSet::Closed`].
    Closed(NftSubnet),
    /// A bridge in [`TableSet::Bridges`].
    Bridge(BridgeName),
    /// A bridge in [`TableSet::Same`].
    Same(BridgeName),
    /// A bridge in [`TableSet::Apart`].
    Apart(BridgeName),
    /// A pair in [`TableSet::Allowed`]: the first one reaches the second one.
    Allowed(BridgeName, BridgeName),
    /// A port of a bridge, in [`TableSet::Pinned`]: what comes by it has one of its addresses.
    PinnedPort(BridgeName),
    /// The hardware address of such a port, in [`TableSet::PinnedMacs`].
    PinnedMac(BridgeName, Mac),
    /// An address of such a port, in [`TableSet::PinnedAddresses`] or [`TableSet::PinnedAddresses6`].
    PinnedAddress(BridgeName, IpAddr),
}

impl Element {
    /// Returns the set or map that it is in.
    #[must_use]
    pub fn set(&self) -> TableSet {
        match self {
            Self::Port { at: Some(_), .. } => TableSet::PortsAt,
            Self::Port { at: None, .. } => TableSet::Ports,
            Self::Hairpin(_) => TableSet::Hairpins,
            Self::Masqueraded(_) => TableSet::Masqueraded,
            Self::Closed(_) => TableSet::Closed,
            Self::Bridge(_) => TableSet::Bridges,
            Self::Same(_) => TableSet::Same,
            Self::Apart(_) => TableSet::Apart,
            Self::Allowed(..) => TableSet::Allowed,
            Self::PinnedPort(_) => TableSet::Pinned,
            Self::PinnedMac(..) => TableSet::PinnedMacs,
            Self::PinnedAddress(_, IpAddr::V4(_)) => TableSet::PinnedAddresses,
            Self::PinnedAddress(_, IpAddr::V6(_)) => TableSet::PinnedAddresses6,
        }
    }

    /// Returns whether it can be in the table of a family. Bridges are in both of addresses.
    #[must_use]
    pub fn fits(&self, family: NftFamily) -> bool {
        let is = |address: &IpAddr| NftFamily::of(address) == family;
        match self {
            Self::Port { at, to, .. } => is(to) && at.as_ref().is_none_or(is),
            Self::Hairpin(address) => is(address),
            Self::Masqueraded(subnet) | Self::Closed(subnet) => subnet.family() == family,
            Self::Bridge(_)
            | Self::Same(_)
            | Self::Apart(_)
            | Self::Allowed(..)
            | Self::PinnedPort(_)
            | Self::PinnedMac(..)
            | Self::PinnedAddress(..) => self.set().is_of(family),
        }
    }

    /// Returns whether it is a subnet that is a part of another one in the same set: a table can have only one of both.
    pub(crate) fn is_part_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Masqueraded(one), Self::Masqueraded(other))
            | (Self::Closed(one), Self::Closed(other)) => one.is_part_of(other),
            _ => false,
        }
    }

    /// Writes it as parts of the list of elements: two for an interval, which begins at one key and ends before another one.
    pub(super) fn write(&self, to: &mut NfWriter) {
        let data = self.data();
        to.nest(LIST_ELEMENT, |element| {
            element.nest(ELEMENT_KEY, |key| key.bytes(DATA_VALUE, &self.key()));
            if !data.is_empty() {
                element.nest(ELEMENT_DATA, |value| value.bytes(DATA_VALUE, &data));
            }
        });
        let (Self::Masqueraded(subnet) | Self::Closed(subnet)) = self else {
            return;
        };
        // One without an end has all addresses up to the last one.
        if let Some(behind) = subnet.behind() {
            to.nest(LIST_ELEMENT, |element| {
                element.nest(ELEMENT_KEY, |key| key.bytes(DATA_VALUE, &octets(&behind)));
                element.number(ELEMENT_FLAGS, INTERVAL_END);
            });
        }
    }

    fn key(&self) -> Vec<u8> {
        match self {
            Self::Port {
                at, protocol, port, ..
            } => {
                let mut key = at.as_ref().map(octets).unwrap_or_default();
                key.extend([protocol.number(), 0, 0, 0]);
                key.extend(padded_port(*port));
                key
            }
            Self::Hairpin(address) => octets(address).repeat(2),
            Self::Masqueraded(subnet) | Self::Closed(subnet) => octets(&subnet.address()),
            Self::Bridge(name) | Self::Apart(name) | Self::PinnedPort(name) => {
                name.padded().to_vec()
            }
            Self::Same(bridge) => bridge.padded().repeat(2),
            Self::Allowed(from, to) => [from.padded(), to.padded()].concat(),
            Self::PinnedMac(port, mac) => {
                let mut key = port.padded().to_vec();
                key.extend(mac.bytes());
                key.extend(MAC_PADDING);
                key
            }
            Self::PinnedAddress(port, address) => {
                [port.padded().as_slice(), &octets(address)].concat()
            }
        }
    }

    fn data(&self) -> Vec<u8> {
        match self {
            Self::Port { to, to_port, .. } => {
                let mut data = octets(to);
                data.extend(padded_port(*to_port));
                data
            }
            Self::Hairpin(_)
            | Self::Masqueraded(_)
            | Self::Closed(_)
            | Self::Bridge(_)
            | Self::Same(_)
            | Self::Apart(_)
            | Self::Allowed(..)
            | Self::PinnedPort(_)
            | Self::PinnedMac(..)
            | Self::PinnedAddress(..) => Vec::new(),
        }
    }

    /// Reads an element that is no interval.
    fn read(set: TableSet, family: NftFamily, key: &[u8], data: &[u8]) -> Option<Self> {
        let key = divided(set.key(), family, key)?;
        let data = divided(set.data(), family, data)?;
        Some(match (set, key.as_slice(), data.as_slice()) {
            (TableSet::PortsAt, [at, protocol, port], [to, to_port]) => Self::Port {
                at: Some(family.address(at)?),
                protocol: read_protocol(protocol)?,
                port: read_port(port)?,
                to: family.address(to)?,
                to_port: read_port(to_port)?,
            },
            (TableSet::Ports, [protocol, port], [to, to_port]) => Self::Port {
                at: None,
                protocol: read_protocol(protocol)?,
                port: read_port(port)?,
                to: family.address(to)?,
                to_port: read_port(to_port)?,
            },
            (TableSet::Hairpins, [from, to], []) if from == to => {
                Self::Hairpin(family.address(from)?)
            }
            (TableSet::Bridges, [bridge], []) => Self::Bridge(BridgeName::from_padded(bridge)?),
            (TableSet::Apart, [bridge], []) => Self::Apart(BridgeName::from_padded(bridge)?),
            (TableSet::Same, [from, to], []) if from == to => {
                Self::Same(BridgeName::from_padded(from)?)
            }
            (TableSet::Allowed, [from, to], []) => {
                Self::Allowed(BridgeName::from_padded(from)?, BridgeName::from_padded(to)?)
            }
            (TableSet::Pinned, [port], []) => Self::PinnedPort(BridgeName::from_padded(port)?),
            (TableSet::PinnedMacs, [port, mac], []) => {
                let mac = Mac::new(mac.strip_suffix(&MAC_PADDING)?.try_into().ok()?).ok()?;
                Self::PinnedMac(BridgeName::from_padded(port)?, mac)
            }
            (TableSet::PinnedAddresses, [port, address], []) => Self::PinnedAddress(
                BridgeName::from_padded(port)?,
                NftFamily::Ip4.address(address)?,
            ),
            (TableSet::PinnedAddresses6, [port, address], []) => Self::PinnedAddress(
                BridgeName::from_padded(port)?,
                NftFamily::Ip6.address(address)?,
            ),
            _ => return None,
        })
    }

    fn interval(set: TableSet, subnet: NftSubnet) -> Option<Self> {
        [Self::Masqueraded(subnet), Self::Closed(subnet)]
            .into_iter()
            .find(|element| element.set() == set)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port {
                at,
                protocol,
                port,
                to,
                to_port,
            } => {
                if let Some(at) = at {
                    write!(f, "{at} . ")?;
                }
                write!(f, "{} . {port} : {to} . {to_port}", protocol.name())
            }
            Self::Hairpin(address) => write!(f, "{address} . {address}"),
            Self::Masqueraded(subnet) | Self::Closed(subnet) => write!(f, "{subnet}"),
            Self::Bridge(name) | Self::Apart(name) | Self::PinnedPort(name) => {
                write!(f, "{name}")
            }
            Self::Same(bridge) => write!(f, "{bridge} . {bridge}"),
            Self::Allowed(from, to) => write!(f, "{from} . {to}"),
            Self::PinnedMac(port, mac) => write!(f, "{port} . {mac}"),
            Self::PinnedAddress(port, address) => write!(f, "{port} . {address}"),
        }
    }
}

/// Elements of one set as a dump has them.
#[derive(Debug, Default)]
pub(super) struct DumpedElements {
    /// Those that are understood, without intervals.
    elements: BTreeSet<Element>,
    starts: BTreeSet<IpAddr>,
    ends: BTreeSet<IpAddr>,
    /// Number of elements that are not understood: they are not ours.
    pub(super) foreign: usize,
}

impl DumpedElements {
    /// Reads a list of elements.
    pub(super) fn add(&mut self, set: TableSet, family: NftFamily, list: &[u8]) {
        for (_, element) in attributes(list) {
            if self.add_one(set, family, element).is_none() {
                self.foreign += 1;
            }
        }
    }

    fn add_one(&mut self, set: TableSet, family: NftFamily, element: &[u8]) -> Option<()> {
        let key = attribute(attribute(element, ELEMENT_KEY)?, DATA_VALUE)?;
        let data = match attribute(element, ELEMENT_DATA) {
            Some(data) => attribute(data, DATA_VALUE)?,
            None => &[],
        };
        let flags = number(element, ELEMENT_FLAGS).unwrap_or(0);
        let expires = ELEMENT_EXPIRES.map(|kind| attribute(element, kind).is_some());
        if expires.contains(&true) {
            return None;
        }
        if !set.has_intervals() {
            let element = Element::read(set, family, key, data)?;
            return (flags == 0 && self.elements.insert(element)).then_some(());
        }
        let address = family.address(key)?;
        let new = match flags {
            0 => self.starts.insert(address),
            INTERVAL_END => self.ends.insert(address),
            _ => false,
        };
        new.then_some(())
    }

    /// Returns the elements, once all lists have been added, and how many of them are not ours.
    pub(super) fn finish(mut self, set: TableSet) -> (BTreeSet<Element>, usize) {
        let mut starts = self.starts.iter().copied().peekable();
        let mut used = 0;
        while let Some(first) = starts.next() {
            let behind = self.ends.iter().find(|end| **end > first).copied();
            let overlaps = starts
                .peek()
                .is_some_and(|next| behind.is_none_or(|behind| *next < behind));
            used += usize::from(behind.is_some());
            let element = NftSubnet::between(first, behind)
                .filter(|_| !overlaps)
                .and_then(|subnet| Element::interval(set, subnet));
            match element {
                Some(element) => {
                    self.elements.insert(element);
                }
                None => self.foreign += 1,
            }
        }
        self.foreign += self.ends.len().saturating_sub(used);
        (self.elements, self.foreign)
    }
}

fn padded_port(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn read_port(part: &[u8]) -> Option<u16> {
    match part {
        [high, low, 0, 0] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

fn read_protocol(part: &[u8]) -> Option<Transport> {
    match part {
        [number, 0, 0, 0] => Transport::from_number(*number),
        _ => None,
    }
}

/// Divides bytes into parts, which must be all of them.
fn divided<'a>(parts: &[KeyPart], family: NftFamily, bytes: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut rest = bytes;
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let length = usize::try_from(length(std::slice::from_ref(part), family)).ok()?;
        let (part, behind) = rest.split_at_checked(length)?;
        all.push(part);
        rest = behind;
    }
    rest.is_empty().then_some(all)
}

#[cfg(test)]
pub(super) mod tests;
