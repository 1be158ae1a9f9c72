//! Packets through our rules, between hosts that are network namespaces: which of them reach which, and with which address.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

use super::*;

/// Time for what should arrive, on a busy machine.
const LONG: Duration = Duration::from_secs(20);
/// Time for what should not: by then the way is known to all, since other packets have arrived before.
const SHORT: Duration = Duration::from_millis(100);
/// The port on which every host listens.
const SERVED: u16 = 80;

/// A host with an address, and a server on it.
struct Host {
    netns: File,
    tcp: TcpListener,
    udp: UdpSocket,
}

fn own_netns() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn ip(arguments: &str) {
    let arguments: Vec<_> = arguments.split(' ').collect();
    run("ip", "iproute2", &arguments);
}

fn set(sysctl: &str, value: &str) {
    fs::write(Path::new("/proc/sys/net").join(sysctl), value).unwrap();
}

/// Runs `work` in a network namespace.
fn inside<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> T {
    let entered = || {
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(entered).join().unwrap())
}

impl Host {
    /// The namespace of this thread.
    fn node(family: NftFamily) -> Self {
        Self::serving(own_netns(), family)
    }

    /// A host behind the device `device` of the node, with an address and a router.
    fn new(family: NftFamily, device: &str, address: &str, router: &str) -> Self {
        // The kernel finds the namespace by the number of a thread in it.
        let node = fs::read_link("/proc/thread-self").unwrap();
        let node = node.file_name().unwrap().to_str().unwrap().to_owned();
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip(&format!(
                "link add eth0 type veth peer name {device} netns {node}"
            ));
            ip("link set lo up");
            ip("link set eth0 up");
            ip(&format!("addr add {address} dev eth0{}", nodad(family)));
            ip(&format!("route add default via {router} dev eth0 onlink"));
            own_netns()
        };
        let netns = thread::scope(|scope| scope.spawn(make).join().unwrap());
        Self::serving(netns, family)
    }

    fn serving(netns: File, family: NftFamily) -> Self {
        let any: IpAddr = match family {
            NftFamily::Ip4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
            NftFamily::Ip6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let at = SocketAddr::new(any, SERVED);
        let (tcp, udp) = inside(&netns, || {
            (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap())
        });
        tcp.set_nonblocking(true).unwrap();
        Self { netns, tcp, udp }
    }

    /// Asks an address and port by TCP, and returns the address that the server sees, if the server is this one.
    fn tcp(&self, to: SocketAddr, server: &Self, limit: Duration) -> Option<IpAddr> {
        let client = inside(&self.netns, || TcpStream::connect_timeout(&to, limit)).ok()?;
        assert_eq!(client.peer_addr().unwrap(), to);
        // The server may learn of the connection a moment after the client.
        let end = Instant::now() + limit;
        while Instant::now() < end {
            match server.tcp.accept() {
                Ok((_, from)) => return Some(from.ip()),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
        None
    }

    /// The same by UDP, with an answer, which may come back only from the address that was asked.
    fn udp(&self, to: SocketAddr, server: &Self, limit: Duration) -> Option<IpAddr> {
        let at = server.udp.local_addr().unwrap();
        let client = inside(&self.netns, || UdpSocket::bind(SocketAddr::new(at.ip(), 0))).unwrap();
        client.connect(to).ok()?;
        for socket in [&client, &server.udp] {
            socket.set_read_timeout(Some(SHORT)).unwrap();
        }
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if client.send(b"question").is_err() {
                continue;
            }
            let mut buffer = [0; 16];
            let Ok((_, from)) = server.udp.recv_from(&mut buffer) else {
                continue;
            };
            server.udp.send_to(b"answer", from).unwrap();
            let answered: io::Result<usize> = client.recv(&mut buffer);
            if answered.is_ok() {
                return Some(from.ip());
            }
        }
        None
    }
}

fn nodad(family: NftFamily) -> &'static str {
    match family {
        NftFamily::Ip4 => "",
        NftFamily::Ip6 => " nodad",
    }
}

