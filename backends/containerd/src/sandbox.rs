//! Sandboxes: created, stopped, started again and removed.
//!
//! Order of creation: the container object (the intent), then concurrently files with `/dev/shm` and
//! namespaces, in which the network is attached while the infra process starts, then `/etc/hosts`, then the
//! phase `ready` in the record. The infra process of a runtime that makes a sandbox of a container (Kata) starts
//! behind all that, since the runtime takes over the network that it finds. Whichever step fails,
//! [`Sandboxes::destroy_sandbox`] undoes all of them from the id alone.
//!
//! Longer than 500 lines because the lifecycle of a sandbox, with its undo, is one sequence.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use containerd_client::services::v1 as api;
use switchyard_core::backend::RELEASE_LIMIT;
use switchyard_core::id::SandboxId;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::object::SandboxDetails;
use switchyard_core::operation::{plain_step, step};
use switchyard_core::spec::{
    CgroupPlacement, IpcMode, SandboxNetwork, SandboxPid, SandboxSpec, UtsMode,
};
use switchyard_core::{Error, Result};
use switchyard_namespaces::{self as namespaces, Ns, PinSpec};
use switchyard_runtime_spec::infra::without_process;
use tokio_util::task::TaskTracker;

use crate::base::config::{InfraMode, SandboxKind};
use crate::base::crash_points::CrashPoint;
use crate::base::disks::tolerate_unwritable_disk;
use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, create_private_dir, remove_tree};
use crate::base::layout::SandboxDirs;
use crate::cgroups::Cgroups;
use crate::cleanup::CleanupQueue;
use crate::client::{Client, QUICK, SPEC_TYPE, call, ignore_not_found, json_any};
use crate::context::Context;
use crate::network::{Network, PlannedAttachment, may_be_of_network};
use crate::node::{Node, userns};
use crate::processes::Processes;
use crate::record::{
    self, HostPortsRecord, LaterIdentity, MetaRecord, NetworkRecord, PHASE, SandboxPhase,
    SandboxRecord, UsersRecord,
};
use crate::shims::Shims;

mod cleanup;
mod dial;
mod entry;
mod files;
mod host_files;
pub(crate) mod infra;
pub(crate) mod infra_rootfs;
mod labels;
mod levels;
mod lifecycle;
mod pod_cgroup_claims;
mod start;
mod sysctls;
pub(crate) mod table;
mod unreleased;

pub(crate) use cleanup::{SandboxCleanup, SandboxRelease};
pub(crate) use entry::SandboxEntry;
pub(crate) use host_files::HostFiles;
use infra::unpin_pid;
pub(crate) use levels::Levels;
pub(crate) use lifecycle::{SandboxChange, SandboxLifecycle};
use sysctls::{SetAt, set_for_interfaces};
use table::SandboxTable;
pub(crate) use unreleased::Unreleased;

/// Creates, stops, starts and removes sandboxes.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) table: Arc<SandboxTable>,
    /// The sandboxes whose network is not released yet.
    pub(crate) unreleased: Unreleased,
    pub(crate) network: Arc<Network>,
    /// The SELinux levels of sandboxes.
    pub(crate) levels: Levels,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) shims: Arc<Shims>,
    pub(crate) node: Arc<Node>,
    pub(crate) host_files: HostFiles,
    pub(crate) cleanup: Arc<CleanupQueue>,
    pub(crate) tracker: TaskTracker,
    /// Orders the releases of one sandbox.
    pub(crate) releases: KeyedLock<SandboxId>,
}

