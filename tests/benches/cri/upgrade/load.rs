//! The load of the node while its daemon is restarted: a kubelet's requests, and tasks of Nomad agents.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::cri::{Cri, image_spec, namespaces};
use switchyard_tests::host::random_name;
use switchyard_tests::nomad::agent::CallFailure;
use switchyard_tests::nomad::{Agent, AgentPaths, BlockingDriver, TaskSetup};
use tonic::{Code, Status};

use super::calls::{CallCounts, FailedTry, FailureKind};

/// The beginning of the names of pods whose network takes long.
pub(super) const SLOW: &str = "slow";
/// Limit for a command in a task.
const EXEC_LIMIT: Duration = Duration::from_secs(30);

/// The node, as far as clients know it.
#[derive(Clone, Debug)]
pub(super) struct LoadTarget {
    /// The directory of the sockets.
    pub(super) run: PathBuf,
    /// The directory of the pods' logs.
    pub(super) logs: PathBuf,
    /// The control group of the pods.
    pub(super) cgroup_parent: String,
    /// The image of containers, which is present.
    pub(super) image: String,
    /// An image that is pulled and removed.
    pub(super) pulled: String,
    /// The paths of Nomad agents.
    pub(super) agent: AgentPaths,
}

/// An agent, whose plugin ends with each daemon.
struct NomadClient<'a> {
    agent: Agent,
    calls: &'a CallCounts,
}

/// Runs pods, one after the other, each with a command in its container.
pub(super) fn run_pods(target: &LoadTarget, loader: u32, calls: &CallCounts) {
    let client = target.cri();
    let mut number = 0;
    while !calls.is_over() {
        number += 1;
        let config = target.pod(&format!("load-{loader}-{number}"));
        if run_pod(target, &client, &config, calls).is_none() {
            return;
        }
    }
}

fn run_pod(
    target: &LoadTarget,
    client: &Cri,
    config: &cri::PodSandboxConfig,
    calls: &CallCounts,
) -> Option<()> {
    let main = target.container();
    let pod = calls.repeat("RunPodSandbox", || client.run_pod(config))?;
    let container = calls.repeat("CreateContainer", || client.create(&pod, &main, config))?;
    calls.repeat("StartContainer", || client.start(&container))?;
    calls.repeat("ExecSync", || client.exec(&container, &["true"], 30))?;
    calls.repeat("StopContainer", || client.stop(&container, 0))?;
    calls.repeat("StopPodSandbox", || client.stop_pod(&pod))?;
    calls.repeat("RemovePodSandbox", || client.remove_pod(&pod))
}

/// Runs pods without containers whose network takes five seconds at its set-up and at its removal. Counts those that
/// are gone.
pub(super) fn run_slow_pods(target: &LoadTarget, calls: &CallCounts, gone: &AtomicU32) {
    let client = target.cri();
    let mut number = 0;
    while !calls.is_over() {
        number += 1;
        let config = target.pod(&format!("{SLOW}-{number}"));
        let removed = calls
            .repeat("RunPodSandbox, 5 s in a plugin", || client.run_pod(&config))
            .and_then(|pod| {
                calls.repeat("StopPodSandbox, 5 s in a plugin", || client.stop_pod(&pod))?;
                calls.repeat("RemovePodSandbox", || client.remove_pod(&pod))
            });
        if removed.is_none() {
            return;
        }
        gone.fetch_add(1, Ordering::Release);
    }
}

/// Pulls an image again and again.
pub(super) fn pull_images(target: &LoadTarget, calls: &CallCounts) {
    let client = target.cri();
    while !calls.is_over() {
        let removed = calls
            .repeat("PullImage", || client.pull(&target.pulled, None))
            .and_then(|_| calls.repeat("RemoveImage", || client.remove_image(&target.pulled)));
        if removed.is_none() {
            return;
        }
    }
}

/// Runs tasks of a Nomad agent, one after the other, each with a command in it.
pub(super) fn run_tasks(target: &LoadTarget, calls: &CallCounts) {
    let client = NomadClient {
        agent: Agent::start(&target.agent, &json!({})),
        calls,
    };
    let config = json!({
        "image": target.image, "command": "sleep", "args": ["100000"], "network_mode": "host",
    });
    let mut task = TaskSetup::new(&target.agent, &client.agent, "load", &config);
    let mut has_lost = false;
    while !calls.is_over() {
        task.assign_new_id();
        let Some(handle) = client.start(&task.config) else {
            // The agent continues with the next one.
            has_lost = true;
            continue;
        };
        if client.use_and_remove(task.id(), &handle).is_none() {
            return;
        }
    }
    // A start that was lost to the agent may have left a process.
    if !has_lost {
        task.remove_cgroups();
    }
}

