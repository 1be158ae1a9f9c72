//! Containers that send only with their own addresses, and those that do not. Each has NET_RAW, and NET_ADMIN in its own namespace, with
//! which it forges.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::*;
use crate::netlink::Mac;
use crate::testing::hosts::{bind_again, set};

/// Difference of an attachment from the usual one.
type Change = Box<dyn FnOnce(&mut AttachRequest) + Send>;

/// Addresses that the forger does not have.
const OTHERS: [&str; 2] = ["10.88.0.77", "fd00:88::77"];
const OTHER_MAC: &str = "02:42:0a:58:00:4d";

/// Part of a packet that is forged.
#[derive(Debug, Clone, Copy)]
enum Forged {
    /// The sender of packets of a family, which has no answer.
    Sender(NftFamily),
    /// The hardware address.
    Mac,
    /// Owner of an address: answers of ARP, or of neighbour discovery.
    Neighbour(NftFamily),
}

const ALL: [Forged; 5] = [
    Forged::Sender(NftFamily::Ip4),
    Forged::Sender(NftFamily::Ip6),
    Forged::Mac,
    Forged::Neighbour(NftFamily::Ip4),
    Forged::Neighbour(NftFamily::Ip6),
];

fn index(family: NftFamily) -> usize {
    usize::from(family == NftFamily::Ip6)
}

/// Two containers of a bridge: what one forges does not reach the other one if it is pinned.
struct Pair {
    node: Node,
    forger: Container,
    attached: Attached,
    neighbour: Container,
    beside: Attached,
}

impl Pair {
    fn new(change: impl FnOnce(&mut AttachRequest)) -> Self {
        let node = Node::new(&SUBNETS);
        let [mut forger, neighbour] = ["forger", "neighbour"].map(Container::new);
        forger.request.is_pinned = true;
        change(&mut forger.request);
        let attached = node.driver.attach(&forger.request).unwrap();
        let beside = node.driver.attach(&neighbour.request).unwrap();
        // So that it sends and takes packets with addresses of others.
        for netns in [&forger.netns, &neighbour.netns] {
            inside(netns, || {
                for parameter in ["all/rp_filter", "eth0/rp_filter"] {
                    let path = format!("/proc/sys/net/ipv4/conf/{parameter}");
                    fs::write(path, "0").unwrap();
                }
            });
        }
        Self {
            node,
            forger,
            attached,
            neighbour,
            beside,
        }
    }

    /// The forger as it is on record.
    fn attachment(&self) -> Attachment {
        Attachment {
            pin: self.forger.request.is_pinned.then_some(self.attached.mac),
            ..self.forger.attachment(Some(&self.attached))
        }
    }

    fn in_forger(&self, command: &str) {
        inside(&self.forger.netns, || ip(command));
    }

    fn in_neighbour(&self, command: &str) {
        inside(&self.neighbour.netns, || ip(command));
    }

    /// Returns whether the neighbour gets a datagram that the forger sends from an address of its device.
    fn is_received(&self, from: &str, family: NftFamily, limit: Duration) -> bool {
        let to = SocketAddr::new(address(&self.beside, family), SERVED);
        let server = inside(&self.neighbour.netns, || bind_again(|| UdpSocket::bind(to)));
        let pause = Duration::from_millis(50);
        server.set_read_timeout(Some(pause)).unwrap();
        let from: IpAddr = from.parse().unwrap();
        let client = inside(&self.forger.netns, || UdpSocket::bind((from, 0)).unwrap());
        let end = Instant::now() + limit;
        while Instant::now() < end {
            // It fails while the neighbour is asked for its hardware address.
            let _ = client.send_to(b"datagram", to);
            if server.recv_from(&mut [0; 16]).is_ok() {
                return true;
            }
        }
        false
    }

