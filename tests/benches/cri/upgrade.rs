//! The gap between two daemons: the daemon of a node is restarted again and again under load, by SIGTERM as an upgrade does,
//! and clients that connect all the time show for how long each restart keeps them waiting.
//!
//! The node is one of its own, with a managed containerd, and the network plugins of its pods are the usual ones.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::Cri;
use switchyard_tests::http;
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::TestNode;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::report::{Report, progress};
use crate::row::{Goal, Row, milliseconds, quantile};

/// Between two connections of one client.
const PACE: Duration = Duration::from_millis(10);
/// Clients that run pods meanwhile.
const LOADERS: u32 = 4;
/// From one readiness to the next restart: a few pods of each client.
const REST: Duration = Duration::from_secs(1);
/// Limit of a client for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Limit for a call of the load that is repeated until it is answered.
const REPEAT_LIMIT: Duration = Duration::from_secs(60);

/// Size of the layer that is pulled.
const PULLED: usize = 20_000_000;

/// What begins a connection of HTTP/2: the preface and empty settings, which the server answers with its own.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The sockets that are measured.
#[derive(Clone, Copy, Debug)]
enum Socket {
    Cri,
    Nomad,
    Admin,
}

/// What clients saw.
#[derive(Debug, Default)]
struct Seen {
    /// The longest wait at each socket since the last restart began, in the order of [`Socket::ALL`].
    longest: Mutex<[Duration; 3]>,
    /// Connections that were refused or cut off.
    refused: AtomicU32,
    /// Calls of the load that were cut off, and repeated.
    cut_off: AtomicU32,
    /// Calls of the load that were answered.
    answered: AtomicU32,
    /// The first call of the load that was never answered with success.
    failure: Mutex<Option<String>>,
    over: AtomicBool,
}

/// Measures this many restarts.
pub(crate) async fn measure(restarts: u32, report: &mut Report) -> Result<(), Failure> {
    let (rows, note) = tokio::task::spawn_blocking(move || run(restarts)).await??;
    report.section("between two daemons", rows, note);
    Ok(())
}

fn run(restarts: u32) -> Result<(Vec<Row>, String), Failure> {
    let node = TestNode::start();
    let seen = Seen::default();
    let mut waits: [Vec<f64>; 3] = Default::default();
    thread::scope(|scope| {
        for socket in Socket::ALL {
            let path = socket.path(&node);
            let seen = &seen;
            scope.spawn(move || probe(socket, &path, seen));
        }
        for loader in 0..LOADERS {
            let node = &node;
            let seen = &seen;
            scope.spawn(move || load(node, loader, seen));
        }
        {
            let node = &node;
            let seen = &seen;
            scope.spawn(move || load_pulls(node, seen));
        }
        for restart in 0..restarts {
            thread::sleep(REST);
            *seen.longest.lock() = Default::default();
            node.daemon().restart();
            // Those that connected before it was ready have their answers then.
            thread::sleep(REST);
            let longest = *seen.longest.lock();
            for (socket, wait) in waits.iter_mut().zip(longest) {
                socket.push(milliseconds(wait));
            }
            progress("restarts", restart + 1, restarts);
        }
        seen.over.store(true, Ordering::Release);
    });
    if let Some(failure) = seen.failure.lock().take() {
        return Err(failure.into());
    }
    let rows = Socket::ALL.into_iter().zip(&waits);
    Ok((
        rows.flat_map(|(socket, waits)| socket.rows(waits))
            .collect(),
        seen.note(restarts),
    ))
}

/// Connects again and again.
fn probe(socket: Socket, path: &Path, seen: &Seen) {
    while !seen.over.load(Ordering::Acquire) {
        let begun = Instant::now();
        if socket.ask(path).is_err() {
            seen.refused.fetch_add(1, Ordering::Relaxed);
        }
        let took = begun.elapsed();
        seen.waited(socket, took);
        thread::sleep(PACE);
    }
}

/// Runs pods, one after the other, each with a command.
fn load(node: &TestNode, loader: u32, seen: &Seen) {
    let client = Cri::new(&node.root().cri_socket());
    let mut number = 0;
    while !seen.over.load(Ordering::Acquire) {
        number += 1;
        if let Err(error) = run_pod(node, &client, &format!("load-{loader}-{number}"), seen) {
            return seen.failed(&error);
        }
    }
}

