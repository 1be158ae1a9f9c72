//! On this kernel, in network namespaces of their own: packets are sent for what is promised.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use switchyard_core::spec::Subnet;
use tempfile::TempDir;

use super::*;
use crate::netlink::{Family, Socket, list_links};
use crate::nft::{Isolation, NftTables, Repair, TableName, Transport};
use crate::testing::hosts::{Host, LONG, SERVED, SHORT, inside, ip, own_netns};
use crate::testing::{in_private_netns, run};

mod ends;
mod forwarded;
mod kept_apart;
mod left_behind;
mod pinned;
mod refused;
mod settings;
mod several;

const SUBNETS: [&str; 2] = ["10.88.0.0/24", "fd00:88::/64"];
/// The node's addresses on the network of another machine, and that machine's.
const UPLINK: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const REMOTE: [&str; 2] = ["192.0.2.9", "2001:db8::9"];

/// A node in a network namespace of its own, with another machine.
struct Node {
    addresses: TempDir,
    driver: BridgeDriver,
}

fn settings(addresses: &Path, subnets: &[&str]) -> BridgeSettings {
    BridgeSettings {
        name: LinkName::new("swtest0").unwrap(),
        subnets: subnets
            .iter()
            .map(|text| text.parse::<Subnet>().unwrap().into())
            .collect(),
        is_gateway: true,
        has_masquerade: true,
        mtu: None,
        addresses_dir: addresses.to_owned(),
        owner: String::new(),
        direct_routing: true,
    }
}

/// The first driver of an instance of the daemon.
fn driver(settings: BridgeSettings, table: TableName) -> BridgeDriver {
    let driver = BridgeDriver::new(settings, Arc::new(BridgeTables::new(table))).unwrap();
    driver.keep().unwrap();
    driver
}

fn adopt(driver: &BridgeDriver, attachments: &[Attachment], all: bool) {
    let of_driver = attachments.iter().map(|attachment| (driver, attachment));
    driver.tables.adopt(of_driver, all);
}

impl Node {
    fn new(subnets: &[&str]) -> Self {
        Self::with(subnets, |_| {})
    }

    fn with(subnets: &[&str], change: impl FnOnce(&mut BridgeSettings)) -> Self {
        ip("link set lo up");
        let addresses = tempfile::tempdir().unwrap();
        let mut settings = settings(addresses.path(), subnets);
        change(&mut settings);
        let driver = driver(settings, TableName::default());
        Self { addresses, driver }
    }

    /// The driver of the next process on the same node.
    fn next_driver(&self) -> BridgeDriver {
        driver(self.driver.settings.clone(), TableName::default())
    }

    /// The names in the directory of addresses in use.
    fn in_use(&self) -> Vec<String> {
        let entries = fs::read_dir(self.addresses.path().join("swtest0"));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect();
        names.sort();
        names
    }
}

/// A container that is not attached yet.
struct Container {
    netns: File,
    request: AttachRequest,
}

impl Container {
    fn new(id: &str) -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            own_netns()
        };
        let netns = thread::scope(|scope| scope.spawn(make).join().unwrap());
        let request = AttachRequest {
            holder: Holder::new(id, "eth0").unwrap(),
            netns: format!("/proc/self/fd/{}", netns.as_raw_fd()).into(),
            mac: None,
            addresses: Vec::new(),
            ports: Vec::new(),
            limits: Limits::default(),
            is_pinned: false,
        };
        Self { netns, request }
    }

    fn with_ports(id: &str, ports: &[PublishedPort]) -> Self {
        let mut container = Self::new(id);
        container.request.ports = ports.to_vec();
        container
    }

    fn attachment(&self, attached: Option<&Attached>) -> Attachment {
        let addresses = attached.map(|attached| {
            let assigned = attached.addresses.iter();
            assigned.map(|one| one.address).collect()
        });
        Attachment {
            holder: self.request.holder.clone(),
            addresses,
            ports: self.request.ports.clone(),
            pin: None,
        }
    }

    fn serving(&self, family: NftFamily) -> Host {
        Host::serving(self.netns.try_clone().unwrap(), family)
    }
}

fn port(protocol: Transport, port: u16) -> PublishedPort {
    PublishedPort {
        protocol,
        at: None,
        port,
        to_port: SERVED,
    }
}

fn both(port_number: u16) -> [PublishedPort; 2] {
    [Transport::Tcp, Transport::Udp].map(|protocol| port(protocol, port_number))
}

fn address(attached: &Attached, family: NftFamily) -> IpAddr {
    let of_family = |one: &&AssignedAddress| NftFamily::of(&one.address) == family;
    attached.addresses.iter().find(of_family).unwrap().address
}

