//! Many pods on the node: what one more pod, a list, a scrape, rest, memory and a start of the servers cost beside 10 of them, and beside
//! 1,000.
//!
//! One side after the other: a bridge has 1,023 ports at most, and the pods of one side would slow the other one down. Each begins with a
//! containerd that has just started, and adds pods from one count to the next.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use switchyard_network::nft::NftFamily;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

use crate::bridges::{BRIDGE, SUBNET, delete_bridge};
use crate::crowd;
use crate::failure::Failure;
use crate::footprint::NodeScanner;
use crate::memory::Memory;
use crate::pair::Pair;
use crate::pods::{self, PodRound, Times};
use crate::processor;
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row, milliseconds, quantile};
use crate::side::Side;
use crate::test_bed::TestBed;

/// The beginning of the addresses of all; that of no other network of the benchmark.
const ADDRESSES: &str = "10.254.";
/// Lists and scrapes of each count.
const LOOKS: u32 = 20;
/// Time for what the starts have left to do, which is no rest.
const SETTLE: Duration = Duration::from_secs(5);
/// Limit for a side to use the network.
const USED: Duration = Duration::from_secs(30);
/// The most that the start of a pod beside the most pods may take, of the start beside the fewest.
const BEND: f64 = 1.2;
const BOUND: &str = "StartContainer bends, on both sides: shim and runc read the table of mounts, some ten times for a start on cgroup v1, and\n\
                     copy the mount namespace; a pod has four or five mounts. docs/benchmark.md has the figures.";

/// The durations of a count, by the row that shows them.
const TIMES: [DurationsColumn; 11] = [
    ("RunPodSandbox", |stage| {
        stage.pods.iter().map(|times| times.run).collect()
    }),
    ("CreateContainer", |stage| {
        stage.pods.iter().map(|times| times.create).collect()
    }),
    ("StartContainer", |stage| {
        stage.pods.iter().map(|times| times.start).collect()
    }),
    ("pod up", |stage| stage.pods.iter().map(Times::up).collect()),
    ("pod gone", |stage| {
        stage.pods.iter().map(Times::gone).collect()
    }),
    ("of it until the answers", |stage| {
        stage.pods.iter().map(Times::answered).collect()
    }),
    ("both lists", |stage| stage.lists.clone()),
    ("ListContainerStats", |stage| stage.stats.clone()),
    ("start after SIGKILL", |stage| vec![stage.recovery]),
    ("all pods made, since the count before", |stage| {
        vec![stage.growth]
    }),
    ("GET /metrics", |stage| stage.metrics.clone()),
];
/// The other figures.
const NUMBERS: [NumberColumn; 6] = [
    ("processor at rest", "% of a core", |stage| stage.at_rest),
    ("memory of all servers, RSS", "MiB", |stage| stage.servers),
    ("of it containerd", "MiB", |stage| stage.containerd),
    ("shims, PSS", "MiB", |stage| stage.shims),
    ("rules of iptables", "rules", |stage| stage.rules),
    ("elements of nftables", "elements", |stage| stage.elements),
];

type DurationsColumn = (&'static str, fn(&Stage) -> Vec<Duration>);
type NumberColumn = (&'static str, &'static str, fn(&Stage) -> f64);

/// The extent of this part.
#[derive(Clone, Debug)]
pub(crate) struct ScaleSize {
    /// Pods beside which is measured, ascending.
    pub(crate) counts: Vec<usize>,
    /// Pods that are measured beside each count.
    pub(crate) pods: u32,
    /// Time for which the rest is watched.
    pub(crate) rest: Duration,
}

/// Results of the measurement beside a count of pods, of one side.
#[derive(Debug)]
struct Stage {
    /// Until as many pods run as there are, from the count before.
    growth: Duration,
    /// The processor time at rest of the servers of the side, in per cent of a core.
    at_rest: f64,
    /// The memory of the servers of the side, of containerd alone, and of the shims.
    servers: f64,
    containerd: f64,
    shims: f64,
    /// One pod more, up and gone.
    pods: Vec<Times>,
    lists: Vec<Duration>,
    stats: Vec<Duration>,
    /// Scrapes of our daemon; none of theirs.
    metrics: Vec<Duration>,
    /// From the start of the killed server until the lists are right.
    recovery: Duration,
    /// Numbers of rules and of elements of our tables.
    rules: f64,
    elements: f64,
}

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Theirs,
    Ours,
}