impl Sandboxes {
    pub(crate) async fn create_sandbox(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
    ) -> Result<SandboxDetails> {
        let runtime = self.context.runtime(&spec.handler)?;
        let infra = spec.pid == SandboxPid::Shared
            || runtime.sandbox == SandboxKind::Container
            || self.context.settings().containerd.infra == InfraMode::Always;
        let record = SandboxRecord {
            meta: MetaRecord::from_core(&spec.meta),
            handler: spec.handler.clone(),
            hostname: self.hostname_of(spec),
            network: match &spec.network {
                SandboxNetwork::Host => NetworkRecord::Host,
                SandboxNetwork::Pod(_) => NetworkRecord::Pod,
                SandboxNetwork::Isolated => NetworkRecord::Isolated,
                SandboxNetwork::Joined(path) => NetworkRecord::Joined(path.clone()),
            },
            own_uts: Some(own_uts(spec)),
            host_ipc: spec.ipc == IpcMode::Host,
            infra,
            shared_pid: spec.pid == SandboxPid::Shared,
            privileged: spec.privileged,
            cgroup_parent: match &spec.cgroup {
                CgroupPlacement::Parent(parent) => Some(parent.clone()),
                CgroupPlacement::Leaf { path, .. } => path.parent().map(PathBuf::from),
            },
            // Claimed below.
            selinux: None,
            ips: Vec::new(),
            users: spec.users.as_ref().map(UsersRecord::from_core),
            boot: self.context.boot.clone(),
            groups: Vec::new(),
            note: String::new(),
            host_ports: Some(HostPortsRecord::from_core(&spec.host_ports)),
            unknown: serde_json::Map::new(),
            later: LaterIdentity::default(),
        };
        let want = wanted_namespaces(spec, &record);
        want.check().map_err(from_namespaces)?;
        if spec.users.is_some() {
            self.node.check_userns(spec, &runtime).await?;
        }
        let mut entry = SandboxEntry::new(record, self.context.layout.sandbox(id));
        // Refuses an invalid cgroup parent before anything is created.
        entry.cgroup_location(&self.context, &id.to_string())?;
        entry.record.selinux = self.claim_label(id, spec)?;
        let groups = self.claim_groups(id, &entry).await;
        entry.record.groups = groups.inspect_err(|_| self.levels.release(id))?;
        match self.make_sandbox(id, spec, want, &mut entry).await {
            Ok(()) => {
                let details = entry.details();
                self.table.lock().insert(id, Arc::new(entry));
                Ok(details)
            }
            Err(error) => {
                let entry = Arc::new(entry);
                if let Err(undo) = self.destroy_entry(id, &entry).await {
                    tracing::warn!(sandbox = %id, error = undo.report(), "the rollback of a sandbox that could not be created failed: it is retried");
                    self.unreleased.add(id);
                    self.cleanup.enqueue(SandboxCleanup::new(self, id, entry));
                }
                Err(error)
            }
        }
    }

    async fn make_sandbox(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        want: PinSpec,
        entry: &mut SandboxEntry,
    ) -> Result<()> {
        step(
            "write_container_object",
            self.create_sandbox_object(id, spec, entry),
        )
        .await?;
        self.context.faults.reach(CrashPoint::SandboxRecorded)?;
        self.bring_up_sandbox(id, spec, want, entry).await
    }

    /// Creates everything that belongs to a recorded sandbox, with its recorded addresses if there are any,
    /// and marks it ready.
    async fn bring_up_sandbox(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        want: PinSpec,
        entry: &mut SandboxEntry,
    ) -> Result<()> {
        let own_shm = entry.record.owns(Ns::Ipc);
        let wanted_ips = entry.record.ips.clone();
        let record = entry.record.clone();
        let dirs = entry.dirs.clone();
        let pinned = want.net || want.ipc || want.uts || want.users.is_some();
        let files = async {
            files::write_hostname(&dirs, spec, &record).await?;
            self.context.faults.reach(CrashPoint::SandboxFiles)?;
            if own_shm {
                namespaces::tasks::mount_shm(dirs.shm(), spec.shm_size_bytes)
                    .await
                    .map_err(from_namespaces)?;
                if let Some(users) = &spec.users {
                    userns::chown_to_container_root(&dirs.shm(), users)?;
                }
                self.context.faults.reach(CrashPoint::SandboxShm)?;
            }
            Ok::<_, Error>(())
        };
        let pin = async {
            if pinned {
                namespaces::tasks::create_pins(dirs.pins.clone(), want)
                    .await
                    .map_err(from_namespaces)?;
                self.context.faults.reach(CrashPoint::SandboxPinned)?;
            }
            Ok::<_, Error>(())
        };
        let plan = async {
            match &spec.network {
                SandboxNetwork::Pod(network) => self
                    .network
                    .plan_attachment(id, spec, network, &dirs, &wanted_ips)
                    .await
                    .map(Some),
                SandboxNetwork::Host | SandboxNetwork::Isolated | SandboxNetwork::Joined(_) => {
                    Ok(None)
                }
            }
        };
        let needs_network = self.context.runtime(&spec.handler)?.sandbox == SandboxKind::Container;
        let made = &*entry;
        let connected = async {
            // Writing the CNI journal and creating the namespaces overlap; both must be done before the first
            // plugin runs.
            let (pinned, planned) =
                tokio::join!(step("create_namespaces", pin), step("plan_network", plan));
            let ((), planned) = both(id, pinned, planned)?;
            let attached = self.connect(id, spec, planned, &dirs, &wanted_ips);
            let early = record.infra && !needs_network;
            let infra = self.start_infra_if(early, id, spec, made);
            let (ips, infra) = tokio::join!(attached, infra);
            both(id, ips, infra)
        };
        create_private_dir(&dirs.state).await?;
        // Both run to their end even if one fails, so that the rollback does not race with either.
        let (filed, connected) = tokio::join!(step("write_files", files), connected);
        let ((ips, early), ()) = both(id, connected, filed)?;
        entry.record.ips = ips;
        self.write_address_files(id, spec, entry).await?;
        self.context.faults.reach(CrashPoint::SandboxHosts)?;
        entry.label_files(&self.context.host).await?;
        let late = record.infra && needs_network;
        let late = self.start_infra_if(late, id, spec, entry).await?;
        if let Some(pid) = early.or(late) {
            entry.lifecycle = entry.lifecycle.after(SandboxChange::InfraStarted(pid));
        }
        let recorded = self.record_sandbox(id, &entry.record, SandboxPhase::Ready);
        step("write_record", recorded).await?;
        self.context.faults.reach(CrashPoint::SandboxMarked)
    }

