//! The gap between two daemons: the daemon of a node is restarted again and again under load, by SIGTERM as an upgrade does,
//! and clients that connect all the time show for how long each restart keeps them waiting.
//!
//! The node is one of its own, with a managed containerd, a worker of a swarm in the network namespace of its manager. A kubelet,
//! Nomad agents and the manager work with it meanwhile.

mod calls;
mod load;
mod node;

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::switchyard::nomad::v1 as nomad;
use switchyard_proto::switchyard::nomad::v1::sessions_client::SessionsClient;
use switchyard_tests::cri::Cri;
use switchyard_tests::host::{SetOnDrop, eventually};
use switchyard_tests::http;
use tonic::{Response, Status};

use crate::failure::Failure;
use crate::report::{Report, progress};
use crate::row::{Goal, Row, milliseconds, quantile};
use calls::{CallCounts, FailedTry, FailureKind};
use load::LoadTarget;
use node::RestartedNode;

/// Between two connections of one client.
const PACE: Duration = Duration::from_millis(10);
/// Clients that run pods meanwhile.
const LOADERS: u32 = 4;
/// Nomad agents that run tasks meanwhile.
const AGENTS: u32 = 2;
/// From one readiness to the next restart: a few pods of each client.
const REST: Duration = Duration::from_secs(1);
/// Limit of a client for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Number of restarts after which a pod is awaited whose network takes longer than the time between two restarts.
const SLOW_EVERY: u32 = 5;
/// Limit for such a pod.
const SLOW_LIMIT: Duration = Duration::from_secs(120);

/// The sockets that are measured.
#[derive(Clone, Copy, Debug)]
enum Socket {
    Cri,
    Nomad,
    Admin,
}

/// Observations of the clients.
#[derive(Debug, Default)]
struct Seen {
    /// The longest wait at each socket since the last restart began, in the order of [`Socket::ALL`].
    longest: Mutex<[Duration; 3]>,
    /// Their calls.
    calls: CallCounts,
    /// The number of pods with a slow network that were run and removed.
    slow: AtomicU32,
}

/// The result of all restarts.
#[derive(Debug)]
struct Restarts {
    rows: Vec<Row>,
    note: String,
    leftovers: Vec<String>,
    failure: Option<String>,
}