/// A network with enough addresses, which is the node's as long as this exists.
struct ScaleNetwork {
    conflist: PathBuf,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &mut TestBed,
    size: &ScaleSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let network = ScaleNetwork::make(&stand.root)?;
    let theirs = one_side(stand, size, Whose::Theirs).await?;
    let ours = one_side(stand, size, Whose::Ours).await?;
    drop(network);
    let stages: Vec<_> = theirs
        .into_iter()
        .zip(ours)
        .map(|(theirs, ours)| Pair { theirs, ours })
        .collect();
    let note = format!(
        "{} pods up and gone of each side beside each count, one side after the other, so that a ratio is of two separate series. The pods\n\
         of a side are on one bridge, and have one container each. Servers: theirs is containerd; ours daemon, logkeeper and containerd. A pod\n\
         is gone as in `pods`, which reads the table of mounts; the processor was watched for {:?}.\n",
        size.pods, size.rest
    );
    report.section("pods beside many others", rows(size, &stages), note);
    Ok(())
}

fn rows(size: &ScaleSize, stages: &[Pair<Stage>]) -> Vec<Row> {
    let counted = || size.counts.iter().zip(stages);
    let times = TIMES.iter().flat_map(|&(name, of)| {
        counted().map(move |(count, pair)| {
            let in_ms = |stage: &Stage| of(stage).into_iter().map(milliseconds).collect();
            Row {
                theirs: in_ms(&pair.theirs),
                ..Row::ours(
                    &format!("{name}, {count}"),
                    "ms",
                    of(&pair.ours).into_iter().map(milliseconds),
                )
            }
        })
    });
    let numbers = NUMBERS.iter().flat_map(|&(name, unit, of)| {
        counted().map(move |(count, pair)| {
            let pair = Pair {
                theirs: of(&pair.theirs),
                ours: of(&pair.ours),
            };
            Row::numbers(&format!("{name}, {count}"), unit, [pair])
        })
    });
    times
        .chain(numbers)
        .chain(bend(&size.counts, stages))
        .collect()
}

/// Compares the start of a pod beside the most pods with that beside the fewest; `None` for a single count.
fn bend(counts: &[usize], stages: &[Pair<Stage>]) -> Option<Row> {
    let ([fewest, .., most], [first, .., last]) = (counts, stages) else {
        return None;
    };
    let up = |stage: &Stage| {
        let samples: Vec<f64> = stage
            .pods
            .iter()
            .map(|times| milliseconds(times.up()))
            .collect();
        quantile(&samples, 0.5)
    };
    let ratio = |first: &Stage, last: &Stage| up(last) / up(first);
    let pair = Pair {
        theirs: ratio(&first.theirs, &last.theirs),
        ours: ratio(&first.ours, &last.ours),
    };
    let name = format!("pod up beside {most}, of that beside {fewest}");
    let row = Row::numbers(&name, "x", [pair]);
    Some(row.goal(Goal::OursAtMost(BEND)).bound(BOUND))
}

/// Fills the node with the pods of a side, and measures beside each count.
async fn one_side(
    stand: &mut TestBed,
    size: &ScaleSize,
    whose: Whose,
) -> Result<Vec<Stage>, Failure> {
    restart_containerd(stand).await?;
    let requests = Requests::new(stand);
    wait_used(&mut whose.side(stand), &requests).await?;
    let mut pods = Vec::new();
    let mut stages = Vec::new();
    for (done, count) in (1..).zip(&size.counts) {
        let begin = Instant::now();
        grow(&whose.side(stand), &requests, &mut pods, *count).await?;
        let growth = begin.elapsed();
        tokio::time::sleep(SETTLE).await;
        stages.push(look(stand, size, whose, *count, growth).await?);
        progress(whose.title(), done, u32::try_from(size.counts.len())?);
    }
    let side = whose.side(stand);
    crowd::each(pods, |pod| {
        let mut side = side.clone();
        async move { pods::remove_pod(&mut side, &pod).await }
    })
    .await?;
    Ok(stages)
}

