//! The status of the daemon: its parts, and all objects of the node.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use switchyard_core::backend::Advisory;
use switchyard_core::gateway::PullsByResult;
use switchyard_core::id::{LeaseToken, Owner, SandboxId};
use switchyard_core::names::Names;
use switchyard_core::state::TaskState;
use switchyard_core::table::{Counts, Sandbox, Task};
use switchyard_logkeeper::protocol::Stats;
use switchyard_swarm::SwarmNode;

use crate::managed::restart::{RestartError, RestartReport};
use crate::programs::ProgramView;

mod config;
mod containers;
mod devices;
mod events;
mod images;
mod inspection;
mod logs;
mod operations;
mod page;
mod plugins;
mod selection;
mod swarm;
mod time;
mod volumes;

pub use config::{ConfigView, RefusedReloadView, ReloadCounts};
pub use containers::{
    ContainerReading, ContainersView, SandboxTraffic, SandboxTrafficView, TaskUsage, TaskUsageView,
};
pub use devices::{
    AmountView, ComputeView, DevicesView, ExclusiveView, GroupView, HeldView, HolderView, PortView,
    RefusalView, ReservedView, SlotView,
};
pub use events::{EventPage, EventView};
pub use images::{ImageUserView, ImageView};
pub use inspection::{
    CommandView, Disclosure, ImageOfTaskView, Inspected, InspectionView, LeaseView, MountView, NetworkView,
    ReservationView, SecurityView, UserView, WithheldValues,
};
pub use logs::{LogView, TaskLogView};
pub use operations::{OperationView, StepView};
pub use page::PageLinkView;
pub use plugins::{ErrorView, HostView, PluginView};
pub use selection::{Candidate, ObjectId, OfSeveral, select};
pub use swarm::{DepartureView, SwarmView};
pub use time::rfc3339;
pub use volumes::VolumeView;

/// A part of the daemon, or a process it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name, one word.
    pub name: &'static str,
    /// Whether the node is not ready without it.
    pub needed: bool,
    /// Its condition.
    pub condition: Condition,
}

/// The condition of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It works; with a description.
    Up(String),
    /// It does not work; with the reason.
    Down(String),
}

impl Part {
    /// Whether it works.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.condition, Condition::Up(_))
    }

    /// Whether the node is not ready because of it.
    #[must_use]
    pub const fn blocks_readiness(&self) -> bool {
        self.needed && !self.is_up()
    }

    /// The description, or the reason why it does not work.
    #[must_use]
    pub fn detail(&self) -> &str {
        match &self.condition {
            Condition::Up(detail) | Condition::Down(detail) => detail,
        }
    }
}

