//! The daemon's parts and their conditions, as the admin pages show them.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use switchyard_core::backend::{Advisory, Condition as BackendCondition};
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::gateway::{Gateway, PullsByResult};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::table::Counts;
use switchyard_core::threads;
use switchyard_device_host::{Hosted, PluginState, Report};
use switchyard_device_plugin::Registrations;
use switchyard_logkeeper::Client;
use switchyard_logkeeper::protocol::Stats;
use switchyard_nomad::Launchers;
use switchyard_operator::container_metrics;
use switchyard_operator::container_metrics::ContainerReading;
use switchyard_operator::control::{RestartError, SwarmControl};
use switchyard_operator::inspect;
use switchyard_operator::metrics::PluginFigures;
use switchyard_operator::owners::Owners;
use switchyard_operator::status::{Condition, Part, StatusSource};
use switchyard_operator::task_logs;
use switchyard_operator_api::RestartReport;
use switchyard_operator_api::programs::{self, ProgramView};
use switchyard_operator_api::{
    DevicesView, Disclosure, ImageView, InspectionView, Objects, TaskLogView, VolumeView,
};
use switchyard_streaming::Sessions;
use switchyard_swarm::SwarmNode;
use tokio::sync::watch;

use crate::managed::State;
use crate::managed::restart::Restarter;

pub mod plugins;
pub mod swarm;

use swarm::SwarmHandle;

/// How long the files of programs may take to be looked at.
const PROGRAMS_LIMIT: Duration = Duration::from_secs(2);