/// Starts containerd again, so that neither side has to do with what it keeps of the other one.
async fn restart_containerd(stand: &mut TestBed) -> Result<(), Failure> {
    stand.containerd.kill9();
    stand.containerd.spawn()?;
    stand.theirs.wait_ready().await?;
    stand.ours.wait_ready().await
}

/// Makes pods until there are so many.
async fn grow(
    side: &Side,
    requests: &Requests,
    pods: &mut Vec<String>,
    count: usize,
) -> Result<(), Failure> {
    let missing = (pods.len()..count).collect();
    let made = crowd::each(missing, |number: usize| {
        let mut side = side.clone();
        let requests = requests.clone();
        async move {
            let name = format!("scale-{number}");
            let started = pods::start_pod(&mut side, &requests, &name).await?;
            Ok(started.pod)
        }
    });
    pods.extend(made.await?);
    Ok(())
}

/// Measures beside the pods that there are. The server is killed last, because its memory is that of a new one then.
async fn look(
    stand: &mut TestBed,
    size: &ScaleSize,
    whose: Whose,
    count: usize,
    growth: Duration,
) -> Result<Stage, Failure> {
    let mut side = whose.side(stand);
    let at_rest = processor::watch(&whose.servers(stand)?, size.rest).await?;
    let memory = Memory::of(stand)?;
    let servers = match whose {
        Whose::Theirs => memory.containerd,
        Whose::Ours => memory.daemon + memory.logkeeper + memory.containerd,
    };
    let shims = crowd::shims(stand, &side)?;
    let requests = Requests::new(stand);
    let scanner = NodeScanner::new(&stand.root);
    let mut pods = Vec::new();
    for round in 0..size.pods {
        pods.push(pods::pod(&mut side, &requests, &scanner, round, PodRound::Later).await?);
    }
    let mut lists = Vec::new();
    let mut stats = Vec::new();
    let mut metrics = Vec::new();
    for _ in 0..LOOKS {
        lists.push(crowd::list(&mut side, count).await?.took);
        stats.push(ask_stats(&mut side, count).await?);
        if whose == Whose::Ours {
            metrics.push(scrape(stand)?);
        }
    }
    Ok(Stage {
        growth,
        at_rest,
        servers: servers.rss_mib(),
        containerd: memory.containerd.rss_mib(),
        shims,
        pods,
        lists,
        stats,
        metrics,
        rules: rules()?,
        elements: elements(&stand.root)?,
        recovery: recover(stand, whose, count).await?,
    })
}

/// The usage of all containers, as a kubelet asks for it when it is scraped.
async fn ask_stats(side: &mut Side, count: usize) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let answer = side
        .runtime
        .list_container_stats(cri::ListContainerStatsRequest::default())
        .await;
    let took = begin.elapsed();
    let answer = answer.map_err(|status| side.failed("ListContainerStats", &status))?;
    let found = answer.into_inner().stats.len();
    if found == count {
        return Ok(took);
    }
    Err(format!(
        "{}: ListContainerStats has {found} containers, not {count}",
        side.name
    )
    .into())
}

fn scrape(stand: &TestBed) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let (status, _) = stand.daemon.get("/metrics");
    let took = begin.elapsed();
    if status == 200 {
        return Ok(took);
    }
    Err(format!("/metrics of the daemon answers {status}").into())
}

/// The rules that iptables and ip6tables list, of everybody on the node.
fn rules() -> Result<f64, Failure> {
    let mut count = 0;
    for program in ["iptables-save", "ip6tables-save"] {
        let output = Command::new(prereq::require(program, "iptables")).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        count += text.lines().filter(|line| line.starts_with("-A ")).count();
    }
    Ok(f64::from(u32::try_from(count)?))
}

