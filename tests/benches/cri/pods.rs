//! Pods: up step by step, and down until nothing is left of them.

use std::fs;
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;

use crate::Failure;
use crate::footprint::{Footprint, Look};
use crate::side::{Side, image_spec};
use crate::stand::Stand;

/// How long a removed pod may leave traces before the benchmark fails.
const CLEAN: Duration = Duration::from_secs(20);
/// How often a removed pod is looked for.
const POLL: Duration = Duration::from_micros(500);

/// What one pod took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// `RunPodSandbox`.
    pub(crate) run: Duration,
    /// `CreateContainer`.
    pub(crate) create: Duration,
    /// `StartContainer`.
    pub(crate) start: Duration,
    /// `StopPodSandbox` until it answered.
    pub(crate) stop: Duration,
    /// `RemovePodSandbox` until it answered.
    pub(crate) remove: Duration,
    /// From the call of `StopPodSandbox` until nothing was left.
    pub(crate) gone: Duration,
}

/// A measurement of both sides, taken one right after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<T> {
    /// Containerd's own CRI plugin.
    pub(crate) theirs: T,
    /// Switchyard.
    pub(crate) ours: T,
}

/// Whether a side has had a pod before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No: its log is looked at, and the directories that it makes may be there for all pods.
    First,
    /// Yes.
    Later,
}

/// One pod of each side. Who comes first alternates.
pub(crate) async fn round(stand: &mut Stand, round: u32, turn: Turn) -> Result<Pair<Times>, Failure> {
    let Stand { theirs, ours, root, image, .. } = stand;
    let world = World { look: Look::new(root), logs: root.log_dir(), parent: root.cgroup_parent(), image };
    if round.is_multiple_of(2) {
        let theirs = pod(theirs, &world, round, turn).await?;
        Ok(Pair { theirs, ours: pod(ours, &world, round, turn).await? })
    } else {
        let ours = pod(ours, &world, round, turn).await?;
        Ok(Pair { theirs: pod(theirs, &world, round, turn).await?, ours })
    }
}

struct World<'a> {
    look: Look,
    logs: std::path::PathBuf,
    parent: String,
    image: &'a str,
}

/// Takes one pod up and down.
async fn pod(side: &mut Side, world: &World<'_>, round: u32, turn: Turn) -> Result<Times, Failure> {
    let sandbox = sandbox(side, world, round);
    let container = container(world);
    fs::create_dir_all(&sandbox.log_directory)?;
    let before = world.look.take();

    let mut clock = Clock::start();
    let request = cri::RunPodSandboxRequest { config: Some(sandbox.clone()), ..Default::default() };
    let answer = side.runtime.run_pod_sandbox(request).await;
    let run = clock.lap();
    let pod = answer.map_err(|status| failed(side, "RunPodSandbox", &status))?.into_inner().pod_sandbox_id;

    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container.clone()),
        sandbox_config: Some(sandbox.clone()),
    };
    clock.lap();
    let answer = side.runtime.create_container(request).await;
    let create = clock.lap();
    let id = answer.map_err(|status| failed(side, "CreateContainer", &status))?.into_inner().container_id;

    let request = cri::StartContainerRequest { container_id: id.clone() };
    clock.lap();
    let answer = side.runtime.start_container(request).await;
    let start = clock.lap();
    answer.map_err(|status| failed(side, "StartContainer", &status))?;

    must_run(side, &id).await?;
    if turn == Turn::First {
        must_log(side, &format!("{}/{}", sandbox.log_directory, container.log_path))?;
    }
    let mut footprint = Footprint::new(&world.look, &before, side, &[&pod, &id]).await?;
    if turn == Turn::First {
        footprint.forget_directories();
    }

    let request = cri::StopPodSandboxRequest { pod_sandbox_id: pod.clone() };
    let begin = Instant::now();
    let mut clock = Clock::start();
    side.runtime.stop_pod_sandbox(request).await.map_err(|status| failed(side, "StopPodSandbox", &status))?;
    let stop = clock.lap();
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: pod };
    side.runtime
        .remove_pod_sandbox(request)
        .await
        .map_err(|status| failed(side, "RemovePodSandbox", &status))?;
    let remove = clock.lap();
    while let Some(left) = footprint.left(side).await? {
        if begin.elapsed() > CLEAN {
            return Err(format!("{}: {CLEAN:?} after its removal a pod still has {left}", side.name).into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(Times { run, create, start, stop, remove, gone: begin.elapsed() })
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

fn failed(side: &Side, call: &str, status: &tonic::Status) -> Failure {
    format!("{}: {call}: {status}", side.name).into()
}

async fn must_run(side: &mut Side, id: &str) -> Result<(), Failure> {
    let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let answer = side.runtime.container_status(request).await;
    let status = answer.map_err(|status| failed(side, "ContainerStatus", &status))?.into_inner().status;
    let status = status.unwrap_or_default();
    if status.state == cri::ContainerState::ContainerRunning as i32 {
        return Ok(());
    }
    Err(format!("{}: a container that was started does not run: {status:?}", side.name).into())
}

/// Fails unless what the container printed is in its log, in the form that CRI prescribes.
fn must_log(side: &Side, file: &str) -> Result<(), Failure> {
    let mut text = String::new();
    let logged = eventually(Duration::from_secs(10), || {
        text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| line.ends_with(" stdout F up"))
    });
    if logged {
        return Ok(());
    }
    Err(format!("{}: the log {file} does not hold what the container printed, but {text:?}", side.name)
        .into())
}

/// A pod as a kubelet asks for it, with a network of its own and no shared process namespace.
fn sandbox(side: &Side, world: &World<'_>, round: u32) -> cri::PodSandboxConfig {
    let name = format!("bench-{round}");
    let uid = format!("{}-{name}", side.namespace);
    let profile = cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::RuntimeDefault as i32,
        ..Default::default()
    };
    cri::PodSandboxConfig {
        log_directory: world.logs.join(&uid).display().to_string(),
        metadata: Some(cri::PodSandboxMetadata {
            name: name.clone(),
            uid,
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name,
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: world.parent.clone(),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                seccomp: Some(profile),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container as a kubelet asks for it in a pod without requests and limits.
fn container(world: &World<'_>) -> cri::ContainerConfig {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(image_spec(world.image)),
        command: words(&["sh", "-c", "echo up; exec sleep 1000"]),
        log_path: "main/0.log".to_owned(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_shares: 2,
                oom_score_adj: 1000,
                ..Default::default()
            }),
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                masked_paths: words(&[
                    "/proc/asound",
                    "/proc/acpi",
                    "/proc/kcore",
                    "/proc/keys",
                    "/proc/latency_stats",
                    "/proc/timer_list",
                    "/proc/timer_stats",
                    "/proc/sched_debug",
                    "/proc/scsi",
                    "/sys/firmware",
                ]),
                readonly_paths: words(&[
                    "/proc/bus",
                    "/proc/fs",
                    "/proc/irq",
                    "/proc/sys",
                    "/proc/sysrq-trigger",
                ]),
                seccomp: Some(cri::SecurityProfile {
                    profile_type: cri::security_profile::ProfileType::Unconfined as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption { pid: cri::NamespaceMode::Container as i32, ..Default::default() }
}
