//! Finds the sandbox or task that a person means, among those of all owners.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::backend::Unreadable;
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::{Error, ErrorKind, Result};

use crate::owners::Owners;

mod selection;
use selection::{Candidate, ObjectId, OfSeveral, select};

/// A sandbox or task.
pub(crate) enum Found {
    /// A sandbox, or a task in it.
    Readable {
        /// The sandbox.
        sandbox: Arc<Sandbox>,
        /// The task; `None` if the sandbox itself is meant.
        task: Option<Arc<Task>>,
    },
    /// An object that cannot be read.
    Unreadable(Arc<Unreadable>),
}

/// The sandbox or task with this id or name: see [`select`].
///
/// # Errors
/// Those of [`select`]; `Unavailable` before recovery.
pub(crate) fn object(gateway: &Gateway, owners: &Owners, name: &str) -> Result<Found> {
    one_of(owners, all(gateway)?, name, OfSeveral::Refused)
}

/// The same among tasks alone; of several tasks under one name, the newest.
///
/// # Errors
/// As [`object`]; `FailedPrecondition` if a sandbox is meant, or an object that cannot be read, or if tasks of several owners
/// have the name.
pub(crate) fn task(
    gateway: &Gateway,
    owners: &Owners,
    name: &str,
) -> Result<(Arc<Sandbox>, Arc<Task>)> {
    let (tasks, sandboxes): (Vec<_>, Vec<_>) = all(gateway)?
        .into_iter()
        .partition(|found| !matches!(found, Found::Readable { task: None, .. }));
    let found = one_of(owners, tasks, name, OfSeveral::Newest).map_err(|error| {
        let is_unknown = |error: &Error| error.kind() == ErrorKind::NotFound;
        // More than one sandbox may be meant.
        if !is_unknown(&error)
            || one_of(owners, sandboxes, name, OfSeveral::Newest).is_err_and(|of| is_unknown(&of))
        {
            return error;
        }
        Error::failed_precondition(format!(
            "{name:?} is a sandbox: name one of its tasks, which `switchyard ps` lists with it"
        ))
    })?;
    match found {
        Found::Readable {
            sandbox,
            task: Some(task),
        } => Ok((sandbox, task)),
        Found::Readable { task: None, .. } => {
            Err(Error::internal("a sandbox was found among tasks"))
        }
        Found::Unreadable(held) => Err(held.defect()),
    }
}

fn one_of(
    owners: &Owners,
    mut all: Vec<Found>,
    name: &str,
    of_several: OfSeveral,
) -> Result<Found> {
    let candidates: Vec<_> = all.iter().map(|found| found.candidate(owners)).collect();
    let place = select(&candidates, name, of_several)?;
    Ok(all.swap_remove(place))
}

fn all(gateway: &Gateway) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for owner in Owner::ALL {
        let scope = gateway.scope(owner);
        // The tasks come first: then the sandboxes of new ones are in the list.
        let tasks = scope.tasks().list()?;
        let sandboxes: HashMap<_, _> = scope
            .sandboxes()
            .list()?
            .into_iter()
            .map(|sandbox| (sandbox.id, sandbox))
            .collect();
        // A task whose sandbox was removed meanwhile is being removed itself.
        all.extend(tasks.into_iter().filter_map(|task| {
            let sandbox = Arc::clone(sandboxes.get(&task.sandbox)?);
            Some(Found::Readable {
                sandbox,
                task: Some(task),
            })
        }));
        all.extend(sandboxes.into_values().map(|sandbox| Found::Readable {
            sandbox,
            task: None,
        }));
    }
    all.extend(gateway.unreadable().into_iter().map(Found::Unreadable));
    Ok(all)
}

// === impl Found ===

impl Found {
    fn candidate(&self, owners: &Owners) -> Candidate {
        let (sandbox, task) = match self {
            Self::Readable { sandbox, task } => (sandbox, task.as_deref()),
            Self::Unreadable(held) => return of_unreadable(held),
        };
        let meta = task.map_or(&sandbox.meta, |task| &task.meta);
        Candidate {
            id: match task {
                Some(task) => ObjectId::Task(task.id, sandbox.id),
                None => ObjectId::Sandbox(sandbox.id),
            },
            owner: meta.owner.as_str(),
            state: task.map_or(sandbox.state.as_str(), |task| task.state.as_str()),
            name: meta.name.clone(),
            display_name: owners.names(sandbox, task).to_string(),
            created_at: meta.created_at,
        }
    }
}

/// The candidate for an object whose time is not known: one that can be read counts as newer.
fn of_unreadable(held: &Unreadable) -> Candidate {
    Candidate {
        id: ObjectId::Unreadable(held.kind, held.id.clone()),
        owner: held.owner.map_or("unknown", Owner::as_str),
        state: "unreadable",
        name: held.name.clone(),
        display_name: held.name.escape_debug().to_string(),
        created_at: SystemTime::UNIX_EPOCH,
    }
}
