//! Logs: the throughput from a container's output to its log, and the processor time that the processes in
//! between use.
//!
//! The lines are in a file in memory, and the container only copies them to its standard output. It begins
//! when this program writes to a FIFO, so that its start is not measured; the measurement ends when the last
//! line is in the log. The processes of each side are measured separately: containerd while its CRI plugin
//! logs, daemon and logkeeper while ours do.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::{processes, random_name};

use crate::failure::Failure;
use crate::memory::Memory;
use crate::pair::Pair;
use crate::processor::spent;
use crate::row::{Goal, Row};
use crate::side::{Side, image_spec};
use crate::test_bed::TestBed;

/// The length of a line that the container prints, newline included.
const LINE: u64 = 100;
/// Limit for a log to be complete.
const LIMIT: Duration = Duration::from_secs(120);
/// Interval at which the end of the log is read.
const POLL: Duration = Duration::from_millis(1);

/// Cost of one log.
#[derive(Clone, Copy, Debug)]
struct LogCost {
    /// From the word to begin until the last line is in the log.
    time: Duration,
    /// Processor time of the process that writes the log.
    writer: Duration,
    /// Processor time of the shim, which brings the output from the container.
    shim: Duration,
}

/// The logs that were measured.
#[derive(Debug)]
pub(crate) struct Logs {
    bytes: u64,
    costs: Vec<Pair<LogCost>>,
}

/// The text that the containers print, in memory; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Source {
    dir: PathBuf,
    lines: u64,
}

// === impl Source ===

impl Source {
    /// Writes the lines.
    pub(crate) fn make(megabytes: u32) -> Result<Self, Failure> {
        let dir = PathBuf::from(format!("/dev/shm/sw-bench-{}", random_name()));
        fs::create_dir(&dir)?;
        let source = Self {
            lines: u64::from(megabytes) * 1_000_000 / LINE,
            dir,
        };
        let mut file = BufWriter::new(File::create(source.dir.join("lines"))?);
        for number in 0..source.lines {
            writeln!(file, "{}", text(number))?;
        }
        file.flush()?;
        mkfifo(&source.dir.join("begin"), Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(source)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // These are a few files in memory, and a destructor cannot report an error.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A line's text: its number, and what fills it up.
fn text(number: u64) -> String {
    format!("{number:010} {}", "x".repeat(88))
}

// === impl Logs ===

impl Logs {
    /// Nothing measured yet, of what this source gives.
    pub(crate) fn new(source: &Source) -> Self {
        Self {
            bytes: source.lines * LINE,
            costs: Vec::new(),
        }
    }

    /// Measures a log of each side. Who comes first alternates.
    pub(crate) async fn round(
        &mut self,
        stand: &mut TestBed,
        source: &Source,
        round: u32,
    ) -> Result<(), Failure> {
        let ours = [
            u32::try_from(stand.daemon.pid())?,
            Memory::logkeeper_of(stand)?,
        ];
        let theirs = [stand.containerd.pid()];
        let TestBed {
            theirs: plugin,
            ours: switchyard,
            root,
            image,
            ..
        } = stand;
        let place = LogRun {
            source,
            image,
            logs: root.log_dir(),
            parent: root.cgroup_parent(),
            round,
        };
        let pair = if round.is_multiple_of(2) {
            let theirs = log(plugin, &theirs, &place).await?;
            Pair {
                theirs,
                ours: log(switchyard, &ours, &place).await?,
            }
        } else {
            let ours = log(switchyard, &ours, &place).await?;
            Pair {
                theirs: log(plugin, &theirs, &place).await?,
                ours,
            }
        };
        self.costs.push(pair);
        Ok(())
    }

    /// The rows of the report, and a note on them.
    pub(crate) fn rows(&self) -> (Vec<Row>, String) {
        let megabytes = f64::from(u32::try_from(self.bytes / 1_000_000).unwrap_or(u32::MAX));
        let times = |of: fn(&LogCost) -> Duration| {
            self.costs.iter().map(move |pair| Pair {
                theirs: of(&pair.theirs),
                ours: of(&pair.ours),
            })
        };
        let speeds = times(|cost| cost.time).map(|pair| Pair {
            theirs: megabytes / pair.theirs.as_secs_f64(),
            ours: megabytes / pair.ours.as_secs_f64(),
        });
        let rows = vec![
            Row::times("until the log is whole", times(|cost| cost.time)),
            Row::numbers("= log throughput", "MB/s", speeds).goal(Goal::RatioAtLeast(2.0)),
            Row::times("processor time", times(|cost| cost.writer)).goal(Goal::RatioAtMost(1.0)),
            Row::times("that of the shim", times(|cost| cost.shim)),
        ];
        let note = format!(
            "{} logs of each side, of {megabytes} MB in lines of {LINE} bytes. The processor time is containerd's there,\n\
             daemon and logkeeper's here.\n",
            self.costs.len()
        );
        (rows, note)
    }
}

struct LogRun<'a> {
    source: &'a Source,
    image: &'a str,
    logs: PathBuf,
    parent: String,
    round: u32,
}

/// Lets a container print, and measures until its log is whole.
async fn log(side: &mut Side, writers: &[u32], place: &LogRun<'_>) -> Result<LogCost, Failure> {
    let failed =
        |call: &str, status: tonic::Status| -> Failure { format!("{call}: {status}").into() };
    let sandbox = sandbox(side, place);
    let dir = PathBuf::from(&sandbox.log_directory);
    fs::create_dir_all(&dir)?;
    let before: Vec<_> = shims().collect();

    let request = cri::RunPodSandboxRequest {
        config: Some(sandbox.clone()),
        ..Default::default()
    };
    let answer = side
        .runtime
        .run_pod_sandbox(request)
        .await
        .map_err(|status| failed("RunPodSandbox", status))?;
    let pod = answer.into_inner().pod_sandbox_id;
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container(place)),
        sandbox_config: Some(sandbox),
    };
    let answer = side
        .runtime
        .create_container(request)
        .await
        .map_err(|status| failed("CreateContainer", status))?;
    let request = cri::StartContainerRequest {
        container_id: answer.into_inner().container_id,
    };
    side.runtime
        .start_container(request)
        .await
        .map_err(|status| failed("StartContainer", status))?;
    let shims: Vec<u32> = shims().filter(|pid| !before.contains(pid)).collect();

