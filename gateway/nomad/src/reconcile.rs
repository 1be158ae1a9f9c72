//! Tasks and networks that no agent knows any more: found by what the sessions that are open have named, and taken away.
//!
//! A task is only looked at while the agent it belongs to is here, as its session has shown by a start or a recovery, and has had time
//! to take up what it knows. So an agent that is away for long, or one of another node's directory, loses nothing. The network of an
//! allocation is left behind in ordinary life as well: an agent that was killed between the end of the tasks and its removal does not
//! ask for that any more, and one whose plugin was started anew cannot ask it to remove what it had asked the other for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::table::Sandbox;
use tokio::time::Instant;

use crate::driver::Driver;
use crate::identity::{Agent, Record, is_network};
use crate::plugin_config::GcConfig;
use crate::session::Session;

mod references;

pub(crate) use references::AgentReferences;

/// Between two looks at which sessions are open.
const POLL: Duration = Duration::from_secs(5);

/// When something was last done for the sessions that are open.
#[derive(Debug, Default)]
struct ReconcileState {
    swept: HashMap<String, Instant>,
}

// === impl Driver ===

impl Driver {
    /// Tends what sessions leave, for as long as it is polled. Cancel-safe.
    pub(crate) async fn reconcile(&self) {
        let mut tended = ReconcileState::default();
        loop {
            tokio::time::sleep(POLL).await;
            let open = self.sessions();
            let Ok(sandboxes) = self.scope().sandboxes() else { continue };
            self.references().retain(&open, |id| sandboxes.iter().any(|sandbox| sandbox.meta.name == id));
            tended.swept.retain(|id, _| open.iter().any(|session| session.id == *id));
            for session in &open {
                self.reconcile_session(session, &sandboxes, &mut tended).await;
            }
        }
    }

    async fn reconcile_session(
        &self,
        session: &Session,
        sandboxes: &[Arc<Sandbox>],
        tended: &mut ReconcileState,
    ) {
        let gc = &session.config.gc;
        let now = Instant::now();
        let Some(swept) = tended.swept.get_mut(&session.id) else {
            tended.swept.insert(session.id.clone(), now);
            if gc.image
                && let Err(error) = self.image_gc().schedule_unused(gc.image_delay).await
            {
                tracing::warn!(
                    error = error.report(),
                    "images that no task uses are looked for with the next session"
                );
            }
            return;
        };
        if gc.dangling.enabled && now - *swept >= gc.dangling.period {
            *swept = now;
            self.sweep(session, sandboxes).await;
        }
    }

    /// Takes away what no agent knows.
    async fn sweep(&self, session: &Session, sandboxes: &[Arc<Sandbox>]) {
        let gc = &session.config.gc;
        let grace = gc.dangling.creation_grace;
        let now = (Instant::now(), SystemTime::now());
        let mut gone = HashSet::new();
        for sandbox in sandboxes {
            if self.references().is_dangling(&session.id, sandbox, grace, now)
                && self.sweep_task(gc, sandbox).await
            {
                gone.insert(sandbox.meta.name.as_str());
            }
        }
        for sandbox in sandboxes.iter().filter(|sandbox| is_network(&sandbox.meta.name)) {
            if self.is_dangling_network(session, sandbox, sandboxes, &gone, now).await {
                self.sweep_network(gc, sandbox).await;
            }
        }
    }

    /// Whether it is gone.
    async fn sweep_task(&self, gc: &GcConfig, sandbox: &Sandbox) -> bool {
        let name = &sandbox.meta.name;
        // Those that have ended may be kept for a look.
        let ended = self.scope().task_named(name).is_ok_and(|task| task.is_some_and(|t| !t.state.may_run()));
        if !gc.container && ended {
            return false;
        }
        if gc.dangling.dry_run {
            tracing::info!(task = name, "a task that no agent knows is left alone: dry_run is set");
            return false;
        }
        tracing::warn!(task = name, "a task that no agent knows is taken away");
        let gc = GcConfig { container: true, ..gc.clone() };
        let taken = self.remove_dangling(name, &gc).await;
        if let Err(error) = &taken {
            tracing::warn!(task = name, error = error.report(), "a task that no agent knows is still there");
        }
        taken.is_ok()
    }

