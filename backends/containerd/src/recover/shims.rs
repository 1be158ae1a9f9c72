//! Shims and bundles that containerd has forgotten: a kill of containerd or of a shim at the wrong moment leaves them, and no call
//! finds them.
//!
//! A shim is forgotten if it serves our containerd and namespace, and neither the id it was started for nor any child of it is a task
//! that is known: containerd tells of it, or it is ours and seen to run. If containerd has deleted its bundle, its working directory,
//! that is certain at once. If the bundle stands, somebody may just be making the task: beside a containerd of our own the shim is
//! forgotten if that stays so and none of us is at it; beside one that others use it is left alone.
//!
//! To end a shim by mistake is to end all that it serves. A shim that serves a whole pod outlives the container it was started for, and
//! then nothing names what it serves but its children: it has none while it makes its next container, nor for one that has ended and
//! that containerd has yet to delete. So none is ended while there is a task of which it is not seen who serves it, nor one that has
//! other children than those it was judged by.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_client::types::v1 as process;
use nix::sys::signal::Signal;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use switchyard_process::{ProcessId, Stat};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::decide::ProcessState;
use super::scan_schedule::{ScanOutcome, ScanSchedule};
use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::config::ContainerdMode;
use crate::container_id::ContainerId;
use crate::fs::blocking;
use crate::health::Contact;

/// How long a shim may take to end.
const SHIM_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A shim of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimProcess {
    pub(crate) process: ProcessId,
    /// The container it was started for.
    pub(crate) id: ContainerId,
    /// Its children: main processes of containers, and processes that outlived their parents in one.
    pub(crate) children: Vec<ProcessId>,
    /// Its bundle has been deleted.
    pub(super) bundle_deleted: bool,
}

/// A child of a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimChild {
    pub(crate) pid: i32,
    /// It has not ended.
    pub(crate) runs: bool,
    /// The text of its `/proc/<pid>/cgroup`, which has the id of its container in it.
    pub(crate) cgroup_text: String,
}

/// What a process of the node's own root says of itself. Whoever else calls itself a shim is not believed.
#[derive(Debug, Clone)]
pub(super) struct RootProcess {
    pub(super) process: ProcessId,
    pub(super) command: Vec<String>,
    /// Its working directory has been deleted.
    pub(super) cwd_deleted: bool,
}

/// A task that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownTask {
    id: String,
    /// The parent of its main process. `None` if that has ended, or nobody can tell.
    parent: Option<i32>,
}

/// Shims of which no task is known.
#[derive(Debug)]
struct OrphanShims {
    shims: Vec<ShimProcess>,
    /// Of each task it is seen who serves it, and it is none of these.
    conclusive: bool,
}

/// What containerd does not know, at one look.
#[derive(Debug, Default)]
struct OrphanScan {
    shims: Vec<ShimProcess>,
    bundles: BTreeSet<ContainerId>,
}

impl OrphanScan {
    fn outcome(&self) -> ScanOutcome {
        if self.shims.is_empty() && self.bundles.is_empty() {
            ScanOutcome::Clean
        } else {
            ScanOutcome::Suspect
        }
    }
}

/// Returns when containerd answers again after it did not.
async fn wait_containerd_back(contact: &mut watch::Receiver<Contact>) {
    let is_up = |contact: &Contact| matches!(contact, Contact::Up { .. });
    let seen = async {
        contact.wait_for(|contact| !is_up(contact)).await?;
        contact.wait_for(is_up).await.map(drop)
    };
    if seen.await.is_err() {
        // Nobody asks containerd any more: the daemon ends.
        std::future::pending().await
    }
}

