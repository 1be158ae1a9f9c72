//! What the clients were told, and what must therefore be true.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The daemon, which is started again at once, as a service manager would.
    Daemon,
    /// The logkeeper, which the daemon starts again.
    Logkeeper,
    /// containerd, which is started again by the daemon or by whoever else has started it.
    Containerd,
    /// The shim of some container or pod.
    Shim,
}

/// What a client was last told of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is there: a ready pod, or a container that was not started.
    There,
    /// It runs; a container that ends by itself may have ended.
    Running {
        /// Whether it ends by itself.
        ends: bool,
    },
    /// Its stop was acknowledged, or its end was seen; a container's exit code.
    Ended(i32),
    /// A change is under way whose answer is not here yet.
    Changing,
    /// Its removal was acknowledged.
    Gone,
}

/// A pod or a container.
#[derive(Debug, Clone)]
pub(super) struct Fact {
    pub(super) told: Told,
    pub(super) pod: bool,
    /// The pod of a container.
    pub(super) home: Option<String>,
    /// A shim that it needs was killed: it may have ended by that.
    pub(super) harmed: bool,
    /// Counts its changes.
    version: u64,
}

/// One kill.
#[derive(Debug, Clone, Copy)]
struct Kill {
    victim: Victim,
    at: Instant,
}

/// What all clients were told, and what was done to them.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    facts: Mutex<BTreeMap<String, Fact>>,
    /// Ids whose shims were killed, also of what no client has been told of yet.
    shims: Mutex<HashSet<String>>,
    kills: Mutex<Vec<Kill>>,
}

impl Ledger {
    fn facts(&self) -> MutexGuard<'_, BTreeMap<String, Fact>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shims(&self) -> MutexGuard<'_, HashSet<String>> {
        self.shims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: &str, home: Option<&str>) {
        let fact = Fact {
            told: Told::There,
            pod: home.is_none(),
            home: home.map(str::to_owned),
            harmed: self.shims().contains(id) || home.is_some_and(|home| self.is_harmed(home)),
            version: 0,
        };
        self.facts().insert(id.to_owned(), fact);
    }

    pub(super) fn tell(&self, id: &str, told: Told) {
        if let Some(fact) = self.facts().get_mut(id) {
            fact.told = told;
            fact.version += 1;
        }
    }

    pub(super) fn is_harmed(&self, id: &str) -> bool {
        self.facts().get(id).is_some_and(|fact| fact.harmed)
    }

    /// Notes that the shim of this object is killed: it may serve the whole pod.
    pub(super) fn harm(&self, id: &str) {
        self.shims().insert(id.to_owned());
        let mut facts = self.facts();
        let pod = facts.get(id).and_then(|fact| fact.home.clone()).unwrap_or_else(|| id.to_owned());
        for (name, fact) in facts.iter_mut() {
            if *name == id || fact.home.as_ref() == Some(&pod) {
                fact.harmed = true;
                fact.version += 1;
            }
        }
    }

    pub(super) fn killed(&self, victim: Victim) {
        let kill = Kill { victim, at: Instant::now() };
        self.kills.lock().unwrap_or_else(PoisonError::into_inner).push(kill);
    }

    /// Whether one of these was killed at or after `since`, less the time that its effects last.
    pub(super) fn was_killed(&self, victims: &[Victim], since: Instant) -> bool {
        /// Until the last effect of a kill: containerd is started again and asked, its calls in flight have failed.
        const EFFECTS: Duration = Duration::from_secs(10);
        since.checked_sub(EFFECTS).is_some_and(|since| self.was_killed_after(victims, since))
    }

    /// Whether one of these was killed at or after `since`.
    pub(super) fn was_killed_after(&self, victims: &[Victim], since: Instant) -> bool {
        let kills = self.kills.lock().unwrap_or_else(PoisonError::into_inner);
        kills.iter().any(|kill| victims.contains(&kill.victim) && kill.at >= since)
    }

    /// Whether the daemon and the logkeeper may have been dead at one time after `since`: what a container writes last may then
    /// be lost.
    pub(super) fn both_killed(&self, since: Instant) -> bool {
        const NEAR: Duration = Duration::from_secs(5);
        let kills = self.kills.lock().unwrap_or_else(PoisonError::into_inner);
        let recent =
            |victim| kills.iter().filter(move |kill| kill.victim == victim && kill.at + NEAR >= since);
        recent(Victim::Logkeeper).any(|keeper| {
            recent(Victim::Daemon).any(|daemon| keeper.at.max(daemon.at) - keeper.at.min(daemon.at) < NEAR)
        })
    }

    pub(super) fn snapshot(&self) -> BTreeMap<String, Fact> {
        self.facts().clone()
    }

    /// What in the lists contradicts what was told both before and after they were asked for.
    pub(super) fn contradictions(
        &self,
        before: &BTreeMap<String, Fact>,
        pods: &[cri::PodSandbox],
        containers: &[cri::Container],
    ) -> Vec<String> {
        let after = self.snapshot();
        let mut wrong = twice(pods, containers);
        let pods: HashMap<&str, &cri::PodSandbox> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        let containers: HashMap<&str, &cri::Container> =
            containers.iter().map(|container| (container.id.as_str(), container)).collect();
        for (id, fact) in before {
            if after.get(id).is_none_or(|now| now.version != fact.version) {
                continue;
            }
            let listed = if fact.pod {
                pods.get(id.as_str()).map(|pod| pod.state().as_str_name())
            } else {
                containers.get(id.as_str()).map(|container| container.state().as_str_name())
            };
            if !allowed(fact, listed) {
                wrong.push(format!(
                    "{id}: told {:?}, harmed {}, listed as {listed:?}",
                    fact.told, fact.harmed
                ));
            }
        }
        wrong
    }
}

/// Whether something may be listed so, given what was told of it.
fn allowed(fact: &Fact, listed: Option<&str>) -> bool {
    let one_of = |states: &[&str]| listed.is_some_and(|state| states.contains(&state));
    match (fact.told, fact.pod) {
        (Told::Gone, _) => listed.is_none(),
        (Told::Changing, _) => true,
        (Told::There | Told::Running { .. }, true) => {
            one_of(&["SANDBOX_READY"]) || fact.harmed && one_of(&["SANDBOX_NOTREADY"])
        }
        (Told::Ended(_), true) => one_of(&["SANDBOX_NOTREADY"]),
        (Told::There, false) => one_of(&["CONTAINER_CREATED"]),
        (Told::Running { ends }, false) => {
            one_of(&["CONTAINER_RUNNING"]) || (ends || fact.harmed) && one_of(&["CONTAINER_EXITED"])
        }
        (Told::Ended(_), false) => one_of(&["CONTAINER_EXITED"]),
    }
}

/// Names that are listed twice.
fn twice(pods: &[cri::PodSandbox], containers: &[cri::Container]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for pod in pods {
        let meta = pod.metadata.clone().unwrap_or_default();
        *seen.entry(format!("pod {} {} {}", meta.name, meta.uid, meta.attempt)).or_default() += 1;
    }
    for container in containers {
        let meta = container.metadata.clone().unwrap_or_default();
        let name = format!("container {} {} in {}", meta.name, meta.attempt, container.pod_sandbox_id);
        *seen.entry(name).or_default() += 1;
    }
    seen.into_iter()
        .filter(|(_, times)| *times > 1)
        .map(|(name, times)| format!("{name} is listed {times} times"))
        .collect()
}