    /// Whether no agent knows the network of an allocation: it goes with the tasks in it that nobody knows; one without tasks is looked
    /// at by itself.
    async fn is_dangling_network(
        &self,
        session: &Session,
        sandbox: &Sandbox,
        sandboxes: &[Arc<Sandbox>],
        gone: &HashSet<&str>,
        now: (Instant, SystemTime),
    ) -> bool {
        let grace = session.config.gc.dangling.creation_grace;
        let record = Record::of(&sandbox.meta);
        let of_alloc = |other: &&Arc<Sandbox>| {
            !is_network(&other.meta.name) && Record::of(&other.meta).alloc_id == record.alloc_id
        };
        let mut tasks = sandboxes.iter().filter(of_alloc).peekable();
        if tasks.peek().is_some() {
            return references::is_old(sandbox, grace, now.1)
                && !self.references().knows_network(&sandbox.meta.name)
                && tasks.all(|task| gone.contains(task.meta.name.as_str()));
        }
        let Some(owner) = self.owner(session, &record, sandboxes).await else { return false };
        self.references().is_past_grace(&session.id, sandbox, &owner, grace, now)
            && (self.references().is_unreferenced(&session.id, &sandbox.meta.name)
                || self.is_cleared(&record).await)
    }

    /// Whether the allocation of a network has been cleared away by the agent that had it, as is known since it was made: no task comes
    /// into it any more, whatever was said of it before.
    pub(crate) async fn is_cleared(&self, network: &Record) -> bool {
        let Some(agent) = network.agent() else { return false };
        let all = agent.dir().to_owned();
        let own = agent.dir_of(&network.alloc_id);
        // Where all of its directory is not there, as when it moves, nothing is known.
        let look = move || Ok(all.is_dir() && own.try_exists().is_ok_and(|exists| !exists));
        let looked = self.pool().run(format!("allocation {}", network.alloc_id), look).await;
        looked.unwrap_or_else(|error| {
            let alloc = &network.alloc_id;
            tracing::debug!(alloc, error = error.report(), "whether an allocation is there is not known");
            false
        })
    }

    /// The agent that a network belongs to: as it was known when it was made, or the one of this session that has a directory of the
    /// allocation, or else the only one that the node has.
    async fn owner(&self, session: &Session, record: &Record, sandboxes: &[Arc<Sandbox>]) -> Option<Agent> {
        if let Some(agent) = record.agent() {
            return Some(agent);
        }
        let mut agents = self.references().agents(&session.id);
        for agent in &agents {
            let dir = agent.dir_of(&record.alloc_id);
            let look = move || Ok(dir.exists());
            match self.pool().run(format!("allocation {}", record.alloc_id), look).await {
                Ok(true) => return Some(agent.clone()),
                Ok(false) => {}
                // Who cannot look takes nothing away.
                Err(error) => {
                    tracing::debug!(
                        alloc = record.alloc_id,
                        error = error.report(),
                        "whose a network is is not known"
                    );
                    return None;
                }
            }
        }
        let only = agents.pop().filter(|_| agents.is_empty())?;
        let of_tasks = sandboxes.iter().filter_map(|sandbox| Record::of(&sandbox.meta).agent());
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
            tracing::info!(network = name, "a network that no agent knows is left alone: dry_run is set");
            return;
        }
        tracing::warn!(network = name, "the network of an allocation that no agent knows is taken away");
        if let Err(error) = self.remove_unused_network(name.clone()).await {
            tracing::warn!(
                network = name,
                error = error.report(),
                "a network that no agent knows is still there"
            );
        }
    }
}

#[cfg(test)]
mod tests;
