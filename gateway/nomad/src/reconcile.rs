//! Tasks that no agent knows any more: found by what the sessions that are open have named, and taken away.
//!
//! A task is only looked at while the agent it belongs to is here, as its session has shown by a start or a recovery, and has had time
//! to take up what it knows. So an agent that is away for long, or one of another node's directory, loses nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use switchyard_core::table::Sandbox;
use tokio::time::Instant;

use crate::driver::Driver;
use crate::identity::{Agent, Record, is_network};
use crate::plugin_config::GcConfig;
use crate::session::Session;

/// Between two looks at which sessions are open.
const LOOK: Duration = Duration::from_secs(5);

/// What the sessions have named.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sessions: Mutex<HashMap<String, Named>>,
}

/// What one session has named.
#[derive(Debug, Default, Clone)]
struct Named {
    /// Since when each agent is known to be behind it; it is one, as a rule.
    agents: HashMap<Agent, Instant>,
    tasks: HashSet<String>,
}

/// When something was last done for the sessions that are open.
#[derive(Debug, Default)]
struct Tended {
    swept: HashMap<String, Instant>,
}

// === impl Seen ===

impl Seen {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has named this task.
    pub(crate) fn task(&self, session: &str, id: &str) {
        let mut sessions = self.lock();
        match sessions.get_mut(session) {
            Some(named) if named.tasks.contains(id) => {}
            Some(named) => {
                named.tasks.insert(id.to_owned());
            }
            None => {
                sessions.entry(session.to_owned()).or_default().tasks.insert(id.to_owned());
            }
        }
    }

    /// A session has shown which agent is behind it.
    pub(crate) fn agent(&self, session: &str, agent: Option<Agent>) {
        if let Some(agent) = agent {
            let mut sessions = self.lock();
            sessions.entry(session.to_owned()).or_default().agents.entry(agent).or_insert_with(Instant::now);
        }
    }

    /// An agent does not want this task any more.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().values_mut().for_each(|named| {
            named.tasks.remove(id);
        });
    }

    /// Forgets sessions that are not open, and tasks that are gone.
    fn keep(&self, open: &[Arc<Session>], exists: impl Fn(&str) -> bool) {
        let mut sessions = self.lock();
        sessions.retain(|id, _| open.iter().any(|session| session.id == *id));
        for named in sessions.values_mut() {
            named.tasks.retain(|id| exists(id));
        }
    }

    /// Whether this task is one that no agent knows, as far as this session can tell.
    fn is_dangling(
        &self,
        session: &str,
        sandbox: &Sandbox,
        grace: Duration,
        now: (Instant, SystemTime),
    ) -> bool {
        let name = &sandbox.meta.name;
        let age = now.1.duration_since(sandbox.meta.created_at).unwrap_or_default();
        let Some(agent) = Record::of(&sandbox.meta).agent() else { return false };
        let sessions = self.lock();
        let here = sessions.get(session).and_then(|named| named.agents.get(&agent));
        !is_network(name)
            && age >= grace
            && here.is_some_and(|since| now.0.saturating_duration_since(*since) >= grace)
            && !sessions.values().any(|named| named.tasks.contains(name))
    }
}

// === impl Driver ===

impl Driver {
    /// Tends what sessions leave, for as long as it is polled. Cancel-safe.
    pub(crate) async fn reconcile(&self) {
        let mut tended = Tended::default();
        loop {
            tokio::time::sleep(LOOK).await;
            let open = self.sessions();
            let Ok(sandboxes) = self.scope().sandboxes() else { continue };
            self.seen().keep(&open, |id| sandboxes.iter().any(|sandbox| sandbox.meta.name == id));
            tended.swept.retain(|id, _| open.iter().any(|session| session.id == *id));
            for session in &open {
                self.tend_for(session, &sandboxes, &mut tended).await;
            }
        }
    }

    async fn tend_for(&self, session: &Session, sandboxes: &[Arc<Sandbox>], tended: &mut Tended) {
        let gc = &session.config.gc;
        let now = Instant::now();
        let Some(swept) = tended.swept.get_mut(&session.id) else {
            tended.swept.insert(session.id.clone(), now);
            if gc.image
                && let Err(error) = self.keep().look_for_leftovers(gc.image_delay).await
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
        for sandbox in sandboxes {
            if !self.seen().is_dangling(&session.id, sandbox, grace, now) {
                continue;
            }
            let name = &sandbox.meta.name;
            // Those that have ended may be kept for a look.
            let ended =
                self.scope().task_named(name).is_ok_and(|task| task.is_some_and(|t| !t.state.may_run()));
            if !gc.container && ended {
                continue;
            }
            if gc.dangling.dry_run {
                tracing::info!(task = name, "a task that no agent knows is left alone: dry_run is set");
                continue;
            }
            tracing::warn!(task = name, "a task that no agent knows is taken away");
            let gc = GcConfig { container: true, ..gc.clone() };
            if let Err(error) = self.take_away(name, true, &gc).await {
                tracing::warn!(
                    task = name,
                    error = error.report(),
                    "a task that no agent knows is still there"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
