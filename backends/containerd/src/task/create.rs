//! Creation of a task: first a plan, which changes nothing, then the objects in containerd and on disk.
//!
//! Order of creation: the container object (the intent; its snapshot may not exist yet), image volumes, and
//! last the snapshot. So a task whose snapshot is missing is incomplete. If its directories are limited, a
//! task whose limits are not recorded as in force is incomplete too.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::backend::TaskDetails;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::{DiskPart, Output, PidMode, Signal, Stdin, TaskSpec, Throttle};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::cgroups_path::CgroupLocation;
use switchyard_runtime_spec::{Built, ImageConfig, ImageVolume, Input, RealHost, ResolvedUser, build};

use super::TaskEntry;
use super::cleanup::{TaskCleanup, TaskCleanupKind};
use super::quota::plan_disk;
use super::stage::{self, Staging};
use super::volumes::declared;
use crate::backend::Inner;
use crate::client::{QUICK, SPEC_TYPE, call, json_any};
use crate::config::Runtime;
use crate::image::{ImageInfo, RunnableImage};
use crate::quota::QuotaRecord;
use crate::record::{
    self, ComputeRecord, LeafRecord, LeaseRecord, MetaRecord, OutputRecord, ResourcesRecord, TaskRecord,
    ThrottleRecord, view_labels,
};
use crate::sandbox::{SandboxEntry, infra_rootfs};
use crate::steps::Step;

/// Everything that the creation of a task needs and that can be found out without changing anything.
pub(super) struct TaskPlan {
    pub(super) image: RunnableImage,
    user: ResolvedUser,
    location: CgroupLocation,
    leaf: Option<LeafRecord>,
    pub(super) volumes: Vec<ImageVolume>,
    config: ImageConfig,
    pub(super) staging: Staging,
    /// The parts of its directories that have disk limits.
    pub(super) disk: Vec<DiskPart>,
}

impl Inner {
    pub(crate) async fn create_task(
        &self,
        id: TaskId,
        sandbox_id: SandboxId,
        spec: &TaskSpec,
    ) -> Result<TaskDetails> {
        let sandbox = self.sandbox(sandbox_id)?;
        let runtime = self.runtime(&sandbox.record.handler)?;
        let mut plan = self.plan_task(id, &sandbox, spec).await?;
        let built = self.build_spec((id, sandbox_id), &sandbox, spec, &plan, runtime).await?;
        self.warn_selinux_ignored(id, spec, &sandbox);
        plan.staging.add_paths(&built.id_mapped, &plan.volumes, sandbox.record.users.is_some());
        for warning in &built.warnings {
            tracing::warn!(task.id = %id, warning, "a request is not fulfilled in full");
        }
        let record = task_record(sandbox_id, &sandbox, spec, &plan, &built, &self.boot);
        let snapshotter = self.images.snapshotters().of(&sandbox.record.handler).to_owned();
        self.volumes.claim(id, &record.volumes);
        let entry = TaskEntry::new(id, sandbox_id, self.layout.task(id), &snapshotter, record);
        match self.make_task(&entry, runtime, spec, &plan, &built).await {
            Ok(()) => {
                let details = entry.record().details();
                self.tasks().insert(id, Arc::new(entry));
                Ok(details)
            }
            Err(error) => {
                if let Err(undo) = self.destroy_task(&entry).await {
                    tracing::warn!(task.id = %id, error = undo.report(), "cannot undo the creation of a task: the cleanup queue retries it");
                    self.cleanup.enqueue(TaskCleanup::new(self, Arc::new(entry), TaskCleanupKind::Creation));
                }
                Err(error)
            }
        }
    }

    /// Warns once if SELinux options are requested on a node where SELinux is off.
    fn warn_selinux_ignored(&self, id: TaskId, spec: &TaskSpec, sandbox: &SandboxEntry) {
        let is_asked = spec.security.selinux.is_some() || sandbox.record.selinux.is_some();
        if is_asked && self.host.selinux.is_none() {
            self.selinux_warned.call_once(|| {
                tracing::warn!(task.id = %id, "SELinux is off on this node: its options are ignored, for this task and all others");
            });
        }
    }