/// The data source of the admin server. No method blocks on the component that it describes.
pub trait StatusSource: Send + Sync + 'static {
    /// The parts, in the order in which they come up. Takes a few seconds at most. It may be dropped at any time.
    fn parts(&self) -> BoxFuture<'_, Vec<Part>>;

    /// Programs whose versions have known vulnerabilities.
    fn advisories(&self) -> Vec<Advisory>;

    /// Sandboxes by owner and state.
    fn count_sandboxes(&self) -> Counts;

    /// Tasks by owner and state.
    fn count_tasks(&self) -> Counts;

    /// How many images there are; `None` if they cannot be counted now.
    fn count_images(&self) -> BoxFuture<'_, Option<u64>>;

    /// The number of image pulls that have ended, by result.
    fn count_pulls(&self) -> PullsByResult;

    /// The number of open sessions of exec, attach and port-forward, by kind; empty while they are not
    /// served.
    fn count_streaming(&self) -> Vec<(&'static str, u64)>;

    /// How many launchers of Nomad agents have a session; `None` while Nomad is not served.
    fn count_launchers(&self) -> Option<u64>;

    /// The node's part in a swarm; `None` if it may have none, or the daemon starts.
    fn swarm(&self) -> Option<&SwarmNode>;

    /// Vendors' device plugins and their failures; `None` while they are not hosted.
    fn plugins(&self) -> Option<switchyard_device_host::Report>;

    /// The logkeeper's counters; `None` if it does not answer.
    fn logs(&self) -> BoxFuture<'_, Option<Stats>>;

    /// All sandboxes and tasks, of all owners.
    fn objects(&self) -> Objects;

    /// All that is known of the sandbox or task that is meant by a name. It may be dropped at any time.
    fn inspect(
        &self,
        name: String,
        disclosure: Disclosure,
    ) -> BoxFuture<'_, switchyard_core::Result<InspectionView>>;

    /// The images, with their holders and users. It may be dropped at any time.
    fn images(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<ImageView>>>;

    /// The named volumes, with the tasks that have them.
    fn volumes(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<VolumeView>>>;

    /// Removes a named volume that no task has.
    fn remove_volume(&self, owner: Owner, name: String) -> BoxFuture<'_, switchyard_core::Result<()>>;

    /// Devices and host ports, with their holders.
    fn devices(&self) -> DevicesView;

    /// What people call the sandbox with this id; `None` if there is none.
    fn display_name(&self, sandbox: &str) -> Option<String>;

    /// The processes of this node that belong to Switchyard, with their programs; those that are not known now
    /// are left out.
    fn programs(&self) -> BoxFuture<'_, Vec<ProgramView>>;

    /// Restarts a part by its name; `None` if it cannot be restarted by itself.
    fn restart(&self, part: &str) -> Option<BoxFuture<'_, Result<RestartReport, RestartError>>>;

    /// Reads the metrics of all running containers. It may be dropped at any time.
    fn read_containers(&self) -> BoxFuture<'static, switchyard_core::Result<ContainerReading>>;

    /// Finds a task by the beginning of its id or by its name, and where its log is.
    fn task_log<'a>(&'a self, task: &'a str) -> BoxFuture<'a, switchyard_core::Result<TaskLogView>>;

    /// Ends a lease of devices that no sandbox uses.
    fn release_lease(&self, token: LeaseToken) -> BoxFuture<'_, switchyard_core::Result<()>>;
}

/// All sandboxes and tasks of the node, the content of `/v1/objects`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Sandboxes.
    pub sandboxes: Vec<SandboxView>,
    /// Tasks.
    pub tasks: Vec<TaskView>,
}

/// A sandbox, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxView {
    /// Its id.
    pub id: String,
    /// Who made it.
    pub owner: String,
    /// Under which name, as its owner requested it.
    pub name: String,
    /// What its owner's users call it, on one line.
    #[serde(default)]
    pub display_name: String,
    /// Its names, by label: its pod, job or the like.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// Its state, in one word.
    pub state: String,
    /// Its runtime handler; empty for the default.
    pub handler: String,
    /// Its addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// When it was asked for, as RFC 3339.
    pub created_at: String,
}

/// A task, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// The sandbox it belongs to.
    pub sandbox: String,
    /// Who made it.
    pub owner: String,
    /// Under which name, as its owner requested it.
    pub name: String,
    /// What its owner's users call it, on one line.
    #[serde(default)]
    pub display_name: String,
    /// Its names, by label: its container, task or the like.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// Its state, in one word.
    pub state: String,
    /// Its image.
    pub image: String,
    /// The pid of its main process, while it runs.
    pub pid: Option<u32>,
    /// Its exit code, if it has exited.
    pub exit_code: Option<i32>,
    /// When it was asked for, as RFC 3339.
    pub created_at: String,
}

/// The content of `/statusz` and `switchyard status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The build's version.
    pub version: String,
    /// The build's source revision.
    pub revision: String,
    /// The daemon's process id; on the unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When the daemon started, as RFC 3339.
    pub started_at: String,
    /// Whether all needed parts work.
    pub ready: bool,
    /// The parts.
    pub parts: Vec<PartView>,
    /// Sandboxes by owner and state.
    pub sandboxes: Vec<CountView>,
    /// Tasks by owner and state.
    pub tasks: Vec<CountView>,
    /// The number of images; `None` if they cannot be counted now.
    pub images: Option<u64>,
    /// Programs whose versions have known vulnerabilities, for information; only version numbers are
    /// compared.
    #[serde(default)]
    pub advisories: Vec<AdvisoryView>,
    /// The state of the configuration; on the unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigView>,
    /// The processes and whether their programs were replaced; on the unix socket only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramView>,
}

