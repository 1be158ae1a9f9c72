//! The state of all objects as the clients know it from their answers, and what the daemon may therefore
//! list.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use switchyard_proto::cri::v1 as cri;

/// A process that a run kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The daemon, which the run restarts at once, as a service manager would.
    Daemon,
    /// The logkeeper, which the daemon restarts.
    Logkeeper,
    /// containerd, which is restarted by the daemon or, if it is external, by the run.
    Containerd,
    /// The shim of some container or pod.
    Shim,
}

/// The last acknowledged state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectState {
    /// A ready pod, or a container that was created and not started.
    Present,
    /// A running container; one that exits by itself may have exited.
    Running {
        /// True if it exits by itself.
        ends: bool,
    },
    /// The stop was acknowledged, or the exit was seen. Holds a container's exit code.
    Ended(i32),
    /// A change was requested, and its answer has not arrived.
    Changing,
    /// The removal was acknowledged.
    Gone,
}

/// A pod or a container.
#[derive(Debug, Clone)]
pub(super) struct TrackedObject {
    pub(super) state: ObjectState,
    pub(super) is_pod: bool,
    /// The id of the pod, if the object is a container.
    pub(super) pod_id: Option<String>,
    /// True if a shim that serves the object was killed; the object may have exited because of that.
    pub(super) shim_killed: bool,
    /// The number of changes so far.
    version: u64,
}

/// One kill.
#[derive(Debug, Clone, Copy)]
struct KillEvent {
    victim: Victim,
    at: Instant,
}

/// The clients' knowledge of all objects, and all kills so far.
#[derive(Debug, Default)]
pub(super) struct ExpectedState {
    objects: Mutex<BTreeMap<String, TrackedObject>>,
    /// The ids of objects whose shims were killed, including objects that no client knows of yet.
    killed_shims: Mutex<HashSet<String>>,
    kills: Mutex<Vec<KillEvent>>,
}

impl ExpectedState {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, TrackedObject>> {
        self.objects.lock()
    }

    fn killed_shims(&self) -> MutexGuard<'_, HashSet<String>> {
        self.killed_shims.lock()
    }

    pub(super) fn add(&self, id: &str, pod_id: Option<&str>) {
        let fact = TrackedObject {
            state: ObjectState::Present,
            is_pod: pod_id.is_none(),
            pod_id: pod_id.map(str::to_owned),
            shim_killed: self.killed_shims().contains(id)
                || pod_id.is_some_and(|pod_id| self.is_shim_killed(pod_id)),
            version: 0,
        };
        self.objects().insert(id.to_owned(), fact);
    }

    pub(super) fn set_state(&self, id: &str, new_state: ObjectState) {
        if let Some(fact) = self.objects().get_mut(id) {
            fact.state = new_state;
            fact.version += 1;
        }
    }

    pub(super) fn is_shim_killed(&self, id: &str) -> bool {
        self.objects().get(id).is_some_and(|fact| fact.shim_killed)
    }

    /// Records that the shim of this object is killed. The shim may serve the whole pod.
    pub(super) fn mark_shim_killed(&self, id: &str) {
        self.killed_shims().insert(id.to_owned());
        let mut facts = self.objects();
        let pod = facts
            .get(id)
            .and_then(|fact| fact.pod_id.clone())
            .unwrap_or_else(|| id.to_owned());
        for (name, fact) in facts.iter_mut() {
            if *name == id || fact.pod_id.as_ref() == Some(&pod) {
                fact.shim_killed = true;
                fact.version += 1;
            }
        }
    }

    pub(super) fn record_kill(&self, victim: Victim) {
        let kill = KillEvent {
            victim,
            at: Instant::now(),
        };
        self.kills.lock().push(kill);
    }

    /// Returns whether one of these was killed at or after `since`, or so shortly before that the effects
    /// lasted until then.
    pub(super) fn was_killed(&self, victims: &[Victim], since: Instant) -> bool {
        /// Duration of the effects of a kill: containerd is restarted and queried, and its calls in flight
        /// fail.
        const KILL_AFTERMATH: Duration = Duration::from_secs(10);
        since
            .checked_sub(KILL_AFTERMATH)
            .is_some_and(|since| self.was_killed_after(victims, since))
    }

    /// Returns whether one of these was killed at or after `since`.
    pub(super) fn was_killed_after(&self, victims: &[Victim], since: Instant) -> bool {
        let kills = self.kills.lock();
        kills
            .iter()
            .any(|kill| victims.contains(&kill.victim) && kill.at >= since)
    }

    /// Returns whether the daemon and the logkeeper may have been down at the same time after `since`: the
    /// last output of a container may then be lost.
    pub(super) fn both_killed(&self, since: Instant) -> bool {
        const BOTH_KILLED_WINDOW: Duration = Duration::from_secs(5);
        let kills = self.kills.lock();
        let recent = |victim| {
            kills
                .iter()
                .filter(move |kill| kill.victim == victim && kill.at + BOTH_KILLED_WINDOW >= since)
        };
        recent(Victim::Logkeeper).any(|keeper| {
            recent(Victim::Daemon).any(|daemon| {
                keeper.at.max(daemon.at) - keeper.at.min(daemon.at) < BOTH_KILLED_WINDOW
            })
        })
    }

    pub(super) fn snapshot(&self) -> BTreeMap<String, TrackedObject> {
        self.objects().clone()
    }

    /// The entries of the lists that contradict the expected state both before and after the lists were
    /// requested.
    pub(super) fn contradictions(
        &self,
        before: &BTreeMap<String, TrackedObject>,
        pods: &[cri::PodSandbox],
        containers: &[cri::Container],
    ) -> Vec<String> {
        let after = self.snapshot();
        let mut wrong = duplicates(pods, containers);
        let pods: HashMap<&str, &cri::PodSandbox> =
            pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        let containers: HashMap<&str, &cri::Container> = containers
            .iter()
            .map(|container| (container.id.as_str(), container))
            .collect();
        for (id, fact) in before {
            if after.get(id).is_none_or(|now| now.version != fact.version) {
                continue;
            }
            let listed = if fact.is_pod {
                pods.get(id.as_str()).map(|pod| pod.state().as_str_name())
            } else {
                containers
                    .get(id.as_str())
                    .map(|container| container.state().as_str_name())
            };
            if !may_be_listed(fact, listed) {
                wrong.push(format!(
                    "{id}: reported {:?}, harmed {}, listed as {listed:?}",
                    fact.state, fact.shim_killed
                ));
            }
        }
        wrong
    }
}