/// The parts of a running daemon. It exists before the parts, which are set as they come up.
#[derive(Debug)]
pub struct Node {
    containerd: Option<watch::Receiver<State>>,
    logkeeper: watch::Receiver<State>,
    restarters: Vec<Restarter>,
    /// For queries of the files of programs.
    files: BlockingPool,
    logs: Client,
    owners: Owners,
    gateway: OnceLock<Gateway>,
    /// Why the last attempt to recover has failed.
    recovery_fault: RwLock<Option<String>>,
    frontends: Vec<(&'static str, AtomicBool)>,
    streaming: OnceLock<StreamingEndpoint>,
    launchers: OnceLock<Launchers>,
    kubelet_devices: RwLock<Option<Registrations>>,
    hosted: RwLock<Option<Hosted>>,
    swarm: OnceLock<SwarmHandle>,
    is_swarm_enabled: bool,
}

/// The streaming server: its address and its sessions.
#[derive(Debug)]
struct StreamingEndpoint {
    address: SocketAddr,
    sessions: Sessions,
}

impl Node {
    /// A daemon without any part yet. `containerd` is the managed one; `logs` is the client of the logkeeper;
    /// `frontends` are the names of the frontends that will be served, and `restarters` the processes that can
    /// be restarted.
    #[must_use]
    pub fn new(
        containerd: Option<watch::Receiver<State>>,
        logkeeper: watch::Receiver<State>,
        logs: Client,
        owners: Owners,
        frontends: &[&'static str],
        restarters: Vec<Restarter>,
        is_swarm_enabled: bool,
    ) -> Self {
        Self {
            containerd,
            logkeeper,
            restarters,
            files: BlockingPool::new(threads::FILES_POOL, PROGRAMS_LIMIT),
            logs,
            owners,
            gateway: OnceLock::new(),
            recovery_fault: RwLock::default(),
            frontends: frontends.iter().map(|name| (*name, AtomicBool::default())).collect(),
            streaming: OnceLock::new(),
            launchers: OnceLock::new(),
            kubelet_devices: RwLock::default(),
            hosted: RwLock::default(),
            swarm: OnceLock::new(),
            is_swarm_enabled,
        }
    }

    /// Sets the gateway, once.
    pub fn set_gateway(&self, gateway: Gateway) {
        // A daemon has one gateway.
        let _ = self.gateway.set(gateway);
    }

    /// Sets why an attempt to recover has failed; it is tried again.
    pub fn set_recovery_fault(&self, why: &str) {
        *self.recovery_fault.write() = Some(why.to_owned());
    }

    fn gateway(&self) -> switchyard_core::Result<&Gateway> {
        let gateway = self.gateway.get();
        gateway.ok_or_else(|| switchyard_core::Error::unavailable("the daemon is starting: try again"))
    }

    /// Sets the address and the sessions of the streaming server, once.
    pub fn set_streaming(&self, address: SocketAddr, sessions: Sessions) {
        // A daemon has one streaming server.
        let _ = self.streaming.set(StreamingEndpoint { address, sessions });
    }

    /// Sets the counter of launchers of Nomad agents, once.
    pub fn set_launchers(&self, launchers: Launchers) {
        // A daemon has one such frontend.
        let _ = self.launchers.set(launchers);
    }

    /// Sets the counter of resources that are offered to a kubelet; `None` while none is.
    pub fn set_kubelet_devices(&self, registrations: Option<Registrations>) {
        *self.kubelet_devices.write() = registrations;
    }

    /// Sets the registration host of vendors' device plugins; `None` while they cannot register.
    pub fn set_hosted(&self, hosted: Option<Hosted>) {
        *self.hosted.write() = hosted;
    }

    fn hosted_report(&self) -> Option<Report> {
        self.hosted.read().as_ref().map(Hosted::report)
    }

    /// Sets the node's part in a swarm, once.
    pub fn set_swarm(&self, swarm: SwarmNode) {
        // A daemon has one.
        let _ = self.swarm.set(SwarmHandle::new(swarm));
    }

    /// Sets whether a frontend is served.
    pub fn set_serving(&self, frontend: &str, serving: bool) {
        for (_, served) in self.frontends.iter().filter(|(name, _)| *name == frontend) {
            served.store(serving, Ordering::Release);
        }
    }

    fn frontend(&self, name: &'static str, served: &AtomicBool) -> Part {
        let condition = match (served.load(Ordering::Acquire), self.count_launchers()) {
            (false, _) => Condition::Down("is not served yet, or not any more".into()),
            (true, Some(launchers)) if name == "nomad" => {
                Condition::Up(format!("serving {launchers} launchers"))
            }
            (true, _) => Condition::Up("serving".into()),
        };
        needed(name, condition)
    }

    async fn backend_parts(&self) -> Vec<Part> {
        let missing = || Condition::Down("is being connected".into());
        let Some(gateway) = self.gateway.get() else {
            return vec![
                needed("runtime", missing()),
                optional("network", missing()),
                optional("disk", missing()),
                needed("recovery", missing()),
                optional("devices", missing()),
            ];
        };
        let status = gateway.fresh_status().await;
        let recovery = if gateway.is_recovered() {
            Condition::Up("done".into())
        } else {
            let fault = self.recovery_fault.read().clone();
            Condition::Down(fault.unwrap_or_else(|| "what a predecessor left is being recovered".to_owned()))
        };
        let mut parts = vec![
            needed("runtime", condition(status.runtime, status.version)),
            // Not needed: pods with the host's network must be able to start without it, since they install
            // the network.
            optional("network", condition(status.network, "configured".into())),
            // Not needed: a kubelet whose runtime is not ready stops and removes no containers, which would
            // free space.
            optional("disk", condition(status.disk, "can be written and has space".into())),
            needed("recovery", recovery),
            // Not needed: containers without devices can be created without it.
            optional("devices", devices(gateway)),
        ];
        parts.extend(snapshotters(status.snapshotters));
        parts
    }
}

impl StatusSource for Node {
    fn parts(&self) -> BoxFuture<'_, Vec<Part>> {
        Box::pin(async {
            // First, since it may take a moment: the rest is told as it is then.
            let backend = self.backend_parts().await;
            let mut parts = Vec::new();
            if let Some(containerd) = &self.containerd {
                parts.push(needed("containerd", containerd.borrow().condition()));
            }
            parts.push(needed("logkeeper", self.logkeeper.borrow().condition()));
            parts.extend(backend);
            parts.extend(self.kubelet_devices.read().as_ref().and_then(kubelet_devices));
            parts.extend(self.hosted_report().map(|report| device_plugins(&report)));
            for (name, served) in &self.frontends {
                parts.push(self.frontend(name, served));
                if *name == "cri" {
                    let streaming = match self.streaming.get() {
                        Some(served) => Condition::Up(format!("serving on {}", served.address)),
                        None => Condition::Down("is not served yet".into()),
                    };
                    parts.push(needed("streaming", streaming));
                }
            }
            parts.extend(self.swarm.get().and_then(|swarm| swarm::part(&swarm.status())));
            parts
        })
    }

    fn advisories(&self) -> Vec<Advisory> {
        self.gateway.get().map(|gateway| gateway.status().advisories).unwrap_or_default()
    }

