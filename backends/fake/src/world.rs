//! The state: sandboxes, tasks and images. It outlives the backend objects that use it.
//!
//! Longer than 500 lines because all transitions of one state need its private fields.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::{
    Blocker, NamedVolume, OccupiedPort, Recovered, Started, Unreadable,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageId;
use switchyard_core::object::{Sandbox, SandboxDetails, Task, TaskDetails};
use switchyard_core::spec::{
    Meta, Mount, MountSource, Output, PidMode, Project, ProjectId, SandboxNetwork, SandboxPid,
    SandboxSpec, Signal, Stdin, Subnet, TaskSpec, TaskUpdate, Throttle, command_line, disk_parts,
    is_volume_name,
};
use switchyard_core::state::{Exit, ExitCause, SandboxState, TaskState};
use switchyard_core::table::{no_sandbox, no_task};
use switchyard_core::{Error, Result};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::exec::{LeftOutput, Unended};
use crate::image::{Images, LocalImage};
use crate::program::{Command, Program, Run};
use crate::task_streams::TaskStreams;
use crate::users::resolve;

#[derive(Default)]
pub(crate) struct FakeState {
    state: Mutex<State>,
    pub(crate) breaches: Arc<Mutex<Vec<String>>>,
}

#[derive(Default)]
pub(crate) struct State {
    pids: u32,
    addresses: u32,
    pub(crate) sandboxes: BTreeMap<SandboxId, FakeSandbox>,
    pub(crate) tasks: BTreeMap<TaskId, FakeTask>,
    pub(crate) images: Images,
    /// The named volumes, which outlive their tasks.
    volumes: BTreeSet<(Owner, String)>,
    pub(crate) ranges: BTreeMap<Owner, Vec<Subnet>>,
    pub(crate) processes: Arc<AtomicUsize>,
    /// The exit codes of the next execs, whatever their commands are.
    pub(crate) exec_codes: VecDeque<i32>,
    /// The starts that a killed daemon left behind, and whether their programs will run.
    pub(crate) pending_starts: BTreeMap<TaskId, bool>,
    /// The objects that the next recovery cannot read.
    pub(crate) unreadable: Vec<Unreadable>,
    /// The execs that could not be ended.
    pub(crate) unended: Unended,
    /// The fate of the output that children of execs keep open.
    pub(crate) left_output: LeftOutput,
    /// Parts of a new task that cannot be fulfilled.
    pub(crate) warnings: Vec<String>,
    /// The programs that hold up pulls and sandboxes.
    pub(crate) runtime_blockers: Vec<Blocker>,
    /// The ports of the node on which its programs listen.
    pub(crate) listeners: Vec<OccupiedPort>,
}

pub(crate) struct FakeSandbox {
    meta: Arc<Meta>,
    pub(crate) handler: String,
    pub(crate) details: SandboxDetails,
    pub(crate) stopped: bool,
    /// True if its removal has begun.
    removal_begun: bool,
    pub(crate) reads: u64,
}

pub(crate) struct FakeTask {
    pub(crate) sandbox: SandboxId,
    meta: Arc<Meta>,
    pub(crate) details: TaskDetails,
    command_line: Vec<String>,
    volumes: Vec<String>,
    pub(crate) stdin_open: bool,
    pub(crate) streams: TaskStreams,
    pub(crate) state: TaskState,
    pub(crate) program: Program,
    pub(crate) end: watch::Sender<Option<Exit>>,
    timer: Option<AbortHandle>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The spec that it was created with.
    pub(crate) spec: TaskSpec,
    /// The OCI runtime spec with which it is inspected.
    pub(crate) runtime_spec: String,
    /// The processes that hold it up.
    pub(crate) blockers: Vec<Blocker>,
    pub(crate) reads: u64,
}

// === impl FakeSandbox ===

impl FakeSandbox {
    /// The state that `recover` returns.
    fn state(&self) -> SandboxState {
        if self.stopped {
            SandboxState::Stopped
        } else if self.removal_begun {
            SandboxState::Unknown {
                reason: "its removal was interrupted".to_owned(),
            }
        } else {
            SandboxState::Ready
        }
    }
}

// === impl FakeState ===