impl Inner {
    /// Looks for what containerd has forgotten, when recovery is done and again and again after, until `stop`.
    pub(crate) async fn watch_orphans(self: Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.recovered.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let mut schedule = ScanSchedule::new(&self.settings.recovery);
        let mut contact = self.health.subscribe();
        let mut before = OrphanScan::default();
        let mut told = false;
        loop {
            let mut looked = before.outcome();
            if matches!(self.health.current(), Contact::Up { .. }) {
                match self.scan_orphans(&before).await {
                    Ok(now) => (looked, before, told) = (now.outcome(), now, false),
                    Err(error) => {
                        looked = ScanOutcome::Failed;
                        let error = error.report();
                        if told {
                            tracing::debug!(error, "forgotten shims are not found");
                        } else {
                            tracing::warn!(error, "forgotten shims are looked for again later");
                        }
                        told = true;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(schedule.pause_after(looked)) => {}
                () = wait_containerd_back(&mut contact) => schedule.reset(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look: clears what is certain, and gives what is suspect.
    async fn scan_orphans(&self, before: &OrphanScan) -> Result<OrphanScan> {
        // Processes first: whatever is started after this look is not in it.
        let shims = self.find_shims().await?;
        let bundles = self.list_bundles()?;
        let busy = self.ids_in_progress();
        let tasks = self.known_tasks(None).await?;
        let managed = self.settings.containerd.mode == ContainerdMode::Managed;
        let mut suspect = OrphanScan::default();
        let OrphanShims { shims, conclusive: sure } = orphan_shims(shims, &tasks, &busy);
        for shim in shims {
            let again = before.shims.iter().any(|seen| seen.process == shim.process);
            let certain = sure
                && (shim.bundle_deleted || (managed && again && !busy.contains(&*shim.id)))
                && self.is_unknown_to_containerd(&shim.id).await;
            if certain {
                tracing::warn!(pid = shim.process.pid, id = %shim.id, "ending a shim that containerd has forgotten");
            }
            // What fails is looked for again, and holds up nothing else.
            if (certain && !log_failed_cleanup(&shim.id, self.terminate_and_clear_shim(&shim).await))
                || ((managed || shim.bundle_deleted) && !certain)
            {
                suspect.shims.push(shim);
            }
        }
        for id in bundles.into_iter().filter(|id| !tasks.iter().any(|task| task.id == **id)) {
            let with_shim = suspect.shims.iter().any(|shim| shim.id == id);
            let certain = before.bundles.contains(&id)
                && !busy.contains(&*id)
                && !with_shim
                && self.is_unknown_to_containerd(&id).await;
            if certain {
                tracing::warn!(%id, "removing a bundle that containerd has forgotten");
            }
            if !certain || !log_failed_cleanup(&id, self.clear_bundle(&id).await) {
                suspect.bundles.insert(id);
            }
        }
        Ok(suspect)
    }

    /// The containers of which a process may just be made.
    fn ids_in_progress(&self) -> HashSet<String> {
        let mut busy = self.creates_in_flight.current();
        busy.extend(self.predecessor_calls().iter().cloned());
        busy
    }

    /// Ends a shim and removes its bundle.
    async fn terminate_and_clear_shim(&self, shim: &ShimProcess) -> Result<()> {
        self.terminate_shim(shim.clone()).await?;
        self.clear_bundle(&shim.id).await
    }

    /// Asks containerd about one task: since 2.0 its list lacks those whose shims are slow to answer.
    async fn is_unknown_to_containerd(&self, id: &ContainerId) -> bool {
        matches!(self.process_state(id).await, Ok(ProcessState::None))
    }

    /// The shim that was started for a container and serves no task that is known, if there is one.
    ///
    /// # Errors
    /// `Unavailable` while it may serve one all the same.
    pub(crate) async fn orphan_shims_of(&self, id: &ContainerId) -> Result<Vec<ShimProcess>> {
        // Processes first: whatever is started after this look is not in it.
        let shims = self.find_shims().await?;
        let mut busy = self.ids_in_progress();
        busy.remove(&**id);
        let tasks = self.known_tasks(Some(id)).await?;
        let OrphanShims { mut shims, conclusive: sure } = orphan_shims(shims, &tasks, &busy);
        shims.retain(|shim| shim.id == *id);
        match shims.first() {
            Some(shim) if !sure => Err(Error::unavailable(format!(
                "process {}, the shim of container {id}, may serve another of its pod",
                shim.process.pid
            ))),
            Some(_) | None => Ok(shims),
        }
    }

    /// The tasks that containerd tells of, and those of ours `but` one that are seen to run and have not ended as far as is on record: of
    /// one whose shim is slow containerd may tell nothing.
    async fn known_tasks(&self, except: Option<&ContainerId>) -> Result<Vec<KnownTask>> {
        let request = containerd_client::services::v1::ListTasksRequest::default();
        let tasks = call("list tasks", QUICK, self.client.task_queries().list(request)).await?.tasks;
        let mut ours: Vec<_> = self.tasks().values().cloned().collect();
        ours.retain(|entry| {
            !entry.is_exit_persisted() && except.is_none_or(|but| **but != entry.id.to_string())
        });
        blocking(move || {
            let running = ours.iter().filter_map(|entry| {
                entry.shim_pid().map(|parent| KnownTask { id: entry.id.to_string(), parent: Some(parent) })
            });
            Ok(running.chain(tasks.iter().map(known_task)).collect())
        })
        .await
    }

    /// Ends a shim and what it runs, and removes the cgroups of that. Idempotent.
    ///
    /// # Errors
    /// `Unavailable`, and nothing is done, if it has begun something since it was looked at.
    pub(crate) async fn terminate_shim(&self, shim: ShimProcess) -> Result<()> {
        let id = shim.id.clone();
        for group in blocking(move || terminate(&shim)).await? {
            self.remove_cgroup(&id, Some(group), None).await?;
        }
        Ok(())
    }

    /// The shims that serve our containerd and namespace.
    pub(crate) async fn find_shims(&self) -> Result<Vec<ShimProcess>> {
        let address = self.client.address().to_path_buf();
        let namespace = self.settings.containerd.namespace.clone();
        blocking(move || {
            let (all, said) = scan_processes();
            Ok(own_shims(&all, &said, &address, &namespace))
        })
        .await
    }
}

/// Whether something has been cleared away; else it is told.
fn log_failed_cleanup(id: &ContainerId, outcome: Result<()>) -> bool {
    if let Err(error) = &outcome {
        tracing::warn!(%id, error = error.report(), "what containerd has forgotten is cleared away later");
    }
    outcome.is_ok()
}

// === impl Shim ===

impl ShimProcess {
    /// Its children as they are now. Blocks as `/proc` does, which is not for long.
    pub(crate) fn read_children(&self) -> Vec<ShimChild> {
        let look = |child: &ProcessId| {
            let stat = Stat::of(child.pid).filter(|stat| stat.id == *child)?;
            let groups = fs::read_to_string(format!("/proc/{}/cgroup", child.pid)).ok()?;
            Some(ShimChild { pid: child.pid, runs: !stat.ended, cgroup_text: groups })
        };
        self.children.iter().filter_map(look).collect()
    }

    /// The exit code of a child that has ended and of which it has not taken note.
    pub(crate) fn exit_code_of(&self, child: i32) -> Option<i32> {
        Stat::of(child).filter(|stat| stat.parent == self.process.pid)?.code()
    }

    /// Kills it alone. Nothing if it is not there any more.
    pub(crate) fn kill(&self) -> Result<()> {
        signal(self.process, Signal::SIGKILL)
    }
}

/// Decides which of those that have said something are shims of ours, with their children among all processes. Pure.
pub(super) fn own_shims(
    all: &[Stat],
    said: &[RootProcess],
    address: &Path,
    namespace: &str,
) -> Vec<ShimProcess> {
    let mut children: BTreeMap<i32, Vec<ProcessId>> = BTreeMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat.id);
    }
    said.iter()
        .filter(|said| is_shim_of(said, address, namespace) && !is_helper(said))
        .filter_map(|said| {
            Some(ShimProcess {
                process: said.process,
                id: flag(said, "-id")?.parse().ok()?,
                children: children.get(&said.process.pid).cloned().unwrap_or_default(),
                bundle_deleted: said.cwd_deleted,
            })
        })
        .collect()
}

/// Whether a process is a shim, or a helper of one, that works for this containerd and namespace. Pure.
pub(super) fn is_shim_of(said: &RootProcess, address: &Path, namespace: &str) -> bool {
    let program = said.command.first().map(PathBuf::from).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("containerd-shim"))
        && flag(said, "-address").is_some_and(|found| Path::new(&found) == address)
        && flag(said, "-namespace").as_deref() == Some(namespace)
}

/// Whether a shim is the helper that starts or deletes one: it has a verb at its end and is gone in a moment. Pure.
pub(super) fn is_helper(said: &RootProcess) -> bool {
    said.command.last().is_some_and(|last| matches!(last.as_str(), "start" | "delete"))
}

/// The word after this one in a process's command. Pure.
pub(super) fn flag(said: &RootProcess, name: &str) -> Option<String> {
    let mut words = said.command.iter();
    words.find(|word| *word == name)?;
    words.next().cloned()
}

/// What containerd tells of a task, with the parent that its main process has now.
fn known_task(task: &process::Process) -> KnownTask {
    use process::Status as S;
    // The number of one that has ended may be another's.
    let runs = matches!(task.status(), S::Created | S::Running | S::Paused | S::Pausing);
    let pid = i32::try_from(task.pid).ok().filter(|_| runs);
    KnownTask { id: task.id.clone(), parent: pid.and_then(Stat::of).map(|stat| stat.parent) }
}

/// Those whose id and children are no task that is known. They are judged for sure if it is seen who serves each task, also those that
/// are being made: `busy`. Pure.
fn orphan_shims(shims: Vec<ShimProcess>, tasks: &[KnownTask], busy: &HashSet<String>) -> OrphanShims {
    let is_seen = |id: &str| {
        let by_another = |task: &KnownTask| task.id == id && task.parent.is_some();
        shims.iter().any(|shim| *shim.id == *id) || tasks.iter().any(by_another)
    };
    let sure = tasks.iter().map(|task| &task.id).chain(busy).all(|id| is_seen(id));
    let serves = |shim: &ShimProcess| {
        tasks.iter().any(|task| task.id == *shim.id || task.parent == Some(shim.process.pid))
    };
    OrphanShims { conclusive: sure, shims: shims.into_iter().filter(|shim| !serves(shim)).collect() }
}

/// All processes, and what those say of themselves that are to be believed. Blocks as `/proc` does.
pub(super) fn scan_processes() -> (Vec<Stat>, Vec<RootProcess>) {
    let all = switchyard_process::all();
    let said = all.iter().filter_map(|stat| read_root_process(stat.id)).collect();
    (all, said)
}

/// What a process says of itself, if it is to be believed.
fn read_root_process(process: ProcessId) -> Option<RootProcess> {
    if !switchyard_process::is_own_root(process.pid) {
        return None;
    }
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    let command = fs::read(proc.join("cmdline")).ok()?;
    let command = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    // Its link tells of that in words, which may also be a directory's name. One that is deleted has no names.
    let homeless = fs::metadata(proc.join("cwd")).is_ok_and(|home| home.nlink() == 0);
    // Looked at last: all of this is of one process.
    process.is_alive().then_some(RootProcess { process, command, cwd_deleted: homeless })
}

/// Ends a shim and what it runs; gives the cgroups of that.
fn terminate(shim: &ShimProcess) -> Result<HashSet<Group>> {
    let mut children = switchyard_process::all().into_iter().filter(|stat| stat.parent == shim.process.pid);
    if shim.process.is_alive() && children.any(|child| !shim.children.contains(&child.id)) {
        return Err(Error::unavailable(format!(
            "process {}, a shim that served nobody, has begun something",
            shim.process.pid
        )));
    }
    let groups: HashSet<Group> =
        shim.children.iter().flat_map(|child| cgroups_of(child.pid, &shim.id)).collect();
    for child in &shim.children {
        signal(*child, Signal::SIGKILL)?;
    }
    signal(shim.process, Signal::SIGTERM)?;
    let deadline = Instant::now() + SHIM_EXIT_TIMEOUT;
    while shim.process.is_alive() {
        if Instant::now() > deadline {
            signal(shim.process, Signal::SIGKILL)?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(groups)
}

/// The cgroups of a process that bear this id.
fn cgroups_of(pid: i32, id: &str) -> Vec<Group> {
    parse_cgroups(&fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(), id)
}

/// The same in the text of such a file. A container may have groups of its own inside of its group, which go with that. Pure.
fn parse_cgroups(text: &str, id: &str) -> Vec<Group> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .filter_map(|path| {
            let named =
                |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(id));
            Path::new(path).ancestors().filter(named).last()
        })
        .filter_map(|path| Group::from_path(path).ok())
        .collect()
}

fn signal(process: ProcessId, signal: Signal) -> Result<()> {
    let fail =
        |fault| Error::internal(format!("send {signal} to process {}", process.pid)).with_source(fault);
    process.signal(signal).map_err(fail)
}

#[cfg(test)]
mod tests;
