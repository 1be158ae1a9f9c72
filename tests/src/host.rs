//! Reads and cleans up the kernel objects of a test: processes, mounts, cgroups, and the state of OCI
//! runtimes.

pub mod cgroups;
pub mod mounts;
pub mod processes;
pub mod runtimes;
mod suspended;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use parking_lot::Mutex;

use crate::prereq;

pub use suspended::SuspendedProcess;

/// The interval at which a condition is polled.
const POLL: Duration = Duration::from_millis(10);
/// Limit for each step of [`ask`].
const TRY: Duration = Duration::from_secs(2);

/// Sets the flag when it is dropped: otherwise a failed test would wait for threads of a scope that continue
/// until then.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs a command, and returns its output.
///
/// # Panics
/// When it does not start, fails, or prints what is no text.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// Makes a network namespace and pins it at this file, until somebody unmounts that.
///
/// # Panics
/// When that cannot be, or `unshare` is not installed.
#[track_caller]
pub fn pin_network_namespace(file: &Path) {
    File::create(file).expect("the directory of a test can be written");
    let unshare = prereq::require("unshare", "util-linux");
    run(Command::new(unshare)
        .arg(format!("--net={}", file.display()))
        .args(["--", "true"]));
}

/// Makes another machine: a network namespace that is pinned at this file, and a pair of devices between it and a node, which is a network
/// namespace, too. The node's has a name and the first of these addresses, the machine's is `eth0` and has the second one.
///
/// # Panics
/// When that cannot be, or a program is not installed.
#[track_caller]
pub fn connect_machine(node: &Path, uplink: &str, file: &Path, [own, theirs]: [Ipv4Addr; 2]) {
    pin_network_namespace(file);
    let ip = prereq::require("ip", "iproute2");
    let path = file.display();
    for (netns, words) in [
        (
            node,
            format!("link add {uplink} type veth peer name eth0 netns {path}"),
        ),
        (node, format!("addr add {own}/24 dev {uplink}")),
        (node, format!("link set {uplink} up")),
        (file, "link set lo up".to_owned()),
        (file, format!("addr add {theirs}/24 dev eth0")),
        (file, "link set eth0 up".to_owned()),
    ] {
        run(inside(netns, &ip).args(words.split(' ')));
    }
}

/// A program in a network namespace.
///
/// # Panics
/// When `nsenter` is not installed.
#[must_use]
pub fn inside(netns: &Path, program: &Path) -> Command {
    // It becomes the program.
    let mut command = Command::new(prereq::require("nsenter", "util-linux"));
    command
        .arg(format!("--net={}", netns.display()))
        .arg("--")
        .arg(program);
    command
}

/// Does something on a thread that is in a network namespace, in which its sockets are.
///
/// # Panics
/// When there is no such namespace.
pub fn within<T: Send + 'static>(
    netns: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let netns = File::open(netns).expect("the namespace is there");
    thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).expect("root may enter it");
        work()
    })
}

/// Connects to an address once, sends this, and returns all that is answered; `None` if nobody is there, or the answer does not end.
#[must_use]
pub fn ask(address: SocketAddr, question: &[u8]) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, TRY).ok()?;
    stream.set_read_timeout(Some(TRY)).ok()?;
    stream.write_all(question).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Lets the node forward IPv6, as the first bridge of both families does, of which other tests make some.
///
/// # Panics
/// When it cannot be set.
pub fn forward_ipv6() {
    let file = "/proc/sys/net/ipv6/conf/all/forwarding";
    if fs::read_to_string(file).is_ok_and(|text| text.trim() == "0") {
        fs::write(file, "1").expect("root may set it");
    }
}

/// Eight random hex digits, for names that must not collide between tests that run at the same time.
#[must_use]
pub fn random_name() -> String {
    hex::encode(random_bytes::<4>())
}

/// Random bytes of the kernel.
///
/// # Panics
/// When `/dev/urandom` cannot be read.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut source = File::open("/dev/urandom").expect("every Linux has /dev/urandom");
    source
        .read_exact(&mut bytes)
        .expect("/dev/urandom never ends");
    bytes
}

/// A TCP port of the host that nobody listens on, and that was not given to another test of this process: nobody listens on a port that
/// is only mapped into a pod.
///
/// # Panics
/// When the host has none.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener =
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("the host has a free port");
        let port = listener.local_addr().expect("it listens").port();
        if GIVEN.lock().insert(port) {
            return port;
        }
    }
}

/// Polls `condition` until it holds; `false` when it does not within `limit`.
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// Returns how many times a test repeats something: the value of an environment variable, or else a number
/// that suits a run of all tests.
///
/// # Panics
/// When the variable is no number.
#[must_use]
pub fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")),
        Err(_) => default,
    }
}

/// A disk of this machine that is not a partition, or a loop device.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn block_device() -> String {
    let names = fs::read_dir("/sys/block").expect("the kernel lists its block devices");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("it can be read").file_name())
        .collect();
    names.sort();
    let mut devices = names.iter().map(|name| Path::new("/dev").join(name));
    let device = devices
        .rfind(|path| path.exists())
        .expect("there is a block device");
    device.to_str().expect("it is ASCII").to_owned()
}