impl FakeState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts a task, or records why it cannot be started.
    pub(crate) fn start(self: &Arc<Self>, id: TaskId, fault: Option<Error>) -> Result<Started> {
        let mut state = self.lock();
        let at = SystemTime::now();
        let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
        if task.state != TaskState::Created {
            let word = task.state.as_str();
            return Err(Error::failed_precondition(format!(
                "task {id} is {word}: it cannot be started"
            )));
        }
        let program = match Command::parse(&task.command_line) {
            _ if fault.is_some() => Err(fault.expect("it was just seen")),
            Command::Program(program) => Ok(program),
            Command::Unknown => Ok(Program::endless()),
            Command::Missing => Err(Error::invalid(
                format!("task {id}: command"),
                format!(
                    "{:?} is not an executable of the image",
                    task.command_line.first().map_or("", String::as_str)
                ),
            )),
        };
        let pid = state.next_pid();
        let task = state.tasks.get_mut(&id).expect("it was just seen");
        match program {
            Ok(program) => {
                task.state = TaskState::Running {
                    pid,
                    started_at: at,
                };
                let course = program.course(task.stdin_open);
                task.program = program;
                match course {
                    Run::Forever => {}
                    Run::Ends { after, code } if after.is_zero() => task.end(exited(code)),
                    Run::Ends { after, code } => {
                        let world = Arc::downgrade(self);
                        task.timer =
                            Some(tokio::spawn(end_later(world, id, after, code)).abort_handle());
                    }
                }
                Ok(Started { pid, at })
            }
            Err(error) => {
                task.end(Exit::start_failed(at, error.report()));
                Err(error)
            }
        }
    }
}

async fn end_later(world: Weak<FakeState>, id: TaskId, after: std::time::Duration, code: i32) {
    tokio::time::sleep(after).await;
    if let Some(world) = world.upgrade() {
        // A task that is gone, or has exited otherwise, need not be ended.
        let _ = world.lock().end(id, exited(code));
    }
}

pub(crate) fn exited(code: i32) -> Exit {
    Exit {
        code,
        finished_at: SystemTime::now(),
        cause: ExitCause::Exited,
    }
}

// === impl FakeTask ===

