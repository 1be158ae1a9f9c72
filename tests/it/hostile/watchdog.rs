//! The watchdog of the service manager: what clients or containerd do does not make the daemon seem dead.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use switchyard_tests::host::{SetOnDrop, eventually};
use switchyard_tests::node::TestNode;
use switchyard_tests::scratch::Scratch;

/// The watchdog's limit: the daemon is killed if it does not report for so long.
const LIMIT: Duration = Duration::from_secs(12);
/// Clients of one socket.
const CLIENTS: usize = 334;
/// The beginning of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A page that takes long, whose answer nobody reads.
const PAGE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Messages that a service manager receives from the daemon.
struct Notifications {
    socket: UnixDatagram,
    path: PathBuf,
    _dir: Scratch,
}

impl Notifications {
    fn new() -> Self {
        let dir = Scratch::new();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("the directory is ours");
        socket
            .set_read_timeout(Some(LIMIT))
            .expect("it is not zero");
        Self {
            socket,
            path,
            _dir: dir,
        }
    }

    /// Waits for the watchdog's next notification, which must come within its limit after the last one.
    #[track_caller]
    fn wait_watchdog(&self) {
        let mut buffer = [0; 4096];
        loop {
            let length = match self.socket.recv(&mut buffer) {
                // A wait with a timeout is not resumed after the process was stopped (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.expect("the daemon reports before the watchdog's limit"),
            };
            if String::from_utf8_lossy(&buffer[..length])
                .lines()
                .any(|line| line == "WATCHDOG=1")
            {
                return;
            }
        }
    }
}

/// Opens connections, says this on each, reads nothing, and begins again, until it is stopped.
fn storm(socket: &Path, words: &[u8], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut held = Vec::new();
        for _ in 0..CLIENTS {
            // A connection over the limit is closed, or waits.
            let Ok(mut client) = UnixStream::connect(socket) else {
                continue;
            };
            if client
                .set_write_timeout(Some(LIMIT))
                .and_then(|()| client.write_all(words))
                .is_ok()
            {
                held.push(client);
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
        thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn service_manager_that_reads_no_notification_holds_nothing_up() {
    let notifications = Notifications::new();
    let address = notifications.path.display().to_string();
    // Ten notifications a second fill the manager's socket, and then the queue for it.
    let node =
        TestNode::start_with_variables(&[("NOTIFY_SOCKET", &address), ("WATCHDOG_USEC", "300000")]);
    let log = || fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    let is_dropped = || log().contains("a notification of the service manager is dropped");
    assert!(
        eventually(Duration::from_secs(60), is_dropped),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(node.pod("served").run_shell("echo works", |_| {}), "works");
    // What waits in the socket and in the queue arrives, and then what is new.
    for _ in 0..40 {
        notifications.wait_watchdog();
    }
}

#[test]
fn neither_a_thousand_clients_nor_a_hung_containerd_trip_the_watchdog() {
    let notifications = Notifications::new();
    let limit = LIMIT.as_micros().to_string();
    let address = notifications.path.display().to_string();
    let node =
        TestNode::start_with_variables(&[("NOTIFY_SOCKET", &address), ("WATCHDOG_USEC", &limit)]);
    notifications.wait_watchdog();
    let run = node.root().run();
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let _stop = SetOnDrop(&stop);
        for (socket, words) in [
            ("cri.sock", PREFACE),
            ("nomad.sock", PREFACE),
            ("admin.sock", PAGE),
        ] {
            let socket = run.join(socket);
            let stop = &stop;
            threads.spawn(move || storm(&socket, words, stop));
        }
        for _ in 0..2 {
            notifications.wait_watchdog();
        }
    });
    let containerd = node.containerd_pid();
    kill(containerd, Signal::SIGSTOP).expect("it runs");
    for _ in 0..2 {
        notifications.wait_watchdog();
    }
    kill(containerd, Signal::SIGCONT).expect("it runs");
    node.daemon().wait_ready();
}
