//! Orphan shims and orphan bundles: containerd no longer knows them, so no containerd call finds them. They
//! are left behind when containerd or a shim is killed at the wrong moment.
//!
//! A shim is an orphan if it serves our containerd and namespace, and neither the id that it was started for
//! nor any of its children belongs to a known task. A task is known if containerd lists it, or if it is one
//! of ours and its process is seen to run. If the bundle of the shim, which is its working directory, has
//! been deleted, the shim is an orphan for certain. If the bundle exists, a create may be in progress. Beside
//! a managed containerd such a shim is an orphan if two scans in a row find it so and this daemon has no
//! create in progress for its id; beside an external containerd it is left alone.
//!
//! A task that a managed containerd lists without a container object is an orphan task, and not known: the object
//! is made before the task and deleted after it, so it was lost, with containerd's database. containerd refuses
//! each call about such a task, so only its shim can be ended. The scan of a starting daemon, which removes nothing
//! itself yet, ends it at once: the network of its sandbox is removed after that, and nothing starts beside it. While it
//! is not certain that its shim serves no known task, it runs on, which is logged, and a later scan ends it.
//!
//! Terminating a shim by mistake kills every container that it serves. A shim that serves a whole pod
//! outlives the container that it was started for, and from then on only its children show what it serves. It
//! has no child while it creates its next container, nor for a container that has exited and that containerd
//! has yet to delete. So no shim is terminated while there is a task whose shim is not known, and none whose
//! children have changed since the scan.
//!
//! Longer than 500 lines because one scan has its facts and its decisions here.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use containerd_client::types::v1 as process;
use futures::{Stream, StreamExt, stream};
use switchyard_core::{Error, Result};
use switchyard_linux::process::Stat;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::config::ContainerdMode;
use crate::base::container_id::ContainerId;
use crate::base::fs::blocking;
use crate::client::contact::Contact;
use crate::client::process_state::ProcessState;
use crate::client::{QUICK, call};
use crate::shims::Shims;
use crate::shims::bundle::FoundBundles;
use crate::shims::processes::{ShimProcess, terminate};
use crate::shims::scan_schedule::{ScanOutcome, ScanSchedule};

/// Limit for the scan of a starting daemon. A shim that does not end takes five seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Limit for the removal of a bundle.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of shims that are terminated concurrently.
const CONCURRENCY: usize = 16;

/// A task; see the module's documentation for which are known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListedTask {
    id: String,
    /// The parent of its main process, which is its shim. `None` if the process has exited or its parent is
    /// not known.
    parent: Option<i32>,
}

/// The tasks that containerd lists, and those that the gateway knows to run.
#[derive(Debug)]
struct ListedTasks {
    known: Vec<ListedTask>,
    /// Those that containerd lists without a container object; only beside a managed containerd.
    orphans: Vec<ListedTask>,
}

/// The time of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanTime {
    /// Before requests are served.
    AtStart,
    /// While requests are served, which may create and remove tasks during the scan.
    Serving,
}

/// A scan's findings about a shim that serves no known task.
#[derive(Debug, Clone, Copy)]
struct OrphanFacts {
    time: ScanTime,
    /// The shim of each known task and of each create in progress is known.
    conclusive: bool,
    managed: bool,
    bundle_deleted: bool,
    /// It serves a task that containerd lists without a container object.
    serves_orphan: bool,
    /// The scan before this one has found the same.
    again: bool,
    /// A create is in progress for its id.
    busy: bool,
}

/// Shims that serve no known task.
#[derive(Debug)]
struct OrphanShims {
    shims: Vec<ShimProcess>,
    /// The shim of each known task and of each create in progress is known: none of `shims` serves one of
    /// them unseen.
    conclusive: bool,
}

/// The result of one scan: suspects that the next scan decides about.
#[derive(Debug, Default)]
struct OrphanScan {
    shims: Vec<ShimProcess>,
    bundles: BTreeSet<ContainerId>,
    /// The directories of bundles that could not be listed.
    unlisted: BTreeSet<PathBuf>,
}