/// Measures this many restarts.
pub(crate) async fn measure(restarts: u32, report: &mut Report) -> Result<(), Failure> {
    let Restarts {
        rows,
        note,
        leftovers,
        failure,
    } = tokio::task::spawn_blocking(move || run(restarts)).await??;
    report.section("between two daemons", rows, note);
    report.leftovers(&leftovers);
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

fn run(restarts: u32) -> Result<Restarts, Failure> {
    let mut node = RestartedNode::start()?;
    let target = node.target();
    let before = node.running_tasks();
    let seen = Seen::default();
    let mut waits: [Vec<f64>; 3] = Default::default();
    let gave_up = thread::scope(|scope| {
        let Seen { calls, slow, .. } = &seen;
        let seen = &seen;
        let target = &target;
        let mut clients = Vec::new();
        for socket in Socket::ALL {
            clients.push(scope.spawn(move || probe(socket, target, seen)));
        }
        for loader in 0..LOADERS {
            clients.push(scope.spawn(move || load::run_pods(target, loader, calls)));
        }
        for _ in 0..AGENTS {
            clients.push(scope.spawn(move || load::run_tasks(target, calls)));
        }
        clients.push(scope.spawn(move || load::run_slow_pods(target, calls, slow)));
        clients.push(scope.spawn(move || load::pull_images(target, calls)));
        let over = SetOnDrop(calls.over());
        for restart in 1..=restarts {
            thread::sleep(REST);
            *seen.longest.lock() = Default::default();
            node.restart();
            // Those that connected before it was ready have their answers then.
            thread::sleep(REST);
            let longest = *seen.longest.lock();
            for (socket, wait) in waits.iter_mut().zip(longest) {
                socket.push(milliseconds(wait));
            }
            if restart.is_multiple_of(SLOW_EVERY) {
                seen.wait_for_slow_pod();
            }
            progress("restarts", restart, restarts);
        }
        drop(over);
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        ended.iter().any(Result::is_err)
    });
    node.wait_for_session();
    let after = node.running_tasks();
    let mut note = seen.note(restarts, &waits);
    writeln!(
        note,
        "\nSwarm: {} tasks at the beginning, {} of them at the end.",
        before.len(),
        before.intersection(&after).count()
    )?;
    let rows = Socket::ALL.into_iter().zip(&waits);
    Ok(Restarts {
        rows: rows
            .flat_map(|(socket, waits)| socket.rows(waits))
            .collect(),
        note,
        leftovers: node.end(),
        failure: seen
            .calls
            .failure()
            .or(gave_up.then(|| "a client gave up: see above".to_owned())),
    })
}

/// Calls again and again. A wait lasts from the first try of a call until one succeeds.
fn probe(socket: Socket, target: &LoadTarget, seen: &Seen) {
    let path = target.run.join(socket.file());
    let client = Cri::new(&path).with_timeout(ANSWER_LIMIT);
    while !seen.calls.is_over() {
        let begun = Instant::now();
        let answered = seen
            .calls
            .repeat(socket.operation(), || socket.ask(&client, &path));
        if answered.is_none() {
            return;
        }
        seen.waited(socket, begun.elapsed());
        thread::sleep(PACE);
    }
}

/// Opens a session as the launcher of a device plugin does, which concerns no task, and ends it once it has a name.
fn open_session(client: &Cri) -> Result<(), Status> {
    let request = nomad::OpenRequest {
        role: nomad::Role::Device.into(),
        name: "bench".to_owned(),
        ..Default::default()
    };
    client.channel(async |channel| {
        let mut stream = SessionsClient::new(channel)
            .open(request)
            .await?
            .into_inner();
        let opened = stream.message().await?;
        opened
            .map(|_| Response::new(()))
            .ok_or_else(|| Status::unavailable("the session ended before it had a name"))
    })
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

    const fn file(self) -> &'static str {
        match self {
            Self::Cri => "cri.sock",
            Self::Nomad => "nomad.sock",
            Self::Admin => "admin.sock",
        }
    }

    /// The call that its client makes.
    const fn operation(self) -> &'static str {
        match self {
            Self::Cri => "Version",
            Self::Nomad => "Nomad: Open",
            Self::Admin => "GET /livez",
        }
    }

    /// Connects, and waits for the answer of a call.
    fn ask(self, client: &Cri, path: &Path) -> Result<(), FailedTry> {
        match self {
            Self::Cri => {
                client.runtime(async |mut client| {
                    client.version(cri::VersionRequest::default()).await
                })?;
            }
            Self::Nomad => open_session(client)?,
            Self::Admin => {
                let answer = http::get_unix(path, "/livez")?;
                if answer.status != 200 {
                    return Err(FailedTry::new(FailureKind::Answered, answer.text()));
                }
            }
        }
        Ok(())
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

    /// Waits until one more pod with a slow network was run and removed, unless a client has failed.
    fn wait_for_slow_pod(&self) {
        let before = self.slow.load(Ordering::Acquire);
        eventually(SLOW_LIMIT, || {
            self.slow.load(Ordering::Acquire) > before || self.calls.failure().is_some()
        });
    }

    fn note(&self, restarts: u32, waits: &[Vec<f64>; 3]) -> String {
        let mut note = format!(
            "{restarts} restarts by SIGTERM while {LOADERS} clients run pods and commands, {AGENTS} Nomad agents tasks and commands, one client pods whose\n\
             network takes 5 s at its set-up and at its removal, and one pulls an image. A sample is the longest wait at a socket around a restart, of\n\
             clients that connect every {PACE:?}: from the first try of a call until one succeeds.\n\n{:<42}{:>10}{:>10}{:>10}{:>10}\n",
            "socket: wait at a restart, ms", "calls", "p50", "p99", "max"
        );
        for (socket, waits) in Socket::ALL.into_iter().zip(waits) {
            let longest = waits.iter().copied().fold(0.0, f64::max);
            note += &format!(
                "{:<42}{:>10}{:>10.1}{:>10.1}{longest:>10.1}\n",
                socket.name(),
                self.calls.calls(socket.operation()),
                quantile(waits, 0.5),
                quantile(waits, 0.99)
            );
        }
        note += &format!(
            "\n{}Failed: calls of which a try failed; repeated: those of them that succeeded later. The last columns count tries. A StartTask that\n\
             was not repeated with success is an allocation that its agent has lost, a RecoverTask a task that it has lost.\n",
            self.calls
        );
        note
    }
}