    /// Attaches a sandbox, whose namespaces are there, to its network as planned; returns its addresses.
    async fn connect(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        planned: Option<PlannedAttachment>,
        dirs: &SandboxDirs,
        wanted: &[IpAddr],
    ) -> Result<Vec<IpAddr>> {
        let Some(planned) = planned else {
            return join_netns(spec).await;
        };
        // Whose stop was answered before: its client counts on the address.
        let ending = self.table.ending();
        let ended = self.release_of_all(ending, planned.network());
        let attached = self.network.attach(id, &planned, dirs, wanted, ended);
        let ips = step("attach_network", attached).await?;
        self.context.faults.reach(CrashPoint::SandboxAttached)?;
        set_for_interfaces(spec, dirs.pin(Ns::Net), ips).await
    }

    /// Waits for the release of the sandboxes among these that are on the network of this name; it goes on after the answer to their stop. It waits
    /// no longer than the gateway waits for their ports. Returns whether there was one: what the caller needs may be free although another
    /// sandbox is not released. Cancel-safe.
    ///
    /// The start keeps its permit meanwhile, up to the five seconds after which any start gives it to the next one. It is not given back for the
    /// wait: only the attachment tells that an address is missing, in the middle of the start, and to go on it would need a permit again, behind
    /// later starts, which take the very addresses; or go on without, and then all that wait go on at once.
    async fn release_of_all(&self, ending: Vec<SandboxId>, network: &str) -> bool {
        if ending.is_empty() {
            return false;
        }
        let layout = self.context.layout.clone();
        let network = network.to_owned();
        let all = ending.clone();
        let of_network = blocking(move || {
            let is_of = |id: &SandboxId| {
                let journal = layout.sandbox(*id).cni_journal();
                may_be_of_network(&journal, &network)
            };
            Ok(ending.into_iter().filter(is_of).collect::<Vec<_>>())
        });
        let released = async {
            // Without an answer of the disk each of them may be.
            let of_network = of_network.await.unwrap_or(all);
            for id in &of_network {
                self.unreleased.released(*id).await;
            }
            !of_network.is_empty()
        };
        let in_time = tokio::time::timeout(RELEASE_LIMIT, released);
        // After the limit as well.
        plain_step("wait_for_addresses", in_time)
            .await
            .unwrap_or(true)
    }

