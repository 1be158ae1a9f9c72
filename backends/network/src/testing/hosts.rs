//! Hosts that are network namespaces, each with a server on it.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

use super::run;
use crate::nft::NftFamily;

/// Time for what should arrive, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Time for what should not: by then the way is known to all, since other packets have arrived before.
pub(crate) const SHORT: Duration = Duration::from_millis(100);
/// The port on which every host listens.
pub(crate) const SERVED: u16 = 80;

/// A host with an address, and a server on it.
pub(crate) struct Host {
    pub(crate) netns: File,
    tcp: TcpListener,
    pub(crate) udp: UdpSocket,
}

pub(crate) fn own_netns() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

pub(crate) fn ip(arguments: &str) {
    let arguments: Vec<_> = arguments.split(' ').collect();
    run("ip", "iproute2", &arguments);
}

pub(crate) fn set(sysctl: &str, value: &str) {
    fs::write(Path::new("/proc/sys/net").join(sysctl), value).unwrap();
}

/// Runs `work` in a network namespace.
pub(crate) fn inside<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> T {
    let entered = || {
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(entered).join().unwrap())
}

/// Binds a socket where another one was a moment ago. Programs that other tests of this process start have that one, too, until they are
/// executed.
pub(crate) fn bind_again<T>(bind: impl Fn() -> io::Result<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.unwrap(),
        }
    }
}

impl Host {
    /// The namespace of this thread.
    pub(crate) fn node(family: NftFamily) -> Self {
        Self::serving(own_netns(), family)
    }

    /// A host behind the device `device` of the node, with an address and a router.
    pub(crate) fn new(family: NftFamily, device: &str, address: &str, router: &str) -> Self {
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

    pub(crate) fn serving(netns: File, family: NftFamily) -> Self {
        let any: IpAddr = match family {
            NftFamily::Ip4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
            NftFamily::Ip6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
            NftFamily::Bridge => unreachable!("a host is of a family of addresses"),
        };
        let at = SocketAddr::new(any, SERVED);
        let (tcp, udp) = inside(&netns, || {
            let tcp = bind_again(|| TcpListener::bind(at));
            (tcp, bind_again(|| UdpSocket::bind(at)))
        });
        tcp.set_nonblocking(true).unwrap();
        Self { netns, tcp, udp }
    }

    /// Asks an address and port by TCP, and returns the address that the server sees, if the server is this one.
    pub(crate) fn tcp(&self, to: SocketAddr, server: &Self, limit: Duration) -> Option<IpAddr> {
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
    pub(crate) fn udp(&self, to: SocketAddr, server: &Self, limit: Duration) -> Option<IpAddr> {
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

pub(crate) fn nodad(family: NftFamily) -> &'static str {
    match family {
        NftFamily::Ip4 | NftFamily::Bridge => "",
        NftFamily::Ip6 => " nodad",
    }
}
