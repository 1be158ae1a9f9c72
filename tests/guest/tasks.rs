//! Nomad tasks across restarts and power cuts of the node: at the next boot every acknowledged call still
//! holds, and the agent repeats the others.
//!
//! After a boot the agent knows what is on its disk, as Nomad does: the request, written before it asks for a
//! start, and the handle, written before it counts the task as started.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::image::busybox;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::{Code, Status};

use crate::leases;
use crate::node::{GuestNode, LIMIT};
use crate::nomad::{agent, agent_paths, task};

/// The directory of the agent's state.
const STATE: &str = "/var/lib/guest-nomad/state";
/// Runs until it is stopped, and exits at once then: a shutdown of the node waits long for a process that
/// ignores SIGTERM.
pub(crate) const ENDLESS_SCRIPT: &str = "trap 'exit 143' TERM; echo up; sleep 1000 & wait $!";
/// Exits by itself.
const SHORT_SCRIPT: &str = "echo up; exit 3";

/// An agent with the image of its tasks.
pub(crate) struct TaskAgent {
    agent: Agent,
    image: String,
}

/// The agent's state of a task.
#[derive(Debug, Clone, Copy)]
enum AgentFile {
    /// The request.
    Request,
    /// The handle in the answer to its start.
    Handle,
    /// The reported exit code.
    Ended,
    /// Its removal was begun.
    Removing,
}

const AGENT_FILES: [AgentFile; 4] = [
    AgentFile::Request,
    AgentFile::Handle,
    AgentFile::Ended,
    AgentFile::Removing,
];

// === impl AgentFile ===

impl AgentFile {
    fn path(self, id: &str) -> PathBuf {
        let hash = id.rsplit('/').next().unwrap_or_default();
        Path::new(STATE).join(format!("{hash}.{self:?}").to_lowercase())
    }

    /// Writes the state so that neither a restart nor a power cut loses it.
    fn write(self, id: &str, bytes: &[u8]) {
        let path = self.path(id);
        let new = Path::new(STATE).join("new").join(id.replace('/', "-"));
        let mut file = File::create(&new).expect("the disk can be written");
        file.write_all(bytes).expect("the disk can be written");
        file.sync_all().expect("the disk can be written");
        fs::rename(new, path).expect("the disk can be written");
        File::open(STATE)
            .and_then(|dir| dir.sync_all())
            .expect("the disk can be written");
    }

    fn read(self, id: &str) -> Option<Vec<u8>> {
        fs::read(self.path(id)).ok()
    }
}

// === impl TaskAgent ===

impl TaskAgent {
    /// Starts the agent. The image reference is one that does not change, so that it is not resolved again.
    pub(crate) fn start(node: &GuestNode) -> Self {
        fs::create_dir_all(Path::new(STATE).join("new")).expect("the disk can be written");
        node.registry.push("library/tasks:1", &busybox().build());
        Self {
            agent: agent(),
            image: node.registry.reference("library/tasks:1"),
        }
    }

    fn task(&self, script: &str, network: &str) -> TaskSetup {
        task(
            &self.agent,
            &self.image,
            script,
            json!({ "network_mode": network }),
        )
    }

    /// Starts a task as an agent does, with its state written first, and waits for its exit if it exits by
    /// itself.
    fn begin(&self, script: &str, network: &str) -> TaskSetup {
        self.start_and_record(self.task(script, network))
    }

    /// Starts a task with a device that was reserved for it.
    pub(crate) fn start_with_device(&self) -> TaskSetup {
        let mut task = self.task(ENDLESS_SCRIPT, "host");
        let env = leases::reserve();
        task.config.device_env.extend(env.clone());
        task.config.env.extend(env);
        let task = self.start_and_record(task);
        let held = leases::is_held_by(task.id(), &task.config.device_env);
        held.unwrap_or_else(|why| panic!("a task was started with a device: {why}"));
        task
    }

