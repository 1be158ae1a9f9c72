//! Elements as they are written and read, and any element of a family for other tests.

use proptest::prelude::*;

use super::*;
use crate::nft::message::{NFTABLES, NfHead, messages};
use crate::testing;

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
        NftFamily::Bridge => any::<IpAddr>().boxed(),
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

fn pin() -> impl Strategy<Value = Element> {
    let mac = any::<[u8; 6]>().prop_map(|[first, middle @ .., last]| {
        let [b, c, d, e] = middle;
        // Neither that of a group nor all zero.
        Mac::new([first & 0xfe, b, c, d, e, last | 1]).unwrap()
    });
    prop_oneof![
        bridge_name().prop_map(Element::PinnedPort),
        (bridge_name(), mac).prop_map(|(port, mac)| Element::PinnedMac(port, mac)),
        (bridge_name(), any::<IpAddr>())
            .prop_map(|(port, address)| Element::PinnedAddress(port, address)),
    ]
}

/// Any element of a family.
pub(in crate::nft) fn element(family: NftFamily) -> BoxedStrategy<Element> {
    if family == NftFamily::Bridge {
        return pin().boxed();
    }
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
    .boxed()
}

/// A family and an element of it.
fn any_element() -> impl Strategy<Value = (NftFamily, Element)> {
    let of = |family| element(family).prop_map(move |element| (family, element));
    prop_oneof![
        of(NftFamily::Ip4),
        of(NftFamily::Ip6),
        of(NftFamily::Bridge)
    ]
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
    let elements = subnets.map(|text| Element::Masqueraded(testing::subnet(text)));
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
        (Element::Bridge(bridge.clone()), [true, true, false]),
        (Element::PinnedPort(bridge.clone()), [false, false, true]),
        (
            Element::PinnedAddress(bridge.clone(), "fd00::1".parse().unwrap()),
            [false, false, true],
        ),
        (
            Element::Allowed(bridge.clone(), bridge),
            [true, true, false],
        ),
        (at(None, "10.0.0.1"), [true, false, false]),
        (at(Some("192.0.2.1"), "10.0.0.1"), [true, false, false]),
        (at(Some("::1"), "10.0.0.1"), [false, false, false]),
        (at(Some("2001:db8::1"), "fd00::1"), [false, true, false]),
        (
            Element::Hairpin("fd00::1".parse().unwrap()),
            [false, true, false],
        ),
    ] {
        assert_eq!(
            NftFamily::TABLES.map(|family| element.fits(family)),
            families,
            "{element}"
        );
    }
}