/// Returns whether an object in this expected state may be listed so.
fn may_be_listed(fact: &TrackedObject, listed: Option<&str>) -> bool {
    let one_of = |states: &[&str]| listed.is_some_and(|state| states.contains(&state));
    match (fact.state, fact.is_pod) {
        (ObjectState::Gone, _) => listed.is_none(),
        (ObjectState::Changing, _) => true,
        (ObjectState::Present | ObjectState::Running { .. }, true) => {
            one_of(&["SANDBOX_READY"]) || fact.shim_killed && one_of(&["SANDBOX_NOTREADY"])
        }
        (ObjectState::Ended(_), true) => one_of(&["SANDBOX_NOTREADY"]),
        (ObjectState::Present, false) => one_of(&["CONTAINER_CREATED"]),
        (ObjectState::Running { ends }, false) => {
            one_of(&["CONTAINER_RUNNING"])
                || (ends || fact.shim_killed) && one_of(&["CONTAINER_EXITED"])
        }
        (ObjectState::Ended(_), false) => one_of(&["CONTAINER_EXITED"]),
    }
}

/// Names that are listed twice, with the ids and states of their objects.
fn duplicates(pods: &[cri::PodSandbox], containers: &[cri::Container]) -> Vec<String> {
    let mut seen: HashMap<String, Vec<String>> = HashMap::new();
    for pod in pods {
        let meta = pod.metadata.clone().unwrap_or_default();
        let name = format!("pod {} {} {}", meta.name, meta.uid, meta.attempt);
        let object = format!("{} {}", pod.id, pod.state().as_str_name());
        seen.entry(name).or_default().push(object);
    }
    for container in containers {
        let meta = container.metadata.clone().unwrap_or_default();
        let name = format!(
            "container {} {} in {}",
            meta.name, meta.attempt, container.pod_sandbox_id
        );
        let object = format!("{} {}", container.id, container.state().as_str_name());
        seen.entry(name).or_default().push(object);
    }
    seen.into_iter()
        .filter(|(_, objects)| objects.len() > 1)
        .map(|(name, objects)| {
            let times = objects.len();
            format!("{name} is listed {times} times: {}", objects.join(", "))
        })
        .collect()
}
