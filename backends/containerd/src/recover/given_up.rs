//! Which of several objects with one name stays.
//!
//! An owner gives each name to one sandbox or task: a request under a name that is held gets its holder. A second object is made
//! only when the first was given up, as when containerd ended during its creation. The undo of the first waits then until
//! containerd answers, and all of the first may be there: the last call was carried out, and its answer was lost. If the daemon is
//! killed before the undo, its successor finds two objects with one name. No client has the id of the one that was given
//! up, so it is removed, like one whose creation was cut off.
//!
//! One that was cut off itself says nothing about the others: containerd may carry out a call of a killed daemon late, so that the
//! container object of a creation that nobody waits for is made behind that of the repetition.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use switchyard_core::Result;
use switchyard_core::id::{Owner, SandboxId, TaskId};

use super::found::{FoundSandbox, FoundTask};
use super::inventory::Snapshots;
use crate::record::{MetaRecord, SandboxPhase, identity_of};

/// The container objects of all sandboxes and tasks, by id.
type Containers = HashMap<String, Arc<api::Container>>;

/// An object under its name. Among those with one name the last in this order stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NamedObject<I> {
    owner: Owner,
    name: String,
    /// Something was done with it after its creation, so that a client has its id.
    is_used: bool,
    /// Time at which containerd made its container object.
    created_at: Option<SystemTime>,
    id: I,
    /// It was created completely, for certain.
    is_complete: bool,
}

impl<I: ToString> NamedObject<I> {
    /// `None` if its owner is not known to this version.
    fn new(
        id: I,
        meta: &MetaRecord,
        (is_used, is_complete): (bool, bool),
        containers: &Containers,
    ) -> Option<Self> {
        let container = containers.get(&id.to_string());
        let created_at = container.and_then(|container| container.created_at);
        Some(Self {
            owner: meta.owner().ok()?,
            name: meta.name().to_owned(),
            is_used,
            created_at: created_at.and_then(|at| SystemTime::try_from(at).ok()),
            id,
            is_complete,
        })
    }
}

/// Marks the sandboxes and tasks that were given up: recovery removes those.
pub(super) fn mark_given_up(
    sandboxes: &mut [(SandboxId, Result<FoundSandbox>)],
    tasks: &mut [(TaskId, Result<FoundTask>)],
    containers: &Containers,
    snapshots: &Snapshots,
) {
    let of_tasks = tasks.iter().filter_map(|(id, found)| {
        let found = found.as_ref().ok()?;
        let has_snapshot = snapshots.has(&found.snapshotter, &id.to_string());
        let facts = (found.may_have_started(), found.is_complete(has_snapshot));
        NamedObject::new(*id, &found.record.meta, facts, containers)
    });
    let lost_tasks = given_up(of_tasks.collect());
    let with_tasks: HashSet<SandboxId> = tasks
        .iter()
        .filter_map(|(id, found)| match found {
            Ok(found) => Some(found.sandbox),
            Err(_) => {
                let container = containers.get(&id.to_string())?;
                identity_of(&container.labels, &container.extensions).sandbox
            }
        })
        .collect();
    let of_sandboxes = sandboxes.iter().filter_map(|(id, found)| {
        let found = found.as_ref().ok()?;
        let is_used = found.was_used() || with_tasks.contains(id);
        let facts = (is_used, found.phase != SandboxPhase::Creating);
        NamedObject::new(*id, &found.entry.record.meta, facts, containers)
    });
    let lost_sandboxes = given_up(of_sandboxes.collect());
    for (id, found) in tasks {
        if let (true, Ok(found)) = (lost_tasks.contains(&*id), found) {
            tracing::warn!(task = %id, "another task has the name of this one, whose creation was given up: removing this one");
            found.given_up = true;
        }
    }
    for (id, found) in sandboxes {
        if let (true, Ok(found)) = (lost_sandboxes.contains(&*id), found) {
            tracing::warn!(sandbox = %id, "another sandbox has the name of this one, whose creation was given up: removing this one");
            found.phase = SandboxPhase::Creating;
        }
    }
}

/// The objects that were given up: each whose name a later one has, unless it was used. Two that were used are both kept, since
/// clients may count on either. One that is neither used nor complete does not count: whatever becomes of it, it does not decide about
/// another one. Pure.
fn given_up<I: Copy + Ord + Hash>(mut all: Vec<NamedObject<I>>) -> HashSet<I> {
    all.retain(|object| object.is_used || object.is_complete);
    all.sort_unstable();
    let pairs = all.windows(2);
    pairs
        .filter_map(|pair| {
            let [one, next] = pair else { return None };
            let same_name = one.owner == next.owner && one.name == next.name;
            (same_name && !one.is_used).then_some(one.id)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Its name, the objects that are found, and the ids of those that were given up.
    type Case = (&'static str, Vec<NamedObject<u8>>, &'static [u8]);

    fn object(id: u8, name: &str, is_used: bool, second: u64) -> NamedObject<u8> {
        NamedObject {
            owner: Owner::Kubernetes,
            name: name.to_owned(),
            is_used,
            created_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
            id,
            is_complete: true,
        }
    }

    #[test]
    fn of_objects_with_one_name_the_one_that_a_client_knows_stays() {
        let of_nomad = NamedObject {
            owner: Owner::Nomad,
            ..object(2, "web", false, 2)
        };
        let cut_off = |id, second| NamedObject {
            is_complete: false,
            ..object(id, "web", false, second)
        };
        let cases: [Case; 12] = [
            (
                "its repetition",
                vec![object(1, "web", false, 1), object(2, "web", false, 2)],
                &[1],
            ),
            (
                "in whatever order they are found",
                vec![object(2, "web", false, 2), object(1, "web", false, 1)],
                &[1],
            ),
            (
                "the clock was set back",
                vec![object(1, "web", false, 9), object(2, "web", true, 2)],
                &[1],
            ),
            (
                "repeated twice",
                vec![
                    object(1, "web", false, 1),
                    object(2, "web", false, 2),
                    object(3, "web", true, 3),
                ],
                &[1, 2],
            ),
            (
                "made at one moment",
                vec![object(1, "web", false, 1), object(2, "web", false, 1)],
                &[1],
            ),
            (
                "both were used",
                vec![object(1, "web", true, 1), object(2, "web", true, 2)],
                &[],
            ),
            (
                "a call of a killed daemon was carried out behind the repetition",
                vec![object(1, "web", false, 1), cut_off(2, 2)],
                &[],
            ),
            (
                "one was cut off between two others",
                vec![
                    object(1, "web", false, 1),
                    cut_off(2, 2),
                    object(3, "web", false, 3),
                ],
                &[1],
            ),
            (
                "two names",
                vec![object(1, "web", false, 1), object(2, "db", false, 2)],
                &[],
            ),
            (
                "two owners",
                vec![object(1, "web", false, 1), of_nomad],
                &[],
            ),
            ("one alone", vec![object(1, "web", false, 1)], &[]),
            ("none", Vec::new(), &[]),
        ];
        for (case, objects, expected) in cases {
            let expected: HashSet<u8> = expected.iter().copied().collect();
            assert_eq!(given_up(objects), expected, "{case}");
        }
    }
}
