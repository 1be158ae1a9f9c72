//! An agent's preparations for a task: directories, FIFOs with a reader, cgroups, environment and the request
//! itself.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Agent;
use super::agent_paths::AgentPaths;
use super::cgroup::TaskCgroups;
use super::config::encode;
use super::driver::BlockingDriver;
use super::pipe_reader::{OnEof, PipeReader};
use crate::host::random_name;

/// Limit for a task to print something.
const OUTPUT_LIMIT: Duration = Duration::from_secs(20);

/// A task that is ready to be started. Dropping it removes its directories and control groups.
#[derive(Debug)]
pub struct TaskSetup {
    /// The request; a test may change it.
    pub config: nomad::TaskConfig,
    dir: PathBuf,
    logs: Option<(PipeReader, PipeReader)>,
    cgroups: Option<TaskCgroups>,
}

// === impl TaskSetup ===

impl TaskSetup {
    /// Prepares a task of this name in an allocation of its own, with this configuration of the driver.
    ///
    /// # Panics
    /// When the configuration does not fit the schema, or files cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(
        place: impl Into<AgentPaths>,
        agent: &Agent,
        name: &str,
        driver_config: &Value,
    ) -> Self {
        let place = place.into();
        let alloc = uuid();
        let dir = place.dir.join("nomad/alloc").join(&alloc);
        let logs = dir.join("alloc/logs");
        let leaf = TaskCgroups::make(&place.cgroup, &alloc, name);
        let config = nomad::TaskConfig {
            id: start_id(&alloc, name),
            name: name.to_owned(),
            msgpack_driver_config: encode(&agent.task_schema(), driver_config),
            env: environment(&alloc, name),
            resources: Some(resources(&leaf.cpuset_cgroup)),
            alloc_dir: text(&dir),
            stdout_path: text(&logs.join(format!(".{name}.stdout.fifo"))),
            stderr_path: text(&logs.join(format!(".{name}.stderr.fifo"))),
            task_group_name: "group".to_owned(),
            job_name: "job".to_owned(),
            job_id: "job".to_owned(),
            alloc_id: alloc,
            namespace: "default".to_owned(),
            node_name: "node".to_owned(),
            node_id: "9c4a2f6e-0000-4000-8000-000000000000".to_owned(),
            ..Default::default()
        };
        Self::of(config, leaf)
    }

    /// Prepares a task of an earlier life of the agent again, before another start or the end of it: what a
    /// restart of the node has left is used.
    ///
    /// # Panics
    /// As [`TaskSetup::new`].
    #[track_caller]
    #[must_use]
    pub fn restored(place: impl Into<AgentPaths>, config: nomad::TaskConfig) -> Self {
        let leaf = TaskCgroups::make(&place.into().cgroup, &config.alloc_id, &config.name);
        Self::of(config, leaf)
    }

    /// Makes the directories and the FIFOs that are not there, and reads the latter.
    #[track_caller]
    fn of(config: nomad::TaskConfig, leaf: TaskCgroups) -> Self {
        let dir = PathBuf::from(&config.alloc_dir);
        for below in ["alloc/data", "alloc/tmp", "alloc/logs"] {
            fs::create_dir_all(dir.join(below)).expect("the place can be written");
        }
        for below in ["local", "secrets", "tmp"] {
            fs::create_dir_all(dir.join(&config.name).join(below))
                .expect("the place can be written");
        }
        for path in [&config.stdout_path, &config.stderr_path] {
            if !Path::new(path).exists() {
                mkfifo(Path::new(path), Mode::S_IRUSR | Mode::S_IWUSR)
                    .expect("root can make a FIFO");
            }
        }
        let mut setup = Self {
            config,
            dir,
            logs: None,
            cgroups: Some(leaf),
        };
        setup.open_log_readers();
        setup
    }

    /// Leaves all as it is, as the end of an agent does that is asked to stop.
    pub fn detach(mut self) {
        self.close_log_readers();
        std::mem::forget(self);
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.config.id
    }

    /// Another start of the same task: a new id, all else as before.
    pub fn assign_new_id(&mut self) {
        self.config.id = next_id(&self.config);
    }

    /// Encodes another configuration of the driver.
    ///
    /// # Panics
    /// When it does not fit the schema.
    #[track_caller]
    pub fn configure(&mut self, agent: &Agent, driver_config: &Value) {
        self.config.msgpack_driver_config = encode(&agent.task_schema(), driver_config);
    }

    /// The directory of the allocation.
    #[must_use]
    pub fn alloc_dir(&self) -> &Path {
        &self.dir
    }

    /// Its own directory.
    #[must_use]
    pub fn task_dir(&self) -> PathBuf {
        self.dir.join(&self.config.name)
    }

    /// Ends the readers of its output, as when the agent dies; [`TaskSetup::open_log_readers`] starts new
    /// ones.
    pub fn close_log_readers(&mut self) {
        self.logs = None;
    }

    /// Reads its output again, from now on.
    pub fn open_log_readers(&mut self) {
        self.logs = Some((
            read_fifo(Path::new(&self.config.stdout_path)),
            read_fifo(Path::new(&self.config.stderr_path)),
        ));
    }

    /// Returns its output on standard output.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.logs
            .as_ref()
            .map(|(stdout, _)| stdout.text())
            .unwrap_or_default()
    }

    /// Returns whether its output has ended once, at which an agent reads no more of it.
    #[must_use]
    pub fn has_output_ended(&self) -> bool {
        self.logs
            .as_ref()
            .is_some_and(|(stdout, stderr)| stdout.has_hung_up() || stderr.has_hung_up())
    }

    /// Returns its output on standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.logs
            .as_ref()
            .map(|(_, stderr)| stderr.text())
            .unwrap_or_default()
    }

    /// Waits until what it said fulfils `condition`.
    ///
    /// # Panics
    /// When it does not in time.
    #[track_caller]
    pub fn wait_stdout(&self, condition: impl FnMut(&str) -> bool) -> String {
        let (stdout, _) = self.logs.as_ref().expect("somebody listens");
        let held = stdout.wait(OUTPUT_LIMIT, condition);
        let printed = stdout.text();
        assert!(
            held,
            "the task has not come to it after {OUTPUT_LIMIT:?}: {printed:?} and {:?}",
            self.stderr()
        );
        printed
    }

    /// Ends the task, which runs: stops and destroys it, and removes its control groups, as an agent does.
    ///
    /// # Panics
    /// When it cannot be stopped or destroyed, and when something is left in its control groups.
    #[track_caller]
    pub fn end(&mut self, driver: &BlockingDriver) {
        driver
            .stop(self.id(), Duration::ZERO, "")
            .expect("it stops");
        driver
            .destroy(self.id(), true)
            .expect("it can be destroyed");
        self.remove_cgroups();
    }

    /// Removes its control groups, as an agent does when the task is gone.
    ///
    /// # Panics
    /// When something is left in them.
    #[track_caller]
    pub fn remove_cgroups(&mut self) {
        if let Some(mut leaf) = self.cgroups.take() {
            leaf.remove()
                .expect("the control groups of a task are empty when it is gone");
        }
    }
}

