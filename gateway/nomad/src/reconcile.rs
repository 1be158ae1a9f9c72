//! Removes tasks and networks that no agent references any more, according to what the open sessions have
//! named.
//!
//! A task is considered only while its agent is connected, as the session has shown by a start or a recovery,
//! and has had time to recover its tasks. So an agent that is away for long, or one with another directory,
//! loses nothing. Networks of allocations are left behind in normal operation as well: an agent that was
//! killed between the end of the tasks and the removal of the network does not request the removal later, and
//! one whose plugin was restarted cannot ask the new plugin to remove what it had requested from the old one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use switchyard_core::object::Sandbox;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior};

use crate::driver::Driver;
use crate::identity::{Agent, Record, allocation_of, is_network};
use crate::plugin_config::GcConfig;
use crate::session::Session;

mod references;

pub(crate) use references::{AgentReferences, Removal};

/// The interval between checks of the open sessions.
const POLL: Duration = Duration::from_secs(5);

/// Maximum number of allocations that are cleared concurrently.
pub(crate) const CONCURRENT: usize = 8;

/// Limit for clearing one allocation. A removal continues after it, and the next sweep waits for it.
pub(crate) const CLEARING_LIMIT: Duration = Duration::from_secs(120);

/// The progress of the sweeps.
#[derive(Debug, Default)]
struct ReconcileState {
    /// Time of the last sweep of each open session.
    swept: HashMap<String, Instant>,
    /// The allocations that are being cleared.
    clearing: HashSet<String>,
}

/// Work of sweeps in progress; each yields the allocation that it has cleared. One that hangs holds up no
/// other sweep.
type Sweeps<'a> = FuturesUnordered<BoxFuture<'a, Option<String>>>;

// === impl Driver ===