/// Known vulnerabilities of a program, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisoryView {
    /// The name of the program.
    pub program: String,
    /// Its version, as the program reports it.
    pub version: String,
    /// The names of the vulnerabilities.
    pub ids: Vec<String>,
}

impl From<Advisory> for AdvisoryView {
    fn from(Advisory { program, version, ids }: Advisory) -> Self {
        Self { program, version, ids }
    }
}

/// A part, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// Its name, one word.
    pub name: String,
    /// Whether it works.
    pub up: bool,
    /// Whether the node is not ready without it.
    pub needed: bool,
    /// Its description, or why it does not work; on the unix socket only.
    pub detail: String,
}

/// How many objects an owner has in one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountView {
    /// The owner.
    pub owner: String,
    /// The state.
    pub state: String,
    /// How many.
    pub count: u64,
}

impl Objects {
    /// The view of these objects, in the order in which people look for them. `names` gives the names of a
    /// sandbox, or of a task in it.
    #[must_use]
    pub fn of(
        sandboxes: &[Arc<Sandbox>],
        tasks: &[Arc<Task>],
        names: impl Fn(&Sandbox, Option<&Task>) -> Names,
    ) -> Self {
        let by_id: HashMap<SandboxId, &Arc<Sandbox>> =
            sandboxes.iter().map(|sandbox| (sandbox.id, sandbox)).collect();
        let names_of_task = |task: &Task| match by_id.get(&task.sandbox) {
            Some(sandbox) => names(sandbox, Some(task)),
            // The sandbox was removed while the lists were made.
            None => Names::new(&task.meta.name),
        };
        let mut sandboxes: Vec<_> =
            sandboxes.iter().map(|sandbox| sandbox_view(sandbox, &names(sandbox, None))).collect();
        let mut tasks: Vec<_> = tasks.iter().map(|task| task_view(task, &names_of_task(task))).collect();
        sandboxes.sort_by(|a, b| (&a.owner, &a.display_name, &a.id).cmp(&(&b.owner, &b.display_name, &b.id)));
        tasks.sort_by(|a, b| (&a.owner, &a.display_name, &a.id).cmp(&(&b.owner, &b.display_name, &b.id)));
        Self { sandboxes, tasks }
    }

    /// Those of one owner.
    #[must_use]
    pub fn of_owner(mut self, owner: Owner) -> Self {
        self.sandboxes.retain(|sandbox| sandbox.owner == owner.as_str());
        self.tasks.retain(|task| task.owner == owner.as_str());
        self
    }
}

fn sandbox_view(sandbox: &Sandbox, names: &Names) -> SandboxView {
    SandboxView {
        id: sandbox.id.to_string(),
        owner: sandbox.meta.owner.to_string(),
        name: sandbox.meta.name.clone(),
        display_name: names.to_string(),
        names: names_view(names),
        state: sandbox.state.as_str().into(),
        handler: sandbox.handler.clone(),
        ips: sandbox.details.ips.clone(),
        created_at: rfc3339(sandbox.meta.created_at),
    }
}

fn names_view(names: &Names) -> BTreeMap<String, String> {
    names.iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
}

fn task_view(task: &Task, names: &Names) -> TaskView {
    let (pid, exit_code) = match &task.state {
        TaskState::Running { pid, .. } | TaskState::Stopping { pid, .. } => (Some(*pid), None),
        TaskState::Exited { exit, .. } | TaskState::Removing { exit: Some(exit), .. } => {
            (None, Some(exit.code))
        }
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Removing { exit: None, .. } => (None, None),
    };
    TaskView {
        id: task.id.to_string(),
        sandbox: task.sandbox.to_string(),
        owner: task.meta.owner.to_string(),
        name: task.meta.name.clone(),
        display_name: names.to_string(),
        names: names_view(names),
        state: task.state.as_str().into(),
        image: task.details.image_ref.clone(),
        pid,
        exit_code,
        created_at: rfc3339(task.meta.created_at),
    }
}

/// The counts as a list, ordered by owner and state.
#[must_use]
pub fn count_views(counts: &Counts) -> Vec<CountView> {
    counts
        .iter()
        .map(|((owner, state), count)| CountView {
            owner: owner.to_string(),
            state: (*state).into(),
            count: *count,
        })
        .collect()
}
