//! What agents have named, by which it is told what none of them knows any more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use switchyard_core::table::Sandbox;
use switchyard_process::ProcessId;
use tokio::time::Instant;

use crate::identity::{Agent, Record, is_network};
use crate::session::Session;

/// What the sessions have named.
#[derive(Debug)]
pub(crate) struct AgentReferences {
    /// When this daemon began, in clock ticks since boot; what was named before it does not know.
    began: Option<u64>,
    known: Mutex<ReferenceState>,
}

#[derive(Debug, Default)]
struct ReferenceState {
    sessions: HashMap<String, SessionReferences>,
    /// The networks that each life of an agent has asked for; those of callers that are not known are `None`'s.
    networks: HashMap<Option<ProcessId>, HashSet<String>>,
}

/// What one session has named.
#[derive(Debug, Default, Clone)]
struct SessionReferences {
    /// The agent's process, as far as it has called.
    process: Option<ProcessId>,
    /// Since when each agent is known to be behind it; it is one, as a rule.
    agents: HashMap<Agent, Instant>,
    tasks: HashSet<String>,
}

// === impl Seen ===

impl AgentReferences {
    /// Nothing is named yet. `began` is when this daemon began, in clock ticks since boot.
    pub(crate) fn new(began: Option<u64>) -> Self {
        Self { began, known: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ReferenceState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
                known.sessions.entry(session.to_owned()).or_default().tasks.insert(id.to_owned());
            }
        }
    }

    /// This process has called by a session. If another had before, the agent has just come back.
    pub(crate) fn note_process(&self, session: &str, life: Option<ProcessId>) {
        let Some(life) = life else { return };
        let mut known = self.lock();
        let named = known.sessions.entry(session.to_owned()).or_default();
        if named.process.replace(life).is_some_and(|before| before != life) {
            named.agents.clear();
        }
    }

    /// A session has shown which agent is behind it.
    pub(crate) fn note_agent(&self, session: &str, agent: Option<Agent>) {
        if let Some(agent) = agent {
            let mut known = self.lock();
            let named = known.sessions.entry(session.to_owned()).or_default();
            named.agents.entry(agent).or_insert_with(Instant::now);
        }
    }

    /// The agents that are behind a session, as far as they have shown.
    pub(crate) fn agents(&self, session: &str) -> Vec<Agent> {
        self.lock()
            .sessions
            .get(session)
            .map(|named| named.agents.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// A session needs the network of this name.
    pub(crate) fn note_network(&self, session: &str, name: &str) {
        let mut known = self.lock();
        let life = known.sessions.get(session).and_then(|named| named.process);
        known.networks.entry(life).or_default().insert(name.to_owned());
    }

    /// An agent does not want this task, or network, any more.
    pub(crate) fn forget(&self, id: &str) {
        let mut known = self.lock();
        known.sessions.values_mut().for_each(|named| {
            named.tasks.remove(id);
        });
        known.networks.values_mut().for_each(|names| {
            names.remove(id);
        });
    }

    /// Whether an agent that is here, in its present life, has asked for the network of this name.
    pub(crate) fn knows_network(&self, name: &str) -> bool {
        self.lock().knows_network(name)
    }

    /// Forgets sessions that are not open, and tasks and networks that are gone.
    pub(super) fn retain(&self, open: &[Arc<Session>], exists: impl Fn(&str) -> bool) {
        let mut known = self.lock();
        known.sessions.retain(|id, _| open.iter().any(|session| session.id == *id));
        for named in known.sessions.values_mut() {
            named.tasks.retain(|id| exists(id));
        }
        // Not with the session: a plugin that was killed comes back in the same life of its agent.
        known.networks.retain(|_, names| {
            names.retain(|name| exists(name));
            !names.is_empty()
        });
    }

    /// Whether this task is one that no agent knows, as far as this session can tell.
    pub(super) fn is_dangling(
        &self,
        session: &str,
        sandbox: &Sandbox,
        grace: Duration,
        now: (Instant, SystemTime),
    ) -> bool {
        let name = &sandbox.meta.name;
        let Some(agent) = Record::of(&sandbox.meta).agent() else { return false };
        !is_network(name)
            && self.is_past_grace(session, sandbox, &agent, grace, now)
            && !self.knows_task(name)
    }

    /// Whether any session has named this task.
    pub(crate) fn knows_task(&self, id: &str) -> bool {
        self.lock().sessions.values().any(|named| named.tasks.contains(id))
    }

    /// Whether no agent has asked for this network, as far as this session can tell. An agent asks for each that it needs when it begins,
    /// and may let long go by between two tasks in it: only who has heard all that it has said in its present life can tell. What it says
    /// of tasks does not count: it also asks for those of allocations that have ended.
    pub(super) fn is_unreferenced(&self, session: &str, network: &str) -> bool {
        let known = self.lock();
        let life = known.sessions.get(session).and_then(|named| named.process);
        let heard_all = life.zip(self.began).is_some_and(|(life, began)| life.started > began);
        heard_all && !known.knows_network(network)
    }

    /// Whether a sandbox is older than it takes an agent to make use of it, and this agent has been here for as long.
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

// === impl Known ===

impl ReferenceState {
    fn is_here(&self, session: &str, agent: &Agent, grace: Duration, now: Instant) -> bool {
        let since = self.sessions.get(session).and_then(|named| named.agents.get(agent));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= grace)
    }

    fn knows_network(&self, name: &str) -> bool {
        let lives = self.sessions.values().map(|named| named.process);
        let mut named = lives.chain([None]).filter_map(|life| self.networks.get(&life));
        named.any(|names| names.contains(name))
    }
}

pub(super) fn is_old(sandbox: &Sandbox, grace: Duration, now: SystemTime) -> bool {
    now.duration_since(sandbox.meta.created_at).unwrap_or_default() >= grace
}
