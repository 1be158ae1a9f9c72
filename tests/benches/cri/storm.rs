//! Isolation: the latency of one orchestrator's calls while another one starts many containers at once,
//! compared with the latency while as many bare containers are started without our daemon.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::devices::device_bench::{AllocateClient, DeviceBench, NAMESPACE, ReserveClient};
use crate::devices::sandbox;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::pods;
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row, milliseconds, quantile};
use crate::side::{Side, channel};
use crate::tasks::nomad::{DriverCalls, PreparedTask, TaskNetwork};
use crate::tasks::{AT_ONCE, Sides, all};
use crate::test_bed::TestBed;

/// The names of the sides, by the orchestrator whose containers are started meanwhile.
const NAMES: Pair<&str> = Pair {
    theirs: "beside bare ones",
    ours: "beside ours",
};
/// Between two reads.
const READ: Duration = Duration::from_millis(10);
/// Between two leases: the devices of a resource last for a storm of three seconds.
const LEASE: Duration = Duration::from_millis(30);
/// Tasks that are prepared to be started one after the other during a storm.
const PREPARED: usize = 40;
/// After the removal of a storm's containers, until the next storm.
const COOLDOWN: Duration = Duration::from_secs(1);

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StormSize {
    /// Storms of each side and kind.
    pub(crate) rounds: u32,
    /// Containers that a storm starts concurrently.
    pub(crate) containers: u32,
}

/// The client whose calls are measured.
#[derive(Clone, Copy, Debug)]
enum MeasuredClient {
    /// A kubelet's, while tasks of Nomad are started.
    Kubelet,
    /// A Nomad agent's, while pods are started.
    Nomad,
}

/// The caller during a storm, with its own connections.
enum Probe {
    Kubelet {
        cri: PathBuf,
        containerd: PathBuf,
        requests: Requests,
        endpoint: PathBuf,
        name: String,
    },
    Nomad {
        driver: PathBuf,
        plugin: PathBuf,
        ids: Vec<String>,
        tasks: Vec<PreparedTask>,
        known: String,
    },
}

/// A thread that repeats a call until the storm is over: the client of the storm must not delay it.
struct ProbeThread {
    over: CancellationToken,
    thread: JoinHandle<Result<ProbeTimes, Failure>>,
    /// The task that is inspected.
    known: Option<PreparedTask>,
}

/// Durations of the calls.
#[derive(Debug)]
struct ProbeTimes {
    reads: Vec<Duration>,
    leases: Vec<Duration>,
    starts: Vec<Duration>,
}

/// A storm, and what was seen meanwhile.
#[derive(Debug)]
struct Storm {
    seen: ProbeTimes,
    /// From the first call until the last container runs.
    took: Duration,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &TestBed,
    bench: &DeviceBench,
    size: StormSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let sides = Sides::start(stand).await?;
    let mut rows = Vec::new();
    for probed in [MeasuredClient::Kubelet, MeasuredClient::Nomad] {
        let mut pairs = Vec::new();
        for round in 0..size.rounds {
            let bare = bare_storm(&sides, bench, probed, round, size.containers);
            let ours = our_storm(bench, probed, round, size.containers);
            pairs.push(Pair::in_turns(round, bare, ours).await?);
            progress("storms", round + 1, size.rounds);
        }
        rows.extend(probed.rows(&pairs, size.containers));
    }
    sides.end().await?;
    let note = format!(
        "{} storms of each side and kind: {} containers on the host's network, all at once. Meanwhile the other orchestrator reads, leases\n         and starts, each again and again; a sample is the 99th percentile of a storm. The bare containers are those of `tasks`.\n",
        size.rounds, size.containers
    );
    report.section_between("one orchestrator beside another", NAMES, rows, note);
    report.leftovers(&bench.leftovers());
    Ok(())
}

/// A storm of bare containers, started without our daemon.
async fn bare_storm(
    sides: &Sides,
    bench: &DeviceBench,
    probed: MeasuredClient,
    round: u32,
    containers: u32,
) -> Result<Storm, Failure> {
    let watch = probed.watch(bench, format!("bare-{round}")).await?;
    let took = sides.their_burst(containers, &watch.over).await?;
    watch.end(bench, took).await
}

/// A storm of the other orchestrator's.
async fn our_storm(
    bench: &DeviceBench,
    probed: MeasuredClient,
    round: u32,
    containers: u32,
) -> Result<Storm, Failure> {
    let watch = probed.watch(bench, format!("ours-{round}")).await?;
    let took = match probed {
        MeasuredClient::Kubelet => tasks(bench, containers, &watch.over).await?,
        MeasuredClient::Nomad => pods(bench, round, containers, &watch.over).await?,
    };
    watch.end(bench, took).await
}

