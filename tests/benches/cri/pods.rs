//! Pods: created and started call by call, and removed until nothing of them remains.

use std::fs;
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;

use crate::failure::Failure;
use crate::footprint::{Footprint, NodeScanner};
use crate::pair::Pair;
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// Limit for the traces of a removed pod, after which the benchmark fails.
const CLEAN: Duration = Duration::from_secs(20);
/// Interval at which a removed pod is scanned for.
const POLL: Duration = Duration::from_micros(500);
/// The parts of [`Times`], as the report shows them.
const PARTS: [TimeColumn; 8] = [
    ("RunPodSandbox", |times| times.run),
    ("CreateContainer", |times| times.create),
    ("StartContainer", |times| times.start),
    (UP, Times::up),
    ("StopPodSandbox", |times| times.stop),
    ("RemovePodSandbox", |times| times.remove),
    ("after the answer", |times| {
        times.gone.saturating_sub(times.answered())
    }),
    (GONE, Times::gone),
];
const UP: &str = "= pod up";
const GONE: &str = "= pod gone";

/// A part of what a pod takes: its name, and how it is computed.
type TimeColumn = (&'static str, fn(&Times) -> Duration);

/// Durations of one pod's steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// `RunPodSandbox`.
    pub(crate) run: Duration,
    /// `CreateContainer`.
    pub(crate) create: Duration,
    /// `StartContainer`.
    pub(crate) start: Duration,
    /// `StopPodSandbox` until it answered.
    stop: Duration,
    /// `RemovePodSandbox` until it answered.
    remove: Duration,
    /// From the call of `StopPodSandbox` until nothing was left.
    gone: Duration,
}

/// The round of a pod: the first one of its side, or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRound {
    /// The first: only its log is read, and the directories that it creates may be shared by all pods.
    First,
    /// A later one: everything that it creates must be gone after its removal.
    Later,
}

/// A pod with one container that runs, and what each call took.
#[derive(Clone, Debug)]
pub(crate) struct StartedPod {
    /// `RunPodSandbox`.
    pub(crate) run: Duration,
    /// `CreateContainer`.
    pub(crate) create: Duration,
    /// `StartContainer`.
    pub(crate) start: Duration,
    /// The id of the pod.
    pub(crate) pod: String,
    /// The id of the container.
    pub(crate) container: String,
    /// The file of the container's log.
    log: String,
}

/// One pod of each side. Who comes first alternates.
pub(crate) async fn round(
    stand: &mut TestBed,
    round: u32,
    turn: PodRound,
) -> Result<Pair<Times>, Failure> {
    let requests = Requests::new(stand);
    let look = NodeScanner::new(&stand.root);
    let TestBed { theirs, ours, .. } = stand;
    let theirs = pod(theirs, &requests, &look, round, turn);
    Pair::in_turns(round, theirs, pod(ours, &requests, &look, round, turn)).await
}

/// Returns the rows of the pods, and a note on them. Ours may be on a bridge of the gateway, without plugins.
pub(crate) fn rows(pods: &[Pair<Times>], on_bridge: bool) -> (Vec<Row>, String) {
    let [up, gone] = if on_bridge { [0.33, 0.3] } else { [0.5, 0.6] };
    let rows = PARTS.iter().map(|(name, of)| {
        let row = Row::times(
            name,
            pods.iter().map(|pair| Pair {
                theirs: of(&pair.theirs),
                ours: of(&pair.ours),
            }),
        );
        match *name {
            UP => row.goal(Goal::RatioAtMost(up)),
            GONE => row.goal(Goal::RatioAtMost(gone)),
            _ => row,
        }
    });
    let note = format!(
        "{} pods of each side. A pod is gone when its shims and processes, mounts, pinned namespaces, control groups,\n\
         network interface, address, files, runc's notes, and containerd's records of its containers and snapshots\n\
         are gone; 'after the answer' is how long that took beyond the answer of RemovePodSandbox.\n",
        pods.len()
    );
    (rows.collect(), note)
}

/// Takes a pod up.
pub(crate) fn start_pod<'a>(
    side: &'a mut Side,
    requests: &Requests,
    name: &str,
) -> impl Future<Output = Result<StartedPod, Failure>> + Send + use<'a> {
    let sandbox = requests.sandbox(side, name);
    start_pod_with(side, sandbox, requests.container("main"))
}

