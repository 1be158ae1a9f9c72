//! Sockets of the node's programs that wait for connections or datagrams, and the processes that have them.
//!
//! Everything here is about the network namespace of the calling thread. TCP and UDP only: the kernel lists sockets of SCTP
//! in a form of its own, and not on every node.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sys::stat::fstat;
use socket2::{Domain, SockFilter, Socket, Type};

/// The state of a TCP socket that listens, and that of a UDP socket without a peer, as the kernel prints them.
const LISTEN: &str = "0A";
const UNCONNECTED: &str = "07";

/// The operation of a socket's filter that ends it, with the number of bytes that are kept of a packet (`BPF_RET`).
const RETURN: u16 = 6;

/// The number of an interface that no node has: what is bound to it gets no datagram. For sockets of both families.
const NO_INTERFACE: Option<NonZeroU32> = NonZeroU32::new(0x7fff_ffff);

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A TCP socket that listens, or a UDP socket that takes datagrams of anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address that it is bound to.
    pub address: SocketAddr,
    /// The number by which processes have it.
    pub inode: u64,
}

/// A process that has a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOwner {
    /// Its id.
    pub pid: i32,
    /// The name of its program, at most 15 bytes, which it can choose.
    pub name: String,
}

/// A socket that is bound to an address, so that no other program can listen on it, and does nothing else. Who sends to the
/// address is answered as if nobody had it. A program can still listen there on one interface alone (`SO_BINDTODEVICE`).
#[derive(Debug)]
pub struct BoundPort {
    socket: Socket,
}

// === impl BoundPort ===

impl BoundPort {
    /// Binds an address. An IPv6 address stands for IPv6 alone, also the one that stands for all.
    ///
    /// # Errors
    /// Those of the kernel: `AddrInUse` if another socket has it, `AddrNotAvailable` if the node does not.
    pub fn bind(transport: Transport, address: SocketAddr) -> io::Result<Self> {
        let kind = match transport {
            Transport::Tcp => Type::STREAM,
            Transport::Udp => Type::DGRAM,
        };
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if transport == Transport::Udp {
            // Before it is bound, so that none gets in.
            socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
        }
        socket.bind(&address.into())?;
        if transport == Transport::Udp {
            // The kernel answers that the port is unreachable, in place of dropping what the filter would. One before 5.0
            // cannot: there clients wait for their own time limits.
            let _ = socket.bind_device_by_index_v4(NO_INTERFACE);
        }
        Ok(Self { socket })
    }

    /// Such a socket that was bound by an earlier process, with its protocol and address.
    ///
    /// # Errors
    /// Those of the kernel; `InvalidInput` for a socket of another kind.
    pub fn of(descriptor: OwnedFd) -> io::Result<(Transport, SocketAddr, Self)> {
        let socket = Socket::from(descriptor);
        let kind = socket.r#type()?;
        let transport = if kind == Type::STREAM {
            Transport::Tcp
        } else {
            Transport::Udp
        };
        let address = socket.local_addr()?.as_socket();
        let address = address.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the socket has no address of the internet",
            )
        })?;
        Ok((transport, address, Self { socket }))
    }

    /// The number by which [`listeners`] lists it, if it is one of UDP.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(fstat(&self.socket)?.st_ino)
    }
}