/// Starts this many tasks concurrently, and removes them once `over` is signalled. Returns how long their
/// starts took.
async fn tasks(
    bench: &DeviceBench,
    count: u32,
    over: &CancellationToken,
) -> Result<Duration, Failure> {
    let tasks: Vec<PreparedTask> = (0..count)
        .map(|_| bench.nomad.prepare(TaskNetwork::Host))
        .collect::<Result<_, Failure>>()?;
    let begin = Instant::now();
    let starts = tasks.into_iter().map(|task| {
        let mut driver = bench.nomad.driver();
        async move { driver.start(&task).await.map(|_| task) }
    });
    let running = all(starts, usize::MAX).await?;
    let took = begin.elapsed();
    over.cancel();
    let removals = running.into_iter().map(|task| {
        let mut driver = bench.nomad.driver();
        async move { driver.remove(&task).await }
    });
    all(removals, AT_ONCE).await?;
    Ok(took)
}

/// The same with pods.
async fn pods(
    bench: &DeviceBench,
    round: u32,
    count: u32,
    over: &CancellationToken,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let starts = (0..count).map(|number| {
        let mut side = bench.side.clone();
        let requests = bench.requests.clone();
        async move {
            let sandbox = sandbox(&requests, &side, &format!("storm-{round}-{number}"));
            pods::start_pod_with(&mut side, sandbox, requests.container("main")).await
        }
    });
    let running = all(starts, usize::MAX).await?;
    let took = begin.elapsed();
    over.cancel();
    let removals = running.into_iter().map(|up| {
        let mut side = bench.side.clone();
        async move { pods::remove_pod(&mut side, &up.pod).await }
    });
    all(removals, AT_ONCE).await?;
    Ok(took)
}

// === impl MeasuredClient ===

impl MeasuredClient {
    /// Starts the caller; returns once the first calls were answered.
    async fn watch(self, bench: &DeviceBench, name: String) -> Result<ProbeThread, Failure> {
        let (probe, known) = match self {
            Self::Kubelet => {
                let (cri, containerd) = bench.sockets();
                let requests = bench.requests.clone();
                let endpoint = bench.unused()?;
                (
                    Probe::Kubelet {
                        cri,
                        containerd,
                        requests,
                        endpoint,
                        name,
                    },
                    None,
                )
            }
            Self::Nomad => {
                let task = bench.nomad.prepare(TaskNetwork::Host)?;
                bench.nomad.driver().start(&task).await?;
                let ids = AllocateClient::connect(&bench.unused()?).await?.0.ids;
                let tasks = (0..PREPARED).map(|_| bench.nomad.prepare(TaskNetwork::Host));
                let probe = Probe::Nomad {
                    driver: bench.nomad.address()?,
                    plugin: bench.device_plugin()?,
                    ids,
                    tasks: tasks.collect::<Result<_, Failure>>()?,
                    known: task.id().to_owned(),
                };
                (probe, Some(task))
            }
        };
        let over = CancellationToken::new();
        let (ready, connected) = oneshot::channel();
        let signal = over.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(probe.run(ready, signal))
        });
        let watch = ProbeThread {
            over,
            thread,
            known,
        };
        match connected.await {
            Ok(()) => Ok(watch),
            // Its end says why.
            Err(_) => watch
                .end(bench, Duration::ZERO)
                .await
                .and(Err("the calls did not begin".into())),
        }
    }

    fn rows(self, storms: &[Pair<Storm>], containers: u32) -> Vec<Row> {
        let ([read, lease, start], storm) = match self {
            Self::Kubelet => (["ListContainers", "Allocate", "pod up"], "tasks"),
            Self::Nomad => (["InspectTask", "Reserve", "StartTask"], "pods"),
        };
        let row = |name: &str, of: fn(&ProbeTimes) -> &Vec<Duration>| {
            let worst = |storm: &Storm| {
                let times: Vec<f64> = of(&storm.seen).iter().copied().map(milliseconds).collect();
                quantile(&times, 0.99)
            };
            let pairs = storms.iter().map(|pair| Pair {
                theirs: worst(&pair.theirs),
                ours: worst(&pair.ours),
            });
            Row::numbers(&format!("{name} beside {containers} {storm}"), "ms", pairs)
        };
        let took = storms.iter().map(|pair| Pair {
            theirs: pair.theirs.took,
            ours: pair.ours.took,
        });
        vec![
            row(read, |seen| &seen.reads).goal(Goal::RatioAtMost(1.2)),
            row(lease, |seen| &seen.leases).goal(Goal::RatioAtMost(1.2)),
            row(start, |seen| &seen.starts).goal(Goal::RatioAtMost(1.5)),
            Row::times(&format!("{containers} {storm}, until all run"), took),
        ]
    }
}