/// Takes a pod up with this container.
pub(crate) fn start_pod_with(
    side: &mut Side,
    sandbox: cri::PodSandboxConfig,
    container: cri::ContainerConfig,
) -> impl Future<Output = Result<StartedPod, Failure>> + Send {
    // Requests are large, and so is what waits for their answers.
    Box::pin(async move {
        fs::create_dir_all(&sandbox.log_directory)?;
        let log = format!("{}/{}", sandbox.log_directory, container.log_path);

        let mut clock = Clock::start();
        let request = cri::RunPodSandboxRequest {
            config: Some(sandbox.clone()),
            ..Default::default()
        };
        let answer = side.runtime.run_pod_sandbox(request).await;
        let run = clock.lap();
        let pod = answer
            .map_err(|status| side.failed("RunPodSandbox", &status))?
            .into_inner()
            .pod_sandbox_id;

        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(container),
            sandbox_config: Some(sandbox),
        };
        clock.lap();
        let answer = side.runtime.create_container(request).await;
        let create = clock.lap();
        let container = answer
            .map_err(|status| side.failed("CreateContainer", &status))?
            .into_inner()
            .container_id;

        let request = cri::StartContainerRequest {
            container_id: container.clone(),
        };
        clock.lap();
        let answer = side.runtime.start_container(request).await;
        let start = clock.lap();
        answer.map_err(|status| side.failed("StartContainer", &status))?;
        Ok(StartedPod {
            run,
            create,
            start,
            pod,
            container,
            log,
        })
    })
}

/// Takes a pod down; returns what each of the two calls took.
pub(crate) async fn remove_pod(
    side: &mut Side,
    pod: &str,
) -> Result<(Duration, Duration), Failure> {
    let mut clock = Clock::start();
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod.to_owned(),
    };
    let answer = side.runtime.stop_pod_sandbox(request).await;
    let stop = clock.lap();
    answer.map_err(|status| side.failed("StopPodSandbox", &status))?;
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: pod.to_owned(),
    };
    let answer = side.runtime.remove_pod_sandbox(request).await;
    let remove = clock.lap();
    answer.map_err(|status| side.failed("RemovePodSandbox", &status))?;
    Ok((stop, remove))
}

/// Takes one pod up and down.
pub(crate) async fn pod(
    side: &mut Side,
    requests: &Requests,
    look: &NodeScanner,
    round: u32,
    turn: PodRound,
) -> Result<Times, Failure> {
    let before = look.scan();
    let up = start_pod(side, requests, &format!("bench-{round}")).await?;
    assert_runs(side, &up.container).await?;
    if turn == PodRound::First {
        assert_logged(side, &up.log)?;
    }
    let mut footprint = Footprint::new(look, &before, side, &[&up.pod, &up.container]).await?;
    if turn == PodRound::First {
        footprint.forget_directories();
    }

    let begin = Instant::now();
    let (stop, remove) = remove_pod(side, &up.pod).await?;
    while let Some(left) = footprint.remaining(side).await? {
        if begin.elapsed() > CLEAN {
            return Err(format!(
                "{}: {CLEAN:?} after its removal a pod still has {left}",
                side.name
            )
            .into());
        }
        tokio::time::sleep(POLL).await;
    }
    let gone = begin.elapsed();
    Ok(Times {
        run: up.run,
        create: up.create,
        start: up.start,
        stop,
        remove,
        gone,
    })
}

// === impl Times ===

impl Times {
    /// From the first request until the container runs.
    pub(crate) fn up(&self) -> Duration {
        self.run + self.create + self.start
    }

    /// From the request to stop until the answer to the request to remove.
    pub(crate) fn answered(&self) -> Duration {
        self.stop + self.remove
    }

    /// From the request to stop until nothing was left.
    pub(crate) fn gone(&self) -> Duration {
        self.gone
    }
}

/// Measures one thing after the other.
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start or the last lap.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now - self.0;
        self.0 = now;
        lap
    }
}

async fn assert_runs(side: &mut Side, id: &str) -> Result<(), Failure> {
    let request = cri::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    let answer = side.runtime.container_status(request).await;
    let status = answer
        .map_err(|status| side.failed("ContainerStatus", &status))?
        .into_inner()
        .status;
    let status = status.unwrap_or_default();
    if status.state == cri::ContainerState::ContainerRunning as i32 {
        return Ok(());
    }
    Err(format!(
        "{}: a container that was started does not run: {status:?}",
        side.name
    )
    .into())
}

/// Fails unless what the container printed is in its log, in the form that CRI prescribes.
fn assert_logged(side: &Side, file: &str) -> Result<(), Failure> {
    let mut text = String::new();
    let logged = eventually(Duration::from_secs(10), || {
        text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| line.ends_with(" stdout F up"))
    });
    if logged {
        return Ok(());
    }
    Err(format!(
        "{}: the log {file} does not hold what the container printed, but {text:?}",
        side.name
    )
    .into())
}
