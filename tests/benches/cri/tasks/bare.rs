//! A bare container: created and started over containerd's own API, with no call more than that takes.
//!
//! It copies one of our containers, which is inspected once: its runtime and, for another place, its spec.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use containerd_client::services::v1 as api;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::types::v1::Status as TaskStatus;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use prost_types::Any;
use serde_json::{Value, json};
use switchyard_tests::host::random_name;
use tonic::Status;
use tonic::transport::Channel;

use super::cni::Cni;
use super::nomad::TaskNetwork;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::side::{SNAPSHOTTER, scoped};

/// Limit for a killed process to end.
const END: Duration = Duration::from_secs(20);

/// The bare way. Clones share its connection.
#[derive(Clone, Debug)]
pub(crate) struct BareContainerd {
    /// The containerd namespace of its containers.
    namespace: &'static str,
    containers: ContainersClient<Channel>,
    snapshots: SnapshotsClient<Channel>,
    tasks: TasksClient<Channel>,
    model: ModelContainer,
    cni: Cni,
    /// Directory in which namespaces are pinned.
    dir: PathBuf,
}

/// The container of ours that bare ones are modelled on.
#[derive(Clone, Debug)]
pub(crate) struct ModelContainer {
    spec: Value,
    spec_type: String,
    runtime: api::container::Runtime,
    /// The snapshot below its own.
    top: String,
}

/// The place in which a container is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarePlace<'a> {
    pub(crate) network: TaskNetwork,
    /// FIFOs that somebody has open.
    pub(crate) stdout: &'a str,
    pub(crate) stderr: &'a str,
}

/// A container that runs.
#[derive(Debug)]
pub(crate) struct BareContainer {
    id: String,
    /// The file that holds its network namespace, the port it has, and what the plugins gave, if it has one.
    network: Option<(PathBuf, u16, Value)>,
}

// === impl BareContainerd ===

