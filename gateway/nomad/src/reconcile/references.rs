//! The ids that agents have named, from which dangling tasks and networks are derived.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::object::Sandbox;
use switchyard_linux::process::ProcessId;
use tokio::time::Instant;

use crate::identity::{Agent, Record, is_network};
use crate::session::Session;

/// The ids that the sessions have named.
#[derive(Debug)]
pub(crate) struct AgentReferences {
    /// Start time of this daemon in clock ticks since boot; it does not know the names of before.
    began: Option<u64>,
    known: Mutex<ReferenceState>,
}

#[derive(Debug, Default)]
struct ReferenceState {
    sessions: HashMap<String, SessionReferences>,
    /// The networks that each agent process has requested; `None` collects those of unknown callers.
    networks: HashMap<Option<ProcessId>, HashSet<String>>,
    /// The tasks that are being removed.
    removals: HashSet<String>,
}

/// The removal of a task, until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    references: &'a AgentReferences,
    id: String,
}

/// The ids that one session has named.
#[derive(Debug, Default, Clone)]
struct SessionReferences {
    /// The agent's process, if it has called.
    process: Option<ProcessId>,
    /// The agents of the session, normally one, and since when each is known.
    agents: HashMap<Agent, Instant>,
    tasks: HashSet<String>,
}

// === impl AgentReferences ===