    fn count_pulls(&self) -> PullsByResult {
        self.gateway.get().map(Gateway::count_pulls).unwrap_or_default()
    }

    fn count_sandboxes(&self) -> Counts {
        self.gateway.get().map(Gateway::count_sandboxes).unwrap_or_default()
    }

    fn count_tasks(&self) -> Counts {
        self.gateway.get().map(Gateway::count_tasks).unwrap_or_default()
    }

    fn count_images(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(async {
            let gateway = self.gateway.get().filter(|gateway| gateway.is_recovered())?;
            match gateway.images().list().await {
                Ok(images) => u64::try_from(images.len()).ok(),
                Err(error) => {
                    tracing::debug!(error = error.report(), "images cannot be counted");
                    None
                }
            }
        })
    }

    fn count_streaming(&self) -> Vec<(&'static str, u64)> {
        self.streaming.get().map(|served| served.sessions.open().to_vec()).unwrap_or_default()
    }

    fn count_launchers(&self) -> Option<u64> {
        self.launchers.get().and_then(|launchers| u64::try_from(launchers.count()).ok())
    }

    fn swarm(&self) -> Option<&dyn SwarmControl> {
        self.swarm.get().map(|swarm| swarm as _)
    }

    fn is_swarm_enabled(&self) -> bool {
        self.is_swarm_enabled
    }

    fn plugins(&self) -> Option<PluginFigures> {
        self.hosted_report().map(|report| plugins::figures(&report))
    }

    fn logs(&self) -> BoxFuture<'_, Option<Stats>> {
        Box::pin(async {
            match self.logs.stats().await {
                Ok(stats) => Some(stats),
                Err(error) => {
                    tracing::debug!(%error, "cannot query the logkeeper's counters");
                    None
                }
            }
        })
    }

    fn objects(&self) -> Objects {
        let Some(gateway) = self.gateway.get() else { return Objects::default() };
        let mut sandboxes = Vec::new();
        let mut tasks = Vec::new();
        for scope in Owner::ALL.map(|owner| gateway.scope(owner)) {
            // Before recovery nothing is known, so nothing is shown. The tasks come first: then the sandboxes
            // of new ones are in the list.
            tasks.extend(scope.tasks().unwrap_or_default());
            sandboxes.extend(scope.sandboxes().unwrap_or_default());
        }
        Objects::of(&sandboxes, &tasks, |sandbox, task| self.owners.names(sandbox, task))
    }

    fn inspect(
        &self,
        name: String,
        disclosure: Disclosure,
    ) -> BoxFuture<'_, switchyard_core::Result<InspectionView>> {
        Box::pin(async move { inspect::read(self.gateway()?, &self.owners, &name, disclosure).await })
    }

    fn images(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<ImageView>>> {
        Box::pin(async move { inspect::images(self.gateway()?).await })
    }

    fn volumes(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<VolumeView>>> {
        Box::pin(
            async move { Ok(self.gateway()?.volumes().await?.into_iter().map(VolumeView::from).collect()) },
        )
    }

    fn remove_volume(&self, owner: Owner, name: String) -> BoxFuture<'_, switchyard_core::Result<()>> {
        Box::pin(async move {
            let gateway = self.gateway()?;
            // The removal of one that does not exist succeeds, and the name may be misspelt.
            if !gateway.volumes().await?.iter().any(|volume| volume.owner == owner && volume.name == name) {
                let why = format!("{owner} has no volume {name:?}: `switchyard volume ls` lists them");
                return Err(switchyard_core::Error::not_found(why));
            }
            gateway.scope(owner).remove_volume(name).await
        })
    }

    fn devices(&self) -> DevicesView {
        let report = self.gateway.get().map(Gateway::ledger_report);
        report
            .map(|report| DevicesView::of(&report, self.hosted_report().map(plugins::view)))
            .unwrap_or_default()
    }

    fn display_name(&self, sandbox: &str) -> Option<String> {
        let gateway = self.gateway.get()?;
        let id = sandbox.parse().ok()?;
        let mut found =
            Owner::ALL.into_iter().filter_map(|owner| gateway.scope(owner).sandbox_by_id(id).ok());
        found.next().map(|sandbox| self.owners.names(&sandbox, None).to_string())
    }

    fn programs(&self) -> BoxFuture<'_, Vec<ProgramView>> {
        Box::pin(async {
            let own = i32::try_from(std::process::id()).ok().map(|pid| ("daemon", pid));
            let others = self.restarters.iter().filter_map(|part| Some((part.name(), part.process()?.pid)));
            let processes: Vec<_> = own.into_iter().chain(others).collect();
            let look = move || {
                let seen = processes.into_iter().filter_map(|(part, pid)| programs::of_process(part, pid));
                Ok(seen.collect())
            };
            self.files.run("the programs of the daemon".to_owned(), look).await.unwrap_or_else(|error| {
                tracing::debug!(error = error.report(), "the files of programs cannot be compared");
                Vec::new()
            })
        })
    }

    fn restart(&self, part: &str) -> Option<BoxFuture<'_, Result<RestartReport, RestartError>>> {
        let part = self.restarters.iter().find(|restarter| restarter.name() == part)?;
        Some(Box::pin(part.restart()))
    }

    fn task_log<'a>(&'a self, task: &'a str) -> BoxFuture<'a, switchyard_core::Result<TaskLogView>> {
        Box::pin(async move {
            match self.gateway.get() {
                Some(gateway) => task_logs::find(gateway, &self.owners, &self.logs, task).await,
                None => Err(switchyard_core::Error::unavailable("the daemon is starting: try again")),
            }
        })
    }

    fn read_containers(&self) -> BoxFuture<'static, switchyard_core::Result<ContainerReading>> {
        let gateway = self.gateway.get().cloned();
        let owners = self.owners.clone();
        Box::pin(async move {
            match &gateway {
                Some(gateway) => container_metrics::read(gateway, &owners).await,
                None => Err(switchyard_core::Error::unavailable("the daemon is starting: try again")),
            }
        })
    }

    fn release_lease(&self, token: LeaseToken) -> BoxFuture<'_, switchyard_core::Result<()>> {
        Box::pin(async move { self.gateway()?.release_lease(token).await })
    }
}