/// The devices of the node, without states that change by themselves.
fn devices() -> Vec<String> {
    let mut socket = Socket::open(Family::Route).unwrap();
    let links = list_links(&mut socket).unwrap().into_iter();
    links.map(|link| link.name).collect()
}

fn links() -> String {
    run("ip", "iproute2", &["-o", "link", "show"])
}

/// A machine beside the node, reached by the device `uplink`.
fn remote(family: NftFamily) -> Host {
    let (index, bits) = match family {
        NftFamily::Ip4 => (0, 24),
        NftFamily::Ip6 => (1, 64),
        NftFamily::Bridge => unreachable!("a machine is of a family of addresses"),
    };
    let host = Host::new(
        family,
        "uplink",
        &format!("{}/{bits}", REMOTE[index]),
        UPLINK[index],
    );
    let nodad = if bits == 64 { " nodad" } else { "" };
    ip(&format!(
        "addr add {}/{bits} dev uplink{nodad}",
        UPLINK[index]
    ));
    ip("link set uplink up");
    host
}

#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn reach_each_other(family: NftFamily) {
    let node = Node::new(&SUBNETS);
    let served = Container::with_ports("served", &both(8080));
    let other = Container::new("other");
    let attached = node.driver.attach(&served.request).unwrap();
    let neighbour = node.driver.attach(&other.request).unwrap();
    let uplink: IpAddr = UPLINK[usize::from(family == NftFamily::Ip6)]
        .parse()
        .unwrap();
    let remote_ip: IpAddr = REMOTE[usize::from(family == NftFamily::Ip6)]
        .parse()
        .unwrap();
    let remote = remote(family);
    let here = Host::node(family);
    let server = served.serving(family);
    let beside = other.serving(family);
    let container = address(&attached, family);
    let router = attached
        .addresses
        .iter()
        .find(|one| one.address == container)
        .unwrap()
        .gateway;
    // The kernel gives a device its addresses of IPv6 when it has seen its carrier.
    let itself = SocketAddr::new(uplink, SERVED);
    let has_address = || here.tcp(itself, &here, SHORT).is_some();
    assert!((0..200).any(|_| has_address()), "{itself} is not reached");
    let mut rows = vec![
        (
            "node to container",
            &here,
            container,
            80,
            &server,
            Some(router),
        ),
        ("node to port", &here, uplink, 8080, &server, Some(uplink)),
        (
            "remote to port",
            &remote,
            uplink,
            8080,
            &server,
            Some(remote_ip),
        ),
        ("container to itself", &server, uplink, 8080, &server, None),
        ("neighbour to port", &beside, uplink, 8080, &server, None),
        (
            "container to outside",
            &server,
            remote_ip,
            80,
            &remote,
            Some(uplink),
        ),
        (
            "container to node",
            &server,
            router,
            80,
            &here,
            Some(container),
        ),
        (
            "neighbour directly",
            &beside,
            container,
            80,
            &server,
            Some(address(&neighbour, family)),
        ),
    ];
    if family == NftFamily::Ip4 {
        let loopback = [127, 0, 0, 1].into();
        rows.push(("loopback", &here, loopback, 8080, &server, Some(router)));
    }
    for (name, client, to, port, server, source) in rows {
        let to = SocketAddr::new(to, port);
        for (protocol, seen) in [
            ("TCP", client.tcp(to, server, LONG)),
            ("UDP", client.udp(to, server, LONG)),
        ] {
            assert!(seen.is_some(), "{name}, {protocol}");
            assert!(
                source.is_none() || seen == source,
                "{name}, {protocol}: {seen:?}"
            );
        }
    }
    if family == NftFamily::Ip4 {
        // With a route to it, another machine can send a packet for 127.0.0.1 to the node.
        inside(&remote.netns, || {
            fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
            ip("route flush table local root 127.0.0.0/8");
            ip(&format!("route add 127.0.0.9 via {uplink}"));
        });
        let loopback = SocketAddr::new([127, 0, 0, 9].into(), 8080);
        assert!(here.tcp(loopback, &server, LONG).is_some());
        assert_eq!(remote.tcp(loopback, &server, SHORT), None);
        assert_eq!(remote.udp(loopback, &server, SHORT), None);
    }
    node.driver
        .detach(&served.attachment(Some(&attached)))
        .unwrap();
    node.driver.tables.forget_past_flows();
    let to = SocketAddr::new(uplink, 8080);
    assert_eq!(remote.tcp(to, &server, SHORT), None);
    assert_eq!(remote.udp(to, &server, SHORT), None);
}

