//! Elements of published ports and pins, the connections that ports end, and the text of their refusal: pure decisions.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;

use super::attachment::PublishedPort;
use super::error::DriverError;
use super::names::bridge_port;
use crate::addresses::Holder;
use crate::netlink::{LinkName, Mac};
use crate::nft::{
    BridgeName, Element, ElementChange, Flows, NftError, NftFamily, Transport, is_lasting,
    port_pins,
};

/// Limit of ports that an error names.
const NAMED: usize = 8;

/// A published port, and the container that is known to have it.
pub(super) type TakenPort = (Element, Option<Holder>);

/// The elements of a container behind this host's end, with these addresses: its published ports, and, if it sends with nothing but this
/// hardware address and these addresses, its pins.
pub(super) fn container_elements(
    host: &LinkName,
    ports: &[PublishedPort],
    pin: Option<Mac>,
    addresses: &[IpAddr],
) -> BTreeSet<Element> {
    let mut elements = port_elements(ports, addresses);
    elements.extend(
        pin.into_iter()
            .flat_map(|mac| port_pins(&bridge_port(host), mac, addresses)),
    );
    elements
}

/// Returns whether an element is a pin: no other one is in the table of ports.
pub(super) fn is_pin(element: &Element) -> bool {
    element.fits(NftFamily::Bridge)
}

