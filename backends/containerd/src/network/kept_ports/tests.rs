//! Tests of the sockets that keep published ports.

use std::net::{TcpListener, UdpSocket};

use switchyard_logkeeper::protocol::{Fault, FaultKind};

use super::*;

fn id(number: u8) -> SandboxId {
    SandboxId::from_bytes([number; 32])
}

/// A port that nobody has, of an address that no other test uses.
fn free(protocol: Protocol) -> (HostPort, SocketAddr) {
    let address = match protocol {
        Protocol::Udp => UdpSocket::bind("127.91.0.1:0").unwrap().local_addr(),
        Protocol::Tcp | Protocol::Sctp => TcpListener::bind("127.91.0.1:0").unwrap().local_addr(),
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
fn successor_takes_over_the_sockets_of_ports_that_are_still_published() {
    let ports = KeptPorts::with_most(10);
    let (published, address) = free(Protocol::Tcp);
    let (ended, address_of_ended) = free(Protocol::Udp);
    assert_eq!(ports.keep(id(1), &[published]), []);
    assert_eq!(ports.keep(id(2), &[ended]), []);
    ports.is_stored.store(true, Ordering::Relaxed);
    ports.release(id(2));
    assert!(ports.has(&ended), "the logkeeper still has it");
    assert_eq!(ports.keep(id(3), &[ended]), [], "so the next task gets it");
    ports.release(id(3));
    let (bundled, released) = ports.bundle().unwrap();
    ports.forget(Some(&released));
    assert!(is_free(Protocol::Udp, address_of_ended));
    // The daemon ends, and the logkeeper has the bundle.
    drop(ports);
    assert!(!is_free(Protocol::Tcp, address));
    let successor = KeptPorts::with_most(10);
    successor.adopt(unbundle(&bundled).unwrap());
    assert_eq!(successor.keep(id(1), &[published]), []);
    successor.forget(None);
    assert!(!is_free(Protocol::Tcp, address));
    successor.release(id(1));
    assert!(is_free(Protocol::Tcp, address));
}

#[test]
fn bundle_has_few_sockets_and_those_of_tcp_first() {
    let mut ports = KeptPorts::with_most(10);
    let tcp = [free(Protocol::Tcp).0, free(Protocol::Tcp).0];
    let udp = [free(Protocol::Udp).0, free(Protocol::Udp).0];
    assert_eq!(ports.keep(id(1), &[udp, tcp].concat()), []);
    for (most, expected) in [
        (0, &[][..]),
        (1, &[Transport::Tcp]),
        (3, &[Transport::Tcp, Transport::Tcp, Transport::Udp]),
    ] {
        ports.bundled_most = most;
        let (bundled, released) = ports.bundle().unwrap();
        assert!(released.is_empty());
        let taken = unbundle(&bundled).unwrap().into_iter();
        let taken: Vec<Transport> = taken
            .map(|descriptor| BoundPort::of(descriptor).unwrap().0)
            .collect();
        assert_eq!(taken, expected, "{most}");
    }
}

#[test]
fn logkeeper_that_does_not_answer_may_still_have_the_bundle() {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let unavailable = |kind: io::ErrorKind| LogkeeperError::Unavailable {
        socket: "logkeeper.sock".into(),
        source: kind.into(),
    };
    let full = Fault::new(FaultKind::Busy, "64 descriptors are stored");
    let refused = LogkeeperError::Refused {
        op: "put",
        fault: full,
    };
    let silent = LogkeeperError::Deadline {
        op: "put",
        limit: TAKE_LIMIT,
    };
    for (error, expected) in [
        (unavailable(NotFound), false),
        (unavailable(ConnectionRefused), false),
        (unavailable(ConnectionReset), true),
        (unavailable(UnexpectedEof), true),
        (refused, false),
        (silent, true),
    ] {
        assert_eq!(may_have_bundle(&error), expected, "{error}");
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
