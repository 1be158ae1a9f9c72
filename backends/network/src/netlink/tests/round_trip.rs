//! Tests that what requests say is what is read of messages: the kernel answers in the same form.

use proptest::prelude::*;

use super::super::uapi::NLMSG_HDRLEN;
use super::*;

fn body(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(1, &mut bytes).unwrap();
    bytes.split_off(NLMSG_HDRLEN)
}

/// An address of the family of a prefix.
fn like(prefix: IpPrefix, bits: u128) -> IpAddr {
    if prefix.address().is_ipv4() {
        let bits = u32::try_from(bits & u128::from(u32::MAX)).unwrap();
        Ipv4Addr::from_bits(bits).into()
    } else {
        Ipv6Addr::from_bits(bits).into()
    }
}

fn prefixes() -> impl Strategy<Value = IpPrefix> {
    let four = (any::<u32>(), 0_u8..=32).prop_map(|(bits, length)| {
        IpPrefix::new(Ipv4Addr::from_bits(bits).into(), length).unwrap()
    });
    let six = (any::<u128>(), 0_u8..=128).prop_map(|(bits, length)| {
        IpPrefix::new(Ipv6Addr::from_bits(bits).into(), length).unwrap()
    });
    prop_oneof![four, six]
}

proptest! {
    #[test]
    fn route_is_read_as_it_was_asked_for(
        to in prefixes(),
        gateway in any::<Option<u128>>(),
        source in any::<Option<u128>>(),
        is_on_link in any::<bool>(),
        link in any::<u32>(),
        table in any::<u32>(),
        metric in any::<u32>(),
    ) {
        let route = Route {
            to,
            gateway: gateway.map(|bits| like(to, bits)),
            is_on_link,
            link,
            source: source.map(|bits| like(to, bits)),
            table,
            metric,
        };
        let read = Route::read(&body(&add_route(&route).unwrap()));
        let expected = Route { to: to.network(), ..route };
        prop_assert_eq!(read, Some(expected));
    }

    #[test]
    fn address_is_read_as_it_was_asked_for(prefix in prefixes(), link in any::<u32>()) {
        let address = Address { link, prefix };
        let state = AddressState::Usable;
        let held = Some(HeldAddress { address, state });
        prop_assert_eq!(HeldAddress::read(&body(&add_address(&address))), held);
        prop_assert_eq!(HeldAddress::read(&body(&delete_address(&address))), held);
    }

    #[test]
    fn neighbour_is_read_as_it_was_asked_for(prefix in prefixes(), link in any::<u32>(), end in any::<u32>()) {
        let mac = Mac::of(Ipv4Addr::from_bits(end));
        let address = prefix.address();
        let read = Neighbour::read(&body(&add_neighbour(link, address, mac)));
        prop_assert_eq!(read, Some(Neighbour { link, address, mac, is_permanent: true }));
    }

    #[test]
    fn what_is_cut_off_is_read_without_a_panic(prefix in prefixes(), length in any::<prop::sample::Index>()) {
        let address = Address { link: LO, prefix };
        let route = Route::direct(prefix, LO);
        let mac = Mac::of(Ipv4Addr::LOCALHOST);
        for request in [
            add_address(&address),
            add_route(&route).unwrap(),
            add_neighbour(LO, prefix.address(), mac),
            bridge("swtbr").create(),
        ] {
            crate::fuzzing::rtnetlink(&body(&request)[..length.index(body(&request).len())]);
        }
    }
}

#[test]
fn device_is_read_as_it_was_asked_for() {
    let named = NewLink::new(name("swt0"));
    let whole = NewLink {
        mtu: Some(9_000),
        mac: fixed_mac("02:42:0a:58:00:02"),
        group: 77,
        ..named.clone()
    };
    let pair = |link: &NewLink, master| Veth {
        link: link.clone(),
        master,
        peer: NewLink::new(name("eth0")),
        peer_namespace: NetNs::current().unwrap(),
    };
    for (kind, link, master, request) in [
        (
            "bridge",
            &named,
            None,
            Bridge {
                link: named.clone(),
            }
            .create(),
        ),
        (
            "bridge",
            &whole,
            None,
            Bridge {
                link: whole.clone(),
            }
            .create(),
        ),
        (
            "ifb",
            &whole,
            None,
            Ifb {
                link: whole.clone(),
            }
            .create(),
        ),
        ("veth", &named, None, pair(&named, None).create()),
        ("veth", &whole, Some(7), pair(&whole, Some(7)).create()),
    ] {
        let read = Link::read(&body(&request)).unwrap();
        let expected = Link {
            index: 0,
            name: "swt0".to_owned(),
            kind: Some(kind.to_owned()),
            mac: link.mac,
            mtu: link.mtu.unwrap_or_default(),
            master,
            group: link.group,
            is_up: true,
            port: None,
        };
        assert_eq!(read, expected);
    }
}
