//! Commands in a container and forwarded ports of a pod: time to the first byte, and bytes per second, as a
//! client on this machine sees them.
//!
//! One pod of each side serves all measurements, so that only the commands and streams are measured. Both
//! sides have the same client, which uses the protocol that the kubelet uses with a runtime.

use std::io;
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;
use switchyard_streaming::client::{ClientEvent, Spdy};
use url::Url;

use crate::breakdown::Scrape;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::pods;
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::test_bed::TestBed;

/// The bytes that go through one stream.
const BYTES: u64 = 100_000_000;
/// Port on which the server in the pod listens.
const PORT: &str = "8080";
/// Limit for one transfer.
const LIMIT: Duration = Duration::from_secs(120);
/// Limit for the server in a pod to listen.
const LISTEN: Duration = Duration::from_secs(10);

/// The bound of a command.
const EXEC: &str = "`runc exec` is most of it, and the same for both sides: --breakdown shows how much. Tried: asking the shim\n\
    itself instead of containerd, and answering before the shim forgets the process (0.11 together).";

/// The measurements.
#[derive(Debug, Default)]
pub(crate) struct StreamSamples {
    sync: Vec<Pair<Duration>>,
    first: Vec<Pair<Duration>>,
    exec: Vec<Pair<f64>>,
    forward: Vec<Pair<f64>>,
    /// The breakdown of the commands' time, if it is counted.
    pub(crate) calls: Option<Scrape>,
}

/// A pod with a server in it.
#[derive(Debug)]
struct ServerPod {
    pod: String,
    container: String,
}

/// Measures both sides alternately; the side that runs first alternates as well.
pub(crate) async fn measure(
    stand: &mut TestBed,
    commands: u32,
    transfers: u32,
) -> Result<StreamSamples, Failure> {
    let requests = Requests::new(stand);
    let theirs = ServerPod::start(&mut stand.theirs, &requests).await?;
    let ours = ServerPod::start(&mut stand.ours, &requests).await?;
    let mut samples = StreamSamples::default();
    let mut before = None;
    for round in 0..=commands {
        if round == 1 && stand.timed.is_some() {
            before = Some(Scrape::take(stand)?);
        }
        let sync = both(stand, &theirs, &ours, round, exec_sync).await?;
        let first = both(stand, &theirs, &ours, round, first_byte).await?;
        // The first of each side is not counted.
        if round > 0 {
            samples.sync.push(sync);
            samples.first.push(first);
        }
    }
    if let Some(before) = before {
        samples.calls = Some(Scrape::take(stand)?.since(&before));
    }
    for round in 0..=transfers {
        let exec = both(stand, &theirs, &ours, round, through_exec).await?;
        let forward = both(stand, &theirs, &ours, round, through_port).await?;
        if round > 0 {
            samples.exec.push(exec);
            samples.forward.push(forward);
        }
    }
    for (side, served) in [(&mut stand.theirs, theirs), (&mut stand.ours, ours)] {
        pods::remove_pod(side, &served.pod).await?;
    }
    Ok(samples)
}

/// One measurement of each side.
async fn both<T>(
    stand: &mut TestBed,
    theirs: &ServerPod,
    ours: &ServerPod,
    round: u32,
    measure: impl AsyncFn(&mut Side, &ServerPod) -> Result<T, Failure>,
) -> Result<Pair<T>, Failure> {
    Pair::in_turns(
        round,
        measure(&mut stand.theirs, theirs),
        measure(&mut stand.ours, ours),
    )
    .await
}

// === impl StreamSamples ===

impl StreamSamples {
    /// The rows of the report, and a note on them.
    pub(crate) fn rows(self) -> (Vec<Row>, String) {
        let note = format!(
            "{} commands and {} transfers of each side, of {} MB, all in one pod of each. ExecSync runs `true`. The first byte is\n\
             that of `echo`, from the call of Exec on. A port is forwarded from a server in the pod that sends zeros.\n",
            self.sync.len(),
            self.exec.len(),
            BYTES / 1_000_000
        );
        let rows = vec![
            Row::times("ExecSync", self.sync)
                .goal(Goal::RatioAtMost(0.8))
                .bound(EXEC),
            Row::times("exec, first byte", self.first)
                .goal(Goal::RatioAtMost(0.8))
                .bound(EXEC),
            Row::numbers("exec, output", "MB/s", self.exec).goal(Goal::RatioAtLeast(1.0)),
            Row::numbers("port-forward", "MB/s", self.forward).goal(Goal::RatioAtLeast(1.0)),
        ];
        (rows, note)
    }
}

// === impl ServerPod ===

