//! What the admin server shows: the parts of the daemon with their conditions, and where everything else comes from.

use std::time::SystemTime;

use futures::future::BoxFuture;
use switchyard_core::backend::Advisory;
use switchyard_core::gateway::PullsByResult;
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::table::Counts;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::{
    DevicesView, Disclosure, ImageView, InspectionView, Objects, RestartReport, TaskLogView, VolumeView,
};

use crate::container_metrics::ContainerReading;
use crate::control::{RestartError, SwarmControl};
use crate::metrics::PluginFigures;

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
    fn swarm(&self) -> Option<&dyn SwarmControl>;

    /// Whether the configuration lets this node take part in a swarm.
    fn is_swarm_enabled(&self) -> bool;

    /// Vendors' device plugins and their failures; `None` while they are not hosted.
    fn plugins(&self) -> Option<PluginFigures>;

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

/// The numbers of reloads, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadCounts {
    /// How many took effect.
    pub applied: u64,
    /// How many were refused.
    pub refused: u64,
    /// Whether the last one took effect, or there was none.
    pub is_last_applied: bool,
    /// When the files were last read and accepted.
    pub loaded_at: SystemTime,
    /// How many changes wait for something else than a reload.
    pub pending: usize,
}