    fn start_and_record(&self, task: TaskSetup) -> TaskSetup {
        let driver = self.agent.driver();
        let id = task.id();
        AgentFile::Request.write(id, &task.config.encode_to_vec());
        let started = driver
            .start(&task.config)
            .unwrap_or_else(|status| panic!("StartTask: {status}"));
        AgentFile::Handle.write(
            id,
            &started.handle.expect("it has a handle").encode_to_vec(),
        );
        if ends(Some(&task.config)) {
            let code = driver.wait(id, LIMIT).expect("it ends").exit_code;
            AgentFile::Ended.write(id, code.to_string().as_bytes());
        }
        task
    }

    fn remove(&self, mut task: TaskSetup) {
        AgentFile::Removing.write(task.id(), b"");
        let driver = self.agent.driver();
        driver
            .stop(task.id(), Duration::ZERO, "")
            .unwrap_or_else(|status| panic!("StopTask: {status}"));
        driver
            .destroy(task.id(), true)
            .unwrap_or_else(|status| panic!("DestroyTask: {status}"));
        task.remove_cgroups();
        forget(task.id());
    }

    /// Starts a task that is not removed.
    pub(crate) fn start_endless(&self, network: &str) -> TaskSetup {
        self.begin(ENDLESS_SCRIPT, network)
    }

    /// Creates and removes tasks for this long; `first` is the first one that it removes.
    pub(crate) fn load(&self, network: &str, first: TaskSetup, limit: Duration) {
        let begin = Instant::now();
        let mut standing = vec![first];
        for script in [SHORT_SCRIPT, ENDLESS_SCRIPT].into_iter().cycle() {
            if begin.elapsed() > limit {
                return;
            }
            standing.push(self.begin(script, network));
            if standing.len() > 3 {
                self.remove(standing.remove(0));
            }
        }
    }

    /// Leaves tasks to the next boot, as an agent does that is asked to stop.
    pub(crate) fn leave(self) {
        for (script, network) in [
            (ENDLESS_SCRIPT, "host"),
            (ENDLESS_SCRIPT, "bridge"),
            (SHORT_SCRIPT, "host"),
        ] {
            self.begin(script, network).detach();
        }
        self.start_with_device().detach();
        self.agent.stop();
    }

    /// Violations about the tasks of the last boot. Afterwards they are gone, and a new one was started.
    pub(crate) fn check_after_boot(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = (0, 0);
        for request in requests() {
            let id = request.id.clone();
            let looked = match AgentFile::Handle.read(&id) {
                Some(handle) => {
                    seen.0 += 1;
                    if request.device_env.is_empty() {
                        self.check_task(&id, &handle)
                    } else {
                        self.check_device(request, &handle)
                    }
                }
                None => {
                    seen.1 += 1;
                    self.start_anew(request)
                }
            };
            wrong.extend(looked.err().map(|why| format!("task {id}: {why}")));
            forget(&id);
        }
        println!(
            "tasks of Nomad: {} that were answered, {} that were not",
            seen.0, seen.1
        );
        if let Err(why) = self.run_and_remove(self.task(ENDLESS_SCRIPT, "bridge")) {
            wrong.push(format!("a new task: {why}"));
        }
        wrong
    }

    /// A task whose start was acknowledged is reported as lost, or with its exit status; it can be destroyed,
    /// and is unknown afterwards.
    fn check_task(&self, id: &str, handle: &[u8]) -> Result<(), String> {
        let driver = self.agent.driver();
        let handle = nomad::TaskHandle::decode(handle).map_err(|error| error.to_string())?;
        let may_end = ends(handle.config.as_ref());
        let recovered = match driver.recover(&handle) {
            Ok(()) => Some(
                driver
                    .wait(id, LIMIT)
                    .map_err(|status| format!("WaitTask: {status}"))?,
            ),
            Err(status) if is_unknown(&status) => None,
            Err(status) => return Err(format!("RecoverTask: {status}")),
        };
        let code = AgentFile::Ended
            .read(id)
            .and_then(|text| String::from_utf8(text).ok()?.parse::<i32>().ok());
        let removing = AgentFile::Removing.read(id).is_some();
        let fits = match (&recovered, code) {
            (Some(result), Some(code)) => result.exit_code == code,
            (None, Some(_)) => removing,
            // Only the daemon saw its exit, and has the time to persist it in an orderly shutdown.
            (Some(result), None) => {
                removing || result.exit_code > 128 || (may_end && result.exit_code == 3)
            }
            (None, None) => true,
        };
        driver
            .destroy(id, true)
            .map_err(|status| format!("DestroyTask: {status}"))?;
        match driver.recover(&handle) {
            Err(status) if is_unknown(&status) && fits => Ok(()),
            again => Err(format!(
                "reported {recovered:?}, was {code:?}, destroyed: {again:?}"
            )),
        }
    }

