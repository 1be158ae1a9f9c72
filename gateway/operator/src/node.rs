//! The node on the operator's pages: the objects of all owners, and the parts of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_core::backend::BackendStatus;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::gateway::Gateway;
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::operation::OperationInFlight;
use switchyard_core::table::Counts;
use switchyard_core::{Error, Result, threads};
use switchyard_linux::host_features::HostFeatures;
use switchyard_logkeeper::Client;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator_api::programs::{self, ProgramView};
use switchyard_operator_api::{
    DevicesView, Disclosure, ExecRequest, ImageLeaseView, ImageView, InspectionView, Objects,
    RemovedImageView, TaskLogView, VERSION, VolumeView,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::blockers;
use crate::container_metrics::{self, ContainerReading};
use crate::control::{PluginHost, Reporter, RestartableProcess, SwarmControl};
use crate::exec_session::ExecSession;
use crate::images;
use crate::inspect;
use crate::metrics::ReportedFigures;
use crate::owners::Owners;
use crate::status::Part;
use crate::task_logs;

mod backend_parts;
mod debug;
mod resources;
mod troubles;

use resources::NodeResources;

/// Time for the examination of the programs' files.
const PROGRAMS_LIMIT: Duration = Duration::from_secs(2);

/// Time for the logkeeper's counters.
const LOGS_LIMIT: Duration = Duration::from_secs(2);

/// A node, for the pages. No method blocks on the component that it describes.
#[derive(Debug)]
pub struct Node {
    sources: NodeSources,
    /// For queries of the files of programs, and of processes.
    files: BlockingPool,
    resources: NodeResources,
}

/// The sources of the pages.
pub struct NodeSources {
    /// The objects of all owners, devices and images.
    pub gateway: Gateway,
    /// The frontends' knowledge of these objects.
    pub owners: Owners,
    /// The client of the logkeeper.
    pub logs: Client,
    /// Error of the last failed recovery; `None` before one has failed.
    pub recovery_error: watch::Receiver<Option<String>>,
    /// The processes that the daemon needs, in the order of display.
    pub processes: Vec<Arc<dyn RestartableProcess>>,
    /// All other components that report, in the order of display. They come after the processes and the backend.
    pub reporters: Vec<Arc<dyn Reporter>>,
    /// Vendors' device plugins.
    pub plugins: Arc<dyn PluginHost>,
    /// The node's part in a swarm; `None` if the configuration allows none.
    pub swarm: Option<Arc<dyn SwarmControl>>,
    /// Features that the kernel and the node offer to the daemon.
    pub features: HostFeatures,
}

impl std::fmt::Debug for NodeSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSources").finish_non_exhaustive()
    }
}

// === impl Node ===

impl Node {
    /// The node with these components.
    #[must_use]
    pub fn new(sources: NodeSources) -> Self {
        Self {
            sources,
            files: BlockingPool::new(threads::FILES_POOL, PROGRAMS_LIMIT),
            resources: NodeResources::new(),
        }
    }

    fn gateway(&self) -> &Gateway {
        &self.sources.gateway
    }

    /// The parts, in the order in which they come up. Takes a few seconds at most. It may be dropped at any time.
    pub async fn parts(&self) -> Vec<Part> {
        let NodeSources {
            gateway,
            recovery_error,
            processes,
            reporters,
            ..
        } = &self.sources;
        // The backend comes first, since it may take a moment: the others report how they are after that.
        let backend = backend_parts::read(gateway, recovery_error).await;
        let mut parts: Vec<_> = processes
            .iter()
            .flat_map(|process| process.parts())
            .collect();
        parts.extend(backend);
        parts.extend(reporters.iter().flat_map(|reporter| reporter.parts()));
        parts
    }

    /// The figures of the components that report.
    #[must_use]
    pub fn figures(&self) -> ReportedFigures {
        let mut figures = ReportedFigures::default();
        for reporter in &self.sources.reporters {
            reporter.count(&mut figures);
        }
        figures
    }

    /// Returns the features that the kernel and the node offer to the daemon.
    #[must_use]
    pub const fn features(&self) -> &HostFeatures {
        &self.sources.features
    }

