//! Many idle containers: their memory and processor time, and how long lists and a start take beside them.
//!
//! Each side gets some pods with many containers in each. Some of the containers run; the others are only
//! created, which is enough for lists and starts. Containerd is killed and started with its own side's
//! containers alone, so that ours do not slow it down.
//!
//! Longer than 500 lines because one measurement goes from the filling of a node to its clearing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use switchyard_tests::host::{cgroups, eventually, processes};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use crate::failure::Failure;
use crate::memory::{Memory, Resident};
use crate::pair::Pair;
use crate::pods;
use crate::processor;
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// Clients that make and remove the containers.
const CLIENTS: usize = 4;
/// Starts of each side.
const STARTS: usize = 3;
/// Containers that are killed before each start, while no daemon runs.
const DEATHS: usize = 5;
/// Limit for a start.
const START: Duration = Duration::from_secs(60);
/// Interval at which a starting server is queried.
const POLL: Duration = Duration::from_millis(2);
/// The bound of the lists.
const BOUND: &str = "The client's decoding, below the row, is in both sides; the rest is the way of the answers. Tried: the bytes of each item are\n\
    kept from one list to the next.";
/// Lists of each side.
const LISTS: u32 = 40;

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrowdSize {
    /// Pods of each side.
    pub(crate) pods: usize,
    /// Containers of each side that run.
    pub(crate) running: usize,
    /// All containers of each side.
    pub(crate) all: usize,
    /// Time for which their rest is watched.
    pub(crate) rest: Duration,
}

/// Both lists, once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists {
    /// From the first request to the second answer.
    pub(crate) took: Duration,
    /// The client's part of it that is the same for both sides: making messages of the bytes.
    decoding: Duration,
}

/// The cost of one side's containers.
struct CrowdCost {
    /// From the first request until all that run did.
    filling: Duration,
    /// The resident memory before, and with those that run.
    before: Memory,
    full: Memory,
    /// The memory of the shims.
    shims: f64,
    /// The processor time at rest, in per cent of a core: of the side's own servers, and of containerd.
    own: f64,
    containerd: f64,
}

/// The pods of a side, by name and id, and the ids of the containers that run.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    pods: Vec<(String, String)>,
    running: Vec<String>,
}

/// The states that a list must show: the number of containers in each.
pub(crate) type States = BTreeMap<i32, usize>;

/// Measures all of it; returns the rows of memory, which belong into a section of their own.
pub(crate) async fn measure(
    stand: &mut TestBed,
    size: CrowdSize,
    report: &mut Report,
) -> Result<Vec<Row>, Failure> {
    let requests = Requests::new(stand);
    let (theirs, their_cost) = fill(&stand.theirs.clone(), stand, &requests, size).await?;
    report.memory(
        &format!("with {} running, of theirs", size.running),
        their_cost.full,
    );
    add(&stand.theirs, &requests, &theirs, size.running..size.all).await?;
    let their_starts = start_theirs(stand, &theirs, size).await?;

    let (ours, our_cost) = fill(&stand.ours.clone(), stand, &requests, size).await?;
    report.memory(
        &format!("with {} running of each", size.running),
        our_cost.full,
    );
    add(&stand.ours, &requests, &ours, size.running..size.all).await?;
    report.memory(&format!("with {} of each", size.all), Memory::of(stand)?);
    let mut lists = Vec::new();
    for round in 0..LISTS {
        lists.push(list_both(stand, round, size.all).await?);
    }
    let our_starts = start_ours(stand, &ours, size).await?;

    let removal = Pair {
        theirs: clear(&stand.theirs, theirs).await?,
        ours: clear(&stand.ours, ours).await?,
    };
    report.memory("after their removal", Memory::of(stand)?);
    let starts = their_starts
        .into_iter()
        .zip(our_starts)
        .map(|(theirs, ours)| Pair { theirs, ours });
    let filling = Pair {
        theirs: their_cost.filling,
        ours: our_cost.filling,
    };
    let at_rest = Pair {
        theirs: their_cost.own,
        ours: our_cost.own,
    };
    let rows = vec![
        Row::times(
            &format!("{} containers created and started", size.running),
            [filling],
        ),
        list_row(
            &lists,
            &format!("ListContainers + ListPodSandbox, {}", size.all),
            |list| list.took,
        )
        .goal(Goal::RatioAtMost(0.5))
        .bound(BOUND),
        list_row(&lists, "of it the client's decoding", |list| list.decoding),
        list_row(&lists, "and without it", |list| {
            list.took.saturating_sub(list.decoding)
        }),
        Row::times(
            &format!("start until {} are listed right", size.all),
            starts,
        )
        .goal(Goal::OursAtMost(1000.0)),
        Row::numbers(
            &format!("processor at rest, {} running", size.running),
            "% of a core",
            [at_rest],
        )
        .goal(Goal::OursAtMost(0.5)),
        Row::times(
            &format!("{} containers removed with their pods", size.all),
            [removal],
        ),
    ];
    report.section("many containers", rows, note(size, &their_cost, &our_cost));
    Ok(memory_rows(size, &their_cost, &our_cost))
}