impl AsFd for BoundPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// All sockets of a protocol that listen. Blocks on `/proc`, which does not take long.
///
/// # Errors
/// Those of the kernel.
pub fn listeners(transport: Transport) -> io::Result<Vec<Listener>> {
    let files = match transport {
        Transport::Tcp => ["tcp", "tcp6"],
        Transport::Udp => ["udp", "udp6"],
    };
    let mut found = Vec::new();
    for name in files {
        match File::open(Path::new("/proc/thread-self/net").join(name)) {
            Ok(file) => read(BufReader::new(file), transport, &mut found)?,
            // A kernel without IPv6.
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(found)
}

/// The process that has a socket, of several the one with the first id in the order of `/proc`. `None` if none can be seen:
/// it has ended, or is in a process namespace that this one does not see. Blocks on `/proc`.
#[must_use]
pub fn socket_owner(inode: u64) -> Option<SocketOwner> {
    let link = format!("socket:[{inode}]");
    let has_it = |proc: &Path| {
        let Ok(descriptors) = fs::read_dir(proc.join("fd")) else {
            return false;
        };
        descriptors
            .flatten()
            .any(|one| fs::read_link(one.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
    };
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let proc = entry.path();
        has_it(&proc).then(|| SocketOwner {
            pid,
            name: fs::read_to_string(proc.join("comm"))
                .unwrap_or_default()
                .trim_end()
                .to_owned(),
        })
    })
}

/// Returns whether a program that binds this address now, as [`BoundPort::bind`] does, is told that it is in use. An address
/// that the node does not have is not in use.
#[must_use]
pub fn is_in_use(transport: Transport, address: SocketAddr) -> bool {
    let bound = BoundPort::bind(transport, address);
    bound.is_err_and(|fault| fault.kind() == io::ErrorKind::AddrInUse)
}

/// Adds the listeners of a table of the kernel, such as `/proc/net/tcp`.
fn read(table: impl BufRead, transport: Transport, found: &mut Vec<Listener>) -> io::Result<()> {
    for line in table.lines().skip(1) {
        let line = line?;
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, local, remote, state, _, _, _, _, _, inode, ..] = fields.as_slice() else {
            continue;
        };
        match transport {
            Transport::Tcp if state == LISTEN => {}
            // The kernel prints those that listen first. A busy node has many thousands of the others.
            Transport::Tcp => return Ok(()),
            Transport::Udp if state == UNCONNECTED && is_nobody(remote) => {}
            Transport::Udp => continue,
        }
        if let (Some(address), Ok(inode)) = (address(local), inode.parse()) {
            found.push(Listener { address, inode });
        }
    }
    Ok(())
}

/// Returns whether an address is that of a peer that does not exist.
fn is_nobody(remote: &str) -> bool {
    remote.bytes().all(|byte| matches!(byte, b'0' | b':'))
}

/// Parses an address as the kernel prints it: words of four bytes in the byte order of the machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |index: usize| {
        let word = u32::from_str_radix(ip.get(8 * index..8 * index + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    /// The address as the kernel of this machine prints it.
    fn printed(address: &str) -> String {
        let address: SocketAddr = address.parse().unwrap();
        let words = |bytes: &[u8]| -> String {
            bytes
                .chunks(4)
                .map(|word| format!("{:08X}", u32::from_ne_bytes(word.try_into().unwrap())))
                .collect()
        };
        let ip = match address.ip() {
            IpAddr::V4(ip) => words(&ip.octets()),
            IpAddr::V6(ip) => words(&ip.octets()),
        };
        format!("{ip}:{:04X}", address.port())
    }

    #[test]
    fn listeners_are_read_from_the_tables_of_the_kernel() {
        let row = |local: &str, remote: &str, state: &str, inode: u64| {
            format!(
                "   0: {} {} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0000000000000000 100 0\n",
                printed(local),
                printed(remote)
            )
        };
        let check = |transport, rows: &[String], expected: &[(&str, u64)]| {
            let table = format!("  sl  local_address rem_address   st\n{}", rows.concat());
            let mut found = Vec::new();
            read(table.as_bytes(), transport, &mut found).unwrap();
            let expected: Vec<_> = expected
                .iter()
                .map(|(address, inode)| Listener {
                    address: address.parse().unwrap(),
                    inode: *inode,
                })
                .collect();
            assert_eq!(found, expected);
        };
        let tcp = [
            row("0.0.0.0:22", "0.0.0.0:0", LISTEN, 1),
            row("127.0.0.53:53", "0.0.0.0:0", LISTEN, 2),
            row("10.0.0.1:22", "10.0.0.2:40000", "01", 3),
            row("10.0.0.1:23", "0.0.0.0:0", LISTEN, 4),
        ];
        check(
            Transport::Tcp,
            &tcp,
            &[("0.0.0.0:22", 1), ("127.0.0.53:53", 2)],
        );
        let six = [
            row("[::]:80", "[::]:0", LISTEN, 5),
            row("[fd00::1]:443", "[::]:0", LISTEN, 6),
        ];
        check(
            Transport::Tcp,
            &six,
            &[("[::]:80", 5), ("[fd00::1]:443", 6)],
        );
        let udp = [
            row("10.0.0.1:40000", "10.0.0.2:53", "01", 7),
            row("0.0.0.0:68", "0.0.0.0:0", UNCONNECTED, 8),
            row("10.0.0.1:40001", "10.0.0.2:53", UNCONNECTED, 9),
        ];
        check(Transport::Udp, &udp, &[("0.0.0.0:68", 8)]);
        check(Transport::Udp, &["nonsense\n".to_owned()], &[]);
        check(
            Transport::Udp,
            &[row("0.0.0.0:68", "0.0.0.0:0", UNCONNECTED, 8).replace("00000000:0044", "0:0044")],
            &[],
        );
    }

    #[test]
    fn sockets_of_this_process_are_found_with_it() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (transport, address) in [
            (Transport::Tcp, tcp.local_addr().unwrap()),
            (Transport::Udp, udp.local_addr().unwrap()),
        ] {
            let all = listeners(transport).unwrap();
            let found = all.iter().find(|found| found.address == address).unwrap();
            let owner = socket_owner(found.inode).unwrap();
            assert_eq!(owner.pid.unsigned_abs(), std::process::id());
            assert!(!owner.name.is_empty());
            assert!(is_in_use(transport, address));
            let all_addresses = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            assert!(is_in_use(transport, all_addresses), "{transport:?}");
            let other = SocketAddr::from(([127, 0, 0, 9], address.port()));
            assert!(!is_in_use(transport, other), "{transport:?}");
            let no_address_of_the_node = SocketAddr::from(([192, 0, 2, 1], address.port()));
            assert!(!is_in_use(transport, no_address_of_the_node));
        }
    }

    #[test]
    fn bound_port_is_kept_from_others_and_takes_nothing() {
        // Of an address that no other test uses: the port is bound again.
        let any = "127.92.0.1:0".parse().unwrap();
        let bound_to = |bound: &BoundPort| {
            let address = bound.socket.local_addr().unwrap();
            address.as_socket().unwrap()
        };
        let bound = BoundPort::bind(Transport::Tcp, any).unwrap();
        let address = bound_to(&bound);
        assert!(TcpListener::bind(address).is_err());
        assert!(TcpListener::bind(("0.0.0.0", address.port())).is_err());
        assert!(TcpStream::connect(address).is_err());
        drop(bound);
        drop(TcpListener::bind(address).unwrap());
        let bound = BoundPort::bind(Transport::Udp, any).unwrap();
        let address = bound_to(&bound);
        assert!(UdpSocket::bind(address).is_err());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"a datagram", address).unwrap();
        bound.socket.set_nonblocking(true).unwrap();
        let received = io::Read::read(&mut &bound.socket, &mut [0; 16]);
        let fault = received.expect_err("it is dropped");
        assert_eq!(fault.kind(), io::ErrorKind::WouldBlock);
        drop(bound);
        drop(UdpSocket::bind(address).unwrap());
    }

    #[test]
    fn client_of_a_bound_udp_port_learns_that_nobody_has_it() {
        for address in ["127.92.0.2:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let bound = BoundPort::bind(Transport::Udp, address.parse().unwrap()).unwrap();
            let mut to = bound.socket.local_addr().unwrap().as_socket().unwrap();
            assert!(is_in_use(Transport::Udp, to), "{to}");
            let all = listeners(Transport::Udp).unwrap();
            let listed = all.iter().find(|found| found.address == to).unwrap();
            assert_eq!(listed.inode, bound.inode().unwrap());
            assert!(UdpSocket::bind(to).is_err(), "{to}");
            match to.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
                IpAddr::V4(_) | IpAddr::V6(_) => {}
            }
            let client = match to {
                SocketAddr::V4(_) => UdpSocket::bind("127.0.0.1:0"),
                SocketAddr::V6(_) => UdpSocket::bind("[::1]:0"),
            };
            let client = client.unwrap();
            client.connect(to).unwrap();
            let limit = std::time::Duration::from_secs(20);
            client.set_read_timeout(Some(limit)).unwrap();
            client.send(b"a datagram").unwrap();
            let fault = client.recv(&mut [0; 16]).unwrap_err();
            assert_eq!(fault.kind(), io::ErrorKind::ConnectionRefused, "{to}");
        }
    }

    #[test]
    fn a_connection_is_no_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let address = client.local_addr().unwrap();
        let is_it = |found: &Listener| found.address == address;
        assert!(!listeners(Transport::Tcp).unwrap().iter().any(is_it));
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect(peer.local_addr().unwrap()).unwrap();
        let address = connected.local_addr().unwrap();
        let is_it = |found: &Listener| found.address == address;
        assert!(!listeners(Transport::Udp).unwrap().iter().any(is_it));
    }
}
