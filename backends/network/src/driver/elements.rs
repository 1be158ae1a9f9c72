//! Which elements published ports are, which connections they end, and what their refusal says: pure decisions.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;

use super::attachment::PublishedPort;
use super::error::DriverError;
use crate::nft::{BridgeName, Element, ElementChange, Flows, NftError, NftFamily, is_lasting};

/// How many ports an error names.
const NAMED: usize = 8;

/// The elements of the ports that lead to a container with these addresses. A port leads to its address of the family of the port's own
/// address, or of each family.
pub(super) fn port_elements(ports: &[PublishedPort], addresses: &[IpAddr]) -> BTreeSet<Element> {
    let mut elements = BTreeSet::new();
    for port in ports {
        for address in addresses {
            let Some(element) = port_element(port, *address) else {
                continue;
            };
            elements.insert(element);
            elements.insert(Element::Hairpin(*address));
        }
    }
    elements
}

/// Which of the elements that are in a table stay beside the wanted ones while not all attachments are known: they may be of a bridge or a
/// container that is not known yet. A table has no two subnets with addresses in common.
pub(super) fn kept_of_unknown(
    found: &BTreeSet<Element>,
    wanted: &BTreeSet<Element>,
) -> BTreeSet<Element> {
    let is_unknown = |name: &BridgeName| !wanted.contains(&Element::Bridge(name.clone()));
    let is_kept = |element: &&Element| match element {
        Element::Port { .. }
        | Element::Hairpin(_)
        | Element::Bridge(_)
        | Element::Same(_)
        | Element::PinnedPort(_)
        | Element::PinnedMac(..)
        | Element::PinnedAddress(..) => true,
        Element::Masqueraded(_) | Element::Closed(_) => !wanted
            .iter()
            .any(|wanted| element.is_part_of(wanted) || wanted.is_part_of(element)),
        // It stays kept apart, as known bridges are by the settings of now. Without its own pair it would not reach itself; pairs with others
        // are left out, which is the safe side.
        Element::Apart(name) => is_unknown(name),
        Element::Allowed(from, to) => from == to && is_unknown(from),
    };
    found.iter().filter(is_kept).cloned().collect()
}

/// The changes that add or remove elements, each in the tables of these families where it belongs.
pub(super) fn changes(
    elements: &BTreeSet<Element>,
    families: &[NftFamily],
    add: bool,
) -> Vec<ElementChange> {
    let of = |element: &Element| {
        let fitting = families.iter().copied();
        let fitting = fitting.filter(|family| element.fits(*family));
        let change = |family| ElementChange {
            family,
            add,
            element: element.clone(),
        };
        fitting.map(change).collect::<Vec<_>>()
    };
    elements.iter().flat_map(of).collect()
}

fn port_element(port: &PublishedPort, to: IpAddr) -> Option<Element> {
    let PublishedPort {
        protocol,
        at,
        port,
        to_port,
    } = *port;
    let at = at.map(|at| at.to_canonical());
    let is_for = at.is_none_or(|at| NftFamily::of(&at) == NftFamily::of(&to));
    (is_for && port != 0).then_some(Element::Port {
        at: at.filter(|at| !at.is_unspecified()),
        protocol,
        port,
        to,
        to_port,
    })
}

/// The connections that began before a port was published, and would not be led to the container. Those of TCP begin again by themselves.
pub(super) fn flows_of_new(ports: &[PublishedPort]) -> Vec<Flows> {
    let lasting = ports.iter().filter(|port| is_lasting(port.protocol));
    let flows = |port: &PublishedPort| Flows::BeforePublished {
        protocol: port.protocol,
        at: port
            .at
            .map(|at| at.to_canonical())
            .filter(|at| !at.is_unspecified()),
        port: port.port,
    };
    lasting.map(flows).collect()
}

/// The same for ports that are published again, as these elements say.
pub(super) fn flows_of_restored<'a>(elements: impl Iterator<Item = &'a Element>) -> Vec<Flows> {
    let flows = |element: &Element| {
        let Element::Port {
            at, protocol, port, ..
        } = *element
        else {
            return None;
        };
        is_lasting(protocol).then_some(Flows::BeforePublished { protocol, at, port })
    };
    elements.filter_map(flows).collect()
}

/// The connections that ports led to a container which is detached: as long as their client sends, they would go on to its address, whoever
/// has that.
pub(super) fn flows_of_ended(elements: &BTreeSet<Element>) -> Vec<Flows> {
    let flows = |element: &Element| {
        let Element::Port {
            at: _,
            protocol,
            port,
            to,
            to_port,
        } = *element
        else {
            return None;
        };
        is_lasting(protocol).then_some(Flows::To {
            protocol,
            port,
            container: SocketAddr::new(to, to_port),
        })
    };
    elements.iter().filter_map(flows).collect()
}