impl Drop for TaskSetup {
    fn drop(&mut self) {
        self.close_log_readers();
        // Dropping the root removes what remains.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The id of another start of a task.
pub(super) fn next_id(config: &nomad::TaskConfig) -> String {
    start_id(&config.alloc_id, &config.name)
}

fn start_id(alloc: &str, name: &str) -> String {
    format!("{alloc}/{name}/{}", random_name())
}

/// The environment that an agent sets for a task, as far as the driver depends on it.
fn environment(alloc: &str, name: &str) -> BTreeMap<String, String> {
    let pairs = [
        ("NOMAD_ALLOC_DIR", "/alloc"),
        ("NOMAD_TASK_DIR", "/local"),
        ("NOMAD_SECRETS_DIR", "/secrets"),
        ("NOMAD_ALLOC_ID", alloc),
        ("NOMAD_TASK_NAME", name),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// 100 MHz and 64 MiB.
fn resources(cpuset_cgroup: &str) -> nomad::Resources {
    let allocated = nomad::AllocatedTaskResources {
        cpu: Some(nomad::AllocatedCpuResources { cpu_shares: 100 }),
        memory: Some(nomad::AllocatedMemoryResources {
            memory_mb: 64,
            memory_max_mb: 0,
        }),
        networks: Vec::new(),
    };
    let linux = nomad::LinuxResources {
        cpu_shares: 100,
        memory_limit_bytes: 64 << 20,
        percent_ticks: 0.02,
        cpuset_cgroup: cpuset_cgroup.to_owned(),
        ..Default::default()
    };
    nomad::Resources {
        allocated_resources: Some(allocated),
        linux_resources: Some(linux),
        ports: Vec::new(),
    }
}

/// Reads a FIFO as logmon does; it stays open for the next writer.
fn read_fifo(path: &Path) -> PipeReader {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
        .expect("it has just been made");
    PipeReader::start(OwnedFd::from(file), OnEof::Ignored)
}

/// An id in the form of Nomad's.
fn uuid() -> String {
    let parts: Vec<String> = (0..4).map(|_| random_name()).collect();
    let digits = parts.concat();
    format!(
        "{}-{}-4{}-8{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..]
    )
}

fn text(path: &Path) -> String {
    path.to_str().expect("the path is ASCII").to_owned()
}