// === impl LoadTarget ===

impl LoadTarget {
    fn cri(&self) -> Cri {
        Cri::new(&self.run.join("cri.sock"))
    }

    fn pod(&self, name: &str) -> cri::PodSandboxConfig {
        let uid = random_name();
        let mut config = cri::PodSandboxConfig {
            log_directory: text(&self.logs.join(format!("{name}_{uid}"))),
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "bench".to_owned(),
                attempt: 0,
            }),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                ..Default::default()
            }),
            ..Default::default()
        };
        namespaces(&mut config).set_pid(cri::NamespaceMode::Container);
        config
    }

    fn container(&self) -> cri::ContainerConfig {
        cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&self.image)),
            command: ["sleep", "100000"].map(str::to_owned).to_vec(),
            log_path: "main.log".to_owned(),
            ..Default::default()
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

// === impl NomadClient ===

impl NomadClient<'_> {
    /// Starts a task as an agent does: once more, if its plugin has ended meanwhile, and never again.
    fn start(&self, task: &nomad::TaskConfig) -> Option<nomad::TaskHandle> {
        const OPERATION: &str = "Nomad: StartTask";
        let mut failed = Vec::new();
        for _ in 0..2 {
            let driver = self.agent.dispense();
            let status = match driver.start(task) {
                Ok(answer) => {
                    self.calls.count(OPERATION, &failed, true);
                    return answer.handle;
                }
                Err(status) => status,
            };
            match self.agent.classify_failure(&driver, status) {
                CallFailure::PluginShutdown => failed.push(FailureKind::CutOff),
                CallFailure::Status(status) => {
                    failed.push(FailureKind::of_status(&status));
                    break;
                }
            }
        }
        self.calls.count(OPERATION, &failed, false);
        None
    }

    fn use_and_remove(&self, id: &str, handle: &nomad::TaskHandle) -> Option<()> {
        self.repeat("Nomad: ExecTask", handle, |driver| {
            driver.exec(id, &["true"], EXEC_LIMIT)
        })?;
        self.repeat("Nomad: StopTask", handle, |driver| {
            driver.stop(id, Duration::ZERO, "")
        })?;
        self.calls.repeat("Nomad: DestroyTask", || {
            let driver = self.agent.dispense();
            match driver.destroy(id, true) {
                // The try before took effect.
                Err(status) if status.code() == Code::NotFound => Ok(()),
                Err(status) => Err(self.failed(&driver, status)),
                Ok(()) => Ok(()),
            }
        })
    }

    /// Repeats a call about a task; a new plugin is given the task before.
    fn repeat<T>(
        &self,
        operation: &'static str,
        handle: &nomad::TaskHandle,
        call: impl Fn(&BlockingDriver) -> Result<T, Status>,
    ) -> Option<T> {
        self.calls.repeat(operation, || {
            let driver = self.agent.driver();
            call(&driver).map_err(|status| {
                let failed = self.failed(&driver, status);
                if failed.kind() == FailureKind::CutOff {
                    self.recover(handle);
                }
                failed
            })
        })
    }

    /// Gives the task to the next plugin. An agent tries it once: a task that is not recovered is lost to it.
    fn recover(&self, handle: &nomad::TaskHandle) {
        let driver = self.agent.dispense();
        let failed: Vec<FailureKind> = match driver.recover(handle) {
            Ok(()) => Vec::new(),
            Err(status) => vec![self.failed(&driver, status).kind()],
        };
        self.calls
            .count("Nomad: RecoverTask", &failed, failed.is_empty());
    }

    /// The failure of a call, as the agent sees it.
    fn failed(&self, driver: &BlockingDriver, status: Status) -> FailedTry {
        match self.agent.classify_failure(driver, status) {
            CallFailure::PluginShutdown => {
                FailedTry::new(FailureKind::CutOff, "the plugin has ended with its daemon")
            }
            CallFailure::Status(status) => status.into(),
        }
    }
}
