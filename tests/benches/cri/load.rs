//! Many pods: all concurrently, and one after the other by several clients for a given time.

use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::pair::Pair;
use crate::pods;
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// Into how many turns the time of each side is cut, so that what disturbs the machine disturbs both.
const TURNS: u32 = 6;

/// Durations of a burst of pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    /// Until all run.
    up: Duration,
    /// Until all were removed, again concurrently.
    down: Duration,
}

/// This many concurrent pods of each side. The side that runs first alternates.
pub(crate) async fn burst(
    stand: &mut TestBed,
    round: u32,
    pods: u32,
) -> Result<Pair<Burst>, Failure> {
    let requests = Requests::new(stand);
    let [theirs, ours] =
        [&stand.theirs, &stand.ours].map(|side| at_once(side, &requests, round, pods));
    Pair::in_turns(round, theirs, ours).await
}

/// Returns the rows of the bursts.
pub(crate) fn burst_rows(bursts: &[Pair<Burst>], pods: u32) -> Vec<Row> {
    let times = |of: fn(&Burst) -> Duration| {
        bursts.iter().map(move |pair| Pair {
            theirs: of(&pair.theirs),
            ours: of(&pair.ours),
        })
    };
    vec![
        Row::times(
            &format!("{pods} pods at once, until all run"),
            times(|burst| burst.up),
        )
        .goal(Goal::RatioAtMost(0.6)),
        Row::times(
            &format!("{pods} pods removed at once"),
            times(|burst| burst.down),
        ),
    ]
}

/// Pods per second that this many clients create and remove, as samples of one round each. Each side gets
/// `length`.
pub(crate) async fn rate(
    stand: &mut TestBed,
    length: Duration,
    clients: u32,
) -> Result<Vec<Pair<f64>>, Failure> {
    let requests = Requests::new(stand);
    let length = length / TURNS;
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let [theirs, ours] =
            [&stand.theirs, &stand.ours].map(|side| churn(side, &requests, turn, length, clients));
        turns.push(Pair::in_turns(turn, theirs, ours).await?);
        crate::report::progress("pods per second", turn + 1, TURNS);
    }
    Ok(turns)
}

/// Pods per second.
pub(crate) fn rate_row(turns: Vec<Pair<f64>>, clients: u32) -> Row {
    Row::numbers(
        &format!("pods up and gone, {clients} clients"),
        "pods/s",
        turns,
    )
    .goal(Goal::RatioAtLeast(1.6))
}

async fn at_once(
    side: &Side,
    requests: &Requests,
    round: u32,
    pods: u32,
) -> Result<Burst, Failure> {
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for pod in 0..pods {
        let mut side = side.clone();
        let requests = requests.clone();
        clients.spawn(async move {
            pods::start_pod(&mut side, &requests, &format!("burst-{round}-{pod}")).await
        });
    }
    let mut running = Vec::new();
    while let Some(result) = clients.join_next().await {
        running.push(result??.pod);
    }
    let up = begin.elapsed();
    must_all_run(&mut side.clone(), running.len()).await?;

    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for pod in running {
        let mut side = side.clone();
        clients.spawn(async move { pods::remove_pod(&mut side, &pod).await });
    }
    while let Some(result) = clients.join_next().await {
        result??;
    }
    Ok(Burst {
        up,
        down: begin.elapsed(),
    })
}

/// Each client takes one pod after the other up and down until the time is over, and finishes its last: the
/// pods of all of them by the time that passed until then.
async fn churn(
    side: &Side,
    requests: &Requests,
    turn: u32,
    length: Duration,
    clients: u32,
) -> Result<f64, Failure> {
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for client in 0..clients {
        let mut side = side.clone();
        let requests = requests.clone();
        running.spawn(async move {
            let mut pods = 0_u32;
            while begin.elapsed() < length {
                let up = pods::start_pod(
                    &mut side,
                    &requests,
                    &format!("rate-{turn}-{client}-{pods}"),
                )
                .await?;
                pods::remove_pod(&mut side, &up.pod).await?;
                pods += 1;
            }
            Ok::<_, Failure>(pods)
        });
    }
    let mut pods = 0.0;
    while let Some(result) = running.join_next().await {
        pods += f64::from(result??);
    }
    Ok(pods / begin.elapsed().as_secs_f64())
}

/// Fails unless this many containers run.
async fn must_all_run(side: &mut Side, want: usize) -> Result<(), Failure> {
    let answer = side
        .runtime
        .list_containers(cri::ListContainersRequest::default())
        .await;
    let containers = answer
        .map_err(|status| side.failed("ListContainers", &status))?
        .into_inner()
        .containers;
    let running = cri::ContainerState::ContainerRunning as i32;
    let found = containers
        .iter()
        .filter(|container| container.state == running)
        .count();
    if found == want {
        return Ok(());
    }
    Err(format!(
        "{}: of {want} containers that were started {found} run",
        side.name
    )
    .into())
}