    let log = dir.join("lines.log");
    let writer = spent(writers)?;
    let shim = spent(&shims)?;
    let begin = Instant::now();
    // This waits for the container to open its end.
    drop(
        File::options()
            .write(true)
            .open(place.source.dir.join("begin"))?,
    );
    wait_complete(&log, place.source.lines, begin)
        .map_err(|error| format!("{}: {error}", side.name))?;
    let cost = LogCost {
        time: begin.elapsed(),
        writer: spent(writers)? - writer,
        shim: spent(&shims)? - shim,
    };
    check(&log, place.source.lines).map_err(|error| format!("{}: {error}", side.name))?;

    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod.clone(),
    };
    side.runtime
        .stop_pod_sandbox(request)
        .await
        .map_err(|status| failed("StopPodSandbox", status))?;
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: pod,
    };
    side.runtime
        .remove_pod_sandbox(request)
        .await
        .map_err(|status| failed("RemovePodSandbox", status))?;
    // Before the kernel writes it to the disk, which would disturb the next.
    fs::remove_dir_all(&dir)?;
    Ok(cost)
}

/// Waits until the last line is in the log.
fn wait_complete(log: &Path, lines: u64, begin: Instant) -> Result<(), Failure> {
    let last = format!(" stdout F {}\n", text(lines - 1));
    let mut end = vec![0; last.len()];
    let file = File::open(log)?;
    loop {
        let len = file.metadata()?.len();
        if len > lines * LINE {
            let from = len - end.len() as u64;
            file.read_exact_at(&mut end, from)?;
            if end == last.as_bytes() {
                return Ok(());
            }
        }
        if begin.elapsed() > LIMIT {
            return Err(format!("the log has {len} bytes and is not whole after {LIMIT:?}").into());
        }
        std::thread::sleep(POLL);
    }
}

/// Fails unless every line is there once, and in order.
fn check(log: &Path, lines: u64) -> Result<(), Failure> {
    let logged = fs::read_to_string(log)?;
    let mut number = 0;
    for line in logged.lines() {
        let found = line.split_once(" stdout F ").map(|(_, content)| content);
        if found != Some(text(number).as_str()) {
            return Err(format!("instead of line {number} the log has {line:?}").into());
        }
        number += 1;
    }
    if number == lines {
        Ok(())
    } else {
        Err(format!("the log has {number} lines of {lines}").into())
    }
}

/// A pod on the host's network, because networks are not measured here.
fn sandbox(side: &Side, place: &LogRun<'_>) -> cri::PodSandboxConfig {
    let name = format!("logs-{}", place.round);
    let uid = format!("{}-{name}", side.namespace);
    cri::PodSandboxConfig {
        log_directory: place.logs.join(&uid).display().to_string(),
        metadata: Some(cri::PodSandboxMetadata {
            name,
            uid,
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: place.parent.clone(),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container(place: &LogRun<'_>) -> cri::ContainerConfig {
    let script = "read begin < /bench/begin; exec cat /bench/lines";
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "lines".to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(place.image)),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: "lines.log".to_owned(),
        mounts: vec![cri::Mount {
            host_path: place.source.dir.display().to_string(),
            container_path: "/bench".to_owned(),
            ..Default::default()
        }],
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption {
        network: cri::NamespaceMode::Node as i32,
        pid: cri::NamespaceMode::Container as i32,
        ..Default::default()
    }
}

fn shims() -> impl Iterator<Item = u32> {
    let shims = processes::all()
        .into_iter()
        .filter(|process| process.command.contains("containerd-shim"));
    shims.filter_map(|process| process.pid.try_into().ok())
}
