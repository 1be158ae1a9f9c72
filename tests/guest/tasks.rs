//! Tasks of Nomad through ends of the node: what an agent was answered holds at the next boot, and what it was not is done anew.
//!
//! What the agent knows then is on its disk, as with Nomad: the request before it asks for a start, and the handle before it counts the
//! task as started.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::json;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::image::busybox;
use switchyard_tests::nomad::{Agent, Setup};
use tonic::{Code, Status};

use crate::leases;
use crate::node::{GuestNode, LIMIT};
use crate::nomad::{agent, place, task};

/// Where the agent keeps what it knows.
const STATE: &str = "/var/lib/guest-nomad/state";
/// Runs until it is told to end, at once then: the end of a node waits long for who does not listen to SIGTERM.
pub(crate) const STAYS: &str = "trap 'exit 143' TERM; echo up; sleep 1000 & wait $!";
/// Ends by itself.
const ENDS: &str = "echo up; exit 3";

/// An agent with the image of its tasks.
pub(crate) struct Tasks {
    agent: Agent,
    image: String,
}

/// What the agent has written down of a task.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// The request.
    Request,
    /// The handle that it was answered with.
    Handle,
    /// The exit code that it was told.
    Ended,
    /// Its removal was begun.
    Removing,
}

const KEPT: [Kept; 4] = [Kept::Request, Kept::Handle, Kept::Ended, Kept::Removing];

// === impl Kept ===

impl Kept {
    fn path(self, id: &str) -> PathBuf {
        let hash = id.rsplit('/').next().unwrap_or_default();
        Path::new(STATE).join(format!("{hash}.{self:?}").to_lowercase())
    }

    /// Writes it down so that no end of the node can lose it.
    fn write(self, id: &str, bytes: &[u8]) {
        let path = self.path(id);
        let new = Path::new(STATE).join("new").join(id.replace('/', "-"));
        let mut file = File::create(&new).expect("the disk can be written");
        file.write_all(bytes).expect("the disk can be written");
        file.sync_all().expect("the disk can be written");
        fs::rename(new, path).expect("the disk can be written");
        File::open(STATE).and_then(|dir| dir.sync_all()).expect("the disk can be written");
    }

    fn read(self, id: &str) -> Option<Vec<u8>> {
        fs::read(self.path(id)).ok()
    }
}

// === impl Tasks ===

impl Tasks {
    /// Starts the agent; the name of its image is one that does not move, so that it is not looked for again.
    pub(crate) fn start(node: &GuestNode) -> Self {
        fs::create_dir_all(Path::new(STATE).join("new")).expect("the disk can be written");
        node.registry.push("library/tasks:1", &busybox().build());
        Self { agent: agent(), image: node.registry.reference("library/tasks:1") }
    }

    fn task(&self, script: &str, network: &str) -> Setup {
        task(&self.agent, &self.image, script, json!({ "network_mode": network }))
    }

    /// Starts a task as an agent does that will have to know of it, and waits for its end if it is one that ends.
    fn begin(&self, script: &str, network: &str) -> Setup {
        self.begin_of(self.task(script, network))
    }

    /// Starts a task with a device that was reserved for it.
    pub(crate) fn begin_with_device(&self) -> Setup {
        let mut task = self.task(STAYS, "host");
        let env = leases::reserve();
        task.config.device_env.extend(env.clone());
        task.config.env.extend(env);
        let task = self.begin_of(task);
        let held = leases::is_held_by(task.id(), &task.config.device_env);
        held.unwrap_or_else(|why| panic!("a task was started with a device: {why}"));
        task
    }

    fn begin_of(&self, task: Setup) -> Setup {
        let driver = self.agent.driver();
        let id = task.id();
        Kept::Request.write(id, &task.config.encode_to_vec());
        let started = driver.start(&task.config).unwrap_or_else(|status| panic!("StartTask: {status}"));
        Kept::Handle.write(id, &started.handle.expect("it has a handle").encode_to_vec());
        if ends(Some(&task.config)) {
            let code = driver.wait(id, LIMIT).expect("it ends").exit_code;
            Kept::Ended.write(id, code.to_string().as_bytes());
        }
        task
    }

    fn remove(&self, mut task: Setup) {
        Kept::Removing.write(task.id(), b"");
        let driver = self.agent.driver();
        driver.stop(task.id(), Duration::ZERO, "").unwrap_or_else(|status| panic!("StopTask: {status}"));
        driver.destroy(task.id(), true).unwrap_or_else(|status| panic!("DestroyTask: {status}"));
        task.remove_leaf();
        forget(task.id());
    }

    /// Starts a task that stays.
    pub(crate) fn begin_one(&self, network: &str) -> Setup {
        self.begin(STAYS, network)
    }