/// Pulls an image again and again.
fn load_pulls(node: &TestNode, seen: &Seen) {
    let client = Cri::new(&node.root().cri_socket());
    let image = busybox().layer(random_layer(PULLED, 1)).build();
    node.registry().push("upgrade/pulled:1", &image);
    let reference = node.registry().reference("upgrade/pulled:1");
    while !seen.over.load(Ordering::Acquire) {
        let pulled = seen.repeat(|| client.pull(&reference, None));
        let removed = pulled.and_then(|_| seen.repeat(|| client.remove_image(&reference)));
        if let Err(error) = removed {
            return seen.failed(&error);
        }
    }
}

fn run_pod(node: &TestNode, client: &Cri, name: &str, seen: &Seen) -> Result<(), Status> {
    let config: cri::PodSandboxConfig = node.pod_config(name);
    let main = node.container("main", &["sleep", "1000"]);
    let pod = seen.repeat(|| client.run_pod(&config))?;
    let container = seen.repeat(|| client.create(&pod, &main, &config))?;
    seen.repeat(|| client.start(&container))?;
    seen.repeat(|| client.exec(&container, &["true"], 30).map(drop))?;
    seen.repeat(|| client.stop(&container, 0))?;
    seen.repeat(|| client.stop_pod(&pod))?;
    seen.repeat(|| client.remove_pod(&pod))
}

// === impl Socket ===

impl Socket {
    const ALL: [Self; 3] = [Self::Cri, Self::Nomad, Self::Admin];

    const fn name(self) -> &'static str {
        match self {
            Self::Cri => "CRI",
            Self::Nomad => "Nomad",
            Self::Admin => "admin",
        }
    }

    fn path(self, node: &TestNode) -> PathBuf {
        match self {
            Self::Cri => node.root().cri_socket(),
            Self::Nomad => node.root().run().join("nomad.sock"),
            Self::Admin => node.root().run().join("admin.sock"),
        }
    }

    /// Connects, and waits for the first answer.
    fn ask(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Cri | Self::Nomad => {
                let mut client = UnixStream::connect(path)?;
                client.set_read_timeout(Some(ANSWER_LIMIT))?;
                client.write_all(PREFACE)?;
                client.read_exact(&mut [0; 9])
            }
            Self::Admin => http::get_unix(path, "/livez").map(drop),
        }
    }

    fn rows(self, waits: &[f64]) -> [Row; 3] {
        let name = self.name();
        let longest = waits.iter().copied().fold(0.0, f64::max);
        let p99 = quantile(waits, 0.99);
        [
            Row::ours(
                &format!("{name}: wait at a restart"),
                "ms",
                waits.iter().copied(),
            ),
            Row::ours(&format!("{name}: its 99th percentile"), "ms", [p99])
                .goal(Goal::OursAtMost(1000.0)),
            Row::ours(&format!("{name}: the longest"), "ms", [longest])
                .goal(Goal::OursAtMost(3000.0)),
        ]
    }
}

// === impl Seen ===

impl Seen {
    /// Notes a wait.
    fn waited(&self, socket: Socket, took: Duration) {
        let mut longest = self.longest.lock();
        let longest = &mut longest[socket as usize];
        *longest = took.max(*longest);
    }

    /// Repeats a call until it is answered with success, as kubelets do.
    fn repeat<T>(&self, call: impl Fn() -> Result<T, Status>) -> Result<T, Status> {
        let end = Instant::now() + REPEAT_LIMIT;
        loop {
            match call() {
                Ok(answer) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(status) if is_cut_off(&status) && Instant::now() < end => {
                    self.cut_off.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(PACE);
                }
                Err(status) => return Err(status),
            }
        }
    }

    /// Notes that a call failed for good.
    fn failed(&self, error: &Status) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            *failure = Some(format!("a call failed for good: {error}"));
        }
    }

    fn note(&self, restarts: u32) -> String {
        let [refused, cut_off, answered] = [&self.refused, &self.cut_off, &self.answered]
            .map(|count| count.load(Ordering::Relaxed));
        format!(
            "{restarts} restarts by SIGTERM while {LOADERS} clients run pods and commands, and one pulls an image. A sample is the longest wait at a socket around a restart, of\n\
             clients that connect every {PACE:?}; {refused} of these got no answer. Of the load {answered} calls were answered, and {cut_off} were cut off and repeated.\n"
        )
    }
}

/// Returns whether a call got no answer because its daemon ended.
fn is_cut_off(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    )
}
