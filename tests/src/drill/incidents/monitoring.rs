//! The way between Prometheus and the node.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;

/// Twelve seconds of a real node, where a scrape may take ten: here it may take two.
const DELAY: Duration = Duration::from_millis(2400);

/// A link that delays each answer. Dropping it closes its listener.
#[derive(Debug)]
struct SlowLink {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

impl SlowLink {
    /// A link to an address.
    fn to(target: SocketAddr) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_closed.load(Ordering::Acquire) {
                    break;
                }
                // It ends with its connection.
                thread::spawn(move || carry(client, target));
            }
        });
        Self { address, closed }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

/// Carries a connection in both directions, late in one of them.
fn carry(client: TcpStream, target: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    let mut from = client.try_clone()?;
    let mut to = server.try_clone()?;
    thread::spawn(move || {
        let copied = io::copy(&mut from, &mut to);
        // The server may have closed its side.
        let _ = to.shutdown(Shutdown::Write);
        copied
    });
    let copied = copy_late(server, &client);
    let _ = client.shutdown(Shutdown::Both);
    copied
}

/// Copies each piece late: a handshake and an answer are a few.
fn copy_late(mut from: TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut block = vec![0; 1 << 20];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                thread::sleep(DELAY);
                to.write_all(&block[..count])?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
    }
}

/// The link between Prometheus and the node is slow; the node is well.
pub(crate) fn link_is_slow(node: &DrillNode) -> Incident {
    let link = SlowLink::to(node.metrics_address());
    node.scrape_by(link.address);
    let report = node.report().clone();
    let looks = Load::start(Duration::from_secs(5), move || {
        report.say("dashboard", "no data of this node");
    });
    Incident::new("web-1", Sign::Alert("SwitchyardDown"))
        .with(looks)
        .with(link)
}
