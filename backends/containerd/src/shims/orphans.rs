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
//! Terminating a shim by mistake kills every container that it serves. A shim that serves a whole pod
//! outlives the container that it was started for, and from then on only its children show what it serves. It
//! has no child while it creates its next container, nor for a container that has exited and that containerd
//! has yet to delete. So no shim is terminated while there is a task whose shim is not known, and none whose
//! children have changed since the scan.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use containerd_client::types::v1 as process;
use switchyard_core::{Error, Result};
use switchyard_process::Stat;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::base::config::ContainerdMode;
use crate::base::container_id::ContainerId;
use crate::base::fs::blocking;
use crate::client::contact::Contact;
use crate::client::process_state::ProcessState;
use crate::client::{QUICK, call};
use crate::shims::Shims;
use crate::shims::processes::{ShimProcess, terminate};
use crate::shims::scan_schedule::{ScanOutcome, ScanSchedule};

/// A known task: see the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownTask {
    id: String,
    /// The parent of its main process, which is its shim. `None` if the process has exited or its parent is
    /// not known.
    parent: Option<i32>,
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
                match self.scan_orphans(&previous).await {
                    Ok(scan) => (outcome, previous, warned) = (scan.outcome(), scan, false),
                    Err(error) => {
                        outcome = ScanOutcome::Failed;
                        let error = error.report();
                        if warned {
                            tracing::debug!(error, "the scan for orphan shims failed again");
                        } else {
                            tracing::warn!(error, "the scan for orphan shims failed: trying again later");
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

    /// One scan: removes what is certainly an orphan, and returns what is suspect. `previous` is the scan
    /// before this one.
    async fn scan_orphans(&self, previous: &OrphanScan) -> Result<OrphanScan> {
        // Processes first, tasks later: the scan then contains no shim that was started after the tasks were
        // listed.
        let shims = self.find_shims().await?;
        let bundles = self.list_bundles()?;
        let busy = self.ids_in_progress();
        let tasks = self.known_tasks(None).await?;
        let managed = self.context.settings().containerd.mode == ContainerdMode::Managed;
        let mut suspect = OrphanScan::default();
        let OrphanShims { shims, conclusive } = orphan_shims(shims, &tasks, &busy);
        for shim in shims {
            let again = previous.shims.iter().any(|seen| seen.process == shim.process);
            let certain = conclusive
                && (shim.bundle_deleted || (managed && again && !busy.contains(&*shim.id)))
                && self.is_unknown_to_containerd(&shim.id).await;
            if certain {
                tracing::warn!(pid = shim.process.pid, id = %shim.id, "terminating an orphan shim: containerd does not know its task");
            }
            // A shim whose cleanup fails stays suspect for the next scan; the others are dealt with
            // meanwhile.
            if (certain && !log_failed_cleanup(&shim.id, self.terminate_and_clear_shim(&shim).await))
                || ((managed || shim.bundle_deleted) && !certain)
            {
                suspect.shims.push(shim);
            }
        }
        for id in bundles.into_iter().filter(|id| !tasks.iter().any(|task| task.id == **id)) {
            let with_shim = suspect.shims.iter().any(|shim| shim.id == id);
            let certain = previous.bundles.contains(&id)
                && !busy.contains(&*id)
                && !with_shim
                && self.is_unknown_to_containerd(&id).await;
            if certain {
                tracing::warn!(%id, "removing an orphan bundle: containerd does not know its task");
            }
            if !certain || !log_failed_cleanup(&id, self.clear_bundle(&id).await) {
                suspect.bundles.insert(id);
            }
        }
        Ok(suspect)
    }

    /// Terminates a shim with what it runs and removes its bundle.
    async fn terminate_and_clear_shim(&self, shim: &ShimProcess) -> Result<()> {
        self.terminate_shim(shim.clone()).await?;
        self.clear_bundle(&shim.id).await
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
        let tasks = self.known_tasks(Some(id)).await?;
        let OrphanShims { mut shims, conclusive } = orphan_shims(shims, &tasks, &busy);
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
    async fn known_tasks(&self, except: Option<&ContainerId>) -> Result<Vec<KnownTask>> {
        let request = containerd_client::services::v1::ListTasksRequest::default();
        let tasks = call("list tasks", QUICK, self.client.task_queries().list(request)).await?.tasks;
        let live = Arc::clone(&self.live);
        let except = except.map(|id| (**id).to_owned());
        blocking(move || {
            let running = live.running_shims(except.as_deref()).into_iter();
            let running = running.map(|(id, parent)| KnownTask { id, parent: Some(parent) });
            Ok(running.chain(tasks.iter().map(known_task)).collect())
        })
        .await
    }

    /// Terminates a shim and its children, and removes the cgroups of the children. Idempotent.
    ///
    /// # Errors
    /// `Unavailable`, and nothing is done, if the shim has started another child since it was scanned.
    pub(crate) async fn terminate_shim(&self, shim: ShimProcess) -> Result<()> {
        let id = shim.id.clone();
        for group in blocking(move || terminate(&shim)).await? {
            self.cgroups.remove_cgroup(&id, Some(group), Vec::new()).await?;
        }
        Ok(())
    }
}

/// Whether the cleanup of an orphan succeeded; a failure is logged.
fn log_failed_cleanup(id: &ContainerId, outcome: Result<()>) -> bool {
    if let Err(error) = &outcome {
        tracing::warn!(%id, error = error.report(), "cannot remove an orphan shim or bundle: trying again at the next scan");
    }
    outcome.is_ok()
}

/// A task that containerd lists, with the current parent of its main process.
fn known_task(task: &process::Process) -> KnownTask {
    use process::Status as S;
    // After the process has exited, its pid may belong to another process.
    let runs = matches!(task.status(), S::Created | S::Running | S::Paused | S::Pausing);
    let pid = i32::try_from(task.pid).ok().filter(|_| runs);
    KnownTask { id: task.id.clone(), parent: pid.and_then(Stat::of).map(|stat| stat.parent) }
}

/// The shims that serve no known task. `conclusive` if the shim of each known task, and of each task in
/// `busy`, for which a create is in progress, is known. Pure.
fn orphan_shims(shims: Vec<ShimProcess>, tasks: &[KnownTask], busy: &HashSet<String>) -> OrphanShims {
    let has_known_shim = |id: &str| {
        let has_parent = |task: &KnownTask| task.id == id && task.parent.is_some();
        shims.iter().any(|shim| *shim.id == *id) || tasks.iter().any(has_parent)
    };
    let conclusive = tasks.iter().map(|task| &task.id).chain(busy).all(|id| has_known_shim(id));
    let serves = |shim: &ShimProcess| {
        tasks.iter().any(|task| task.id == *shim.id || task.parent == Some(shim.process.pid))
    };
    OrphanShims { conclusive, shims: shims.into_iter().filter(|shim| !serves(shim)).collect() }
}

#[cfg(test)]
mod tests;
