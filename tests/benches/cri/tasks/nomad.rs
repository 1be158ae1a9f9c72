//! Our side: an agent with its launcher, and the tasks that it prepares.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use serde_json::json;
use switchyard_proto::nomad::device;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_tests::nomad::{Agent, AgentPaths, TaskSetup};
use switchyard_tests::root::PrivateRoot;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::bare::open_fifos;
use crate::failure::Failure;
use crate::side::channel;

/// The port of a task, in its own network.
pub(crate) const INSIDE: u16 = 8080;
/// Interval at which an agent asks for a task's usage.
const USAGE: Duration = Duration::from_secs(1);

/// An agent.
pub(crate) struct NomadAgent {
    /// The calls on its launcher.
    driver: DriverClient<Channel>,
    /// It has its own runtime, which must neither run nor be dropped on a thread of another runtime.
    agent: Option<Agent>,
    paths: AgentPaths,
    /// Image of the tasks.
    image: String,
}

/// The network of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskNetwork {
    /// The host's.
    Host,
    /// Its own, with a port that is published as this one of the host.
    Own { port: u16 },
}

/// A task as an agent prepares it: with directories, control groups, and FIFOs that are open.
#[derive(Debug)]
pub(crate) struct PreparedTask {
    /// Its network.
    pub(crate) network: TaskNetwork,
    setup: TaskSetup,
    /// The FIFOs of its output, which are open here and not read.
    fifos: Vec<File>,
}

// === impl NomadAgent ===

impl NomadAgent {
    /// Starts an agent and its launcher on the daemon of this root, whose tasks run this image.
    pub(crate) async fn start(root: &PrivateRoot, image: &str) -> Result<Self, Failure> {
        let agent = on_own_thread(|| Agent::start(root, &json!({})))?;
        let address = agent.plugin().address().to_owned();
        let driver = DriverCalls::connect(&address).await?.driver;
        Ok(Self {
            driver,
            agent: Some(agent),
            paths: root.into(),
            image: image.to_owned(),
        })
    }

    /// Returns the address at which its launcher listens.
    pub(crate) fn address(&self) -> Result<PathBuf, Failure> {
        Ok(self
            .agent
            .as_ref()
            .ok_or("the agent has ended")?
            .plugin()
            .address()
            .to_owned())
    }

    /// Prepares a task that sleeps.
    pub(crate) fn prepare(&self, wish: TaskNetwork) -> Result<PreparedTask, Failure> {
        let mut config = json!({ "image": self.image, "command": "sleep", "args": ["100000"] });
        match wish {
            TaskNetwork::Host => config["network_mode"] = json!("host"),
            TaskNetwork::Own { .. } => config["ports"] = json!(["http"]),
        }
        let agent = self.agent.as_ref().ok_or("the agent has ended")?;
        let mut setup = on_own_thread(|| {
            let mut setup = TaskSetup::new(&self.paths, agent, "bench", &config);
            // Readers that poll their FIFO would be most of the load here.
            setup.close_log_readers();
            setup
        })?;
        let fifos = open_fifos([&setup.config.stdout_path, &setup.config.stderr_path])?;
        if let (TaskNetwork::Own { port }, Some(resources)) = (wish, &mut setup.config.resources) {
            resources.ports.push(nomad::PortMapping {
                label: "http".to_owned(),
                value: port.into(),
                to: INSIDE.into(),
                host_ip: Ipv4Addr::LOCALHOST.to_string(),
            });
        }
        Ok(PreparedTask {
            network: wish,
            setup,
            fifos: fifos.into(),
        })
    }

    /// The calls.
    pub(crate) fn driver(&self) -> DriverCalls {
        DriverCalls {
            driver: self.driver.clone(),
        }
    }
}

impl Drop for NomadAgent {
    fn drop(&mut self) {
        let agent = self.agent.take();
        // A panic there has been reported.
        let _ = on_own_thread(|| drop(agent));
    }
}

/// The calls of an agent. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct DriverCalls {
    driver: DriverClient<Channel>,
}

impl DriverCalls {
    /// Those on the launcher that listens here, over a connection of their own.
    pub(crate) async fn connect(address: &Path) -> Result<Self, Failure> {
        Ok(Self {
            driver: DriverClient::new(channel(address).await?),
        })
    }

    /// `InspectTask`; how long it took.
    pub(crate) async fn inspect(&mut self, task_id: &str) -> Result<Duration, Failure> {
        let begin = Instant::now();
        let answer = self
            .driver
            .inspect_task(nomad::InspectTaskRequest {
                task_id: task_id.to_owned(),
            })
            .await;
        answer
            .map(|_| begin.elapsed())
            .map_err(|status| format!("InspectTask: {status}").into())
    }