/// The error for ports that could not be published.
pub(super) fn of_ports(error: DriverError, ports: &[PublishedPort]) -> DriverError {
    let DriverError::Rules(error) = error else {
        return error;
    };
    let is_taken = matches!(
        error,
        NftError::Refused {
            source: Errno::EEXIST,
            ..
        }
    );
    if !is_taken {
        return DriverError::Rules(error);
    }
    let name = |port: &PublishedPort| match port.at {
        Some(at) => format!(
            "{} {}",
            SocketAddr::new(at, port.port),
            port.protocol.name()
        ),
        None => format!("{} {}", port.port, port.protocol.name()),
    };
    let mut names: Vec<_> = ports.iter().take(NAMED).map(name).collect();
    if ports.len() > NAMED {
        names.push(format!("and {} more", ports.len() - NAMED));
    }
    DriverError::PortTaken {
        ports: names.join(", "),
        source: error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::{NftSubnet, Transport};

    const V4: &str = "10.1.0.2";
    const V6: &str = "fd00::2";

    #[test]
    fn port_leads_to_the_address_of_its_family() {
        let both = [V4, V6];
        for (at, addresses, expected) in [
            (None, &both[..], &["any 10.1.0.2", "any fd00::2"][..]),
            (Some("0.0.0.0"), &both[..], &["any 10.1.0.2"][..]),
            (Some("::"), &both[..], &["any fd00::2"][..]),
            (Some("192.0.2.1"), &both[..], &["192.0.2.1 10.1.0.2"][..]),
            (
                Some("::ffff:192.0.2.1"),
                &both[..],
                &["192.0.2.1 10.1.0.2"][..],
            ),
            (Some("::ffff:0.0.0.0"), &both[..], &["any 10.1.0.2"][..]),
            (Some("fd00:1::1"), &both[..], &["fd00:1::1 fd00::2"][..]),
            (Some("fd00:1::1"), &[V4][..], &[][..]),
            (Some("127.0.0.1"), &[V4][..], &["127.0.0.1 10.1.0.2"][..]),
            (None, &[][..], &[][..]),
        ] {
            let port = PublishedPort {
                protocol: Transport::Udp,
                at: at.map(|at| at.parse().unwrap()),
                port: 53,
                to_port: 5353,
            };
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            let elements = port_elements(&[port, port], &addresses);
            let led: Vec<String> = elements
                .iter()
                .filter_map(|element| {
                    let Element::Port { at, to, .. } = element else {
                        return None;
                    };
                    let at = at.map_or_else(|| "any".to_owned(), |at| at.to_string());
                    Some(format!("{at} {to}"))
                })
                .collect();
            let led: BTreeSet<_> = led.iter().map(String::as_str).collect();
            assert_eq!(led, expected.iter().copied().collect(), "{at:?}");
            let hairpins = elements.len() - led.len();
            assert_eq!(hairpins, led.len(), "{at:?}: each has its hairpin");
            assert_eq!(flows_of_ended(&elements).len(), led.len());
            // Published anew or again, the same connections are in the way of it.
            let new = flows_of_new(&[port]);
            let restored = flows_of_restored(elements.iter());
            assert!(restored.iter().all(|one| new.contains(one)), "{at:?}");
            assert_eq!(restored.len(), led.len(), "{at:?}");
        }
    }

    #[test]
    fn what_may_be_of_an_unknown_bridge_stays_but_what_a_wanted_subnet_excludes() {
        let masqueraded = |text: &str| {
            let (address, prefix) = text.split_once('/').unwrap();
            let subnet = NftSubnet::new(address.parse().unwrap(), prefix.parse().unwrap());
            Element::Masqueraded(subnet.unwrap())
        };
        let [bridge, known] = ["swy-1", "sw0"].map(|name| BridgeName::new(name).unwrap());
        let pair = |a: &BridgeName, b: &BridgeName| Element::Allowed(a.clone(), b.clone());
        let wanted = BTreeSet::from([masqueraded("10.1.0.0/16"), Element::Bridge(known.clone())]);
        for (element, is_kept) in [
            (masqueraded("10.2.0.0/16"), true),
            (masqueraded("10.1.7.0/24"), false),
            (masqueraded("10.0.0.0/8"), false),
            (Element::Hairpin("10.1.0.2".parse().unwrap()), true),
            (Element::Bridge(bridge.clone()), true),
            (Element::Same(bridge.clone()), true),
            (Element::Apart(bridge.clone()), true),
            (pair(&bridge, &bridge), true),
            (pair(&bridge, &known), false),
            (pair(&known, &bridge), false),
            // Of a known bridge the settings of now decide.
            (Element::Apart(known.clone()), false),
            (pair(&known, &known), false),
        ] {
            let found = BTreeSet::from([element.clone()]);
            let kept = kept_of_unknown(&found, &wanted);
            assert_eq!(kept.contains(&element), is_kept, "{element}");
        }
    }

    #[test]
    fn only_connections_without_an_end_are_removed_and_port_0_is_none() {
        let port = |protocol, port| PublishedPort {
            protocol,
            at: None,
            port,
            to_port: 80,
        };
        let ports = [
            port(Transport::Tcp, 80),
            port(Transport::Udp, 53),
            port(Transport::Sctp, 7),
            port(Transport::Udp, 0),
        ];
        let elements = port_elements(&ports, &[V4.parse().unwrap()]);
        assert_eq!(elements.len(), 4, "three ports and a hairpin: {elements:?}");
        assert_eq!(flows_of_ended(&elements).len(), 2);
        assert_eq!(flows_of_new(&ports[..3]).len(), 2);
    }
}