fn list_row(lists: &[Pair<Lists>], name: &str, of: fn(&Lists) -> Duration) -> Row {
    Row::times(
        name,
        lists.iter().map(|pair| Pair {
            theirs: of(&pair.theirs),
            ours: of(&pair.ours),
        }),
    )
}

fn note(size: CrowdSize, theirs: &CrowdCost, ours: &CrowdCost) -> String {
    format!(
        "Each side has {} containers in {} pods; {} of them run, the others are created and not started.\n\
         A start is that of our daemon, or of containerd with its CRI plugin, after SIGKILL and the death of {DEATHS}\n\
         containers that nobody saw: from the exec until ListContainers and ListPodSandbox show every state as it is.\n\
         At rest, for {:?}: theirs is containerd, ours daemon and logkeeper; containerd took {:.2} % with its own\n\
         containers alone, and {:.2} % with ours as well.\n",
        size.all, size.pods, size.running, size.rest, theirs.containerd, ours.containerd,
    )
}

fn memory_rows(size: CrowdSize, theirs: &CrowdCost, ours: &CrowdCost) -> Vec<Row> {
    let own = |memory: &Memory| (memory.daemon + memory.logkeeper).rss_mib();
    let containerd =
        |cost: &CrowdCost| cost.full.containerd.rss_mib() - cost.before.containerd.rss_mib();
    let growth = Pair {
        theirs: containerd(theirs),
        ours: containerd(ours) + own(&ours.full) - own(&ours.before),
    };
    vec![
        Row::ours(
            &format!("daemon and logkeeper, {} running", size.running),
            "MiB",
            [own(&ours.full)],
        )
        .goal(Goal::OursAtMost(50.0)),
        Row::numbers(
            &format!("growth by {}, with containerd's", size.running),
            "MiB",
            [growth],
        ),
        Row::numbers(
            &format!("shims of {} running, PSS", size.running),
            "MiB",
            [Pair {
                theirs: theirs.shims,
                ours: ours.shims,
            }],
        ),
    ]
}

/// Makes pods and containers that run in them.
pub(crate) async fn gather(
    side: &Side,
    requests: &Requests,
    pods: usize,
    running: usize,
) -> Result<Crowd, Failure> {
    let mut crowd = Crowd {
        pods: make_pods(side, requests, pods).await?,
        running: Vec::new(),
    };
    let created = add(side, requests, &crowd, 0..running).await?;
    start_all(side, &created).await?;
    crowd.running = created;
    Ok(crowd)
}

/// Makes the pods and the containers that run, and watches their rest.
async fn fill(
    side: &Side,
    stand: &TestBed,
    requests: &Requests,
    size: CrowdSize,
) -> Result<(Crowd, CrowdCost), Failure> {
    let before = Memory::of(stand)?;
    let begin = Instant::now();
    let crowd = gather(side, requests, size.pods, size.running).await?;
    let filling = begin.elapsed();

    let containerd = [stand.containerd.pid()];
    let own = if side.namespace == stand.theirs.namespace {
        containerd.to_vec()
    } else {
        vec![
            u32::try_from(stand.daemon.pid())?,
            Memory::logkeeper_of(stand)?,
        ]
    };
    // What the starts left to do is no rest.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let full = Memory::of(stand)?;
    let own_before = processor::spent(&own)?;
    let containerd_before = processor::spent(&containerd)?;
    let begin = Instant::now();
    tokio::time::sleep(size.rest).await;
    let watched = begin.elapsed();
    let share = |spent: Duration| 100.0 * spent.as_secs_f64() / watched.as_secs_f64();
    let cost = CrowdCost {
        filling,
        before,
        full,
        shims: shims(stand, side)?,
        own: share(processor::spent(&own)?.saturating_sub(own_before)),
        containerd: share(processor::spent(&containerd)?.saturating_sub(containerd_before)),
    };
    Ok((crowd, cost))
}