    /// Returns whether the neighbour takes the forger for who has an address.
    fn is_learnt(&self, family: NftFamily, limit: Duration) -> bool {
        let asked = OTHERS[index(family)];
        let to = SocketAddr::new(asked.parse().unwrap(), SERVED);
        let any: IpAddr = if to.is_ipv4() {
            [0_u8; 4].into()
        } else {
            [0_u16; 8].into()
        };
        let client = inside(&self.neighbour.netns, || UdpSocket::bind((any, 0)).unwrap());
        let mac = self.attached.mac.to_string();
        let end = Instant::now() + limit;
        while Instant::now() < end {
            let _ = client.send_to(b"datagram", to);
            let known = inside(&self.neighbour.netns, || {
                run("ip", "iproute2", &["neigh", "show", asked])
            });
            if known.contains(&mac) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn succeeds(&self, forged: Forged, limit: Duration) -> bool {
        match forged {
            Forged::Sender(family) | Forged::Neighbour(family) => {
                let other = OTHERS[index(family)];
                let nodad = if family == NftFamily::Ip6 {
                    " nodad"
                } else {
                    ""
                };
                let bits = [32, 128][index(family)];
                self.in_forger(&format!("addr add {other}/{bits} dev eth0{nodad}"));
                let succeeds = if matches!(forged, Forged::Sender(_)) {
                    // The way to it is known: only the sender is forged.
                    let to = address(&self.beside, family);
                    let mac = self.beside.mac;
                    self.in_forger(&format!(
                        "neigh replace {to} lladdr {mac} dev eth0 nud reachable"
                    ));
                    self.is_received(other, family, limit)
                } else {
                    self.is_learnt(family, limit)
                };
                self.in_forger(&format!("addr del {other}/{bits} dev eth0"));
                self.in_neighbour("neigh flush dev eth0");
                succeeds
            }
            Forged::Mac => {
                let own = address(&self.attached, NftFamily::Ip4).to_string();
                self.in_forger(&format!("link set eth0 address {OTHER_MAC}"));
                let succeeds = self.is_received(&own, NftFamily::Ip4, limit);
                let mac = self.attached.mac;
                self.in_forger(&format!("link set eth0 address {mac}"));
                succeeds
            }
        }
    }

    /// Checks that what is forged succeeds or fails, as `succeeds` says, and that what is not forged always succeeds.
    fn check(&self, succeeds: bool, when: &str) {
        for family in NftFamily::ALL {
            self.in_forger("neigh flush dev eth0");
            self.in_neighbour("neigh flush dev eth0");
            let [forger, neighbour] =
                [&self.forger, &self.neighbour].map(|one| one.serving(family));
            for (client, server, attached) in [
                (&forger, &neighbour, &self.beside),
                (&neighbour, &forger, &self.attached),
            ] {
                let to = SocketAddr::new(address(attached, family), SERVED);
                assert!(
                    client.tcp(to, server, LONG).is_some(),
                    "{when}: TCP to {to}"
                );
                assert!(
                    client.udp(to, server, LONG).is_some(),
                    "{when}: UDP to {to}"
                );
            }
        }
        let limit = if succeeds { LONG } else { 3 * SHORT };
        for forged in ALL {
            let found = self.succeeds(forged, limit);
            assert_eq!(found, succeeds, "{when}: {forged:?}");
        }
    }

    fn pins(&self) -> usize {
        elements_of(NftFamily::Bridge).len()
    }
}

#[test]
fn pinned_container_sends_with_its_own_addresses_alone() {
    let mac: Mac = "02:00:00:00:00:07".parse().unwrap();
    let bits = LimitBits {
        bits_per_second: 1_000_000_000,
        burst_bits: 8_000_000,
    };
    let limits = Limits {
        into: Some(bits),
        out: Some(bits),
    };
    let cases: [(&str, Change, bool); 4] = [
        ("pinned", Box::new(|_| {}), true),
        (
            "pinned to a hardware address that was asked for",
            Box::new(move |request| request.mac = Some(mac)),
            true,
        ),
        (
            "pinned, with ports and limits, by which packets take another way",
            Box::new(move |request| {
                request.ports = both(8080).to_vec();
                request.limits = limits;
            }),
            true,
        ),
        (
            "not pinned",
            Box::new(|request| request.is_pinned = false),
            false,
        ),
    ];
    for (when, change, is_pinned) in cases {
        in_private_netns(|| {
            let pair = Pair::new(change);
            pair.check(!is_pinned, when);
            // The port, its hardware address, two addresses and the link-local one.
            assert_eq!(pair.pins(), if is_pinned { 5 } else { 0 }, "{when}");
            pair.node.driver.detach(&pair.attachment()).unwrap();
            assert_eq!(pair.pins(), 0, "{when}");
        });
    }
}

#[test]
fn pins_survive_a_flush_and_a_restart_and_end_with_the_permission() {
    in_private_netns(|| {
        let pair = Pair::new(|_| {});
        pair.check(false, "attached");
        run("nft", "nftables", &["flush", "ruleset"]);
        pair.node.driver.tables.restore().unwrap();
        pair.check(false, "flushed");
        let next = pair.node.next_driver();
        adopt(&next, &[pair.attachment()], true);
        let repairs = next.tables.restore().unwrap();
        let is_same = |(_, repair): &(NftFamily, Repair)| *repair == Repair::Nothing;
        let of_ports = |(family, _): &&(NftFamily, Repair)| *family == NftFamily::Bridge;
        assert!(repairs.iter().find(of_ports).is_some_and(is_same));
        pair.check(false, "taken over");
        // Neither a repair nor a second call changes it.
        for _ in 0..2 {
            next.unpin(&pair.forger.request.holder).unwrap();
            next.tables.restore().unwrap();
            assert_eq!(pair.pins(), 0);
        }
        pair.check(true, "unpinned");
        // A kill came between the record and the elements.
        pair.node.driver.tables.restore().unwrap();
        assert_eq!(pair.pins(), 5);
        let last = pair.node.next_driver();
        let unpinned = Attachment {
            pin: None,
            ..pair.attachment()
        };
        // Whether others are known or not.
        adopt(&last, &[unpinned], false);
        last.tables.restore().unwrap();
        assert_eq!(pair.pins(), 0);
        // One that is not known has none.
        last.unpin(&Holder::new("nobody", "eth0").unwrap()).unwrap();
    });
}

/// Before it is on record which addresses a container got, and after it was detached without its record, nothing of it is pinned.
#[test]
fn pins_go_with_what_a_kill_has_cut_off() {
    in_private_netns(|| {
        let pair = Pair::new(|_| {});
        let cut_off = pair.forger.attachment(None);
        let next = pair.node.next_driver();
        for (attachments, all, expected) in [
            // Others may have them.
            (&[][..], false, 5),
            (std::slice::from_ref(&cut_off), false, 0),
            (&[], true, 0),
        ] {
            adopt(&next, attachments, all);
            next.tables.restore().unwrap();
            assert_eq!(pair.pins(), expected, "{attachments:?} {all}");
        }
        next.detach(&cut_off).unwrap();
        // Attached again, by the driver that had it before.
        let again = next.attach(&pair.forger.request).unwrap();
        assert_eq!(pair.pins(), 5);
        let attachment = Attachment {
            pin: Some(again.mac),
            ..pair.forger.attachment(Some(&again))
        };
        // A process that has not taken it over knows it by its record.
        pair.node.next_driver().detach(&attachment).unwrap();
        assert_eq!(pair.pins(), 0);
    });
}

/// The namespace of a container may have another default than the kernel's, as one with `net.core.devconf_inherit_init_net` has that of the node.
#[test]
fn link_local_address_is_the_pinned_one_whatever_the_default() {
    for (parameter, value) in [
        ("addr_gen_mode", "0"),
        ("addr_gen_mode", "1"),
        ("addr_gen_mode", "3"),
        ("stable_secret", "2001:db8::7"),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            let mut container = Container::new("a");
            container.request.is_pinned = true;
            let parameter = format!("ipv6/conf/default/{parameter}");
            inside(&container.netns, || set(&parameter, value));
            node.driver.attach(&container.request).unwrap();
            let end = Instant::now() + LONG;
            let words = ["-6", "-o", "addr", "show", "dev", "eth0", "scope", "link"];
            let found: IpAddr = loop {
                let shown = inside(&container.netns, || run("ip", "iproute2", &words));
                let mut parts = shown.split([' ', '/']);
                if let Some(address) = parts.find_map(|part| part.parse::<IpAddr>().ok()) {
                    break address;
                }
                assert!(Instant::now() < end, "{parameter} = {value}: no address");
                thread::sleep(Duration::from_millis(20));
            };
            let is_found =
                |pin: &Element| matches!(pin, Element::PinnedAddress(_, one) if *one == found);
            let is_pinned = elements_of(NftFamily::Bridge).iter().any(is_found);
            assert!(is_pinned, "{parameter} = {value}: {found}");
        });
    }
}