/// Addresses of the hosts of a family.
struct Plan {
    bits: u8,
    uplink: &'static str,
    remote: &'static str,
    /// Address of the bridge and of two containers.
    first: [&'static str; 3],
    /// Address of the bridge and of a container.
    second: [&'static str; 2],
}

const PLANS: [(NftFamily, Plan); 2] = [
    (
        NftFamily::Ip4,
        Plan {
            bits: 24,
            uplink: "192.0.2.1",
            remote: "192.0.2.9",
            first: ["10.88.0.1", "10.88.0.2", "10.88.0.3"],
            second: ["10.99.0.1", "10.99.0.2"],
        },
    ),
    (
        NftFamily::Ip6,
        Plan {
            bits: 64,
            uplink: "2001:db8::1",
            remote: "2001:db8::9",
            first: ["fd00:88::1", "fd00:88::2", "fd00:88::3"],
            second: ["fd00:99::1", "fd00:99::2"],
        },
    ),
];

/// Hosts around a node with two bridges.
struct Lab {
    node: Host,
    remote: Host,
    first: Host,
    neighbour: Host,
    second: Host,
}

impl Lab {
    fn new(family: NftFamily, plan: &Plan) -> Self {
        ip("link set lo up");
        match family {
            NftFamily::Ip4 => set("ipv4/ip_forward", "1"),
            NftFamily::Ip6 => set("ipv6/conf/all/forwarding", "1"),
        }
        let bits = plan.bits;
        for (bridge, address) in [("sw0", plan.first[0]), ("sw1", plan.second[0])] {
            ip(&format!("link add {bridge} type bridge"));
            ip(&format!(
                "addr add {address}/{bits} dev {bridge}{}",
                nodad(family)
            ));
            ip(&format!("link set {bridge} up"));
            set(&format!("ipv4/conf/{bridge}/route_localnet"), "1");
        }
        let container = |device: &str, bridge: &str, address: &str, router: &str| {
            let host = Host::new(family, device, &format!("{address}/{bits}"), router);
            ip(&format!("link set {device} master {bridge} up"));
            ip(&format!("link set {device} type bridge_slave hairpin on"));
            host
        };
        let remote = Host::new(
            family,
            "uplink",
            &format!("{}/{bits}", plan.remote),
            plan.uplink,
        );
        ip(&format!(
            "addr add {}/{bits} dev uplink{}",
            plan.uplink,
            nodad(family)
        ));
        ip("link set uplink up");
        Self {
            remote,
            first: container("first", "sw0", plan.first[1], plan.first[0]),
            neighbour: container("neighbour", "sw0", plan.first[2], plan.first[0]),
            second: container("second", "sw1", plan.second[1], plan.second[0]),
            node: Host::node(family),
        }
    }
}

/// Publishes port 8080 of all addresses of the node, and port 9090 of one, for the first container; keeps the bridges apart.
fn elements_of(plan: &Plan) -> BTreeSet<Element> {
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    let container = address(plan.first[1]);
    let mut all = BTreeSet::from([Element::Hairpin(container)]);
    for protocol in [Transport::Tcp, Transport::Udp] {
        for (at, port) in [(None, 8080), (Some(address(plan.uplink)), 9090)] {
            all.insert(Element::Port {
                at,
                protocol,
                port,
                to: container,
                to_port: SERVED,
            });
        }
    }
    for (name, router) in [("sw0", plan.first[0]), ("sw1", plan.second[0])] {
        let subnet = NftSubnet::new(address(router), plan.bits).unwrap();
        let name = bridge(name);
        all.extend([
            Element::Masqueraded(subnet),
            Element::Closed(subnet),
            Element::Bridge(name.clone()),
            Element::Same(name.clone()),
            Element::Apart(name.clone()),
            Element::Allowed(name.clone(), name),
        ]);
    }
    all
}

#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn reach_each_other(family: NftFamily, plan: &Plan, bridged_packets: bool) {
    let lab = Lab::new(family, plan);
    let seen = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
    if seen {
        let value = if bridged_packets { "1" } else { "0" };
        set("bridge/bridge-nf-call-iptables", value);
        set("bridge/bridge-nf-call-ip6tables", value);
    }
    let mut tables = NftTables::open(TableName::default()).unwrap();
    tables.restore(family, &elements_of(plan)).unwrap();
    let router = plan.first[0];
    // Where the bridge shows its packets to the rules, the answer of a neighbour is translated there too.
    let neighbour = if seen && bridged_packets {
        plan.first[2]
    } else {
        router
    };
    let mut rows = vec![
        (
            "node to port",
            &lab.node,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.uplink),
        ),
        (
            "node to port of address",
            &lab.node,
            plan.uplink,
            9090,
            &lab.first,
            Some(plan.uplink),
        ),
        (
            "node to container",
            &lab.node,
            plan.first[1],
            80,
            &lab.first,
            Some(router),
        ),
        (
            "remote to port",
            &lab.remote,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.remote),
        ),
        (
            "remote to port of address",
            &lab.remote,
            plan.uplink,
            9090,
            &lab.first,
            Some(plan.remote),
        ),
        (
            "remote to node",
            &lab.remote,
            plan.uplink,
            80,
            &lab.node,
            Some(plan.remote),
        ),
        (
            "container to itself",
            &lab.first,
            plan.uplink,
            8080,
            &lab.first,
            Some(router),
        ),
        (
            "neighbour to port",
            &lab.neighbour,
            plan.uplink,
            8080,
            &lab.first,
            Some(neighbour),
        ),
        (
            "neighbour directly",
            &lab.neighbour,
            plan.first[1],
            80,
            &lab.first,
            Some(plan.first[2]),
        ),
        (
            "other bridge to port",
            &lab.second,
            plan.uplink,
            8080,
            &lab.first,
            Some(plan.second[1]),
        ),
        (
            "container to outside",
            &lab.first,
            plan.remote,
            80,
            &lab.remote,
            Some(plan.uplink),
        ),
        (
            "other bridge to outside",
            &lab.second,
            plan.remote,
            80,
            &lab.remote,
            Some(plan.uplink),
        ),
        (
            "remote directly",
            &lab.remote,
            plan.first[1],
            80,
            &lab.first,
            None,
        ),
        (
            "remote directly to other bridge",
            &lab.remote,
            plan.second[1],
            80,
            &lab.second,
            None,
        ),
        (
            "other bridge directly",
            &lab.second,
            plan.first[1],
            80,
            &lab.first,
            None,
        ),
        (
            "to other bridge directly",
            &lab.first,
            plan.second[1],
            80,
            &lab.second,
            None,
        ),
        (
            "port of another address",
            &lab.node,
            router,
            9090,
            &lab.first,
            None,
        ),
    ];
    if family == NftFamily::Ip4 {
        rows.push((
            "loopback of the node",
            &lab.node,
            "127.0.0.1",
            8080,
            &lab.first,
            Some(router),
        ));
    } else {
        rows.push((
            "loopback of the node",
            &lab.node,
            "::1",
            8080,
            &lab.first,
            None,
        ));
    }
    for (name, client, address, port, server, source) in rows {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        let source: Option<IpAddr> = source.map(|source| source.parse().unwrap());
        let limit = if source.is_some() { LONG } else { SHORT };
        assert_eq!(
            client.tcp(to, server, limit),
            source,
            "{name}, TCP, {bridged_packets}"
        );
        assert_eq!(
            client.udp(to, server, limit),
            source,
            "{name}, UDP, {bridged_packets}"
        );
    }
}

#[test]
fn ports_are_reached_from_everywhere_and_bridges_only_by_them() {
    for (family, plan) in &PLANS {
        for bridged_packets in [false, true] {
            in_private_netns(|| reach_each_other(*family, plan, bridged_packets));
        }
    }
}
