//! The model of a link carries what it gets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use switchyard_tests::far_link::{FarLink, LinkShape};

#[test]
fn far_link_carries_all_bytes_in_both_directions() {
    let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    for (window, bytes_per_second) in [(20_000, 1 << 30), (1 << 20, 1 << 30), (1 << 20, 8 << 20)] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let upstream = listener.local_addr().unwrap();
        // It sends back what it has got, once that has ended.
        let server = thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            peer.write_all(&got).unwrap();
        });
        let shape = LinkShape {
            round_trip: Duration::from_millis(4),
            bytes_per_second,
            window,
        };
        let link = FarLink::start(upstream, shape).unwrap();
        let mut client = TcpStream::connect(link.address()).unwrap();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{shape:?}: {} bytes", got.len());
        server.join().unwrap();
    }
}