impl BareContainerd {
    /// Looks at the container of a task of ours that runs: the one in the namespace `ours` that `is_model` names. `dir`
    /// is a directory of its own.
    pub(crate) async fn modelled_on(
        core: Channel,
        namespaces: Pair<&'static str>,
        is_model: impl Fn(&api::Container) -> bool,
        cni: Cni,
        dir: PathBuf,
    ) -> Result<Self, Failure> {
        let mut containers = ContainersClient::new(core.clone());
        let mut snapshots = SnapshotsClient::new(core.clone());
        let all = containers
            .list(scoped(
                namespaces.ours,
                api::ListContainersRequest::default(),
            ))
            .await?;
        let mut all = all.into_inner().containers.into_iter();
        let found = all.find(|one| !one.snapshot_key.is_empty() && is_model(one));
        let found =
            found.ok_or_else(|| format!("{} has no container of the model", namespaces.ours))?;
        let key = found.snapshot_key.clone();
        let request = snap::StatSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key,
        };
        let stat = snapshots
            .stat(scoped(namespaces.ours, request))
            .await?
            .into_inner();
        let spec = found.spec.ok_or("the container has no spec")?;
        let model = ModelContainer {
            spec: serde_json::from_slice(&spec.value)?,
            spec_type: spec.type_url,
            runtime: found.runtime.ok_or("the container has no runtime")?,
            top: stat.info.ok_or("the snapshot is not reported")?.parent,
        };
        std::fs::create_dir_all(&dir)?;
        let tasks = TasksClient::new(core);
        Ok(Self {
            namespace: namespaces.theirs,
            containers,
            snapshots,
            tasks,
            model,
            cni,
            dir,
        })
    }

    /// Makes and starts a container with the spec that `spec` makes of the model's, with this network namespace; how long
    /// that took, from the first call to the last answer.
    pub(crate) async fn start(
        &mut self,
        place: BarePlace<'_>,
        spec: impl FnOnce(&ModelContainer, &str, Option<&Path>) -> Result<Any, Failure>,
    ) -> Result<(Duration, BareContainer), Failure> {
        let id = random_name() + &random_name();
        let netns = self.dir.join(&id);
        let network = match place.network {
            TaskNetwork::Host => None,
            TaskNetwork::Own { port } => Some((netns, port)),
        };
        let spec = spec(
            &self.model,
            &id,
            network.as_ref().map(|(path, _)| path.as_path()),
        )?;
        let begin = Instant::now();
        let network = match network {
            Some((path, port)) => {
                super::cni::make_namespace(&path)?;
                let added = self.cni.add(&id, &path, port)?;
                Some((path, port, added))
            }
            None => None,
        };
        self.make(&id, spec, place)
            .await
            .map_err(|status| format!("bare start: {status}"))?;
        Ok((begin.elapsed(), BareContainer { id, network }))
    }

    async fn make(&mut self, id: &str, spec: Any, place: BarePlace<'_>) -> Result<(), Status> {
        let container = api::Container {
            id: id.to_owned(),
            runtime: Some(self.model.runtime.clone()),
            spec: Some(spec),
            snapshotter: SNAPSHOTTER.to_owned(),
            snapshot_key: id.to_owned(),
            ..Default::default()
        };
        let request = api::CreateContainerRequest {
            container: Some(container),
        };
        self.containers
            .create(scoped(self.namespace, request))
            .await?;
        // Once the container names it, no garbage collection takes it away.
        let request = snap::PrepareSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
            parent: self.model.top.clone(),
            ..Default::default()
        };
        let rootfs = self
            .snapshots
            .prepare(scoped(self.namespace, request))
            .await?
            .into_inner()
            .mounts;
        let request = api::CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            stdout: place.stdout.to_owned(),
            stderr: place.stderr.to_owned(),
            options: self.model.runtime.options.clone(),
            ..Default::default()
        };
        self.tasks.create(scoped(self.namespace, request)).await?;
        let request = api::StartRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        self.tasks
            .start(scoped(self.namespace, request))
            .await
            .map(drop)
    }

    /// Fails unless it runs.
    pub(crate) async fn assert_runs(&mut self, running: &BareContainer) -> Result<(), Failure> {
        let request = api::GetRequest {
            container_id: running.id.clone(),
            exec_id: String::new(),
        };
        let process = self
            .tasks
            .get(scoped(self.namespace, request))
            .await?
            .into_inner()
            .process;
        let status = process.map(|process| process.status());
        if status == Some(TaskStatus::Running) {
            return Ok(());
        }
        Err(format!("a bare container that was started does not run, but is {status:?}").into())
    }

    /// Ends and removes it with all it has.
    pub(crate) async fn remove(&mut self, running: BareContainer) -> Result<(), Failure> {
        let BareContainer { id, network } = running;
        let request = api::KillRequest {
            container_id: id.clone(),
            signal: u32::try_from(Signal::SIGKILL as i32)?,
            all: true,
            ..Default::default()
        };
        self.tasks.kill(scoped(self.namespace, request)).await?;
        let request = api::WaitRequest {
            container_id: id.clone(),
            exec_id: String::new(),
        };
        tokio::time::timeout(END, self.tasks.wait(scoped(self.namespace, request))).await??;
        let request = api::DeleteTaskRequest {
            container_id: id.clone(),
        };
        self.tasks.delete(scoped(self.namespace, request)).await?;
        // Once no container names it, a garbage collection may take it away first.
        let request = snap::RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.clone(),
        };
        self.snapshots
            .remove(scoped(self.namespace, request))
            .await?;
        self.containers
            .delete(scoped(
                self.namespace,
                api::DeleteContainerRequest { id: id.clone() },
            ))
            .await?;
        if let Some((path, port, added)) = network {
            self.cni.del(&id, &path, port, &added)?;
            umount2(&path, MntFlags::MNT_DETACH)?;
            std::fs::remove_file(&path)?;
        }
        Ok(())
    }
}

// === impl ModelContainer ===

impl ModelContainer {
    /// The spec for a container with this network namespace, or the host's; with namespaces of its own that its runtime makes
    /// where ours has made them before. `change` is made before.
    pub(crate) fn spec_of(
        &self,
        netns: Option<&Path>,
        change: impl FnOnce(String) -> Result<Value, Failure>,
    ) -> Result<Any, Failure> {
        let mut spec = change(self.spec.to_string())?;
        let namespaces = spec["linux"]["namespaces"]
            .as_array_mut()
            .ok_or("the spec has no namespaces")?;
        namespaces.retain(|namespace| namespace["type"] != "network");
        for namespace in namespaces.iter_mut() {
            if let Some(namespace) = namespace.as_object_mut() {
                namespace.remove("path");
            }
        }
        if let Some(path) = netns {
            namespaces.push(json!({ "type": "network", "path": path }));
        }
        Ok(Any {
            type_url: self.spec_type.clone(),
            value: serde_json::to_vec(&spec)?,
        })
    }
}

/// Opens FIFOs so that they have a reader, which reads nothing.
pub(crate) fn open_fifos(paths: [&str; 2]) -> Result<[File; 2], Failure> {
    let open = |path: &str| File::options().read(true).write(true).open(path);
    Ok([open(paths[0])?, open(paths[1])?])
}