    /// `StartTask`; how long it took.
    pub(crate) async fn start(&mut self, task: &PreparedTask) -> Result<Duration, Failure> {
        let request = nomad::StartTaskRequest {
            task: Some(task.setup.config.clone()),
        };
        let begin = Instant::now();
        let answer = self.driver.start_task(request).await;
        let took = begin.elapsed();
        let answer = answer
            .map_err(|status| format!("StartTask: {status}"))?
            .into_inner();
        let state = answer.handle.map(|handle| handle.state());
        if state == Some(nomad::TaskState::Running) {
            return Ok(took);
        }
        Err(format!("a task that was started does not run, but is {state:?}").into())
    }

    /// `DestroyTask`.
    pub(crate) async fn remove(&mut self, task: &PreparedTask) -> Result<(), Failure> {
        let request = nomad::DestroyTaskRequest {
            task_id: task.setup.id().to_owned(),
            force: true,
        };
        let answer = self.driver.destroy_task(request).await;
        answer
            .map(drop)
            .map_err(|status| format!("DestroyTask: {status}").into())
    }

    /// Waits for the end of a task and follows its usage, as an agent does all the while, until what it gives
    /// is dropped.
    pub(crate) async fn watch(&mut self, task: &PreparedTask) -> Result<JoinSet<()>, Failure> {
        let id = task.setup.id().to_owned();
        let interval = prost_types::Duration::try_from(USAGE)?;
        let request = nomad::TaskStatsRequest {
            task_id: id.clone(),
            collection_interval: Some(interval),
        };
        let mut usage = self.driver.task_stats(request).await?.into_inner();
        usage.message().await?;
        let mut driver = self.driver.clone();
        let mut open = JoinSet::new();
        open.spawn(async move { while let Ok(Some(_)) = usage.message().await {} });
        open.spawn(async move {
            // However it ends, it was there.
            let _ = driver
                .wait_task(nomad::WaitTaskRequest { task_id: id })
                .await;
        });
        Ok(open)
    }
}

// === impl PreparedTask ===

impl PreparedTask {
    /// The allocation.
    pub(crate) fn alloc(&self) -> &str {
        &self.setup.config.alloc_id
    }

    /// The task, as the driver knows it.
    pub(crate) fn id(&self) -> &str {
        self.setup.id()
    }

    /// Gives the task what a device plugin has answered, as an agent does.
    pub(crate) fn give(&mut self, reserved: device::ContainerReservation) {
        let device::ContainerReservation {
            envs,
            mounts: _,
            devices,
        } = reserved;
        let config = &mut self.setup.config;
        config.env.extend(envs.clone());
        config.device_env.extend(envs);
        config
            .devices
            .extend(devices.into_iter().map(|one| nomad::Device {
                task_path: one.task_path,
                host_path: one.host_path,
                cgroup_permissions: one.permissions,
            }));
    }

    /// Returns the source of the mount at this path inside of it, in its allocation.
    pub(crate) fn mount_source(&self, inside: &str) -> Result<PathBuf, Failure> {
        let task = self.setup.task_dir();
        match inside {
            "/alloc" => Ok(self.setup.alloc_dir().join("alloc")),
            "/alloc/logs" => Ok(self.setup.alloc_dir().join("alloc/logs")),
            "/local" | "/secrets" => Ok(task.join(inside.trim_start_matches('/'))),
            _ => Err(format!("it is not known what of an allocation is at {inside}").into()),
        }
    }

    /// Fills the FIFOs of its output and closes them here, so that they have no reader, as after the death of an agent's
    /// collectors of logs.
    pub(crate) fn abandon_output(&mut self) -> Result<(), Failure> {
        for mut fifo in self.fifos.drain(..) {
            let size = fcntl(&fifo, FcntlArg::F_GETPIPE_SZ)?;
            fifo.write_all(&vec![b'\n'; usize::try_from(size)?])?;
        }
        Ok(())
    }

    /// Returns the destination of its output.
    pub(crate) fn stdout(&self) -> &str {
        &self.setup.config.stdout_path
    }

    /// Returns the destination of its standard error.
    pub(crate) fn stderr(&self) -> &str {
        &self.setup.config.stderr_path
    }
}

/// An unused loopback port.
pub(crate) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// Runs on another thread what may block, or has its own runtime.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    thread::scope(|scope| scope.spawn(work).join())
        .map_err(|_| "an agent gave up: see above".into())
}