/// As where another program owns a table of its name: what is not pinned does without it, and the rest is told and tried again.
#[test]
fn table_of_pins_that_the_kernel_refuses_keeps_no_other_one_back() {
    in_private_netns(|| {
        let pair = Pair::new(|request| request.ports = both(8080).to_vec());
        let delete = |family| {
            let words = ["delete", "table", family, "switchyard"];
            run("nft", "nftables", &words);
        };
        delete("bridge");
        let mut owner = NftTables::open(TableName::default()).unwrap();
        owner.own_table(NftFamily::Bridge);
        delete("ip");
        delete("ip6");
        let next = pair.node.next_driver();
        adopt(&next, &[pair.attachment()], true);
        assert!(!next.tables.is_behind());
        let error = next.tables.restore().unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("family bridge")
                && text.contains("NET_RAW")
                && !text.contains("127.0.0.1"),
            "{text}"
        );
        assert!(next.tables.is_behind());
        let are_there = |when: &str| {
            for family in NftFamily::ALL {
                let is_port = |element: &Element| matches!(element, Element::Port { .. });
                let is_there = elements_of(family).iter().any(is_port);
                assert!(is_there, "{when}: {family:?}");
            }
        };
        are_there("restored");
        // This process sets the bridge up for it.
        let mut others = ["b", "c", "d"].map(Container::new).into_iter();
        let mut attach = |ports: &[PublishedPort], is_pinned| {
            let mut container = others.next().unwrap();
            container.request.ports = ports.to_vec();
            container.request.is_pinned = is_pinned;
            next.attach(&container.request)
        };
        attach(&[], false).unwrap();
        // Its ports find a table missing.
        delete("ip");
        attach(&both(8081), false).unwrap();
        are_there("published");
        let error = attach(&[], true).unwrap_err();
        assert!(matches!(error, DriverError::Rules(_)), "{error:?}");
        assert!(
            error.to_string().contains("table bridge switchyard"),
            "{error}"
        );
        assert!(error.is_undone() && next.tables.is_behind());
        drop(owner);
        // A program that another test has just started may have the socket too, until it is executed.
        let end = Instant::now() + LONG;
        while next.tables.restore().is_err() {
            assert!(Instant::now() < end, "the table has its owner still");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!next.tables.is_behind());
        assert_eq!(pair.pins(), 5);
    });
}