    /// Starts the infra process of a sandbox if `is_due`; returns its process id.
    async fn start_infra_if(
        &self,
        is_due: bool,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<Option<u32>> {
        if !is_due {
            return Ok(None);
        }
        // Boxed: what waits for the network beside it is large.
        let started = Box::pin(self.start_infra(id, spec, entry));
        step("start_infra_container", started).await.map(Some)
    }

    /// Writes the files that depend on the sandbox's addresses, which are in its record.
    async fn write_address_files(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<()> {
        let SandboxEntry { record, dirs, .. } = entry;
        let settings = self.context.settings();
        let configured = &settings.network.dns;
        let host = &self.host_files;
        let bridge: Vec<IpAddr> = self.network.bridge.hosts().collect();
        // Both run to their end even if one fails, so that the rollback does not race with either.
        let (resolv_conf, hosts) = tokio::join!(
            files::write_resolv_conf(id, dirs, spec, record, host, configured),
            files::write_hosts(dirs, spec, record, &bridge, host),
        );
        both(id, resolv_conf, hosts).map(drop)
    }

    /// Writes the container object of a new sandbox.
    async fn create_sandbox_object(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<()> {
        let runtime = self.context.runtime(&spec.handler)?;
        let mut labels = record::labels(&spec.meta, "sandbox", self.client.instance());
        labels.insert(PHASE.to_owned(), SandboxPhase::Creating.as_str().to_owned());
        let runtime_spec = if entry.record.infra {
            self.infra_spec(id, spec, entry).await?
        } else {
            without_process()
        };
        let container = api::Container {
            id: id.to_string(),
            labels,
            runtime: Some(self.context.runtime_of(&runtime, entry.users().as_ref())),
            spec: Some(json_any(SPEC_TYPE, &runtime_spec)),
            extensions: record::sandbox_extensions(&entry.record),
            ..Default::default()
        };
        let request = api::CreateContainerRequest {
            container: Some(container),
        };
        call(
            &format!("create container {id}"),
            QUICK,
            self.client.containers().create(request),
        )
        .await
        .map(drop)
    }

    /// Writes the record and the phase of a sandbox to its container object.
    pub(crate) async fn record_sandbox(
        &self,
        id: SandboxId,
        record: &SandboxRecord,
        phase: SandboxPhase,
    ) -> Result<()> {
        let word = record::phase_written(record.meta.labels(), phase.as_str());
        let container = api::Container {
            id: id.to_string(),
            labels: std::iter::once((PHASE.to_owned(), word.to_owned())).collect(),
            extensions: record::sandbox_extensions(record),
            ..Default::default()
        };
        let mut mask = vec![format!("labels.{PHASE}")];
        mask.extend(record::extension_paths());
        self.client.update_container(container, mask).await
    }

    /// Stores a note of the frontend in the sandbox's record.
    pub(crate) async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()> {
        let entry = self.table.get(id)?;
        let mut record = entry.record.clone();
        record.note = hex::encode(note);
        self.record_sandbox(id, &record, SandboxPhase::Ready)
            .await?;
        let amended = SandboxEntry {
            record,
            dirs: entry.dirs.clone(),
            lifecycle: entry.lifecycle,
        };
        self.table.lock().insert(id, Arc::new(amended));
        self.context.faults.reach(CrashPoint::SandboxAmended)
    }

    pub(crate) async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        let Ok(entry) = self.table.get(id) else {
            return Ok(());
        };
        let mut is_behind =
            !entry.lifecycle.is_released() && self.network.may_end_behind(&entry.dirs).await;
        if is_behind {
            self.quiet_sandbox(id, &entry).await?;
        } else {
            self.release_sandbox(id, Some(&entry)).await?;
        }
        let recorded = self.record_stop(id, &entry).await;
        if is_behind && !matches!(recorded, Ok(true)) {
            // Without the record, only that its namespaces are gone says that it is stopped.
            let _turn = self.releases.lock(id).await;
            self.disconnect_sandbox(id).await?;
            is_behind = false;
        }
        recorded?;
        self.context.faults.reach(CrashPoint::SandboxStopped)?;
        let change = if is_behind {
            SandboxChange::InfraEnded
        } else {
            SandboxChange::Released
        };
        self.table.change(id, change);
        if is_behind {
            let release = SandboxRelease::new(self, id);
            self.cleanup.spawn(Box::new(release), &self.tracker);
        }
        Ok(())
    }

    /// Records that a sandbox is stopped, unless its record says that it is being removed. Returns whether that is on record:
    /// a disk that cannot be written is tolerated if recovery finds out by itself.
    async fn record_stop(&self, id: SandboxId, entry: &SandboxEntry) -> Result<bool> {
        if entry.lifecycle.is_removal_recorded() {
            return Ok(true);
        }
        let recorded = self.record_sandbox(id, &entry.record, SandboxPhase::Stopped);
        let marked = ignore_not_found(recorded.await);
        let is_recorded = marked.is_ok();
        if SandboxEntry::is_stop_detectable(entry) {
            tolerate_unwritable_disk(marked, "a sandbox is stopped, but that cannot be recorded")?;
        } else {
            marked?;
        }
        Ok(is_recorded)
    }

    /// Releases the network of a stopped sandbox, behind the answer. Does nothing for one that was started again, or removed,
    /// since: both release it themselves. Idempotent.
    async fn finish_stop(&self, id: SandboxId) -> Result<()> {
        let _turn = self.releases.lock(id).await;
        let Ok(entry) = self.table.get(id) else {
            return Ok(());
        };
        if !entry.lifecycle.is_ending() {
            return Ok(());
        }
        self.disconnect_sandbox(id).await?;
        self.table.change(id, SandboxChange::Released);
        Ok(())
    }

    /// Records that a sandbox is being removed.
    pub(crate) async fn begin_removal(&self, id: SandboxId) -> Result<()> {
        let Ok(entry) = self.table.get(id) else {
            return Ok(());
        };
        if entry.lifecycle.is_removal_recorded() {
            return Ok(());
        }
        let marked = ignore_not_found(
            self.record_sandbox(id, &entry.record, SandboxPhase::Removing)
                .await,
        );
        if marked.is_err() {
            // The removal frees space. If the daemon is killed during it, the client that asked for it asks
            // again.
            return tolerate_unwritable_disk(
                marked,
                "a removal begins, but that cannot be recorded",
            );
        }
        self.table.change(id, SandboxChange::RemovalRecorded);
        self.context.faults.reach(CrashPoint::SandboxDoomed)
    }

    /// Ends a sandbox's infra process and releases its network and namespaces, after a release that is under way. Idempotent.
    /// Without an entry, what the sandbox may have had is found by its id. Network and namespaces are released even if
    /// containerd does not answer.
    async fn release_sandbox(&self, id: SandboxId, entry: Option<&SandboxEntry>) -> Result<()> {
        let _turn = self.releases.lock(id).await;
        self.release_in_turn(id, entry).await
    }

    async fn release_in_turn(&self, id: SandboxId, entry: Option<&SandboxEntry>) -> Result<()> {
        let ended = self.end_process(id, entry).await;
        self.context.faults.reach(CrashPoint::SandboxInfraEnded)?;
        let (disconnected, unmounted) =
            tokio::join!(self.disconnect_sandbox(id), self.unmount_sandbox(id));
        disconnected?;
        unmounted?;
        ended
    }

    /// Ends a sandbox's infra process and unmounts what it has: its release but for what takes plugins, which is done as well
    /// if that fails.
    async fn quiet_sandbox(&self, id: SandboxId, entry: &SandboxEntry) -> Result<()> {
        let _turn = self.releases.lock(id).await;
        // A release of an earlier stop may have ended meanwhile: nothing follows then that would say so.
        let now = self.table.get(id);
        if !now.is_ok_and(|now| now.lifecycle.is_released()) {
            self.unreleased.add(id);
        }
        let ended = self.end_process(id, Some(entry)).await;
        self.context.faults.reach(CrashPoint::SandboxInfraEnded)?;
        let quiet = ended.and(self.unmount_sandbox(id).await);
        if quiet.is_err() {
            self.disconnect_sandbox(id).await?;
        }
        quiet
    }

    async fn end_process(&self, id: SandboxId, entry: Option<&SandboxEntry>) -> Result<()> {
        if entry.is_none_or(|entry| entry.record.infra) {
            self.end_infra(id, entry).await
        } else {
            Ok(())
        }
    }

    /// Releases the network of a sandbox, and then its namespaces, which plugins need.
    async fn disconnect_sandbox(&self, id: SandboxId) -> Result<()> {
        let dirs = self.context.layout.sandbox(id);
        self.network.detach(id, &dirs).await?;
        self.unreleased.remove(id);
        self.context.faults.reach(CrashPoint::SandboxDetached)?;
        unpin_pid(&dirs).await?;
        namespaces::tasks::remove_pins(dirs.pins.clone())
            .await
            .map_err(from_namespaces)?;
        self.context.faults.reach(CrashPoint::SandboxUnpinned)
    }

    async fn unmount_sandbox(&self, id: SandboxId) -> Result<()> {
        let dirs = self.context.layout.sandbox(id);
        namespaces::tasks::unmount_shm(dirs.shm())
            .await
            .map_err(from_namespaces)?;
        self.context.faults.reach(CrashPoint::SandboxUnmounted)
    }

    pub(crate) async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        self.destroy_sandbox(id).await?;
        self.table.lock().remove(&id);
        Ok(())
    }

    /// Removes everything that belongs to a sandbox, with its entry if there is one, else by its id.
    /// Idempotent.
    pub(crate) async fn destroy_sandbox(&self, id: SandboxId) -> Result<()> {
        let entry = self.table.get(id).ok();
        self.destroy(id, entry.as_deref()).await
    }

    /// Removes everything that belongs to a sandbox whose entry is not in the map. Idempotent.
    pub(crate) async fn destroy_entry(&self, id: SandboxId, entry: &SandboxEntry) -> Result<()> {
        self.destroy(id, Some(entry)).await
    }

    /// The container object is deleted last, and only when everything else is removed.
    async fn destroy(&self, id: SandboxId, entry: Option<&SandboxEntry>) -> Result<()> {
        {
            let _turn = self.releases.lock(id).await;
            // As it is after a release that was under way.
            let now = self.table.get(id).ok();
            let now = now.as_deref().or(entry);
            if !now.is_some_and(|entry| entry.lifecycle.is_released()) {
                self.release_in_turn(id, entry).await?;
            }
        }
        let dirs = self.context.layout.sandbox(id);
        namespaces::tasks::unmount_tree(dirs.run.clone())
            .await
            .map_err(from_namespaces)?;
        remove_tree(&dirs.run).await?;
        remove_tree(&dirs.state).await?;
        self.context.faults.reach(CrashPoint::SandboxFilesGone)?;
        self.release_groups(id).await?;
        self.context.faults.reach(CrashPoint::SandboxGroupsGone)?;
        let request = api::DeleteContainerRequest { id: id.to_string() };
        let what = format!("delete container {id}");
        ignore_not_found(call(&what, QUICK, self.client.containers().delete(request)).await)?;
        self.levels.release(id);
        drop(self.shims.pods.forget(id));
        self.context.faults.reach(CrashPoint::SandboxForgotten)
    }

    fn hostname_of(&self, spec: &SandboxSpec) -> String {
        let named = own_uts(spec) && !spec.hostname.is_empty();
        if named {
            spec.hostname.clone()
        } else {
            self.context.host_name.clone()
        }
    }
}

/// The results of two works on a sandbox that ran beside each other. If both failed, it is the error of the first, and the log has
/// that of the second, which nobody would hear of.
fn both<A, B>(id: SandboxId, first: Result<A>, second: Result<B>) -> Result<(A, B)> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        (Err(error), Err(other)) => {
            tracing::warn!(sandbox = %id, error = other.report(), "a sandbox cannot be made: this failed beside what its client is told");
            Err(error)
        }
    }
}