impl ServerPod {
    async fn start(side: &mut Side, requests: &Requests) -> Result<Self, Failure> {
        let pods::StartedPod { pod, container, .. } =
            pods::start_pod(side, requests, "streams").await?;
        let served = Self { pod, container };
        let server = format!("nc -ll -p {PORT} -e head -c {BYTES} /dev/zero >/dev/null 2>&1 &");
        run(side, &served, &["sh", "-c", &server]).await?;
        let begin = Instant::now();
        while through_port(side, &served).await.is_err() {
            if begin.elapsed() > LISTEN {
                return Err(
                    format!("{}: nobody listens in the pod after {LISTEN:?}", side.name).into(),
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(served)
    }
}

async fn run(side: &mut Side, served: &ServerPod, words: &[&str]) -> Result<(), Failure> {
    let request = cri::ExecSyncRequest {
        container_id: served.container.clone(),
        cmd: words.iter().map(|word| (*word).to_owned()).collect(),
        timeout: 60,
    };
    let answer = side
        .runtime
        .exec_sync(request)
        .await
        .map_err(|status| side.failed("ExecSync", &status))?;
    match answer.into_inner().exit_code {
        0 => Ok(()),
        code => Err(format!("{}: {words:?} ended with {code}", side.name).into()),
    }
}

/// Measures the duration of `true`.
async fn exec_sync(side: &mut Side, served: &ServerPod) -> Result<Duration, Failure> {
    let begin = Instant::now();
    run(side, served, &["true"]).await?;
    Ok(begin.elapsed())
}

/// Measures the time from the call to the first byte of a command.
async fn first_byte(side: &mut Side, served: &ServerPod) -> Result<Duration, Failure> {
    let (first, bytes, _) = exec(side, served, &["echo", "x"]).await?;
    if bytes == 2 {
        Ok(first)
    } else {
        Err(format!("{}: {bytes} bytes came of 2", side.name).into())
    }
}

/// Megabytes per second of a command's output, from its first byte on.
async fn through_exec(side: &mut Side, served: &ServerPod) -> Result<f64, Failure> {
    let size = BYTES.to_string();
    let (first, bytes, whole) = exec(side, served, &["head", "-c", &size, "/dev/zero"]).await?;
    speed(side, bytes, whole - first)
}

/// Runs a command; when its first byte came, how many came, and when the last one did.
async fn exec(
    side: &mut Side,
    served: &ServerPod,
    words: &[&str],
) -> Result<(Duration, u64, Duration), Failure> {
    let begin = Instant::now();
    let request = cri::ExecRequest {
        container_id: served.container.clone(),
        cmd: words.iter().map(|word| (*word).to_owned()).collect(),
        stdout: true,
        ..Default::default()
    };
    let answer = side
        .runtime
        .exec(request)
        .await
        .map_err(|status| side.failed("Exec", &status))?;
    let url = Url::parse(&answer.into_inner().url)?;
    let mut spdy = open(&url, "v4.channel.k8s.io").await?;
    let _error = spdy.sender.open(&[("streamtype", "error")]).await?;
    let output = spdy.sender.open(&[("streamtype", "stdout")]).await?;
    let received = tokio::time::timeout(LIMIT, receive(&mut spdy, output, begin)).await;
    received.map_err(|_| format!("{}: {words:?} is not over after {LIMIT:?}", side.name))?
}

/// Megabytes per second from a server in the pod, from its first byte on.
async fn through_port(side: &mut Side, served: &ServerPod) -> Result<f64, Failure> {
    let request = cri::PortForwardRequest {
        pod_sandbox_id: served.pod.clone(),
        port: Vec::new(),
    };
    let answer = side.runtime.port_forward(request).await;
    let url = Url::parse(
        &answer
            .map_err(|status| side.failed("PortForward", &status))?
            .into_inner()
            .url,
    )?;
    let mut spdy = open(&url, "portforward.k8s.io").await?;
    let headers = |kind| [("streamtype", kind), ("port", PORT), ("requestid", "0")];
    let _error = spdy.sender.open(&headers("error")).await?;
    let data = spdy.sender.open(&headers("data")).await?;
    let received = tokio::time::timeout(LIMIT, receive(&mut spdy, data, Instant::now())).await;
    let (first, bytes, whole) = received
        .map_err(|_| format!("{}: a port sends nothing more after {LIMIT:?}", side.name))??;
    speed(side, bytes, whole - first)
}

async fn open(url: &Url, protocol: &str) -> io::Result<Spdy> {
    Spdy::open(url, &[protocol])
        .await?
        .map_err(|refused| io::Error::other(refused.head))
}

/// Receives one stream to its end.
async fn receive(
    spdy: &mut Spdy,
    wanted: u32,
    begin: Instant,
) -> Result<(Duration, u64, Duration), Failure> {
    let mut first = None;
    let mut received = 0;
    loop {
        match spdy.receiver.event().await? {
            Some(ClientEvent::Data { stream, bytes, end }) if stream == wanted => {
                if !bytes.is_empty() {
                    first.get_or_insert_with(|| begin.elapsed());
                }
                received += bytes.len() as u64;
                if end {
                    let first = first.ok_or("nothing came")?;
                    return Ok((first, received, begin.elapsed()));
                }
            }
            Some(ClientEvent::Data { bytes, .. }) if !bytes.is_empty() && received == 0 => {
                // The error stream: it reports success after the output.
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return Err(text.into());
            }
            Some(_) => {}
            None => return Err("the server has closed before the end".into()),
        }
    }
}

fn speed(side: &Side, bytes: u64, time: Duration) -> Result<f64, Failure> {
    if bytes != BYTES {
        return Err(format!("{}: {bytes} bytes came of {BYTES}", side.name).into());
    }
    let megabytes = f64::from(u32::try_from(bytes / 1_000_000)?);
    Ok(megabytes / time.as_secs_f64())
}
