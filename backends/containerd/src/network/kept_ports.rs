//! Sockets that keep published ports: a program of the node that wants to listen on one is told that it is in use, as by
//! Docker's daemon. Without them it would listen, and get nothing, since the port is translated before the kernel looks for
//! a socket.
//!
//! For tasks of Nomad and Swarm alone: a program of the node that runs beside a pod on containerd has to run beside it here.
//! The sockets are the daemon's, and end with it. The next one binds them again when it recovers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::{HostPort, Protocol};
use switchyard_linux::listeners::{BoundPort, Transport};

/// The most sockets; and at most a quarter of the files that the daemon may open.
const MOST: u64 = 4096;

/// The sockets that keep ports, by address, with the sandboxes to which the port leads.
#[derive(Debug)]
pub(crate) struct KeptPorts {
    most: usize,
    sockets: Mutex<BTreeMap<(Transport, SocketAddr), KeptPort>>,
}

#[derive(Debug)]
struct KeptPort {
    _socket: BoundPort,
    /// More than one while a task is started again and its predecessor still ends.
    sandboxes: BTreeSet<SandboxId>,
}

// === impl KeptPorts ===

impl KeptPorts {
    /// Without sockets.
    pub(crate) fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        let most = files.map_or(MOST, |files| MOST.min(files / 4));
        Self::with_most(usize::try_from(most).unwrap_or(usize::MAX))
    }

    fn with_most(most: usize) -> Self {
        Self {
            most,
            sockets: Mutex::default(),
        }
    }

    /// Returns whether ports of an owner's sandboxes are kept.
    pub(crate) const fn are_kept_for(owner: Owner) -> bool {
        match owner {
            Owner::Nomad | Owner::Swarm => true,
            Owner::Kubernetes | Owner::Host => false,
        }
    }

    /// Keeps these ports for a sandbox, and returns those on which a program of the node has been faster. What cannot be
    /// kept for another reason is not: an address that the node does not have, or too many sockets. Idempotent. Blocks for
    /// some microseconds for each port.
    pub(crate) fn keep(&self, id: SandboxId, ports: &[HostPort]) -> Vec<HostPort> {
        let mut occupied = Vec::new();
        let mut sockets = self.sockets.lock();
        for port in ports {
            for place in places(port) {
                if let Some(kept) = sockets.get_mut(&place) {
                    kept.sandboxes.insert(id);
                    continue;
                }
                if sockets.len() >= self.most {
                    continue;
                }
                match BoundPort::bind(place.0, place.1) {
                    Ok(socket) => {
                        let kept = KeptPort {
                            _socket: socket,
                            sandboxes: BTreeSet::from([id]),
                        };
                        sockets.insert(place, kept);
                    }
                    Err(fault) if fault.kind() == std::io::ErrorKind::AddrInUse => {
                        occupied.push(*port);
                    }
                    Err(_) => {}
                }
            }
        }
        occupied.dedup();
        occupied
    }

    /// Closes the sockets of a sandbox that no other one has. Idempotent.
    pub(crate) fn release(&self, id: SandboxId) {
        self.sockets.lock().retain(|_, kept| {
            kept.sandboxes.remove(&id);
            !kept.sandboxes.is_empty()
        });
    }

    /// Returns whether an address of this port is kept, so that no program of the node listens on it.
    pub(crate) fn has(&self, port: &HostPort) -> bool {
        let sockets = self.sockets.lock();
        places(port).iter().any(|place| sockets.contains_key(place))
    }
}

/// The protocol, if sockets of it are looked for and kept.
pub(super) const fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

/// Where a program would listen on this port; nowhere if its sockets are not looked for.
pub(super) fn places(port: &HostPort) -> Vec<(Transport, SocketAddr)> {
    let Some(transport) = transport(port.protocol) else {
        return Vec::new();
    };
    let place = |ip| (transport, SocketAddr::new(ip, port.port));
    match port.ip {
        Some(ip) => vec![place(ip.to_canonical())],
        None => vec![
            place(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            place(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    fn id(number: u8) -> SandboxId {
        SandboxId::from_bytes([number; 32])
    }

    /// A port that nobody has, of an address that no other test uses.
    fn free(protocol: Protocol) -> (HostPort, SocketAddr) {
        let address = match protocol {
            Protocol::Udp => UdpSocket::bind("127.91.0.1:0").unwrap().local_addr(),
            Protocol::Tcp | Protocol::Sctp => {
                TcpListener::bind("127.91.0.1:0").unwrap().local_addr()
            }
        };
        let address = address.unwrap();
        let port = HostPort {
            protocol,
            port: address.port(),
            ip: Some(address.ip()),
        };
        (port, address)
    }

    fn is_free(protocol: Protocol, address: SocketAddr) -> bool {
        match protocol {
            Protocol::Udp => UdpSocket::bind(address).is_ok(),
            Protocol::Tcp | Protocol::Sctp => TcpListener::bind(address).is_ok(),
        }
    }

    #[test]
    fn port_is_kept_until_the_last_sandbox_that_it_leads_to_has_ended() {
        for (protocol, is_kept) in [
            (Protocol::Tcp, true),
            (Protocol::Udp, true),
            (Protocol::Sctp, false),
        ] {
            let ports = KeptPorts::with_most(10);
            let (port, address) = free(protocol);
            assert_eq!(ports.keep(id(1), &[port]), []);
            assert_eq!(ports.keep(id(1), &[port]), [], "idempotent");
            assert_eq!(ports.keep(id(2), &[port]), [], "a task is started again");
            assert_eq!(ports.has(&port), is_kept, "{protocol:?}");
            assert_eq!(is_free(protocol, address), !is_kept, "{protocol:?}");
            ports.release(id(1));
            ports.release(id(3));
            assert_eq!(is_free(protocol, address), !is_kept, "{protocol:?}");
            ports.release(id(2));
            assert!(!ports.has(&port));
            assert!(is_free(protocol, address), "{protocol:?}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_no_error() {
        let ports = KeptPorts::with_most(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let occupied = HostPort {
            protocol: Protocol::Tcp,
            port: listener.local_addr().unwrap().port(),
            ip: Some([127, 0, 0, 1].into()),
        };
        assert_eq!(ports.keep(id(1), &[occupied]), [occupied]);
        let elsewhere = HostPort {
            ip: Some([192, 0, 2, 1].into()),
            ..free(Protocol::Tcp).0
        };
        assert_eq!(ports.keep(id(1), &[elsewhere]), []);
        let (first, _) = free(Protocol::Tcp);
        let (second, address) = free(Protocol::Tcp);
        assert_eq!(ports.keep(id(1), &[first, second]), []);
        assert!(ports.has(&first) && !ports.has(&second), "there is a bound");
        assert!(is_free(Protocol::Tcp, address));
    }
}