    /// The health of the backend, as it is known.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.gateway().status()
    }

    /// The number of tasks of each owner that were sent SIGKILL and have not ended in time.
    #[must_use]
    pub fn count_unended(&self) -> BTreeMap<Owner, u64> {
        self.gateway().tasks().count_unended()
    }

    /// Sandboxes by owner and state.
    #[must_use]
    pub fn count_sandboxes(&self) -> Counts {
        self.gateway().sandboxes().count()
    }

    /// Tasks by owner and state.
    #[must_use]
    pub fn count_tasks(&self) -> Counts {
        self.gateway().tasks().count()
    }

    /// The number of images; `None` before recovery, or if they cannot be listed now.
    pub async fn count_images(&self) -> Option<u64> {
        if !self.gateway().is_recovered() {
            return None;
        }
        match self.gateway().images().store().list().await {
            Ok(images) => u64::try_from(images.len()).ok(),
            Err(error) => {
                tracing::debug!(error = error.report(), "images cannot be counted");
                None
            }
        }
    }

    /// The node's part in a swarm; `None` if the configuration allows none.
    #[must_use]
    pub fn swarm(&self) -> Option<&dyn SwarmControl> {
        self.sources.swarm.as_deref()
    }

    /// The logkeeper's counters; `None` if it does not answer soon.
    pub async fn log_figures(&self) -> Option<Stats> {
        match timeout(LOGS_LIMIT, self.sources.logs.stats()).await.ok()? {
            Ok(stats) => Some(stats),
            Err(error) => {
                tracing::debug!(%error, "cannot query the logkeeper's counters");
                None
            }
        }
    }

    /// The number of objects that cannot be read; 0 before recovery.
    #[must_use]
    pub fn count_unreadable(&self) -> u64 {
        u64::try_from(self.gateway().unreadable().len()).unwrap_or(u64::MAX)
    }

    /// All sandboxes and tasks, of all owners; none before recovery.
    #[must_use]
    pub fn objects(&self) -> Objects {
        let mut sandboxes = Vec::new();
        let mut tasks = Vec::new();
        for scope in Owner::ALL.map(|owner| self.gateway().scope(owner)) {
            // The tasks come first: then the sandboxes of new ones are in the list.
            tasks.extend(scope.tasks().list().unwrap_or_default());
            sandboxes.extend(scope.sandboxes().list().unwrap_or_default());
        }
        Objects::of(&sandboxes, &tasks, |sandbox, task| {
            self.sources.owners.names(sandbox, task)
        })
        .with_unreadable(&self.gateway().unreadable())
    }

    /// All that is known of the sandbox or task that is meant by a name. It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`inspect::read`].
    pub async fn inspect(&self, name: &str, disclosure: Disclosure) -> Result<InspectionView> {
        let (view, logs) = tokio::join!(
            inspect::read(self.gateway(), &self.sources.owners, name, disclosure),
            self.log_figures()
        );
        let view = view?;
        Ok(InspectionView {
            slow_log: logs.and_then(|logs| troubles::slow_log(&logs, &view.id)),
            ..view
        })
    }

    /// The processes that hold up operations which take long, by the numbers of these. Takes a few seconds at most. It may be
    /// dropped at any time.
    pub async fn blockers(&self, operations: &[OperationInFlight]) -> BTreeMap<u64, Vec<String>> {
        blockers::of_operations(self.gateway(), operations).await
    }

    /// The images, with their holders and users. It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`inspect::images`].
    pub async fn images(&self) -> Result<Vec<ImageView>> {
        inspect::images(self.gateway()).await
    }

    /// The images that an owner holds and none of its tasks uses. It may be dropped at any time.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the images cannot be listed.
    pub async fn unused_images(&self, owner: Owner) -> Result<Vec<ImageView>> {
        images::unused(self.gateway(), owner).await
    }

    /// Releases an owner's hold on an image that none of its tasks uses. If it is dropped, the removal continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if only others hold it, or tasks of this owner use it; otherwise those of the removal.
    pub async fn remove_image(&self, owner: Owner, name: &str) -> Result<RemovedImageView> {
        images::remove(self.gateway(), owner, name).await
    }

    /// The leases that keep layers and documents without an image. It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`inspect::image_leases`].
    pub async fn image_leases(&self) -> Result<Vec<ImageLeaseView>> {
        inspect::image_leases(self.gateway()).await
    }

    /// The named volumes, with the tasks that have them.
    ///
    /// # Errors
    /// Those of [`Volumes::list`](switchyard_core::gateway::Volumes::list).
    pub async fn volumes(&self) -> Result<Vec<VolumeView>> {
        Ok(self
            .gateway()
            .volumes()
            .list()
            .await?
            .into_iter()
            .map(VolumeView::from)
            .collect())
    }

    /// Removes a named volume that no task has. If it is dropped, the removal continues.
    ///
    /// # Errors
    /// `NotFound` if the owner has no such volume; otherwise those of the removal.
    pub async fn remove_volume(&self, owner: Owner, name: String) -> Result<()> {
        // The removal of one that does not exist succeeds, and the name may be misspelt.
        let volumes = self.gateway().volumes().list().await?;
        if !volumes
            .iter()
            .any(|volume| volume.owner == owner && volume.name == name)
        {
            let why = format!("{owner} has no volume {name:?}: `switchyard volume ls` lists them");
            return Err(Error::not_found(why));
        }
        self.gateway().scope(owner).volumes().remove(name).await
    }

    /// Devices and host ports, with the names that people give their holders.
    #[must_use]
    pub fn named_devices(&self) -> DevicesView {
        self.devices()
            .with_display_names(|sandbox| self.display_name(sandbox))
    }

    /// Devices and host ports, with their holders.
    #[must_use]
    pub fn devices(&self) -> DevicesView {
        let report = self.gateway().claims().report();
        DevicesView::of(&report, self.sources.plugins.view())
            .with_dynamic(&self.gateway().devices().dynamic())
    }

    /// The display name of the sandbox with this id; `None` if there is none.
    fn display_name(&self, sandbox: &str) -> Option<String> {
        let id = sandbox.parse().ok()?;
        let mut found = Owner::ALL
            .into_iter()
            .filter_map(|owner| self.gateway().scope(owner).sandboxes().by_id(id).ok());
        found
            .next()
            .map(|sandbox| self.sources.owners.names(&sandbox, None).to_string())
    }

    /// The processes of this node that belong to Switchyard, with their programs; those that are not known now
    /// are left out.
    pub async fn programs(&self) -> Vec<ProgramView> {
        let own = i32::try_from(std::process::id())
            .ok()
            .map(|pid| ("daemon", pid, Some(VERSION.to_owned()), None));
        let needed = self.sources.processes.iter().filter_map(|process| {
            let current = process.is_configuration_current();
            Some((process.name(), process.pid()?, process.version(), current))
        });
        let processes: Vec<_> = own.into_iter().chain(needed).collect();
        let look = move || {
            let seen =
                processes
                    .into_iter()
                    .filter_map(|(part, pid, version, configuration_current)| {
                        Some(ProgramView {
                            version,
                            configuration_current,
                            ..programs::of_process(part, pid)?
                        })
                    });
            Ok(seen.collect())
        };
        self.files
            .run("the programs of the daemon".to_owned(), look)
            .await
            .unwrap_or_else(|error| {
                tracing::debug!(
                    error = error.report(),
                    "the files of programs cannot be compared"
                );
                Vec::new()
            })
    }

    /// The process with this name; `None` if the daemon needs none of that name, or cannot restart it.
    #[must_use]
    pub fn process(&self, name: &str) -> Option<&dyn RestartableProcess> {
        self.sources
            .processes
            .iter()
            .map(AsRef::as_ref)
            .find(|process| process.name() == name)
    }

    /// Reads the metrics of all running containers, those of each owner within `limit`. It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`container_metrics::read`].
    pub fn read_containers(&self, limit: Duration) -> BoxFuture<'static, Result<ContainerReading>> {
        let gateway = self.gateway().clone();
        let owners = self.sources.owners;
        Box::pin(async move { container_metrics::read(&gateway, &owners, limit).await })
    }

    /// Finds a task by the beginning of its id or by its name, and where its log is.
    ///
    /// # Errors
    /// Those of [`task_logs::find`].
    pub async fn task_log(&self, task: &str) -> Result<TaskLogView> {
        let NodeSources {
            gateway,
            owners,
            logs,
            ..
        } = &self.sources;
        task_logs::find(gateway, owners, logs, task).await
    }

    /// Runs a command in a task of any owner.
    ///
    /// # Errors
    /// Those of [`ExecSession::start`].
    pub(crate) async fn exec(&self, request: ExecRequest) -> Result<ExecSession> {
        ExecSession::start(self.gateway(), &self.sources.owners, request).await
    }

    /// Ends a lease of devices that no sandbox uses.
    ///
    /// # Errors
    /// Those of [`DeviceLeases::release_lease`](switchyard_core::gateway::DeviceLeases::release_lease).
    pub async fn release_lease(&self, token: LeaseToken) -> Result<()> {
        self.gateway().devices().release_lease(token).await
    }
}
