//! The elements of a table, and their form in messages.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::family::{BridgeName, NftFamily, NftSubnet, Transport, octets};
use super::message::{NfWriter, attribute, attributes, number};
use super::sets::{KeyPart, TableSet, length};

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
        }
    }

    /// Returns whether it can be in the table of a family. Bridges are in both.
    #[must_use]
    pub fn fits(&self, family: NftFamily) -> bool {
        let is = |address: &IpAddr| NftFamily::of(address) == family;
        match self {
            Self::Port { at, to, .. } => is(to) && at.as_ref().is_none_or(is),
            Self::Hairpin(address) => is(address),
            Self::Masqueraded(subnet) | Self::Closed(subnet) => subnet.family() == family,
            Self::Bridge(_) | Self::Same(_) | Self::Apart(_) | Self::Allowed(..) => true,
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
            Self::Bridge(bridge) | Self::Apart(bridge) => bridge.padded().to_vec(),
            Self::Same(bridge) => bridge.padded().repeat(2),
            Self::Allowed(from, to) => [from.padded(), to.padded()].concat(),
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
            | Self::Allowed(..) => Vec::new(),
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
            Self::Bridge(bridge) | Self::Apart(bridge) => write!(f, "{bridge}"),
            Self::Same(bridge) => write!(f, "{bridge} . {bridge}"),
            Self::Allowed(from, to) => write!(f, "{from} . {to}"),
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
    /// How many are not understood: they are not ours.
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
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nft::message::{NFTABLES, NfHead, messages};

    /// A list of elements as a dump has it.
    fn listed(elements: &[Element]) -> Vec<u8> {
        let mut writer = NfWriter::default();
        let head = NfHead {
            kind: NFTABLES,
            flags: 0,
            sequence: 1,
            family: 2,
            resource: 0,
        };
        writer.message(head, |body| {
            elements.iter().for_each(|element| element.write(body));
        });
        let bytes = writer.finish().unwrap();
        messages(&bytes).next().unwrap().body().to_vec()
    }

    fn bridge_name() -> impl Strategy<Value = BridgeName> {
        "[a-z][a-z0-9-]{0,14}".prop_map(|name| BridgeName::new(&name).unwrap())
    }

    fn address(family: NftFamily) -> BoxedStrategy<IpAddr> {
        match family {
            NftFamily::Ip4 => any::<std::net::Ipv4Addr>().prop_map(IpAddr::from).boxed(),
            NftFamily::Ip6 => any::<std::net::Ipv6Addr>().prop_map(IpAddr::from).boxed(),
        }
    }

    fn subnet(family: NftFamily) -> impl Strategy<Value = NftSubnet> {
        (address(family), 0..=family.address_length() * 8)
            .prop_map(|(address, prefix)| NftSubnet::new(address, prefix).unwrap())
    }

    /// A TCP port that leads to port 80 of an address.
    pub(in crate::nft) fn port(port: u16, to: &str) -> Element {
        Element::Port {
            at: None,
            protocol: Transport::Tcp,
            port,
            to: to.parse().unwrap(),
            to_port: 80,
        }
    }

    /// Any element of a family.
    pub(in crate::nft) fn element(family: NftFamily) -> impl Strategy<Value = Element> {
        let protocol = proptest::sample::select(Transport::ALL.to_vec());
        let at = proptest::option::of(address(family));
        let port = (at, protocol, any::<u16>(), address(family), any::<u16>()).prop_map(
            |(at, protocol, port, to, to_port)| Element::Port {
                at,
                protocol,
                port,
                to,
                to_port,
            },
        );
        prop_oneof![
            port,
            address(family).prop_map(Element::Hairpin),
            subnet(family).prop_map(Element::Masqueraded),
            subnet(family).prop_map(Element::Closed),
            bridge_name().prop_map(Element::Bridge),
            bridge_name().prop_map(Element::Same),
            bridge_name().prop_map(Element::Apart),
            (bridge_name(), bridge_name()).prop_map(|(from, to)| Element::Allowed(from, to)),
        ]
    }

    /// A family and an element of it.
    fn any_element() -> impl Strategy<Value = (NftFamily, Element)> {
        let of = |family| element(family).prop_map(move |element| (family, element));
        prop_oneof![of(NftFamily::Ip4), of(NftFamily::Ip6)]
    }

    proptest! {
        #[test]
        fn element_is_read_as_it_was_written((family, element) in any_element()) {
            prop_assert!(element.fits(family));
            let mut dumped = DumpedElements::default();
            dumped.add(element.set(), family, &listed(std::slice::from_ref(&element)));
            let (elements, foreign) = dumped.finish(element.set());
            prop_assert_eq!((elements, foreign), (BTreeSet::from([element]), 0));
        }

        #[test]
        fn element_of_one_set_is_foreign_in_others((family, element) in any_element()) {
            let of_length = |set: TableSet| length(set.key(), family);
            for set in TableSet::ALL.into_iter().filter(|set| of_length(*set) != of_length(element.set())) {
                let mut dumped = DumpedElements::default();
                dumped.add(set, family, &listed(std::slice::from_ref(&element)));
                let (elements, foreign) = dumped.finish(set);
                prop_assert!(elements.is_empty() && foreign > 0, "{set} {elements:?}");
            }
        }
    }

    #[test]
    fn adjacent_subnets_are_read_apart() {
        let subnets = ["10.1.0.0/16", "10.2.0.0/16", "10.4.0.0/14", "255.0.0.0/8"];
        let elements = subnets.map(|text| {
            let (address, prefix) = text.split_once('/').unwrap();
            let subnet = NftSubnet::new(address.parse().unwrap(), prefix.parse().unwrap());
            Element::Masqueraded(subnet.unwrap())
        });
        let mut dumped = DumpedElements::default();
        dumped.add(TableSet::Masqueraded, NftFamily::Ip4, &listed(&elements));
        let (read, foreign) = dumped.finish(TableSet::Masqueraded);
        assert_eq!((read, foreign), (BTreeSet::from(elements), 0));
    }

    #[test]
    fn bridges_fit_both_families_and_addresses_theirs() {
        let bridge = BridgeName::new("sw0").unwrap();
        let at = |at: Option<&str>, to: &str| Element::Port {
            at: at.map(|at| at.parse().unwrap()),
            protocol: Transport::Tcp,
            port: 80,
            to: to.parse().unwrap(),
            to_port: 8080,
        };
        for (element, families) in [
            (Element::Bridge(bridge.clone()), [true, true]),
            (Element::Allowed(bridge.clone(), bridge), [true, true]),
            (at(None, "10.0.0.1"), [true, false]),
            (at(Some("192.0.2.1"), "10.0.0.1"), [true, false]),
            (at(Some("::1"), "10.0.0.1"), [false, false]),
            (at(Some("2001:db8::1"), "fd00::1"), [false, true]),
            (Element::Hairpin("fd00::1".parse().unwrap()), [false, true]),
        ] {
            assert_eq!(
                NftFamily::ALL.map(|family| element.fits(family)),
                families,
                "{element}"
            );
        }
    }
}
