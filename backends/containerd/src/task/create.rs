//! Creation of a task: first what it needs is found out, then the objects in containerd and on disk are made.
//!
//! Finding it out makes nothing of the task. It may unpack an image for the snapshotter of the runtime, and it
//! creates missing directories of the host where a mount requests that.
//!
//! Order of creation: the container object (the intent; its snapshot may not exist yet), image volumes, and
//! last the snapshot. So a task whose snapshot is missing is incomplete. If its directories are limited, a
//! task whose limits are not recorded as in force is incomplete too.

use std::path::PathBuf;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::object::TaskDetails;
use switchyard_core::operation::step;
use switchyard_core::spec::{Output, PidMode, Signal, Stdin, TaskSpec, Throttle};
use switchyard_core::{Error, Result, SpecPart};
use switchyard_runtime_spec::cgroups_path::CgroupLocation;
use switchyard_runtime_spec::relabel::{self, RelabelInput, Relabelled};
use switchyard_runtime_spec::{Built, ImageConfig, ResolvedUser, has_net_admin};

use super::TaskEntry;
use super::cleanup::{TaskCleanup, TaskCleanupKind};
use super::spec_request::SpecRequest;
use super::storage::fill::declared;
use super::storage::mounts::image_volumes;
use super::storage::plan::StoragePlan;
use crate::base::config::Runtime;
use crate::base::crash_points::CrashPoint;
use crate::base::fs::blocking;
use crate::client::{QUICK, SPEC_TYPE, call, json_any};
use crate::context::Context;
use crate::image::ImageInfo;
use crate::record::{
    self, ComputeRecord, LaterIdentity, LeafRecord, LeaseRecord, MetaRecord, OutputRecord,
    QuotaRecord, ResourcesRecord, TaskRecord, ThrottleRecord, view_labels,
};
use crate::sandbox::{SandboxEntry, infra_rootfs};
use crate::task::Tasks;

/// The data from which a task is created.
struct TaskPlan {
    storage: StoragePlan,
    user: ResolvedUser,
    location: CgroupLocation,
    leaf: Option<LeafRecord>,
    config: ImageConfig,
    /// Files that get an SELinux label before the task is created.
    relabelled: Vec<Relabelled>,
}

impl Tasks {
    pub(crate) async fn create_task(
        &self,
        id: TaskId,
        sandbox_id: SandboxId,
        spec: &TaskSpec,
    ) -> Result<TaskDetails> {
        let sandbox = self.sandboxes.table.get(sandbox_id)?;
        let runtime = self.context.runtime(&sandbox.record.handler)?;
        let plan = self.prepare_task((id, sandbox_id), &sandbox, spec).await?;
        let built = self.build_spec((id, sandbox_id), &sandbox, spec, &plan, &runtime);
        let built = step("build_spec", built).await?;
        if spec.security.selinux.is_some() || sandbox.record.selinux.is_some() {
            self.node.warn_selinux_ignored(id);
        }
        for warning in &built.warnings {
            tracing::warn!(task = %id, warning, "a request is not fulfilled in full");
        }
        if has_net_admin(&built.spec) {
            step("allow_net_admin", self.allow_net_admin(&sandbox)).await?;
        }
        let record = task_record(
            (id, sandbox_id),
            &sandbox,
            spec,
            &plan,
            &built,
            &self.context,
        );
        let snapshotter = self
            .storage
            .images
            .policy()
            .snapshotters
            .of(&sandbox.record.handler)
            .to_owned();
        self.storage.claim_volumes(id, &record.volumes).await?;
        let entry = TaskEntry::new(
            id,
            sandbox_id,
            self.context.layout.task(id),
            &snapshotter,
            record,
        );
        match self.make_task(&entry, &runtime, spec, &plan, &built).await {
            Ok(()) => {
                let details = TaskDetails {
                    warnings: built.warnings,
                    ..entry.record().details()
                };
                self.table.lock().insert(id, Arc::new(entry));
                Ok(details)
            }
            Err(error) => {
                if let Err(undo) = self.destroy_task(&entry).await {
                    tracing::warn!(task = %id, error = undo.report(), "cannot undo the creation of a task: the cleanup queue retries it");
                    self.cleanup.enqueue(TaskCleanup::new(
                        self,
                        Arc::new(entry),
                        TaskCleanupKind::Creation,
                    ));
                }
                Err(error)
            }
        }
    }