impl FakeTask {
    fn end(&mut self, exit: Exit) {
        let started_at = match self.state {
            TaskState::Running { started_at, .. } => Some(started_at),
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => None,
        };
        self.state = TaskState::Exited {
            started_at,
            exit: exit.clone(),
        };
        self.end.send_replace(Some(exit));
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

// === impl State ===

impl State {
    fn next_pid(&mut self) -> u32 {
        self.pids += 1;
        1000 + self.pids
    }

    fn next_address(&mut self) -> IpAddr {
        self.addresses += 1;
        IpAddr::V4(Ipv4Addr::from_bits(
            Ipv4Addr::new(10, 0, 0, 0).to_bits() + (self.addresses & 0x00ff_ffff),
        ))
    }

    pub(crate) fn create_sandbox(
        &mut self,
        id: SandboxId,
        spec: &SandboxSpec,
        handlers: &[String],
    ) -> Result<SandboxDetails> {
        if !spec.handler.is_empty() && !handlers.contains(&spec.handler) {
            return Err(Error::invalid(
                "runtime handler",
                format!("{:?} is not configured", spec.handler),
            ));
        }
        let own_netns = || Some(PathBuf::from(format!("/run/fake/netns/{id}")));
        let (ips, netns) = match &spec.network {
            SandboxNetwork::Host => (Vec::new(), None),
            SandboxNetwork::Pod(_) => (vec![self.next_address()], own_netns()),
            SandboxNetwork::Isolated => (Vec::new(), own_netns()),
            SandboxNetwork::Joined(path) => (Vec::new(), Some(path.clone())),
        };
        let pid = match spec.pid {
            SandboxPid::Shared => Some(self.next_pid()),
            SandboxPid::PerTask | SandboxPid::Host => None,
        };
        let details = SandboxDetails {
            ips,
            netns,
            pid,
            note: Vec::new(),
            host_ports: spec.host_ports.clone(),
        };
        let sandbox = FakeSandbox {
            meta: Arc::new(spec.meta.clone()),
            handler: spec.handler.clone(),
            details: details.clone(),
            stopped: false,
            removal_begun: false,
            reads: 0,
        };
        self.sandboxes.insert(id, sandbox);
        Ok(details)
    }

    pub(crate) fn stop_sandbox(&mut self, id: SandboxId) -> Result<()> {
        let runs = |task: &&FakeTask| task.sandbox == id && task.state.is_running();
        if let Some(task) = self.tasks.values().find(runs) {
            let name = &task.meta.name;
            return Err(Error::failed_precondition(format!(
                "sandbox {id}: its task {name:?} still runs"
            )));
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.stopped = true;
        }
        Ok(())
    }

    /// Addresses are never reused here, so the old one is always available.
    pub(crate) fn start_sandbox(&mut self, id: SandboxId) -> Result<SandboxDetails> {
        let pid = self.next_pid();
        let sandbox = self.sandboxes.get_mut(&id).ok_or_else(|| no_sandbox(id))?;
        (sandbox.stopped, sandbox.removal_begun) = (false, false);
        sandbox.details.pid = sandbox.details.pid.map(|_| pid);
        Ok(sandbox.details.clone())
    }

    pub(crate) fn begin_removal(&mut self, id: SandboxId) {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.removal_begun = true;
        }
    }

    pub(crate) fn remove_sandbox(&mut self, id: SandboxId) -> Result<()> {
        if let Some(task) = self.tasks.values().find(|task| task.sandbox == id) {
            let name = &task.meta.name;
            return Err(Error::failed_precondition(format!(
                "sandbox {id}: its task {name:?} still exists"
            )));
        }
        self.sandboxes.remove(&id);
        Ok(())
    }

    pub(crate) fn create_task(
        &mut self,
        id: TaskId,
        sandbox: SandboxId,
        spec: &TaskSpec,
    ) -> Result<TaskDetails> {
        let home = self
            .sandboxes
            .get(&sandbox)
            .ok_or_else(|| no_sandbox(sandbox))?;
        if home.stopped {
            return Err(Error::failed_precondition(format!(
                "sandbox {sandbox} is stopped"
            )));
        }
        let local = self.image_of(spec)?;
        spec.resources.check_memory()?;
        if spec.init && spec.pid != PidMode::Private {
            return Err(Error::invalid(
                "init",
                "it needs a process namespace of the task's own",
            ));
        }
        let volume_images = spec
            .mounts
            .iter()
            .filter_map(|mount| self.volume_image(mount))
            .collect();
        let project = self.project(spec, &local.image.volumes)?;
        let details = TaskDetails {
            project,
            image_volumes: local.describe().volumes,
            volume_images,
            image_id: local.id.clone(),
            image_ref: local.by_digest(),
            user: resolve(&spec.user, &local.image.user)?,
            stop_signal: spec
                .stop_signal
                .or(local.image.stop_signal)
                .unwrap_or(Signal::TERM),
            resources: spec.resources.clone(),
            throttles: Throttle::merged(&[], &spec.throttles),
            log_path: log_path(&spec.stdio.output),
            leases: spec.leases.clone(),
            compute: spec.compute,
            warnings: self.warnings.clone(),
        };
        let task = FakeTask {
            sandbox,
            meta: Arc::new(spec.meta.clone()),
            details: details.clone(),
            command_line: command_line(
                (&spec.command, &spec.args),
                (&local.image.entrypoint, &local.image.command),
            ),
            volumes: spec.mounts.iter().filter_map(volume).collect(),
            stdin_open: spec.stdio.stdin != Stdin::Closed,
            streams: TaskStreams::new(
                spec.stdio.stdin == Stdin::Once,
                spec.stdio.tty,
                matches!(spec.stdio.output, Output::Log(_) | Output::Live),
            ),
            state: TaskState::Created,
            program: Program::default(),
            end: watch::Sender::new(None),
            timer: None,
            annotations: spec.annotations.clone(),
            spec: spec.clone(),
            runtime_spec: String::new(),
            blockers: Vec::new(),
            reads: 0,
        };
        self.volumes.extend(
            task.volumes
                .iter()
                .map(|name| (spec.meta.owner, name.clone())),
        );
        self.tasks.insert(id, task);
        Ok(details)
    }

    /// The project of the directories of a new task.
    fn project(&self, spec: &TaskSpec, of_image: &[PathBuf]) -> Result<Option<ProjectId>> {
        let named = spec
            .mounts
            .iter()
            .filter(|mount| matches!(mount.source, MountSource::Volume { .. }));
        let places: Vec<_> = named
            .map(|mount| &mount.destination)
            .chain(of_image)
            .cloned()
            .collect();
        let parts = disk_parts(&spec.disk_limits, &places)?;
        Ok(parts.first().and_then(|part| match part.project {
            Project::Given(id) => Some(id),
            // No two existing tasks have the same number, at least in the tests of the fake.
            Project::New => {
                ProjectId::new(ProjectId::FIRST.number() + u32::try_from(self.tasks.len()).ok()?)
            }
        }))
    }

    /// Ends a running task.
    pub(crate) fn end(&mut self, id: TaskId, exit: Exit) -> Result<()> {
        let task = self.tasks.get_mut(&id).ok_or_else(|| no_task(id))?;
        if !task.state.is_running() {
            let word = task.state.as_str();
            return Err(Error::failed_precondition(format!(
                "task {id} is {word}, not running"
            )));
        }
        task.end(exit);
        Ok(())
    }

    pub(crate) fn signal(&mut self, id: TaskId, signal: Signal) {
        if let Some(task) = self.tasks.get_mut(&id)
            && task.state.is_running()
            && let Some(code) = task.program.ends_by(signal)
        {
            task.end(exited(code));
        }
    }

    pub(crate) fn remove_task(&mut self, id: TaskId) -> Result<()> {
        match self.tasks.get(&id) {
            Some(task) if task.state.is_running() => Err(Error::failed_precondition(format!(
                "task {id} runs: it cannot be removed"
            ))),
            Some(_) | None => {
                self.tasks.remove(&id);
                Ok(())
            }
        }
    }

    /// The image of a new task, which its owner may use.
    fn image_of(&self, spec: &TaskSpec) -> Result<&LocalImage> {
        self.images
            .find(&spec.image)
            .filter(|local| local.describe().is_open_to(spec.meta.owner))
            .ok_or_else(|| {
                Error::not_found(format!(
                    "image {:?} is not on this node: pull it first",
                    spec.image
                ))
            })
    }

    /// The image that a mount shows, if the node has it.
    fn volume_image(&self, mount: &Mount) -> Option<ImageId> {
        match &mount.source {
            MountSource::Image { reference, .. } => {
                self.images.find(reference).map(|local| local.id.clone())
            }
            MountSource::Host { .. }
            | MountSource::Beneath { .. }
            | MountSource::Volume { .. }
            | MountSource::Nfs { .. }
            | MountSource::Tmpfs { .. } => None,
        }
    }

    pub(crate) fn remove_volume(&mut self, owner: Owner, name: &str) -> Result<()> {
        if !is_volume_name(name) {
            return Err(Error::invalid(
                "volume",
                format!("{name:?} is no name of a volume"),
            ));
        }
        if let Some(id) = self.users(owner, name).first() {
            return Err(Error::failed_precondition(format!(
                "volume {name:?} is used by task {id}"
            )));
        }
        self.volumes.remove(&(owner, name.to_owned()));
        Ok(())
    }

    /// The tasks that have this volume.
    fn users(&self, owner: Owner, name: &str) -> Vec<TaskId> {
        let has = |task: &FakeTask| {
            task.meta.owner == owner && task.volumes.iter().any(|known| known == name)
        };
        self.tasks
            .iter()
            .filter(|(_, task)| has(task))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(crate) fn volumes(&self) -> Vec<NamedVolume> {
        let volume = |(owner, name): &(Owner, String)| {
            let tasks = self.users(*owner, name);
            NamedVolume {
                owner: *owner,
                name: name.clone(),
                created_at: None,
                tasks,
            }
        };
        let mut volumes: Vec<_> = self.volumes.iter().map(volume).collect();
        volumes.sort_by_key(|volume| volume.owner.as_str());
        volumes
    }

    pub(crate) fn update_task(&mut self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        let TaskUpdate {
            resources,
            annotations,
            throttles,
            compute,
        } = update;
        let task = self.tasks.get_mut(&id).ok_or_else(|| no_task(id))?;
        resources.check_memory()?;
        task.details.resources = resources.clone();
        task.details.throttles.clone_from(throttles);
        task.details.compute = compute.unwrap_or(task.details.compute);
        task.annotations.extend(annotations.clone());
        Ok(task.details.clone())
    }

    pub(crate) fn snapshot(&self) -> Recovered {
        let is_unreadable = |id: &str| self.unreadable.iter().any(|held| held.id == id);
        let sandboxes = self.sandboxes.iter().map(|(id, sandbox)| Sandbox {
            id: *id,
            meta: Arc::clone(&sandbox.meta),
            handler: sandbox.handler.clone(),
            details: sandbox.details.clone(),
            state: sandbox.state(),
        });
        let tasks = self.tasks.iter().map(|(id, task)| Task {
            id: *id,
            sandbox: task.sandbox,
            meta: Arc::clone(&task.meta),
            details: task.details.clone(),
            state: if self.pending_starts.contains_key(id) {
                TaskState::Unattended
            } else {
                task.state.clone()
            },
        });
        Recovered {
            sandboxes: sandboxes
                .filter(|sandbox| !is_unreadable(&sandbox.id.to_string()))
                .collect(),
            tasks: tasks
                .filter(|task| !is_unreadable(&task.id.to_string()))
                .collect(),
            removals: self.pending_removals(),
            remnants: Vec::new(),
            found_exits: Vec::new(),
            unreadable: self.unreadable.clone(),
        }
    }

    /// The sandboxes whose removal has begun.
    pub(crate) fn pending_removals(&self) -> Vec<SandboxId> {
        self.sandboxes
            .iter()
            .filter(|(_, sandbox)| sandbox.removal_begun)
            .map(|(id, _)| *id)
            .collect()
    }
}

/// Returns the file of a task's output, if it has one.
fn log_path(output: &Output) -> Option<PathBuf> {
    match output {
        Output::Log(path) => Some(path.clone()),
        Output::Discard | Output::Live | Output::Fifos { .. } => None,
    }
}

/// The volume of a mount.
fn volume(mount: &Mount) -> Option<String> {
    match &mount.source {
        MountSource::Volume { name, .. } => Some(name.clone()),
        MountSource::Host { .. }
        | MountSource::Beneath { .. }
        | MountSource::Image { .. }
        | MountSource::Nfs { .. }
        | MountSource::Tmpfs { .. } => None,
    }
}