    /// Makes and removes tasks for as long as this; `first` is the first that it removes.
    pub(crate) fn load(&self, network: &str, first: Setup, limit: Duration) {
        let begin = Instant::now();
        let mut standing = vec![first];
        for script in [ENDS, STAYS].into_iter().cycle() {
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
        for (script, network) in [(STAYS, "host"), (STAYS, "bridge"), (ENDS, "host")] {
            self.begin(script, network).leave();
        }
        self.begin_with_device().leave();
        self.agent.stop();
    }

    /// What is wrong about the tasks of the boot before. They are gone then, and a new one was started.
    pub(crate) fn after(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = (0, 0);
        for request in requests() {
            let id = request.id.clone();
            let looked = match Kept::Handle.read(&id) {
                Some(handle) => {
                    seen.0 += 1;
                    if request.device_env.is_empty() {
                        self.look_at(&id, &handle)
                    } else {
                        self.look_at_device(request, &handle)
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
        println!("tasks of Nomad: {} that were answered, {} that were not", seen.0, seen.1);
        if let Err(why) = self.see_through(self.task(STAYS, "bridge")) {
            wrong.push(format!("a new task: {why}"));
        }
        wrong
    }

    /// A task that was answered is told to be lost, or to have ended as it did; it can be destroyed, and is not known then.
    fn look_at(&self, id: &str, handle: &[u8]) -> Result<(), String> {
        let driver = self.agent.driver();
        let handle = nomad::TaskHandle::decode(handle).map_err(|error| error.to_string())?;
        let may_end = ends(handle.config.as_ref());
        let told = match driver.recover(&handle) {
            Ok(()) => Some(driver.wait(id, LIMIT).map_err(|status| format!("WaitTask: {status}"))?),
            Err(status) if is_unknown(&status) => None,
            Err(status) => return Err(format!("RecoverTask: {status}")),
        };
        let code = Kept::Ended.read(id).and_then(|text| String::from_utf8(text).ok()?.parse::<i32>().ok());
        let removing = Kept::Removing.read(id).is_some();
        let fits = match (&told, code) {
            (Some(result), Some(code)) => result.exit_code == code,
            (None, Some(_)) => removing,
            // Nobody saw it end but the daemon, which an orderly end of the node gives the time to.
            (Some(result), None) => removing || result.exit_code > 128 || (may_end && result.exit_code == 3),
            (None, None) => true,
        };
        driver.destroy(id, true).map_err(|status| format!("DestroyTask: {status}"))?;
        match driver.recover(&handle) {
            Err(status) if is_unknown(&status) && fits => Ok(()),
            again => Err(format!("told {told:?}, was {code:?}, destroyed: {again:?}")),
        }
    }

    /// A task that had a device has it until it is destroyed, and is started again with it. Of what was reserved an agent that was started
    /// anew knows the variables alone.
    fn look_at_device(&self, request: nomad::TaskConfig, handle: &[u8]) -> Result<(), String> {
        println!("a task of Nomad's had a device");
        let id = request.id.clone();
        if Kept::Removing.read(&id).is_some() {
            // Power was cut amid this: what was destroyed then is not known any more.
            return self.look_at(&id, handle);
        }
        leases::is_held_by(&id, &request.device_env)?;
        Kept::Removing.write(&id, b"");
        self.look_at(&id, handle)?;
        self.start_anew(request).map_err(|why| format!("with its device again: {why}"))
    }

    /// A start that was not answered is asked for once more, under a new id, and what is left of the first goes with it.
    fn start_anew(&self, request: nomad::TaskConfig) -> Result<(), String> {
        let before = request.id.clone();
        let mut task = Setup::again(place(), request);
        task.renew();
        self.see_through(task)?;
        match self.agent.driver().inspect(&before) {
            Err(status) if is_unknown(&status) => Ok(()),
            other => Err(format!("what was there is there yet: {other:?}")),
        }
    }

    /// Starts a task, sees that it runs if it is one that stays, and removes it.
    fn see_through(&self, mut task: Setup) -> Result<(), String> {
        let driver = self.agent.driver();
        // Power may be cut amid this as well.
        Kept::Request.write(task.id(), &task.config.encode_to_vec());
        driver.start(&task.config).map_err(|status| format!("StartTask: {status}"))?;
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
        driver.destroy(task.id(), true).map_err(|status| format!("DestroyTask: {status}"))?;
        task.remove_leaf();
        forget(task.id());
        Ok(())
    }
}

/// The requests that the agent knows of.
fn requests() -> Vec<nomad::TaskConfig> {
    let entries = fs::read_dir(STATE).expect("it was made").flatten().map(|entry| entry.path());
    let requests = entries.filter(|path| path.extension().is_some_and(|kind| kind == "request"));
    let request = |path: PathBuf| {
        let bytes = fs::read(path).expect("the disk can be read");
        nomad::TaskConfig::decode(bytes.as_slice()).expect("it was written whole")
    };
    requests.map(request).collect()
}

/// Whether a task is one that ends by itself.
fn ends(config: Option<&nomad::TaskConfig>) -> bool {
    let packed = config.map(|config| config.msgpack_driver_config.as_slice()).unwrap_or_default();
    packed.windows(ENDS.len()).any(|part| part == ENDS.as_bytes())
}

fn is_unknown(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().starts_with("task not found for given id")
}

/// The agent has no more to do with a task.
fn forget(id: &str) {
    // The request last: as long as it is there, the rest is looked at.
    for kept in KEPT.into_iter().rev() {
        // Not all of it was written.
        let _ = fs::remove_file(kept.path(id));
    }
}