    /// Finds out what the creation of a task needs to know: see the module.
    async fn prepare_task(
        &self,
        (id, sandbox_id): (TaskId, SandboxId),
        sandbox: &SandboxEntry,
        spec: &TaskSpec,
    ) -> Result<TaskPlan> {
        let images = &self.storage.images;
        let runnable = images.runnable(&spec.image, &sandbox.record.handler, spec.meta.owner);
        let image = step("prepare_image", runnable).await?;
        let mut config = image_config(&image.info);
        let declared = declared(
            &image.name,
            &config.volumes,
            self.context.settings().images.max_volumes,
        )?;
        for volume in declared.left_out {
            let volume = volume.display().to_string();
            tracing::warn!(task = %id, volume, "a volume of the image is left out: its path is the root or belongs to a kernel file system");
        }
        config.volumes = declared.volumes;
        let policy = self.storage.images.policy();
        let snapshotter = policy.snapshotters.of(&sandbox.record.handler);
        let reader = &self.storage.image_reader;
        let resolved =
            reader.resolve_user(snapshotter, image.top.as_deref(), &spec.user, &config.user);
        let user = step("resolve_user", resolved).await?;
        let placement = match &spec.cgroup {
            Some(placement) => placement.clone(),
            None => sandbox.cgroup(&self.context.settings().cgroup.default_parent),
        };
        let location = self.context.cgroup_at(&placement, &id.to_string())?;
        let leaf = self
            .task_cgroups
            .plan_leaf(&placement, &location, &spec.resources)?;
        let resolved = self.storage.resolve_mounts(id, sandbox_id, sandbox, spec);
        let mounts = step("resolve_mounts", resolved).await?;
        let dirs = self.context.layout.task(id);
        let volumes = image_volumes(
            &config.volumes,
            &mounts,
            &dirs,
            sandbox.record.users.is_some(),
        );
        let layout = &self.context.layout;
        let given = (spec.meta.owner == Owner::Swarm).then(|| layout.swarm_files());
        let relabelled = relabel::of_task(&RelabelInput {
            security: &spec.security,
            sandbox: &sandbox.facts(),
            host: &self.context.host,
            mounts: &mounts,
            volumes: &volumes,
            own_dirs: &[layout.state(), layout.run()],
            given_dir: given.as_deref(),
        })?;
        let storage = StoragePlan::new(image, mounts, volumes, &spec.disk_limits)?;
        Ok(TaskPlan {
            storage,
            user,
            location,
            leaf,
            config,
            relabelled,
        })
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
        let mut host = self.context.host.clone();
        if plan.leaf.as_ref().is_some_and(|leaf| leaf.cpuset.is_some()) {
            // The processors are set on the separate cpuset group: see `task/leaf.rs`.
            task.resources.cpuset_cpus = None;
        }
        let profile = self.node.profile_for(&spec.security).await;
        host.apparmor = profile.map_err(|error| error.about(SpecPart::AppArmor))?;
        let infra = self.context.layout.infra();
        if task.init {
            let dir = infra.clone();
            let label = self.context.host.readonly_label().map(str::to_owned);
            let ensured = blocking(move || infra_rootfs::ensure(&dir, label.as_deref())).await;
            ensured.map_err(|error| error.context("the init process"))?;
        }
        let request = SpecRequest {
            id: id.to_string(),
            task,
            mounts: plan.storage.mounts.clone(),
            image: plan.config.clone(),
            sandbox: sandbox.facts(),
            host,
            user: plan.user.clone(),
            volumes: plan.storage.volumes.clone(),
            stage: self.context.layout.task(id).stage,
            cgroups_path: plan.location.path.clone(),
            target_pid,
            recursive_readonly: self.node.recursive_readonly(runtime),
            init: infra.join(infra_rootfs::PROGRAM),
            cdi_dirs: self.context.settings().devices.cdi_spec_dirs.clone(),
        };
        let pool = self.storage.blocking_pools.of(spec.meta.owner);
        request.build(pool, format!("sandbox {sandbox_id}")).await
    }

