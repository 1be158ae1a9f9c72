//! The cost of queries of resource usage: the processor time of all processes that take part in an answer.
//!
//! Both sides have the same idle containers, on the same containerd. While one side is queried the other is
//! not, so that the processor time of that period is that side's: its servers', containerd's and the shims',
//! which the CRI plugin queries one by one.

use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::processes;
use tonic::Code;

use crate::crowd::{self, Crowd};
use crate::failure::Failure;
use crate::memory::Memory;
use crate::pair::Pair;
use crate::processor;
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// Turns of each side.
const TURNS: u32 = 6;
/// Pods that the containers are in.
const PODS: usize = 10;

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageSize {
    /// Containers of each side that run.
    pub(crate) containers: usize,
    /// Calls per round.
    pub(crate) calls: u32,
}

/// A call that is measured.
#[derive(Clone, Copy, Debug)]
enum Call {
    Stats,
    Metrics,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &mut TestBed,
    size: UsageSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let requests = Requests::new(stand);
    let theirs = crowd::gather(&stand.theirs, &requests, PODS, size.containers).await?;
    let ours = crowd::gather(&stand.ours, &requests, PODS, size.containers).await?;
    // Work that the starts left to do must not delay a measured answer.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut rows = vec![row(stand, size, Call::Stats).await?];
    if answers(&mut stand.theirs).await? {
        rows.push(row(stand, size, Call::Metrics).await?);
    } else {
        let mut spent = Vec::new();
        for _ in 0..TURNS {
            let side = stand.ours.clone();
            spent.push(turn(stand, side, size, Call::Metrics).await?.as_secs_f64() * 1e3);
        }
        rows.push(Row::ours(&Call::Metrics.title(size), "ms", spent));
    }
    let note = format!(
        "Each side has {} containers at rest in {PODS} pods. Processor time of a call, of daemon, logkeeper, containerd and all shims,\n\
         in {TURNS} turns of {} calls of each side. A CRI plugin that has no metrics (before 2.2) has no figure.\n",
        size.containers, size.calls
    );
    report.section("usage of many containers", rows, note);
    clear(stand, theirs, ours).await
}

async fn clear(stand: &TestBed, theirs: Crowd, ours: Crowd) -> Result<(), Failure> {
    crowd::clear(&stand.theirs, theirs).await?;
    crowd::clear(&stand.ours, ours).await?;
    Ok(())
}

async fn row(stand: &TestBed, size: UsageSize, call: Call) -> Result<Row, Failure> {
    let mut samples = Vec::new();
    for number in 0..TURNS {
        let [theirs, ours] =
            [&stand.theirs, &stand.ours].map(|side| turn(stand, side.clone(), size, call));
        samples.push(Pair::in_turns(number, theirs, ours).await?);
        progress(call.name(), number + 1, TURNS);
    }
    Ok(Row::times(&call.title(size), samples).goal(Goal::RatioAtMost(0.3)))
}

/// The processor time that a call takes on average, of everybody.
async fn turn(
    stand: &TestBed,
    mut side: Side,
    size: UsageSize,
    call: Call,
) -> Result<Duration, Failure> {
    let everybody = everybody(stand)?;
    let before = processor::spent(&everybody)?;
    for _ in 0..size.calls {
        let answered = call.ask(&mut side).await?;
        if answered != size.containers {
            return Err(format!(
                "{}: {} reports {answered} containers, not {}",
                side.name,
                call.name(),
                size.containers
            )
            .into());
        }
    }
    Ok(processor::spent(&everybody)?.saturating_sub(before) / size.calls)
}

/// The servers of both sides, and all shims.
fn everybody(stand: &TestBed) -> Result<Vec<u32>, Failure> {
    let mut pids = vec![
        stand.containerd.pid(),
        u32::try_from(stand.daemon.pid())?,
        Memory::logkeeper_of(stand)?,
    ];
    let root = stand.root.path().to_string_lossy();
    for process in processes::all() {
        let words = &process.command;
        if words.contains("containerd-shim") && words.contains(root.as_ref()) {
            pids.push(u32::try_from(process.pid)?);
        }
    }
    Ok(pids)
}

/// Returns whether a side has metrics at all.
async fn answers(side: &mut Side) -> Result<bool, Failure> {
    match side
        .runtime
        .list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest {})
        .await
    {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::Unimplemented => Ok(false),
        Err(status) => Err(side.failed("ListPodSandboxMetrics", &status)),
    }
}

// === impl Call ===

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::Stats => "ListContainerStats",
            Self::Metrics => "ListPodSandboxMetrics",
        }
    }

    fn title(self, size: UsageSize) -> String {
        format!("processor, {}, {}", self.name(), size.containers)
    }

    /// Queries once; the number of containers in the answer.
    async fn ask(self, side: &mut Side) -> Result<usize, Failure> {
        let answered = match self {
            Self::Stats => {
                let answer = side
                    .runtime
                    .list_container_stats(cri::ListContainerStatsRequest::default())
                    .await;
                answer.map(|answer| {
                    let stats = answer.into_inner().stats;
                    stats
                        .iter()
                        .filter(|stats| stats.cpu.is_some() && stats.memory.is_some())
                        .count()
                })
            }
            Self::Metrics => {
                let answer = side
                    .runtime
                    .list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest {})
                    .await;
                answer.map(|answer| {
                    answer
                        .into_inner()
                        .pod_metrics
                        .iter()
                        .map(|pod| pod.container_metrics.len())
                        .sum()
                })
            }
        };
        answered.map_err(|status| side.failed(self.name(), &status))
    }
}