impl AgentReferences {
    /// Empty. `began` is the start of this daemon, in clock ticks since boot.
    pub(crate) fn new(began: Option<u64>) -> Self {
        Self {
            began,
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReferenceState> {
        self.known.lock()
    }

    /// A session has named this task.
    pub(crate) fn note_task(&self, session: &str, id: &str) {
        let mut known = self.lock();
        match known.sessions.get_mut(session) {
            Some(named) if named.tasks.contains(id) => {}
            Some(named) => {
                named.tasks.insert(id.to_owned());
            }
            None => {
                known
                    .sessions
                    .entry(session.to_owned())
                    .or_default()
                    .tasks
                    .insert(id.to_owned());
            }
        }
    }

    /// This process has called in a session. If a different process had called before, the agent was
    /// restarted.
    pub(crate) fn note_process(&self, session: &str, life: Option<ProcessId>) {
        let Some(life) = life else { return };
        let mut known = self.lock();
        let named = known.sessions.entry(session.to_owned()).or_default();
        if named
            .process
            .replace(life)
            .is_some_and(|before| before != life)
        {
            named.agents.clear();
        }
    }

    /// A session has shown which agent it belongs to.
    pub(crate) fn note_agent(&self, session: &str, agent: Option<Agent>) {
        if let Some(agent) = agent {
            let mut known = self.lock();
            let named = known.sessions.entry(session.to_owned()).or_default();
            named.agents.entry(agent).or_insert_with(Instant::now);
        }
    }

    /// The agents that have identified themselves in a session.
    pub(crate) fn agents(&self, session: &str) -> Vec<Agent> {
        self.lock()
            .sessions
            .get(session)
            .map(|named| named.agents.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// A session requests the network of this name.
    pub(crate) fn note_network(&self, session: &str, name: &str) {
        let mut known = self.lock();
        let life = known.sessions.get(session).and_then(|named| named.process);
        known
            .networks
            .entry(life)
            .or_default()
            .insert(name.to_owned());
    }

    /// An agent does not need this task, or network, any more.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().forget(id);
    }

    /// The removal of a task begins, which its agent does not need any more. From now on it cannot be
    /// recovered.
    pub(crate) fn begin_removal(&self, id: &str) -> Removal<'_> {
        let mut known = self.lock();
        known.forget(id);
        known.removals.insert(id.to_owned());
        Removal {
            references: self,
            id: id.to_owned(),
        }
    }

    /// Begins the removal of a task that no session has named; `None` if one has. A session that names it
    /// later learns that the task is being removed.
    pub(crate) fn begin_removal_of_unknown(&self, id: &str) -> Option<Removal<'_>> {
        let mut known = self.lock();
        if known.knows_task(id) {
            return None;
        }
        known.removals.insert(id.to_owned());
        Some(Removal {
            references: self,
            id: id.to_owned(),
        })
    }

    /// Returns whether the removal of a task has begun. To be called after the task was noted.
    pub(crate) fn is_being_removed(&self, id: &str) -> bool {
        self.lock().removals.contains(id)
    }

    /// Returns whether a present process of a connected agent has requested the network of this name.
    pub(crate) fn knows_network(&self, name: &str) -> bool {
        self.lock().knows_network(name)
    }

    /// Drops closed sessions, and tasks and networks that do not exist.
    pub(super) fn retain(&self, open: &[Arc<Session>], exists: impl Fn(&str) -> bool) {
        let mut known = self.lock();
        known
            .sessions
            .retain(|id, _| open.iter().any(|session| session.id == *id));
        for named in known.sessions.values_mut() {
            named.tasks.retain(|id| exists(id));
        }
        // Networks are kept without their session: a plugin that was killed is restarted by the same agent
        // process.
        known.networks.retain(|_, names| {
            names.retain(|name| exists(name));
            !names.is_empty()
        });
    }

    /// Returns whether no agent references this task, as far as this session can determine.
    pub(super) fn is_dangling(
        &self,
        session: &str,
        sandbox: &Sandbox,
        grace: Duration,
        now: (Instant, SystemTime),
    ) -> bool {
        let name = &sandbox.meta.name;
        let Some(agent) = Record::of(&sandbox.meta).agent() else {
            return false;
        };
        !is_network(name)
            && self.is_past_grace(session, sandbox, &agent, grace, now)
            && !self.knows_task(name)
    }

    /// Returns whether any session has named this task.
    pub(crate) fn knows_task(&self, id: &str) -> bool {
        self.lock().knows_task(id)
    }

    /// Returns whether no agent has requested this network, as far as this session can determine. An agent
    /// requests each network that it needs when it starts, and much time may pass between two tasks in it:
    /// the answer is reliable only if this daemon has received every call of the present agent process. Calls
    /// about tasks do not count: an agent also asks for tasks of allocations that have ended.
    pub(super) fn is_unreferenced(&self, session: &str, network: &str) -> bool {
        let known = self.lock();
        let life = known.sessions.get(session).and_then(|named| named.process);
        let heard_all = life
            .zip(self.began)
            .is_some_and(|(life, began)| life.started > began);
        heard_all && !known.knows_network(network)
    }

    /// Returns whether a sandbox is older than the grace period, and this agent has been connected for at
    /// least as long.
    pub(super) fn is_past_grace(
        &self,
        session: &str,
        sandbox: &Sandbox,
        agent: &Agent,
        grace: Duration,
        now: (Instant, SystemTime),
    ) -> bool {
        is_old(sandbox, grace, now.1) && self.lock().is_here(session, agent, grace, now.0)
    }
}

// === impl Removal ===

impl Removal<'_> {
    /// The id of the task.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.references.lock().removals.remove(&self.id);
    }
}

// === impl ReferenceState ===

impl ReferenceState {
    fn forget(&mut self, id: &str) {
        self.sessions.values_mut().for_each(|named| {
            named.tasks.remove(id);
        });
        self.networks.values_mut().for_each(|names| {
            names.remove(id);
        });
    }

    fn knows_task(&self, id: &str) -> bool {
        self.sessions.values().any(|named| named.tasks.contains(id))
    }

    fn is_here(&self, session: &str, agent: &Agent, grace: Duration, now: Instant) -> bool {
        let since = self
            .sessions
            .get(session)
            .and_then(|named| named.agents.get(agent));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= grace)
    }

    fn knows_network(&self, name: &str) -> bool {
        let lives = self.sessions.values().map(|named| named.process);
        let mut named = lives
            .chain([None])
            .filter_map(|life| self.networks.get(&life));
        named.any(|names| names.contains(name))
    }
}

pub(super) fn is_old(sandbox: &Sandbox, grace: Duration, now: SystemTime) -> bool {
    now.duration_since(sandbox.meta.created_at)
        .unwrap_or_default()
        >= grace
}