    fn pid_namespace(&self, target: TaskId) -> Result<PathBuf> {
        let pid = self.table.get(target)?.running_pid().ok_or_else(|| {
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
        let Some(target) = entry.record().target.clone() else {
            return Ok(());
        };
        let target = target.parse().map_err(|fault| {
            Error::internal(format!(
                "parse the target in the record of task {}",
                entry.id
            ))
            .with_source(fault)
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
        let users = self.sandboxes.table.get(entry.sandbox)?.users();
        let mut labels = record::labels(&spec.meta, "task", self.client.instance());
        labels.extend(view_labels(&entry.record().staged, &entry.snapshotter));
        let container = api::Container {
            id: id.clone(),
            labels,
            image: plan.storage.image.name.clone(),
            runtime: Some(api::container::Runtime {
                name: runtime.type_.clone(),
                options: self.context.runtime_options(
                    runtime,
                    plan.location.systemd,
                    users.as_ref(),
                ),
            }),
            spec: Some(json_any(SPEC_TYPE, &built.spec)),
            snapshotter: entry.snapshotter.clone(),
            snapshot_key: id.clone(),
            extensions: record::task_extensions(&entry.record()),
            ..Default::default()
        };
        let request = api::CreateContainerRequest {
            container: Some(container),
        };
        let what = format!("create container {id}");
        let mut containers = self.client.containers();
        step(
            "write_container_object",
            call(&what, QUICK, containers.create(request)),
        )
        .await?;
        self.context.faults.reach(CrashPoint::TaskRecorded)?;
        step("mount_image_volumes", self.storage.view_images(entry)).await?;
        step(
            "fill_volumes",
            self.storage.fill_volumes(entry, &plan.storage),
        )
        .await?;
        if !plan.relabelled.is_empty() {
            let relabelled = self.storage.relabel(entry, &plan.relabelled);
            step("relabel_mounts", relabelled).await?;
        }
        let request = snap::PrepareSnapshotRequest {
            snapshotter: entry.snapshotter.clone(),
            key: id.clone(),
            parent: plan.storage.image.top.clone().unwrap_or_default(),
            ..Default::default()
        };
        let what = format!("prepare snapshot {id}");
        let mut snapshots = self.client.snapshots();
        let prepared = step(
            "prepare_snapshot",
            call(&what, QUICK, snapshots.prepare(request)),
        )
        .await?;
        self.context.faults.reach(CrashPoint::TaskPrepared)?;
        let limited = self
            .storage
            .limit_disks(entry, &plan.storage, &prepared.mounts);
        step("limit_disks", limited).await?;
        *entry.mounts.lock() = Some(prepared.mounts);
        Ok(())
    }
}

/// The record of a new task.
fn task_record(
    (id, sandbox_id): (TaskId, SandboxId),
    sandbox: &SandboxEntry,
    spec: &TaskSpec,
    plan: &TaskPlan,
    built: &Built,
    context: &Context,
) -> TaskRecord {
    TaskRecord {
        meta: MetaRecord::from_core(&spec.meta),
        sandbox: sandbox_id.to_string(),
        handler: sandbox.record.handler.clone(),
        image_id: plan.storage.image.info.id.to_string(),
        image_ref: plan.storage.image.image_ref.clone(),
        uid: plan.user.uid,
        gid: plan.user.gid,
        groups: plan.user.additional_gids.clone(),
        stop_signal: spec
            .stop_signal
            .or(plan.config.stop_signal)
            .unwrap_or(Signal::TERM)
            .number(),
        output: match &spec.stdio.output {
            Output::Discard => OutputRecord::Discard,
            Output::Live => OutputRecord::Live,
            Output::Log(path) => OutputRecord::Log(path.clone()),
            Output::Fifos { stdout, stderr } => OutputRecord::Fifos {
                stdout: stdout.clone(),
                stderr: stderr.clone(),
            },
        },
        stdin: spec.stdio.stdin != Stdin::Closed,
        stdin_once: spec.stdio.stdin == Stdin::Once,
        tty: spec.stdio.tty,
        boot: context.boot.clone(),
        epoch: context.epoch.clone(),
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
        throttles: Throttle::merged(&[], &spec.throttles)
            .iter()
            .map(ThrottleRecord::from_core)
            .collect(),
        mount_label: built.spec["linux"]["mountLabel"]
            .as_str()
            .map(str::to_owned),
        made_score: None,
        staged: plan.storage.staged(id, &built.staged),
        nfs: plan.storage.network_file_systems(),
        volumes: plan
            .storage
            .named_volumes()
            .map(|named| named.volume.to_owned())
            .collect(),
        image_volumes: plan.config.volumes.clone(),
        volume_images: plan.storage.mounted_images(),
        quota: (!plan.storage.disk.is_empty()).then(QuotaRecord::default),
        leases: spec.leases.iter().map(LeaseRecord::from_core).collect(),
        compute: ComputeRecord::from_core(spec.compute),
        unknown: serde_json::Map::new(),
        later: LaterIdentity::default(),
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