#[test]
fn containers_reach_and_are_reached() {
    for family in NftFamily::ALL {
        in_private_netns(|| reach_each_other(family));
    }
}

#[test]
fn detached_container_leaves_no_port_and_no_address() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        node.driver.tables.restore().unwrap();
        let elements = || -> Vec<_> {
            let families = node.driver.families.iter().copied();
            families.map(elements_of).collect()
        };
        let nothing = elements();
        for known in [true, false] {
            let container = Container::with_ports("a", &both(8080));
            let attached = node.driver.attach(&container.request).unwrap();
            assert_eq!(node.in_use().len(), 2);
            let attachment = container.attachment(known.then_some(&attached));
            for _ in 0..2 {
                node.driver.detach(&attachment).unwrap();
                assert!(node.in_use().is_empty(), "{:?}", node.in_use());
            }
            assert_eq!(elements(), nothing, "{known}");
            drop(container);
        }
        // The last ends of the pairs go with their namespaces.
        for _ in 0..500 {
            if !links().contains("veth") {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("a pair of devices is left: {}", links());
    });
}

/// Returns what the kernel has in a table.
fn elements_of(family: NftFamily) -> BTreeSet<Element> {
    let mut tables = NftTables::open(TableName::default()).unwrap();
    let table = tables.read(family).unwrap();
    table.map_or_else(BTreeSet::new, |table| table.elements().clone())
}

#[test]
fn addresses_and_hardware_address_are_those_that_were_requested() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let mut container = Container::new("a");
        let wanted: [IpAddr; 2] = [
            "10.88.0.77".parse().unwrap(),
            "fd00:88::77".parse().unwrap(),
        ];
        container.request.addresses = wanted.to_vec();
        container.request.mac = Some("02:00:00:00:00:07".parse().unwrap());
        let attached = node.driver.attach(&container.request).unwrap();
        assert_eq!(
            attached
                .addresses
                .iter()
                .map(|one| one.address)
                .collect::<Vec<_>>(),
            wanted
        );
        let shown = inside(&container.netns, || {
            run("ip", "iproute2", &["addr", "show", "eth0"])
        });
        for text in ["02:00:00:00:00:07", "10.88.0.77/24", "fd00:88::77/64"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let mut second = Container::new("b");
        second.request.addresses = wanted[..1].to_vec();
        let taken = node.driver.attach(&second.request).unwrap_err();
        assert!(matches!(taken, DriverError::Addresses(_)), "{taken}");
        second.request.addresses = vec!["10.99.0.1".parse().unwrap()];
        let outside = node.driver.attach(&second.request).unwrap_err();
        assert!(matches!(outside, DriverError::Addresses(_)), "{outside}");
        assert_eq!(node.in_use().len(), 2);
    });
}

#[test]
fn bridge_keeps_its_hardware_address_and_gets_back_what_others_took() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let mut macs = BTreeSet::new();
        for id in ["a", "b", "c", "d"] {
            let container = Container::new(id);
            let attached = node.driver.attach(&container.request).unwrap();
            macs.insert(attached.bridge_mac);
            node.driver
                .detach(&container.attachment(Some(&attached)))
                .unwrap();
            ip("link set swtest0 down");
            ip("addr flush dev swtest0");
        }
        assert_eq!(macs.len(), 1, "{macs:?}");
        let container = Container::new("e");
        node.driver.attach(&container.request).unwrap();
        let here = Host::node(NftFamily::Ip4);
        let server = container.serving(NftFamily::Ip4);
        let to = SocketAddr::new("10.88.0.1".parse().unwrap(), SERVED);
        assert!(server.tcp(to, &here, LONG).is_some());
    });
}

#[test]
fn containers_that_are_attached_at_once_have_addresses_of_their_own() {
    const THREADS: usize = 8;
    const EACH: usize = 5;
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let made: Vec<(Container, Attached)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let driver = &node.driver;
                    scope.spawn(move || {
                        let attach = |index| {
                            let number = u16::try_from(1000 + thread * EACH + index).unwrap();
                            let container =
                                Container::with_ports(&format!("c{number}"), &both(number));
                            let attached = driver.attach(&container.request).unwrap();
                            (container, attached)
                        };
                        (0..EACH).map(attach).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        let addresses: BTreeSet<_> = made
            .iter()
            .flat_map(|(_, attached)| attached.addresses.iter().map(|one| one.address))
            .collect();
        assert_eq!(addresses.len(), 2 * THREADS * EACH);
        for (container, attached) in &made {
            node.driver
                .detach(&container.attachment(Some(attached)))
                .unwrap();
        }
        assert!(node.in_use().is_empty());
    });
}