impl OrphanScan {
    fn outcome(&self) -> ScanOutcome {
        if self.shims.is_empty() && self.bundles.is_empty() && self.unlisted.is_empty() {
            ScanOutcome::Clean
        } else {
            ScanOutcome::Suspect
        }
    }
}

/// Waits until containerd has been lost and answers again.
async fn wait_containerd_back(contact: &mut watch::Receiver<Contact>) {
    let is_up = |contact: &Contact| matches!(contact, Contact::Up { .. });
    let seen = async {
        contact.wait_for(|contact| !is_up(contact)).await?;
        contact.wait_for(is_up).await.map(drop)
    };
    if seen.await.is_err() {
        // The health check has stopped: the daemon is shutting down.
        std::future::pending().await
    }
}

impl Shims {
    /// Scans for orphan shims and bundles once recovery is done, and repeatedly after that, until `stop` is
    /// cancelled.
    pub(crate) async fn watch_orphans(self: Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.recovered.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let mut schedule = ScanSchedule::new(&self.context.settings().recovery);
        let mut contact = self.health.subscribe();
        let mut previous = OrphanScan::default();
        let mut warned = false;
        loop {
            let mut outcome = previous.outcome();
            if matches!(self.health.current(), Contact::Up { .. }) {
                let scan = tokio::select! {
                    scan = self.scan_orphans(&previous, ScanTime::Serving) => scan,
                    () = stop.cancelled() => return,
                };
                match scan {
                    Ok(scan) => (outcome, previous, warned) = (scan.outcome(), scan, false),
                    Err(error) => {
                        outcome = ScanOutcome::Failed;
                        let error = error.report();
                        if warned {
                            tracing::debug!(error, "the scan for orphan shims failed again");
                        } else {
                            tracing::warn!(
                                error,
                                "the scan for orphan shims failed: trying again later"
                            );
                        }
                        warned = true;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(schedule.pause_after(outcome)) => {}
                () = wait_containerd_back(&mut contact) => schedule.reset(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Ends the shims that are orphans for certain, with what they run, before requests are served. Recovery has filled
    /// the tables by then. What this does not achieve within [`START_LIMIT`], or is not certain of, is left to the later
    /// scans, and logged.
    pub(crate) async fn end_orphans_at_start(self: &Arc<Self>) {
        let first = OrphanScan::default();
        let scan = self.scan_orphans(&first, ScanTime::AtStart);
        let failed = match tokio::time::timeout(START_LIMIT, scan).await {
            Ok(Ok(_suspects)) => return,
            Ok(Err(error)) => error.report(),
            Err(_) => format!("not done within {START_LIMIT:?}"),
        };
        tracing::warn!(
            error = failed,
            "cannot end all orphan shims before requests are served: trying again while they are"
        );
    }

    /// Scans once: removes certain orphans, and returns suspects. `previous` is the scan before this one. It
    /// may be dropped at any time: the termination of a shim that has begun continues.
    async fn scan_orphans(
        self: &Arc<Self>,
        previous: &OrphanScan,
        time: ScanTime,
    ) -> Result<OrphanScan> {
        // Processes first, tasks later: the scan then contains no shim that was started after the tasks were
        // listed.
        let shims = self.find_shims().await?;
        let busy = self.ids_in_progress();
        let tasks = self.list_tasks(None).await?;
        let managed = self.is_managed();
        let mut suspect = OrphanScan::default();
        let mut certain = Vec::new();
        let OrphanShims { shims, conclusive } = orphan_shims(shims, &tasks.known, &busy);
        for shim in shims {
            let served_orphans = served(&shim, &tasks.orphans);
            let facts = OrphanFacts {
                time,
                conclusive,
                managed,
                bundle_deleted: shim.bundle_deleted,
                serves_orphan: !served_orphans.is_empty(),
                again: previous
                    .shims
                    .iter()
                    .any(|seen| seen.process == shim.process),
                busy: busy.contains(&*shim.id),
            };
            if is_certain(facts) && self.is_unknown_to_containerd(&shim.id).await {
                warn_of_end(&shim, &served_orphans);
                certain.push(shim);
                continue;
            }
            if facts.serves_orphan && time == ScanTime::AtStart {
                warn_of_delay(&shim, &served_orphans);
            }
            if managed || shim.bundle_deleted {
                suspect.shims.push(shim);
            }
        }
        // All shims are ended before the first bundle is removed, which may take long.
        let mut ended = BTreeSet::new();
        let mut ends = pin!(end_all(&self.ends, certain, |shim| {
            let shims = Arc::clone(self);
            async move { shims.terminate_shim(shim).await }
        }));
        while let Some((shim, end)) = ends.next().await {
            if log_failed_cleanup(&shim.id, end) {
                ended.insert(shim.id);
            } else {
                suspect.shims.push(shim);
            }
        }
        self.clear_bundles(ended, &mut suspect, &tasks, previous, time)
            .await;
        Ok(suspect)
    }

    /// The second part of a scan: removes the bundles of shims that were `ended`, and those of which two scans found no
    /// task, and adds the others that may have none to `suspect`. While a directory cannot be listed, none is removed: a part
    /// of each bundle is on its disk, which may hang.
    async fn clear_bundles(
        &self,
        ended: BTreeSet<ContainerId>,
        suspect: &mut OrphanScan,
        tasks: &ListedTasks,
        previous: &OrphanScan,
        time: ScanTime,
    ) {
        let FoundBundles {
            ids: found,
            unlisted,
        } = match time {
            // It is the first scan, so nothing is certain of other bundles.
            ScanTime::AtStart => FoundBundles::default(),
            ScanTime::Serving => self.list_bundles().await,
        };
        warn_of_unlisted(&unlisted, &previous.unlisted);
        suspect.unlisted = unlisted.into_keys().collect();
        if !suspect.unlisted.is_empty() {
            suspect.bundles = previous.bundles.union(&ended).cloned().collect();
            return;
        }
        // The bundle of an orphan task is left until containerd does not list it any more: until then it may run.
        let listed = |id: &ContainerId| {
            tasks
                .known
                .iter()
                .chain(&tasks.orphans)
                .any(|task| task.id == **id)
        };
        for id in found
            .iter()
            .filter(|id| !listed(id) && !ended.contains(*id))
            .chain(&ended)
        {
            let with_shim = suspect.shims.iter().any(|shim| shim.id == *id);
            // A task may be created meanwhile, so that is asked last.
            let certain = (ended.contains(id) || previous.bundles.contains(id))
                && !with_shim
                && self.is_unknown_to_containerd(id).await
                && !self.ids_in_progress().contains(&**id);
            if certain && !ended.contains(id) {
                tracing::warn!(object = %id, "removing an orphan bundle: containerd does not know its task");
            }
            if !certain || !log_failed_cleanup(id, self.remove_bundle_in_time(id).await) {
                suspect.bundles.insert(id.clone());
            }
        }
    }

    /// Removes a bundle; the disk of a part of it may have begun to hang.
    async fn remove_bundle_in_time(&self, id: &ContainerId) -> Result<()> {
        tokio::time::timeout(REMOVAL_LIMIT, self.remove_bundle(id))
            .await
            .unwrap_or_else(|_| {
                Err(Error::deadline(format!(
                    "the bundle of {id} was not removed within {REMOVAL_LIMIT:?}"
                )))
            })
    }

    /// Waits for the ends of orphan shims that a scan has begun. Cancel-safe.
    pub(crate) async fn wind_up(&self) {
        self.ends.close();
        self.ends.wait().await;
    }

    /// Asks containerd for one task by its id: since containerd 2.0 the list of tasks lacks those whose shims
    /// are slow to answer.
    async fn is_unknown_to_containerd(&self, id: &ContainerId) -> bool {
        matches!(self.client.process_state(id).await, Ok(ProcessState::None))
    }

    /// The shims that were started for this container and serve no known task, not counting this container's
    /// own; at most one in practice.
    ///
    /// # Errors
    /// `Unavailable` while it is not certain that such a shim serves no other task.
    pub(crate) async fn orphan_shims_of(&self, id: &ContainerId) -> Result<Vec<ShimProcess>> {
        // Processes first, tasks later: the scan then contains no shim that was started after the tasks were
        // listed.
        let shims = self.find_shims().await?;
        let mut busy = self.ids_in_progress();
        busy.remove(&**id);
        let tasks = self.list_tasks(Some(id)).await?.known;
        let OrphanShims {
            mut shims,
            conclusive,
        } = orphan_shims(shims, &tasks, &busy);
        shims.retain(|shim| shim.id == *id);
        match shims.first() {
            Some(shim) if !conclusive => Err(Error::unavailable(format!(
                "process {}, the shim of container {id}, may serve another container of its pod",
                shim.process.pid
            ))),
            Some(_) | None => Ok(shims),
        }
    }

    /// The tasks that containerd lists, and those of ours that have no persisted exit and are seen to run,
    /// except for `except`: containerd may not list a task whose shim is slow to answer.
    async fn list_tasks(&self, except: Option<&ContainerId>) -> Result<ListedTasks> {
        let request = containerd_client::services::v1::ListTasksRequest::default();
        let listed = call(
            "list tasks",
            QUICK,
            self.client.task_queries().list(request),
        )
        .await?
        .tasks;
        let without_object = self.without_object(&listed).await?;
        let live = Arc::clone(&self.live);
        let except = except.map(|id| (**id).to_owned());
        blocking(move || {
            let running = live.running_shims(except.as_deref()).into_iter();
            let mut known: Vec<_> = running
                .map(|(id, parent)| ListedTask {
                    id,
                    parent: Some(parent),
                })
                .collect();
            let (orphans, others): (Vec<_>, Vec<_>) = listed
                .iter()
                .map(known_task)
                .partition(|task| without_object.contains(&task.id));
            known.extend(others);
            Ok(ListedTasks { known, orphans })
        })
        .await
    }

    /// The ids of those listed tasks that have no container object and that this daemon does not hold for running
    /// either. A task that has been removed since it was listed is one of them. None beside an external containerd,
    /// where tasks of others are listed too.
    async fn without_object(&self, listed: &[process::Process]) -> Result<HashSet<String>> {
        let mut found = HashSet::new();
        if !self.is_managed() {
            return Ok(found);
        }
        for task in listed
            .iter()
            .filter(|task| !self.live.may_have_process(&task.id))
        {
            if !self.client.has_container(&task.id).await? {
                found.insert(task.id.clone());
            }
        }
        Ok(found)
    }

    fn is_managed(&self) -> bool {
        self.context.settings().containerd.mode == ContainerdMode::Managed
    }

    /// Terminates a shim and its children, and removes the cgroups of the children. Idempotent.
    ///
    /// # Errors
    /// `Unavailable`, and nothing is done, if the shim has started another child since it was scanned.
    pub(crate) async fn terminate_shim(&self, shim: ShimProcess) -> Result<()> {
        let id = shim.id.clone();
        for group in blocking(move || terminate(&shim)).await? {
            self.cgroups
                .remove_cgroup(&id, Some(group), Vec::new())
                .await?;
        }
        Ok(())
    }
}

/// Ends shims by this function, several at a time. One that has begun continues when the stream is dropped:
/// once the shim is gone, no later scan would find its cgroups.
fn end_all<E>(
    tracker: &TaskTracker,
    shims: Vec<ShimProcess>,
    end: impl Fn(ShimProcess) -> E,
) -> impl Stream<Item = (ShimProcess, Result<()>)>
where
    E: Future<Output = Result<()>> + Send + 'static,
{
    let ends = shims.into_iter().map(move |shim| {
        let end = end(shim.clone());
        async move {
            let ended = tracker.spawn(end).await.unwrap_or_else(|fault| {
                Err(
                    Error::internal("the end of an orphan shim panicked or was aborted")
                        .with_source(fault),
                )
            });
            (shim, ended)
        }
    });
    stream::iter(ends).buffer_unordered(CONCURRENCY)
}

/// Logs the directories of bundles that cannot be listed, unless the scan before could not list them either.
fn warn_of_unlisted(unlisted: &BTreeMap<PathBuf, String>, before: &BTreeSet<PathBuf>) {
    for (dir, error) in unlisted.iter().filter(|(dir, _)| !before.contains(*dir)) {
        tracing::warn!(
            dir = %dir.display(),
            error,
            "cannot list the bundles of a directory: orphan bundles stay until it can be listed"
        );
    }
}

/// Returns whether the cleanup of an orphan succeeded; a failure is logged.
fn log_failed_cleanup(id: &ContainerId, outcome: Result<()>) -> bool {
    if let Err(error) = &outcome {
        tracing::warn!(object = %id, error = error.report(), "cannot remove an orphan shim or bundle: trying again at the next scan");
    }
    outcome.is_ok()
}

/// A task that containerd lists, with the current parent of its main process.
fn known_task(task: &process::Process) -> ListedTask {
    use process::Status as S;
    // After the process has exited, its pid may belong to another process.
    let runs = matches!(
        task.status(),
        S::Created | S::Running | S::Paused | S::Pausing
    );
    let pid = i32::try_from(task.pid).ok().filter(|_| runs);
    ListedTask {
        id: task.id.clone(),
        parent: pid.and_then(Stat::of).map(|stat| stat.parent),
    }
}

/// Says that a shim is ended, and why.
fn warn_of_end(shim: &ShimProcess, orphans: &[&str]) {
    let pid = shim.process.pid;
    if orphans.is_empty() {
        tracing::warn!(pid, object = %shim.id, "terminating an orphan shim: containerd does not know its task");
    } else {
        let tasks = orphans.join(", ");
        tracing::warn!(
            pid,
            tasks,
            "ending tasks that containerd lists without a container object, as after the loss of its database"
        );
    }
}

/// Says that a shim is not ended yet although it serves tasks that are to be ended, before anything starts beside them.
fn warn_of_delay(shim: &ShimProcess, orphans: &[&str]) {
    tracing::warn!(
        pid = shim.process.pid,
        tasks = orphans.join(", "),
        "tasks that containerd lists without a container object run on: it is not certain yet that their shim serves no other task; \
         they are ended while requests are served"
    );
}

/// The ids of those of these tasks that a shim serves. Pure.
fn served<'t>(shim: &ShimProcess, tasks: &'t [ListedTask]) -> Vec<&'t str> {
    let is_served =
        |task: &&ListedTask| task.id == *shim.id || task.parent == Some(shim.process.pid);
    tasks
        .iter()
        .filter(is_served)
        .map(|task| task.id.as_str())
        .collect()
}

/// Returns whether a shim that serves no known task is an orphan for certain; see the module's documentation.
/// Pure.
const fn is_certain(facts: OrphanFacts) -> bool {
    let OrphanFacts {
        time,
        conclusive,
        managed,
        bundle_deleted,
        serves_orphan,
        again,
        busy,
    } = facts;
    // While requests are served, a task may have been removed between the two looks of one scan.
    let settled = again || (serves_orphan && matches!(time, ScanTime::AtStart));
    conclusive && (bundle_deleted || (managed && settled && !busy))
}

/// The shims that serve no known task. `conclusive` if the shim of each known task, and of each task in
/// `busy`, for which a create is in progress, is known. Pure.
fn orphan_shims(
    shims: Vec<ShimProcess>,
    tasks: &[ListedTask],
    busy: &HashSet<String>,
) -> OrphanShims {
    let has_known_shim = |id: &str| {
        let has_parent = |task: &ListedTask| task.id == id && task.parent.is_some();
        shims.iter().any(|shim| *shim.id == *id) || tasks.iter().any(has_parent)
    };
    let conclusive = tasks
        .iter()
        .map(|task| &task.id)
        .chain(busy)
        .all(|id| has_known_shim(id));
    let shims = shims
        .into_iter()
        .filter(|shim| served(shim, tasks).is_empty())
        .collect();
    OrphanShims { conclusive, shims }
}

#[cfg(test)]
mod tests;