async fn make_pods(
    side: &Side,
    requests: &Requests,
    pods: usize,
) -> Result<Vec<(String, String)>, Failure> {
    let mut made = Vec::new();
    for pod in 0..pods {
        let name = format!("crowd-{pod}");
        let config = requests.sandbox(side, &name);
        fs::create_dir_all(&config.log_directory)?;
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        let answer = side.clone().runtime.run_pod_sandbox(request).await;
        let id = answer
            .map_err(|status| side.failed("RunPodSandbox", &status))?
            .into_inner()
            .pod_sandbox_id;
        made.push((name, id));
    }
    Ok(made)
}

/// Creates containers, spread over the pods; returns their ids.
async fn add(
    side: &Side,
    requests: &Requests,
    crowd: &Crowd,
    containers: std::ops::Range<usize>,
) -> Result<Vec<String>, Failure> {
    let requests: Vec<_> = containers
        .map(|container| {
            let (name, pod) = &crowd.pods[container % crowd.pods.len()];
            cri::CreateContainerRequest {
                pod_sandbox_id: pod.clone(),
                config: Some(requests.container(&format!("c{container}"))),
                sandbox_config: Some(requests.sandbox(side, name)),
            }
        })
        .collect();
    each(requests, |request| {
        let mut side = side.clone();
        async move {
            let answer = side.runtime.create_container(request).await;
            Ok(answer
                .map_err(|status| side.failed("CreateContainer", &status))?
                .into_inner()
                .container_id)
        }
    })
    .await
}

async fn start_all(side: &Side, containers: &[String]) -> Result<(), Failure> {
    each(containers.to_vec(), |container_id| {
        let mut side = side.clone();
        async move {
            let answer = side
                .runtime
                .start_container(cri::StartContainerRequest { container_id })
                .await;
            answer.map_err(|status| side.failed("StartContainer", &status))?;
            Ok(())
        }
    })
    .await?;
    Ok(())
}

/// Does this for each item, a few at a time.
pub(crate) async fn each<I, T, F>(items: Vec<I>, work: impl Fn(I) -> F) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let mut done = Vec::new();
    let mut running = JoinSet::new();
    for item in items {
        while running.len() >= CLIENTS {
            if let Some(result) = running.join_next().await {
                done.push(result??);
            }
        }
        running.spawn(work(item));
    }
    while let Some(result) = running.join_next().await {
        done.push(result??);
    }
    Ok(done)
}

/// The memory of a side's shims, in MiB, with shared pages divided among them.
pub(crate) fn shims(stand: &TestBed, side: &Side) -> Result<f64, Failure> {
    let root = stand.root.path().to_string_lossy();
    let namespace = format!("-namespace {} ", side.namespace);
    let mut sum = Resident::default();
    for process in processes::all() {
        let words = &process.command;
        if words.contains("containerd-shim")
            && words.contains(root.as_ref())
            && words.contains(&namespace)
        {
            sum = sum + Resident::of(u32::try_from(process.pid)?)?;
        }
    }
    Ok(sum.pss_mib())
}

/// Both lists of each side. Who comes first alternates.
async fn list_both(stand: &mut TestBed, round: u32, want: usize) -> Result<Pair<Lists>, Failure> {
    Pair::in_turns(
        round,
        list(&mut stand.theirs, want),
        list(&mut stand.ours, want),
    )
    .await
}

/// Both lists of a side, which must show so many containers.
pub(crate) async fn list(side: &mut Side, want: usize) -> Result<Lists, Failure> {
    let begin = Instant::now();
    let containers = side
        .runtime
        .list_containers(cri::ListContainersRequest::default())
        .await;
    let pods = side
        .runtime
        .list_pod_sandbox(cri::ListPodSandboxRequest::default())
        .await;
    let took = begin.elapsed();
    let pods = pods
        .map_err(|status| side.failed("ListPodSandbox", &status))?
        .into_inner();
    let containers = containers
        .map_err(|status| side.failed("ListContainers", &status))?
        .into_inner();
    let found = containers.containers.len();
    if found == want {
        return Ok(Lists {
            took,
            decoding: decoding(&containers)? + decoding(&pods)?,
        });
    }
    Err(format!(
        "{}: ListContainers shows {found} containers, not {want}",
        side.name
    )
    .into())
}

