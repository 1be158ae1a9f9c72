//! Datagrams that a sandbox sends with an address of its interface, its own or not, as a program with NET_RAW sends them with any.

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use crate::host::eventually;
use crate::prereq;

/// Time until a datagram has arrived.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns whether the node gets, at its address `to`, a datagram of the sandbox with this network namespace that comes from `from`. The
/// interface of the sandbox has that address meanwhile.
///
/// # Panics
/// When the namespace is gone.
#[must_use]
pub fn is_heard(netns: &Path, from: Ipv4Addr, to: Ipv4Addr, limit: Duration) -> bool {
    let node = UdpSocket::bind((to, 0)).expect("it is an address of the node");
    node.set_read_timeout(Some(PAUSE)).expect("it is a socket");
    let to = node.local_addr().expect("it is bound");
    let ip = prereq::require("ip", "iproute2");
    let address = |verb: &str| {
        let address = format!("{from}/32");
        let done = Command::new(&ip)
            .args(["addr", verb, &address, "dev", "eth0"])
            .status();
        assert!(done.expect("it was found").success(), "{verb} {address}");
    };
    let netns = File::open(netns).expect("the namespace is there");
    let inside = || {
        setns(netns, CloneFlags::CLONE_NEWNET).expect("root may enter it");
        address("add");
        let sandbox = UdpSocket::bind((from, 0)).expect("it is an address of the sandbox");
        let is_heard = eventually(limit, || {
            sandbox.send_to(b"datagram", to).is_ok() && node.recv_from(&mut [0; 16]).is_ok()
        });
        address("del");
        is_heard
    };
    let heard = thread::scope(|scope| scope.spawn(inside).join());
    heard.expect("the thread ends")
}
