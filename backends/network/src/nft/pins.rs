//! Addresses that a container may send with: a pure decision.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use super::element::Element;
use super::family::BridgeName;
use crate::netlink::Mac;

/// Returns the elements that pin a port of a bridge to the addresses of the container behind it. All are in the table of
/// [`super::NftFamily::Bridge`].
///
/// What comes by the port must have this hardware address, and one of these addresses or the link-local one that the kernel makes of the
/// hardware address. ARP and neighbour discovery must tell others nothing else; routers are not advertised, and no other protocol is sent.
/// Without an address yet, it asks with `::` whether one of these is free, and joins groups; with `0.0.0.0` it sends nothing.
#[must_use]
pub fn port_pins(port: &BridgeName, mac: Mac, addresses: &[IpAddr]) -> BTreeSet<Element> {
    let mut pins = BTreeSet::from([
        Element::PinnedPort(port.clone()),
        Element::PinnedMac(port.clone(), mac),
    ]);
    let all = addresses.iter().copied().chain([link_local(mac)]);
    pins.extend(all.map(|address| Element::PinnedAddress(port.clone(), address)));
    pins
}

/// The link-local address of a hardware address (RFC 4291, appendix A).
fn link_local(mac: Mac) -> IpAddr {
    let [a, b, c, d, e, g] = mac.bytes();
    let group = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        group(a ^ 2, b),
        group(c, 0xff),
        group(0xfe, d),
        group(e, g),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::{NftFamily, TableName, text};

    /// The chain sees the frames of all bridges of the node, those of others too.
    #[test]
    fn frame_by_a_port_that_is_not_pinned_is_looked_up_once() {
        let table = text(NftFamily::Bridge, &TableName::default());
        let rules: Vec<&str> = table.lines().map(str::trim).collect();
        let begin = rules
            .iter()
            .position(|line| line.ends_with("policy accept;"));
        let (_, rules) = rules.split_at(begin.unwrap() + 1);
        assert_eq!(rules[0], "iifname != @pinned accept");
        let looks = |line: &&&str| line.contains("@pinned ");
        assert_eq!(rules.iter().filter(looks).count(), 1, "{table}");
    }

    #[test]
    fn port_is_pinned_to_its_addresses_and_the_link_local_one() {
        let port = BridgeName::new("veth0").unwrap();
        for (mac, addresses, expected) in [
            (
                "02:42:0a:58:00:02",
                &["10.88.0.2"][..],
                &["10.88.0.2", "fe80::42:aff:fe58:2"][..],
            ),
            (
                "02:42:0a:58:00:02",
                &["10.88.0.2", "fd00:88::2"][..],
                &["10.88.0.2", "fd00:88::2", "fe80::42:aff:fe58:2"][..],
            ),
            (
                "fe:ff:ff:ff:ff:ff",
                &[][..],
                &["fe80::fcff:ffff:feff:ffff"][..],
            ),
            ("00:00:00:00:00:01", &[][..], &["fe80::200:ff:fe00:1"][..]),
        ] {
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            let pins = port_pins(&port, mac.parse().unwrap(), &addresses);
            let mut texts: BTreeSet<String> = pins.iter().map(ToString::to_string).collect();
            assert!(texts.remove("\"veth0\"") && texts.remove(&format!("\"veth0\" . {mac}")));
            let expected = expected.iter().map(|ip| format!("\"veth0\" . {ip}"));
            assert_eq!(texts, expected.collect());
            let fits = |family: NftFamily| pins.iter().all(|pin| pin.fits(family));
            assert_eq!(NftFamily::TABLES.map(fits), [false, false, true]);
        }
    }
}