/// Returns whether a sandbox has its own UTS namespace, and so a host name of its own.
fn own_uts(spec: &SandboxSpec) -> bool {
    match spec.uts {
        UtsMode::Network => !matches!(spec.network, SandboxNetwork::Host),
        UtsMode::Own => true,
        UtsMode::Host => false,
    }
}

/// The namespaces to create for a sandbox.
fn wanted_namespaces(spec: &SandboxSpec, record: &SandboxRecord) -> PinSpec {
    let named = record.owns(Ns::Uts) && !spec.hostname.is_empty();
    PinSpec {
        net: record.owns(Ns::Net),
        ipc: record.owns(Ns::Ipc),
        uts: record.owns(Ns::Uts),
        hostname: named.then(|| spec.hostname.clone()),
        users: spec.users.as_ref().map(|users| namespaces::Users {
            uids: record::id_ranges(&users.uids),
            gids: record::id_ranges(&users.gids),
        }),
        sysctls: SetAt::Creation.parameters(spec),
    }
}

/// Sets kernel parameters in the existing network namespace that a sandbox joins, and returns the addresses
/// there; none if it joins no such namespace.
async fn join_netns(spec: &SandboxSpec) -> Result<Vec<IpAddr>> {
    let SandboxNetwork::Joined(path) = &spec.network else {
        return Ok(Vec::new());
    };
    let sysctls = SetAt::Joining.parameters(spec);
    let refused = |fault: namespaces::Error| {
        let why = format!("network namespace {} cannot be joined", path.display());
        Error::failed_precondition(why).with_source(fault)
    };
    namespaces::tasks::set_sysctls(path.clone(), sysctls)
        .await
        .map_err(refused)?;
    namespaces::tasks::addresses(path.clone())
        .await
        .map_err(refused)
}