    async fn plan_task(&self, id: TaskId, sandbox: &SandboxEntry, spec: &TaskSpec) -> Result<TaskPlan> {
        let image = self.images.runnable(&spec.image, &sandbox.record.handler, spec.meta.owner).await?;
        let mut config = image_config(&image.info);
        let declared = declared(&image.name, &config.volumes, self.settings.images.max_volumes)?;
        for volume in declared.left_out {
            let volume = volume.display().to_string();
            tracing::warn!(task.id = %id, volume, "a volume of the image is left out: its path is the root or belongs to a kernel file system");
        }
        config.volumes = declared.volumes;
        let snapshotter = self.images.snapshotters().of(&sandbox.record.handler);
        let user = self
            .image_reader
            .resolve_user(snapshotter, image.top.as_deref(), &spec.user, &config.user)
            .await?;
        let placement = match &spec.cgroup {
            Some(placement) => placement.clone(),
            None => sandbox.cgroup(&self.settings.cgroup.default_parent),
        };
        let location = self.cgroup_at(&placement, &id.to_string())?;
        let leaf = self.plan_leaf(&placement, &location, &spec.resources)?;
        let base = self.layout.task(id).volumes();
        let mounted = |path: &Path| spec.mounts.iter().any(|mount| mount.destination == path);
        let volumes: Vec<_> = config
            .volumes
            .iter()
            .filter(|path| !mounted(path))
            .enumerate()
            .map(|(number, path)| ImageVolume {
                destination: path.clone(),
                source: base.join(number.to_string()),
            })
            .collect();
        let staging = self.plan_staging(id, sandbox, spec).await?;
        let disk = plan_disk(spec, &volumes, &staging)?;
        Ok(TaskPlan { image, user, location, leaf, volumes, config, staging, disk })
    }

    async fn build_spec(
        &self,
        (id, sandbox_id): (TaskId, SandboxId),
        sandbox: &SandboxEntry,
        spec: &TaskSpec,
        plan: &TaskPlan,
        runtime: &Runtime,
    ) -> Result<Built> {
        let target_pid = match spec.pid {
            PidMode::Target(target) => Some(self.pid_namespace(target)?),
            PidMode::Private | PidMode::Sandbox | PidMode::Host => None,
        };
        let mut task = spec.clone();
        let facts = sandbox.facts();
        let mut host = self.host.clone();
        if plan.leaf.as_ref().is_some_and(|leaf| leaf.cpuset.is_some()) {
            // The processors are set on the separate cpuset group: see `task/leaf.rs`.
            task.resources.cpuset_cpus = None;
        }
        host.apparmor = self.profile_for(&spec.security).await?;
        let config = plan.config.clone();
        let user = plan.user.clone();
        let volumes = self.volumes_seen(id, sandbox, plan);
        let path = plan.location.path.clone();
        let recursive_readonly = self.recursive_readonly(runtime);
        let staged = plan.staging.mount_sources.clone();
        let cdi_dirs = self.settings.devices.cdi_spec_dirs.clone();
        let init = self.layout.infra().join(infra_rootfs::PROGRAM);
        // Building the spec accesses paths and devices of the host, which can block, on a dead network file
        // system for ever.
        let built = self.looks.run(format!("sandbox {sandbox_id}"), move || {
            let id = id.to_string();
            build(&Input {
                id: &id,
                task: &task,
                image: &config,
                sandbox: &facts,
                host: &host,
                fs: &RealHost,
                user: &user,
                volumes: &volumes,
                cgroups_path: &path,
                target_pid: target_pid.as_deref(),
                recursive_readonly,
                staged: &staged,
                init: &init,
                cdi_dirs: &cdi_dirs,
            })
        });
        built.await
    }

    /// The source directories of image volumes as the runtime sees them: if the sandbox has a user namespace,
    /// those in the staging directory, with their ids mapped.
    fn volumes_seen(&self, id: TaskId, sandbox: &SandboxEntry, plan: &TaskPlan) -> Vec<ImageVolume> {
        if sandbox.record.users.is_none() {
            return plan.volumes.clone();
        }
        let stage = self.layout.task(id).stage;
        let seen = |(number, volume): (usize, &ImageVolume)| ImageVolume {
            destination: volume.destination.clone(),
            source: stage.join(stage::volume_name(number)),
        };
        plan.volumes.iter().enumerate().map(seen).collect()
    }

    /// Whether the runtime of a handler supports recursively read-only mounts on this kernel.
    pub(crate) fn recursive_readonly(&self, runtime: &Runtime) -> bool {
        self.host.kernel >= (5, 12) && self.runtime_probes.features_of(&runtime.binary).recursive_readonly
    }

    fn pid_namespace(&self, target: TaskId) -> Result<PathBuf> {
        let pid = self.task(target)?.running_pid().ok_or_else(|| {
            Error::failed_precondition(format!(
                "the process namespace of task {target} cannot be joined: the task does not run, or its process is not visible on this node"
            ))
        })?;
        Ok(PathBuf::from(format!("/proc/{pid}/ns/pid")))
    }

    /// Refuses a task that is to join the process namespace of a task that does not run any more. The spec
    /// names that namespace by a pid, which may have been reused by another process, and the namespace could
    /// then be that of the node. So this is checked before the process is created, and again before anything
    /// runs in it.
    ///
    /// # Errors
    /// `FailedPrecondition`.
    pub(super) fn check_target(&self, entry: &TaskEntry) -> Result<()> {
        let Some(target) = entry.record().target.clone() else { return Ok(()) };
        let target = target.parse().map_err(|fault| {
            Error::internal(format!("parse the target in the record of task {}", entry.id)).with_source(fault)
        })?;
        self.pid_namespace(target).map(drop)
    }