// === impl ProbeThread ===

impl ProbeThread {
    /// Returns the measurements until the end of the storm, which took so long.
    async fn end(self, bench: &DeviceBench, took: Duration) -> Result<Storm, Failure> {
        let Self {
            over,
            thread,
            known,
        } = self;
        over.cancel();
        let joined = tokio::task::spawn_blocking(|| thread.join()).await?;
        let seen = joined.map_err(|_| "what calls during a storm gave up: see above")??;
        if let Some(task) = known {
            bench.nomad.driver().remove(&task).await?;
        }
        tokio::time::sleep(COOLDOWN).await;
        Ok(Storm { seen, took })
    }
}

// === impl Probe ===

impl Probe {
    /// Calls until the storm is over; signals the first calls.
    async fn run(
        self,
        ready: oneshot::Sender<()>,
        over: CancellationToken,
    ) -> Result<ProbeTimes, Failure> {
        match self {
            Self::Kubelet {
                cri,
                containerd,
                requests,
                endpoint,
                name,
            } => {
                let side =
                    Side::connect("with devices", &cri, NAMESPACE, channel(&containerd).await?)
                        .await?;
                let (mut allocate, _) = AllocateClient::connect(&endpoint).await?;
                // Whoever waits for it has given up otherwise.
                let _ = ready.send(());
                let mut reads = side.clone();
                let mut starts = side;
                let mut pod = 0;
                let (reads, leases, starts) = tokio::try_join!(
                    repeat_until_over(&over, READ, async || list(&mut reads).await.map(Some)),
                    repeat_until_over(&over, LEASE, async || {
                        if allocate.ids.is_empty() {
                            return Ok(None);
                        }
                        Ok(Some(allocate.take().await?.1))
                    }),
                    repeat_until_over(&over, READ, async || {
                        pod += 1;
                        let up = pods::start_pod(&mut starts, &requests, &format!("{name}-{pod}"))
                            .await?;
                        pods::remove_pod(&mut starts, &up.pod).await?;
                        Ok(Some(up.run + up.create + up.start))
                    }),
                )?;
                Ok(ProbeTimes {
                    reads,
                    leases,
                    starts,
                })
            }
            Self::Nomad {
                driver,
                plugin,
                ids,
                tasks,
                known,
            } => {
                let mut reads = DriverCalls::connect(&driver).await?;
                let mut starts = reads.clone();
                let mut reserve = ReserveClient::connect(&plugin).await?;
                let mut ids = ids.into_iter();
                let mut tasks = tasks.into_iter();
                // As above.
                let _ = ready.send(());
                let (reads, leases, starts) = tokio::try_join!(
                    repeat_until_over(&over, READ, async || reads.inspect(&known).await.map(Some)),
                    repeat_until_over(&over, LEASE, async || {
                        let Some(id) = ids.next() else {
                            return Ok(None);
                        };
                        Ok(Some(reserve.take(&id).await?.1))
                    }),
                    repeat_until_over(&over, READ, async || {
                        let Some(task) = tasks.next() else {
                            return Ok(None);
                        };
                        let took = starts.start(&task).await?;
                        starts.remove(&task).await?;
                        Ok(Some(took))
                    }),
                )?;
                Ok(ProbeTimes {
                    reads,
                    leases,
                    starts,
                })
            }
        }
    }
}

/// Calls again and again until the storm is over, or there is nothing left to call with.
async fn repeat_until_over(
    over: &CancellationToken,
    pace: Duration,
    mut call: impl AsyncFnMut() -> Result<Option<Duration>, Failure>,
) -> Result<Vec<Duration>, Failure> {
    let mut took = Vec::new();
    while !over.is_cancelled() {
        let Some(one) = call().await? else { break };
        took.push(one);
        tokio::time::sleep(pace).await;
    }
    Ok(took)
}

async fn list(side: &mut Side) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let answer = side
        .runtime
        .list_containers(cri::ListContainersRequest::default())
        .await;
    answer
        .map(|_| begin.elapsed())
        .map_err(|status| side.failed("ListContainers", &status))
}