/// The elements of the ports that lead to a container with these addresses. A port leads to its address of the family of the port's own
/// address, or of each family.
fn port_elements(ports: &[PublishedPort], addresses: &[IpAddr]) -> BTreeSet<Element> {
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

/// Lists the elements of a table that stay beside the wanted ones while not all attachments are known: they may be of a bridge or a
/// container that is not known yet. A table has no two subnets with addresses in common. `known` are the host's ends of the containers that
/// are known: each pin names one.
pub(super) fn kept_of_unknown(
    found: &BTreeSet<Element>,
    wanted: &BTreeSet<Element>,
    known: &BTreeSet<BridgeName>,
) -> BTreeSet<Element> {
    let is_unknown = |name: &BridgeName| !wanted.contains(&Element::Bridge(name.clone()));
    let is_kept = |element: &&Element| match element {
        Element::Port { .. } | Element::Hairpin(_) | Element::Bridge(_) | Element::Same(_) => true,
        // One that is known may have been let go.
        Element::PinnedPort(port)
        | Element::PinnedMac(port, _)
        | Element::PinnedAddress(port, _) => !known.contains(port),
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

/// The changes that add or remove elements: pins in the table of ports, all others in the tables of these families where they belong.
pub(super) fn changes(
    elements: &BTreeSet<Element>,
    families: &[NftFamily],
    add: bool,
) -> Vec<ElementChange> {
    let of = |element: &Element| {
        let fitting = families.iter().copied().chain([NftFamily::Bridge]);
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

/// The connections that began before these ports were published, and would not be led to the container. Those of TCP begin again by
/// themselves.
pub(super) fn flows_of_published<'a>(elements: impl Iterator<Item = &'a Element>) -> Vec<Flows> {
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

/// Returns whether a published port leads elsewhere already.
pub(super) fn is_taken(error: &NftError) -> bool {
    matches!(
        error,
        NftError::Refused {
            source: Errno::EEXIST,
            ..
        }
    )
}

/// Returns a search among existing elements for a published port that one of the wanted elements has too, and that leads elsewhere.
pub(super) fn taken_by(
    wanted: &BTreeSet<Element>,
) -> impl Fn(&BTreeSet<Element>) -> Option<Element> {
    let place = |element: &Element| {
        let Element::Port {
            at,
            protocol,
            port,
            to,
            to_port: _,
        } = element
        else {
            return None;
        };
        Some((*at, *protocol, *port, NftFamily::of(to)))
    };
    let places: BTreeSet<_> = wanted.iter().filter_map(place).collect();
    move |found: &BTreeSet<Element>| {
        let is_in_the_way = |element: &&Element| {
            let is_place_wanted = place(element).is_some_and(|one| places.contains(&one));
            is_place_wanted && !wanted.contains(*element)
        };
        found.iter().find(is_in_the_way).cloned()
    }
}

/// The error for ports of which one is taken: by this one, if it was found, with its holder, if that is known; else they are named.
pub(super) fn port_taken(
    taken: Option<TakenPort>,
    ports: &[PublishedPort],
    source: NftError,
) -> DriverError {
    let found = taken.and_then(|(element, holder)| {
        let Element::Port {
            at,
            protocol,
            port,
            to,
            to_port,
        } = element
        else {
            return None;
        };
        let whose = holder.map(|holder| format!(" of the container {}", holder.container_id()));
        let to = SocketAddr::new(to, to_port);
        let port = port_name(at, port, protocol);
        Some((
            format!("port {port}"),
            format!("{to}{}", whose.unwrap_or_default()),
        ))
    });
    let (ports, target) = found.unwrap_or_else(|| {
        let named = ports.iter().take(NAMED);
        let mut names: Vec<_> = named
            .map(|port| port_name(port.at, port.port, port.protocol))
            .collect();
        if ports.len() > NAMED {
            names.push(format!("and {} more", ports.len() - NAMED));
        }
        let names = format!("one of the ports {}", names.join(", "));
        (names, "another container".to_owned())
    });
    DriverError::PortTaken {
        ports,
        target,
        source,
    }
}

fn port_name(at: Option<IpAddr>, port: u16, protocol: Transport) -> String {
    let protocol = protocol.name();
    match at {
        Some(at) => format!("{} {protocol}", SocketAddr::new(at, port)),
        None => format!("{port} {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::subnet;

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
            assert_eq!(flows_of_published(elements.iter()).len(), led.len());
        }
    }

    #[test]
    fn each_element_of_a_container_is_in_the_tables_where_it_belongs() {
        let host = LinkName::new("veth0123456789a").unwrap();
        let mac: Mac = "02:42:0a:01:00:02".parse().unwrap();
        let port = PublishedPort {
            protocol: Transport::Tcp,
            at: None,
            port: 80,
            to_port: 80,
        };
        let [none, one]: [&[PublishedPort]; 2] = [&[], &[port]];
        for (ports, pin, addresses, expected) in [
            // In the table of IPv4, in that of IPv6, and in that of ports.
            (none, None, &[V4, V6][..], [0, 0, 0]),
            (one, None, &[V4, V6], [2, 2, 0]),
            // The port, the hardware address, and the link-local address that follows from it, beside the addresses.
            (none, Some(mac), &[V4, V6], [0, 0, 5]),
            (one, Some(mac), &[V4], [2, 0, 4]),
            (one, Some(mac), &[V6], [0, 2, 4]),
        ] {
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            let elements = container_elements(&host, ports, pin, &addresses);
            let changes = changes(&elements, &NftFamily::ALL, true);
            let count =
                |family: NftFamily| changes.iter().filter(|one| one.family == family).count();
            assert_eq!(NftFamily::TABLES.map(count), expected, "{elements:?}");
            let pins = elements.iter().filter(|element| is_pin(element)).count();
            assert_eq!(pins, expected[2], "{elements:?}");
        }
    }

    #[test]
    fn what_may_be_of_an_unknown_bridge_stays_but_what_a_wanted_subnet_excludes() {
        let masqueraded = |text: &str| Element::Masqueraded(subnet(text));
        let [bridge, known] = ["swy-1", "sw0"].map(|name| BridgeName::new(name).unwrap());
        let pair = |a: &BridgeName, b: &BridgeName| Element::Allowed(a.clone(), b.clone());
        let wanted = BTreeSet::from([masqueraded("10.1.0.0/16"), Element::Bridge(known.clone())]);
        let [port, known_port] = ["veth1", "veth2"].map(|name| BridgeName::new(name).unwrap());
        let mac: Mac = "02:42:0a:01:00:02".parse().unwrap();
        let address: IpAddr = V6.parse().unwrap();
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
            // And of a known container what it has by now.
            (Element::PinnedPort(port.clone()), true),
            (Element::PinnedMac(port.clone(), mac), true),
            (Element::PinnedAddress(port, address), true),
            (Element::PinnedPort(known_port.clone()), false),
            (Element::PinnedMac(known_port.clone(), mac), false),
            (Element::PinnedAddress(known_port.clone(), address), false),
        ] {
            let found = BTreeSet::from([element.clone()]);
            let known = BTreeSet::from([known_port.clone()]);
            let kept = kept_of_unknown(&found, &wanted, &known);
            assert_eq!(kept.contains(&element), is_kept, "{element}");
        }
    }

    #[test]
    fn port_that_is_taken_is_named_with_its_holder_as_far_as_it_is_known() {
        let element = |at: Option<&str>, port, to: &str| Element::Port {
            at: at.map(|at| at.parse().unwrap()),
            protocol: Transport::Tcp,
            port,
            to: to.parse().unwrap(),
            to_port: 80,
        };
        let asked = |at: Option<&str>, port| PublishedPort {
            protocol: Transport::Tcp,
            at: at.map(|at| at.parse().unwrap()),
            port,
            to_port: 8080,
        };
        let holder = Holder::new("a", "eth0").unwrap();
        let here = Some("192.0.2.1");
        for (wanted, found, holder, expected) in [
            (
                element(None, 81, "10.88.0.3"),
                element(None, 81, "10.88.0.2"),
                Some(&holder),
                "port 81 tcp leads to 10.88.0.2:80 of the container a already",
            ),
            (
                element(here, 81, "10.88.0.3"),
                element(here, 81, "10.88.0.2"),
                None,
                "port 192.0.2.1:81 tcp leads to 10.88.0.2:80 already",
            ),
            (
                element(None, 81, "fd00::3"),
                element(None, 81, "fd00::2"),
                None,
                "port 81 tcp leads to [fd00::2]:80 already",
            ),
            // None of these is in the way.
            (
                element(here, 81, "10.88.0.3"),
                element(None, 81, "10.88.0.2"),
                None,
                "one of the ports 81 tcp leads to another container already",
            ),
            (
                element(None, 81, "10.88.0.3"),
                element(None, 81, "fd00::2"),
                None,
                "one of the ports 81 tcp leads to another container already",
            ),
            (
                element(None, 81, "10.88.0.3"),
                element(None, 81, "10.88.0.3"),
                None,
                "one of the ports 81 tcp leads to another container already",
            ),
            (
                element(None, 81, "10.88.0.3"),
                Element::Hairpin("10.88.0.3".parse().unwrap()),
                None,
                "one of the ports 81 tcp leads to another container already",
            ),
        ] {
            let [wanted, found] = [wanted, found].map(|one| BTreeSet::from([one]));
            let taken = taken_by(&wanted)(&found);
            let taken = taken.map(|element| (element, holder.cloned()));
            let refused = NftError::Unanswered {
                doing: String::new(),
            };
            let error = port_taken(taken, &[asked(None, 81)], refused).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let many: Vec<_> = (1..=10).map(|port| asked(here, port)).collect();
        let refused = NftError::Unanswered {
            doing: String::new(),
        };
        let error = port_taken(None, &many, refused).to_string();
        assert!(
            error.contains("192.0.2.1:8 tcp, and 2 more leads"),
            "{error}"
        );
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
        assert_eq!(flows_of_published(elements.iter()).len(), 2);
    }
}