    /// A task with a device holds it until it is destroyed, and is started again with it. A restarted agent
    /// knows of the reservation only the variables.
    fn check_device(&self, request: nomad::TaskConfig, handle: &[u8]) -> Result<(), String> {
        println!("a task of Nomad's had a device");
        let id = request.id.clone();
        if AgentFile::Removing.read(&id).is_some() {
            // The power was cut during the removal: a task that was destroyed is not known any more.
            return self.check_task(&id, handle);
        }
        leases::is_held_by(&id, &request.device_env)?;
        AgentFile::Removing.write(&id, b"");
        self.check_task(&id, handle)?;
        self.start_anew(request)
            .map_err(|why| format!("with its device again: {why}"))
    }

    /// A start that was not acknowledged is repeated under a new id, and what is left of the first attempt is
    /// removed.
    fn start_anew(&self, request: nomad::TaskConfig) -> Result<(), String> {
        let before = request.id.clone();
        let mut task = TaskSetup::restored(agent_paths(), request);
        task.assign_new_id();
        self.run_and_remove(task)?;
        match self.agent.driver().inspect(&before) {
            Err(status) if is_unknown(&status) => Ok(()),
            other => Err(format!("what was there is there yet: {other:?}")),
        }
    }

    /// Starts a task, checks that it runs unless it exits by itself, and removes it.
    fn run_and_remove(&self, mut task: TaskSetup) -> Result<(), String> {
        let driver = self.agent.driver();
        // The power may be cut during this as well.
        AgentFile::Request.write(task.id(), &task.config.encode_to_vec());
        driver
            .start(&task.config)
            .map_err(|status| format!("StartTask: {status}"))?;
        task.wait_stdout(|text| text == "up\n");
        if !ends(Some(&task.config)) {
            let reached = driver.exec(task.id(), &["echo", "reached"], LIMIT);
            let reached = reached.map_err(|status| format!("ExecTask: {status}"))?;
            if reached.stdout != "reached\n" {
                return Err(format!("{reached:?}"));
            }
        }
        if !task.config.device_env.is_empty() {
            leases::is_held_by(task.id(), &task.config.device_env)?;
        }
        driver
            .destroy(task.id(), true)
            .map_err(|status| format!("DestroyTask: {status}"))?;
        task.remove_cgroups();
        forget(task.id());
        Ok(())
    }
}

/// The requests that the agent knows of.
fn requests() -> Vec<nomad::TaskConfig> {
    let entries = fs::read_dir(STATE)
        .expect("it was made")
        .flatten()
        .map(|entry| entry.path());
    let requests = entries.filter(|path| path.extension().is_some_and(|kind| kind == "request"));
    requests
        .map(|path| {
            let bytes = fs::read(path).expect("the disk can be read");
            nomad::TaskConfig::decode(bytes.as_slice()).expect("it was written whole")
        })
        .collect()
}

/// Returns whether a task exits by itself.
fn ends(config: Option<&nomad::TaskConfig>) -> bool {
    let packed = config
        .map(|config| config.msgpack_driver_config.as_slice())
        .unwrap_or_default();
    packed
        .windows(SHORT_SCRIPT.len())
        .any(|part| part == SHORT_SCRIPT.as_bytes())
}

fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().starts_with("task not found for given id")
}

/// Removes the agent's state of a task.
fn forget(id: &str) {
    // The request is removed last: as long as it exists, the rest is read.
    for kept in AGENT_FILES.into_iter().rev() {
        // The file may be incomplete or missing.
        let _ = fs::remove_file(kept.path(id));
    }
}
