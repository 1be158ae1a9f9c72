//! Programs of the node that listen on ports which are to be forwarded to a sandbox. A port that is forwarded is translated
//! before the kernel looks for a socket, so such a program would get no connection any more.

use std::collections::{BTreeMap, HashSet};

use switchyard_core::backend::OccupiedPort;
use switchyard_core::ledger::ListeningProcess;
use switchyard_core::spec::{HostPort, Protocol};
use switchyard_core::{Error, Result};
use switchyard_linux::listeners::{Listener, SocketOwner, is_in_use, listeners, socket_owner};

use crate::base::fs::blocking;
use crate::network::kept_ports::{KeptPorts, places, transport};

/// The first of these ports on which a program of the node listens. On those that are kept none does.
///
/// # Errors
/// `Internal` if the kernel does not list its sockets.
pub(crate) async fn find_listener(
    ports: &[HostPort],
    kept: &KeptPorts,
) -> Result<Option<OccupiedPort>> {
    let mut ports = ports.to_vec();
    ports.retain(|port| !kept.has(port));
    if ports.is_empty() {
        return Ok(None);
    }
    let own = kept.inodes();
    blocking(move || find(&ports, &own)).await
}

/// The first of these ports on which a program listens whose socket is not among `own`.
fn find(ports: &[HostPort], own: &HashSet<u64>) -> Result<Option<OccupiedPort>> {
    let mut by_number: BTreeMap<(Protocol, u16), Vec<Listener>> = BTreeMap::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let Some(transport) = transport(protocol) else {
            continue;
        };
        if !ports.iter().any(|port| port.protocol == protocol) {
            continue;
        }
        let all = listeners(transport)
            .map_err(|fault| Error::internal("list the sockets of the node").with_source(fault))?;
        for listener in all.into_iter().filter(|one| !own.contains(&one.inode)) {
            by_number
                .entry((protocol, listener.address.port()))
                .or_default()
                .push(listener);
        }
    }
    let found = ports.iter().find_map(|port| {
        let there = by_number.get(&(port.protocol, port.port))?;
        let listener = there.iter().find(|listener| covers(listener, port))?;
        is_taken(port).then_some((*port, listener.inode))
    });
    let occupied = found.map(|(port, inode)| OccupiedPort {
        port,
        process: socket_owner(inode)
            .map(|SocketOwner { pid, name }| ListeningProcess { name, pid }),
    });
    Ok(occupied)
}

/// Returns whether a listener of this port's protocol has an address in common with it.
fn covers(listener: &Listener, port: &HostPort) -> bool {
    let address = listener.address;
    HostPort::bound(port.protocol, address.port(), Some(address.ip())).overlaps(port)
}

/// Returns whether the kernel refuses this port to a program that wants to listen on it. It alone knows whether a listener
/// on all addresses of IPv6 has those of IPv4 as well.
fn is_taken(port: &HostPort) -> bool {
    places(port)
        .into_iter()
        .any(|(transport, address)| is_in_use(transport, address))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use switchyard_core::id::SandboxId;

    use super::*;

    /// The port of the first entry that is found to be occupied, if one is.
    fn occupied(ports: &[(Protocol, u16, &str)]) -> Option<(Protocol, u16)> {
        let ports: Vec<HostPort> = ports
            .iter()
            .map(|(protocol, port, ip)| HostPort {
                protocol: *protocol,
                port: *port,
                ip: (!ip.is_empty()).then(|| ip.parse().unwrap()),
            })
            .collect();
        let found = find(&ports, &HashSet::new()).unwrap()?;
        let process = found.process.expect("it is this process");
        assert_eq!(process.pid.unsigned_abs(), std::process::id());
        assert!(!process.name.is_empty());
        Some((found.port.protocol, found.port.port))
    }

    #[test]
    fn port_is_occupied_where_a_listener_has_an_address_of_it() {
        use Protocol::{Sctp, Tcp, Udp};
        let local = TcpListener::bind("127.0.0.1:0").unwrap();
        let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.2:0").unwrap();
        let local_port = local.local_addr().unwrap().port();
        let everywhere_port = everywhere.local_addr().unwrap().port();
        let datagrams_port = datagrams.local_addr().unwrap().port();
        // A connection of a client is no listener, though no socket can be bound to its port either.
        let client = TcpStream::connect(("127.0.0.1", local_port)).unwrap();
        let client_port = client.local_addr().unwrap().port();
        for (protocol, port, ip, expected) in [
            (Tcp, local_port, "", true),
            (Tcp, local_port, "0.0.0.0", true),
            (Tcp, local_port, "127.0.0.1", true),
            (Tcp, local_port, "::ffff:127.0.0.1", true),
            (Tcp, local_port, "127.0.0.2", false),
            (Udp, local_port, "127.0.0.1", false),
            (Sctp, local_port, "127.0.0.1", false),
            (Tcp, everywhere_port, "", true),
            (Tcp, everywhere_port, "127.0.0.9", true),
            // An address that the node does not have.
            (Tcp, everywhere_port, "192.0.2.1", false),
            (Udp, datagrams_port, "", true),
            (Udp, datagrams_port, "127.0.0.2", true),
            (Udp, datagrams_port, "127.0.0.1", false),
            (Tcp, client_port, "127.0.0.1", false),
        ] {
            let found = occupied(&[(protocol, port, ip)]);
            assert_eq!(
                found,
                expected.then_some((protocol, port)),
                "{protocol:?} {ip:?}"
            );
        }
        let several = [
            (Tcp, local_port, "127.0.0.2"),
            (Udp, datagrams_port, ""),
            (Tcp, everywhere_port, ""),
        ];
        assert_eq!(occupied(&several), Some((Udp, datagrams_port)));
        assert_eq!(occupied(&[]), None);
    }

    #[tokio::test]
    async fn kept_port_is_not_occupied_on_other_addresses_of_it() {
        for (kept_ip, ip) in [
            ("127.94.0.1", "127.94.0.1"),
            ("127.94.0.1", ""),
            ("127.94.0.1", "0.0.0.0"),
            ("0.0.0.0", "127.94.0.1"),
        ] {
            let free = UdpSocket::bind((kept_ip, 0)).unwrap();
            let number = free.local_addr().unwrap().port();
            drop(free);
            let port = |ip: &str| HostPort {
                protocol: Protocol::Udp,
                port: number,
                ip: ip.parse().ok(),
            };
            let asked = port(ip);
            let kept = KeptPorts::new();
            let id = SandboxId::from_bytes([1; 32]);
            assert_eq!(kept.keep(id, &[port(kept_ip)]), []);
            let found = find_listener(&[asked], &kept).await.unwrap();
            assert_eq!(found, None, "{kept_ip} {ip}");
            let none = KeptPorts::new();
            let found = find_listener(&[asked], &none).await.unwrap();
            assert!(found.is_some(), "{kept_ip} {ip}");
        }
    }
}