/// A table that has lost its rules takes elements all the same, by which nobody is pinned.
#[test]
fn container_is_not_pinned_by_a_table_whose_rules_cannot_be_restored() {
    in_private_netns(|| {
        let pair = Pair::new(|_| {});
        let tables = &pair.node.driver.tables;
        let limit_send = |max| {
            let mut state = tables.lock();
            let kernel = state.kernel(tables.name()).unwrap();
            kernel.tables.limit_send(max)
        };
        let attach = |id, is_pinned| {
            let mut container = Container::new(id);
            container.request.is_pinned = is_pinned;
            pair.node.driver.attach(&container.request)
        };
        let is_intact = || {
            let mut tables = NftTables::open(TableName::default()).unwrap();
            let table = tables.read(NftFamily::Bridge).unwrap();
            table.unwrap().is_intact(NftFamily::Bridge)
        };
        let flush = ["flush", "chain", "bridge", "switchyard", "port_prerouting"];
        run("nft", "nftables", &flush);
        // Some elements are less, and a whole table is more.
        let max = limit_send(1 << 10);
        tables.restore().unwrap_err();
        attach("a", false).unwrap();
        let error = attach("b", true).unwrap_err();
        assert!(matches!(error, DriverError::Rules(_)), "{error:?}");
        assert!(error.is_undone() && tables.is_behind() && !is_intact());
        assert_eq!(pair.pins(), 5, "those of the first one");
        limit_send(max);
        attach("c", true).unwrap();
        assert!(!tables.is_behind() && is_intact());
        assert_eq!(pair.pins(), 10);
    });
}