impl Driver {
    /// Sweeps for the open sessions while it is polled. Cancel-safe.
    pub(crate) async fn reconcile(&self) {
        let mut state = ReconcileState::default();
        let permits = Semaphore::new(CONCURRENT);
        let mut sweeps = Sweeps::new();
        let mut polls = tokio::time::interval(POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once.
        polls.tick().await;
        loop {
            tokio::select! {
                _ = polls.tick() => {}
                Some(cleared) = sweeps.next() => {
                    if let Some(alloc) = cleared {
                        state.clearing.remove(&alloc);
                    }
                    continue;
                }
            }
            let open = self.sessions();
            let Ok(sandboxes) = self.scope().sandboxes().list() else {
                continue;
            };
            self.references().retain(&open, |id| {
                sandboxes.iter().any(|sandbox| sandbox.meta.name == id)
            });
            state
                .swept
                .retain(|id, _| open.iter().any(|session| session.id == *id));
            for session in open {
                self.reconcile_session(&session, &sandboxes, &mut state, (&mut sweeps, &permits));
            }
        }
    }

    fn reconcile_session<'a>(
        &'a self,
        session: &Arc<Session>,
        sandboxes: &[Arc<Sandbox>],
        state: &mut ReconcileState,
        (sweeps, permits): (&mut Sweeps<'a>, &'a Semaphore),
    ) {
        let gc = &session.config.gc;
        let now = Instant::now();
        let Some(swept) = state.swept.get_mut(&session.id) else {
            state.swept.insert(session.id.clone(), now);
            if gc.image {
                sweeps.push(Box::pin(self.schedule_unused_images(gc.image_delay)));
            }
            return;
        };
        if !gc.dangling.enabled || now - *swept < gc.dangling.period {
            return;
        }
        *swept = now;
        for alloc in self.allocations_to_clear(session, sandboxes) {
            if !state.clearing.insert(alloc.clone()) {
                continue;
            }
            let session = Arc::clone(session);
            sweeps.push(Box::pin(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                let clear = self.clear_allocation(&session, &alloc);
                if tokio::time::timeout(CLEARING_LIMIT, clear).await.is_err() {
                    tracing::warn!(nomad_alloc = alloc, "what no agent references of an allocation is not removed within {CLEARING_LIMIT:?}: the next sweep looks again");
                }
                Some(alloc)
            }));
        }
    }

    async fn schedule_unused_images(&self, delay: Duration) -> Option<String> {
        if let Err(error) = self.image_gc().schedule_unused(delay).await {
            tracing::warn!(
                error = error.report(),
                "cannot list unused images: trying again with the next session"
            );
        }
        None
    }

    /// The allocations with a task that no agent references, or with a network, of which more has to be found
    /// out; none with a task that cannot be read, which has to keep its network.
    fn allocations_to_clear(
        &self,
        session: &Session,
        sandboxes: &[Arc<Sandbox>],
    ) -> BTreeSet<String> {
        let Ok(unreadable) = self.scope().sandboxes().unreadable() else {
            return BTreeSet::new();
        };
        let grace = session.config.gc.dangling.creation_grace;
        let now = (Instant::now(), SystemTime::now());
        let may_be_cleared = |sandbox: &&Arc<Sandbox>| {
            is_network(&sandbox.meta.name)
                || self
                    .references()
                    .is_dangling(&session.id, sandbox, grace, now)
        };
        sandboxes
            .iter()
            .filter(may_be_cleared)
            .map(|sandbox| Record::of(&sandbox.meta).alloc_id)
            .filter(|alloc| {
                unreadable
                    .iter()
                    .all(|held| allocation_of(&held.name) != alloc)
            })
            .collect()
    }

    /// Removes the tasks of an allocation that no agent references, and then its network. What is there is listed now:
    /// the sweep may have waited since it found the allocation.
    async fn clear_allocation(&self, session: &Session, alloc: &str) {
        let Ok(sandboxes) = self.scope().sandboxes().list() else {
            return;
        };
        let gc = &session.config.gc;
        let grace = gc.dangling.creation_grace;
        let now = (Instant::now(), SystemTime::now());
        let of_alloc = sandboxes
            .iter()
            .filter(|sandbox| Record::of(&sandbox.meta).alloc_id == alloc);
        let (networks, tasks): (Vec<_>, Vec<_>) =
            of_alloc.partition(|sandbox| is_network(&sandbox.meta.name));
        let mut gone = 0;
        for task in &tasks {
            if self.references().is_dangling(&session.id, task, grace, now)
                && self.sweep_task(gc, task).await
            {
                gone += 1;
            }
        }
        for network in networks {
            // With tasks in the allocation, it goes together with them if all of them are dangling; without tasks
            // it is judged by itself.
            let is_dangling = if tasks.is_empty() {
                self.is_dangling_network(session, network, &sandboxes, now)
                    .await
            } else {
                gone == tasks.len()
                    && references::is_old(network, grace, now.1)
                    && !self.references().knows_network(&network.meta.name)
            };
            if is_dangling {
                self.sweep_network(gc, network).await;
            }
        }
    }

    /// Removes a dangling task; returns whether it is gone.
    async fn sweep_task(&self, gc: &GcConfig, sandbox: &Sandbox) -> bool {
        let name = &sandbox.meta.name;
        // Exited tasks may be kept for inspection.
        let ended = self
            .scope()
            .tasks()
            .named(name)
            .is_ok_and(|task| task.is_some_and(|t| !t.state.may_run()));
        if !gc.container && ended {
            return false;
        }
        if gc.dangling.dry_run {
            tracing::info!(
                name,
                "no agent references a task: not removing it, since dry_run is set"
            );
            return false;
        }
        tracing::warn!(name, "no agent references a task: removing it");
        let gc = GcConfig {
            container: true,
            ..gc.clone()
        };
        self.remove_dangling(name, &gc)
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(
                    name,
                    error = error.report(),
                    "cannot remove a task that no agent references"
                );
                false
            })
    }

    /// Returns whether no agent references the network of an allocation without tasks.
    async fn is_dangling_network(
        &self,
        session: &Session,
        network: &Sandbox,
        sandboxes: &[Arc<Sandbox>],
        now: (Instant, SystemTime),
    ) -> bool {
        let grace = session.config.gc.dangling.creation_grace;
        let record = Record::of(&network.meta);
        let Some(owner) = self.owner(session, &record, sandboxes).await else {
            return false;
        };
        self.references()
            .is_past_grace(&session.id, network, &owner, grace, now)
            && (self
                .references()
                .is_unreferenced(&session.id, &network.meta.name)
                || self.is_cleared(&record).await)
    }

    /// Returns whether the agent recorded with a network has removed the directory of the allocation: then no
    /// task will join the network any more, whatever was requested before.
    pub(crate) async fn is_cleared(&self, network: &Record) -> bool {
        let Some(agent) = network.agent() else {
            return false;
        };
        let all = agent.dir().to_owned();
        let own = agent.dir_of(&network.alloc_id);
        // If the parent directory does not exist, for example while it is moved, nothing is known.
        let check = move || Ok(all.is_dir() && own.try_exists().is_ok_and(|exists| !exists));
        let checked = self
            .pool()
            .run(format!("allocation {}", network.alloc_id), check)
            .await;
        checked.unwrap_or_else(|error| {
            let alloc = &network.alloc_id;
            tracing::debug!(
                nomad_alloc = alloc,
                error = error.report(),
                "cannot check whether an allocation directory exists"
            );
            false
        })
    }

    /// The agent that a network belongs to: the one recorded at its creation, or the one of this session that
    /// has a directory of the allocation, or else the only one on the node.
    async fn owner(
        &self,
        session: &Session,
        record: &Record,
        sandboxes: &[Arc<Sandbox>],
    ) -> Option<Agent> {
        if let Some(agent) = record.agent() {
            return Some(agent);
        }
        let mut agents = self.references().agents(&session.id);
        for agent in &agents {
            let dir = agent.dir_of(&record.alloc_id);
            let check = move || Ok(dir.exists());
            match self
                .pool()
                .run(format!("allocation {}", record.alloc_id), check)
                .await
            {
                Ok(true) => return Some(agent.clone()),
                Ok(false) => {}
                // Without a successful check nothing is removed.
                Err(error) => {
                    tracing::debug!(
                        nomad_alloc = record.alloc_id,
                        error = error.report(),
                        "cannot determine the agent of a network"
                    );
                    return None;
                }
            }
        }
        let only = agents.pop().filter(|_| agents.is_empty())?;
        let of_tasks = sandboxes
            .iter()
            .filter_map(|sandbox| Record::of(&sandbox.meta).agent());
        let mut all = self
            .sessions()
            .into_iter()
            .flat_map(|session| self.references().agents(&session.id))
            .chain(of_tasks);
        all.all(|agent| agent == only).then_some(only)
    }

    async fn sweep_network(&self, gc: &GcConfig, sandbox: &Sandbox) {
        let name = &sandbox.meta.name;
        if gc.dangling.dry_run {
            tracing::info!(
                name,
                "no agent references a network: not removing it, since dry_run is set"
            );
            return;
        }
        tracing::warn!(
            name,
            "no agent references the network of an allocation: removing it"
        );
        if let Err(error) = self.remove_unused_network(name.clone()).await {
            tracing::warn!(
                name,
                error = error.report(),
                "cannot remove a network that no agent references"
            );
        }
    }
}

#[cfg(test)]
mod tests;