/// The elements of the tables of our bridges; none if plugins attach their sandboxes.
fn elements(root: &PrivateRoot) -> Result<f64, Failure> {
    let mut tables = root.bridge().tables();
    let mut count = 0;
    for family in NftFamily::TABLES {
        count += tables
            .read(family)?
            .map_or(0, |table| table.elements().len());
    }
    Ok(f64::from(u32::try_from(count)?))
}

/// Kills the server of a side and starts it; returns how long it takes until its lists are right.
async fn recover(stand: &mut TestBed, whose: Whose, count: usize) -> Result<Duration, Failure> {
    let states = BTreeMap::from([(cri::ContainerState::ContainerRunning as i32, count)]);
    let took = match whose {
        Whose::Theirs => {
            stand.containerd.kill9();
            let begin = Instant::now();
            stand.containerd.spawn()?;
            crowd::until_right(&stand.containerd.socket, begin, &states, count).await?
        }
        Whose::Ours => {
            stand.daemon.kill9();
            let begin = Instant::now();
            stand.daemon.spawn();
            let socket = stand.root.cri_socket();
            let took = crowd::until_right(&socket, begin, &states, count).await?;
            stand.daemon.wait_ready();
            took
        }
    };
    stand.theirs.wait_ready().await?;
    stand.ours.wait_ready().await?;
    Ok(took)
}

/// Waits until the pods of a side get addresses of a network that has enough of them.
async fn wait_used(side: &mut Side, requests: &Requests) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let pod = pods::start_pod(side, requests, "scale-probe").await?.pod;
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.clone(),
            verbose: false,
        };
        let answer = side.runtime.pod_sandbox_status(request).await;
        let answer = answer.map_err(|status| side.failed("PodSandboxStatus", &status))?;
        let status = answer.into_inner().status.unwrap_or_default();
        let address = status.network.unwrap_or_default().ip;
        pods::remove_pod(side, &pod).await?;
        if address.starts_with(ADDRESSES) {
            return Ok(());
        }
        if begin.elapsed() > USED {
            return Err(format!(
                "{}: after {USED:?} a pod gets {address}, not an address of the networks of this part, {ADDRESSES}*",
                side.name
            )
            .into());
        }
    }
}

// === impl Whose ===

impl Whose {
    fn side(self, stand: &TestBed) -> Side {
        match self {
            Self::Theirs => stand.theirs.clone(),
            Self::Ours => stand.ours.clone(),
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Theirs => "counts of pods, theirs",
            Self::Ours => "counts of pods, ours",
        }
    }

    /// The processes that serve it.
    fn servers(self, stand: &TestBed) -> Result<Vec<u32>, Failure> {
        let mut servers = vec![stand.containerd.pid()];
        if self == Self::Ours {
            servers.push(u32::try_from(stand.daemon.pid())?);
            servers.push(Memory::logkeeper_of(stand)?);
        }
        Ok(servers)
    }
}

// === impl ScaleNetwork ===

impl ScaleNetwork {
    /// The network of the test bed with another bridge and more addresses, in a file that sorts before that one's.
    fn make(root: &PrivateRoot) -> Result<Self, Failure> {
        let dir = root.cni_conf();
        let text = fs::read(dir.join("10-test.conflist"))?;
        let mut list: Value = serde_json::from_slice(&text)?;
        list["name"] = json!(BRIDGE);
        let bridge = &mut list["plugins"][0];
        bridge["bridge"] = json!(BRIDGE);
        bridge["ipam"]["dataDir"] = json!(root.path().join("scale/ipam"));
        bridge["ipam"]["ranges"] = json!([[{ "subnet": SUBNET }]]);
        let made = Self {
            conflist: dir.join("05-scale.conflist"),
        };
        // Both sides read the directory at any time.
        let draft = dir.join("05-scale.draft");
        fs::write(&draft, list.to_string())?;
        fs::rename(&draft, &made.conflist)?;
        Ok(made)
    }
}

impl Drop for ScaleNetwork {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.conflist) {
            eprintln!("{} stays: {error}", self.conflist.display());
        }
        delete_bridge(BRIDGE);
    }
}