    async fn make_task(
        &self,
        entry: &TaskEntry,
        runtime: &Runtime,
        spec: &TaskSpec,
        plan: &TaskPlan,
        built: &Built,
    ) -> Result<()> {
        let id = entry.id.to_string();
        let users = self.sandbox(entry.sandbox)?.users();
        let mut labels = record::labels(&spec.meta, "task", self.client.instance());
        labels.extend(view_labels(&plan.staging.records, &entry.snapshotter));
        let container = api::Container {
            id: id.clone(),
            labels,
            image: plan.image.name.clone(),
            runtime: Some(api::container::Runtime {
                name: runtime.type_.clone(),
                options: self.runtime_options(runtime, plan.location.systemd, users.as_ref()),
            }),
            spec: Some(json_any(SPEC_TYPE, &built.spec)),
            snapshotter: entry.snapshotter.clone(),
            snapshot_key: id.clone(),
            extensions: std::iter::once((record::EXTENSION.to_owned(), record::encode(&*entry.record())))
                .collect(),
            ..Default::default()
        };
        let request = api::CreateContainerRequest { container: Some(container) };
        call(&format!("create container {id}"), QUICK, self.client.containers().create(request)).await?;
        self.faults.reach(Step::TaskRecorded)?;
        self.view_images(entry).await?;
        self.fill_volumes(entry, plan).await?;
        let request = snap::PrepareSnapshotRequest {
            snapshotter: entry.snapshotter.clone(),
            key: id.clone(),
            parent: plan.image.top.clone().unwrap_or_default(),
            ..Default::default()
        };
        let prepared =
            call(&format!("prepare snapshot {id}"), QUICK, self.client.snapshots().prepare(request)).await?;
        self.faults.reach(Step::TaskPrepared)?;
        self.limit_disks(entry, plan, &prepared.mounts).await?;
        *entry.mounts.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared.mounts);
        Ok(())
    }
}

/// The record of a new task.
fn task_record(
    sandbox_id: SandboxId,
    sandbox: &SandboxEntry,
    spec: &TaskSpec,
    plan: &TaskPlan,
    built: &Built,
    boot: &str,
) -> TaskRecord {
    TaskRecord {
        meta: MetaRecord::from_core(&spec.meta),
        sandbox: sandbox_id.to_string(),
        handler: sandbox.record.handler.clone(),
        image_id: plan.image.info.id.to_string(),
        image_ref: plan.image.image_ref.clone(),
        uid: plan.user.uid,
        gid: plan.user.gid,
        groups: plan.user.additional_gids.clone(),
        stop_signal: spec.stop_signal.or(plan.config.stop_signal).unwrap_or(Signal::TERM).number(),
        output: match &spec.stdio.output {
            Output::Discard => OutputRecord::Discard,
            Output::Live => OutputRecord::Live,
            Output::Log(path) => OutputRecord::Log(path.clone()),
            Output::Fifos { stdout, stderr } => {
                OutputRecord::Fifos { stdout: stdout.clone(), stderr: stderr.clone() }
            }
        },
        stdin: spec.stdio.stdin != Stdin::Closed,
        stdin_once: spec.stdio.stdin == Stdin::Once,
        tty: spec.stdio.tty,
        boot: boot.to_owned(),
        cgroups_path: plan.location.path.clone(),
        systemd_cgroup: plan.location.systemd,
        leaf: plan.leaf.is_some(),
        theirs: plan.leaf.clone(),
        shares_pid: spec.pid != PidMode::Private,
        target: match spec.pid {
            PidMode::Target(target) => Some(target.to_string()),
            PidMode::Private | PidMode::Sandbox | PidMode::Host => None,
        },
        resources: ResourcesRecord::from_core(&built.limits),
        throttles: Throttle::merged(&[], &spec.throttles).iter().map(ThrottleRecord::from_core).collect(),
        mount_label: built.spec["linux"]["mountLabel"].as_str().map(str::to_owned),
        made_score: None,
        staged: plan.staging.records.clone(),
        volumes: plan.staging.volumes.iter().map(|(_, volume)| volume.clone()).collect(),
        image_volumes: plan.config.volumes.clone(),
        volume_images: plan.staging.images.clone(),
        quota: (!plan.disk.is_empty()).then(QuotaRecord::default),
        leases: spec.leases.iter().map(LeaseRecord::from_core).collect(),
        compute: ComputeRecord::from_core(spec.compute),
    }
}

/// The part of an image's configuration that says how to run it.
fn image_config(info: &ImageInfo) -> ImageConfig {
    let config = &info.config.config;
    ImageConfig {
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        env: config.env.clone(),
        cwd: config.working_dir.clone(),
        user: config.user.clone(),
        volumes: config.volumes.keys().map(PathBuf::from).collect(),
        stop_signal: Signal::parse(&config.stop_signal),
    }
}