/// Measures how long this client takes to decode an answer.
fn decoding<M: Message + Default>(answer: &M) -> Result<Duration, Failure> {
    let bytes = answer.encode_to_vec();
    let begin = Instant::now();
    let decoded = M::decode(bytes.as_slice())?;
    let took = begin.elapsed();
    drop(decoded);
    Ok(took)
}

async fn start_theirs(
    stand: &mut TestBed,
    crowd: &Crowd,
    size: CrowdSize,
) -> Result<Vec<Duration>, Failure> {
    let mut starts = Vec::new();
    for start in 0..STARTS {
        stand.containerd.kill9();
        let states = kill_some(crowd, start, size)?;
        let begin = Instant::now();
        stand.containerd.spawn()?;
        starts.push(until_right(&stand.containerd.socket, begin, &states, size.pods).await?);
        stand.theirs.wait_ready().await?;
        progress(
            "starts of containerd",
            u32::try_from(start + 1)?,
            u32::try_from(STARTS)?,
        );
    }
    // Our daemon connects again.
    stand.ours.wait_ready().await?;
    Ok(starts)
}

async fn start_ours(
    stand: &mut TestBed,
    crowd: &Crowd,
    size: CrowdSize,
) -> Result<Vec<Duration>, Failure> {
    let mut starts = Vec::new();
    for start in 0..STARTS {
        stand.daemon.kill9();
        let states = kill_some(crowd, start, size)?;
        let begin = Instant::now();
        stand.daemon.spawn();
        starts.push(until_right(&stand.root.cri_socket(), begin, &states, size.pods).await?);
        stand.daemon.wait_ready();
        stand.ours.wait_ready().await?;
        progress(
            "starts of the daemon",
            u32::try_from(start + 1)?,
            u32::try_from(STARTS)?,
        );
    }
    Ok(starts)
}

/// Kills the next few of the containers that run; returns what a list must show from then on.
fn kill_some(crowd: &Crowd, start: usize, size: CrowdSize) -> Result<States, Failure> {
    for id in crowd.running.iter().skip(start * DEATHS).take(DEATHS) {
        let pids = cgroups::members(id);
        for pid in &pids {
            kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
        }
        if pids.is_empty() || !eventually(START, || cgroups::members(id).is_empty()) {
            return Err(format!(
                "container {id} cannot be killed: its control group holds {pids:?}"
            )
            .into());
        }
    }
    let dead = (start + 1) * DEATHS;
    Ok(BTreeMap::from([
        (
            cri::ContainerState::ContainerCreated as i32,
            size.all - size.running,
        ),
        (
            cri::ContainerState::ContainerRunning as i32,
            size.running - dead,
        ),
        (cri::ContainerState::ContainerExited as i32, dead),
    ]))
}

/// The time from `begin` until lists show what they must.
pub(crate) async fn until_right(
    socket: &Path,
    begin: Instant,
    want: &States,
    pods: usize,
) -> Result<Duration, Failure> {
    loop {
        let seen = match states(socket).await {
            Ok((states, ready)) if states == *want && ready == pods => return Ok(begin.elapsed()),
            Ok((states, ready)) => format!("{ready} pods and {states:?}"),
            Err(error) => error.to_string(),
        };
        if begin.elapsed() > START {
            let want = format!("{pods} pods that are ready and containers by state {want:?}");
            return Err(format!(
                "{} does not list {want} {START:?} after the start, but {seen}",
                socket.display()
            )
            .into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The containers by state, and how many pods are ready.
async fn states(socket: &Path) -> Result<(States, usize), Failure> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(START);
    let mut runtime = RuntimeServiceClient::new(endpoint.connect().await?);
    let containers = runtime
        .list_containers(cri::ListContainersRequest::default())
        .await?
        .into_inner()
        .containers;
    let pods = runtime
        .list_pod_sandbox(cri::ListPodSandboxRequest::default())
        .await?
        .into_inner()
        .items;
    let mut states = States::new();
    for container in containers {
        *states.entry(container.state).or_default() += 1;
    }
    let ready = cri::PodSandboxState::SandboxReady as i32;
    Ok((states, pods.iter().filter(|pod| pod.state == ready).count()))
}

/// Removes all pods with their containers; returns how long it took.
pub(crate) async fn clear(side: &Side, crowd: Crowd) -> Result<Duration, Failure> {
    let begin = Instant::now();
    each(crowd.pods, |(_, pod)| {
        let mut side = side.clone();
        async move { pods::remove_pod(&mut side, &pod).await }
    })
    .await?;
    Ok(begin.elapsed())
}