/// Whether devices can be allocated.
fn devices(gateway: &Gateway) -> Condition {
    match (gateway.is_ledger_recovered(), gateway.is_recovered()) {
        (true, _) => Condition::Up("can be given out".into()),
        (false, false) => Condition::Down("it is not known yet which were given out before".into()),
        (false, true) => Condition::Down(
            "the leases of before cannot be read, so that none is given out: see the log".into(),
        ),
    }
}

/// Whether a kubelet has registered the offered resources; `None` if none is offered.
fn kubelet_devices(registrations: &Registrations) -> Option<Part> {
    let offered = registrations.resources();
    let followed = registrations.followed();
    let condition = match (offered, followed) {
        (0, _) => return None,
        (_, 0) => Condition::Down(format!("no kubelet follows any of {offered} resources")),
        (_, _) if followed < offered => {
            Condition::Down(format!("a kubelet follows {followed} of {offered} resources"))
        }
        (_, _) => Condition::Up(format!("a kubelet follows {offered} resources")),
    };
    // Not needed: the node may have no kubelet at the moment.
    Some(optional("kubelet devices", condition))
}

/// Whether vendors' device plugins can register, and the registered ones are connected.
fn device_plugins(report: &Report) -> Part {
    let away = report.plugins.iter().filter(|plugin| plugin.state != PluginState::Connected);
    let away: Vec<_> =
        away.map(|plugin| format!("{} ({})", plugin.resource, plugin.state.as_str())).collect();
    let condition = match &report.fault {
        Some(fault) => Condition::Down(format!("none can register: {fault}")),
        None if away.is_empty() => Condition::Up(format!("{} connected", report.plugins.len())),
        None => Condition::Down(format!(
            "{} of {} not connected: {}",
            away.len(),
            report.plugins.len(),
            away.join(", ")
        )),
    };
    // Not needed: tasks without their devices can be created without it.
    optional("device plugins", condition)
}

const fn needed(name: &'static str, condition: Condition) -> Part {
    Part { name, needed: true, condition }
}

/// The part of snapshotters that do not answer, if there are any. Not needed: all handlers with another
/// snapshotter work without them.
fn snapshotters(backend: BackendCondition) -> Option<Part> {
    let is_down = backend != BackendCondition::True;
    is_down.then(|| optional("snapshotters", condition(backend, String::new())))
}

const fn optional(name: &'static str, condition: Condition) -> Part {
    Part { name, needed: false, condition }
}

fn condition(backend: BackendCondition, detail: String) -> Condition {
    match backend {
        BackendCondition::True => Condition::Up(detail),
        BackendCondition::False { reason, message } => Condition::Down(format!("{reason}: {message}")),
    }
}
