//! Finds the sandbox or task that a person means, among those of all owners.

use std::collections::HashMap;
use std::sync::Arc;

use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::{Error, ErrorKind, Result};

use crate::owners::Owners;

mod selection;
use selection::{Candidate, ObjectId, OfSeveral, select};

/// A sandbox, or a task in it.
pub(crate) struct Found {
    /// The sandbox.
    pub(crate) sandbox: Arc<Sandbox>,
    /// The task; `None` if the sandbox itself is meant.
    pub(crate) task: Option<Arc<Task>>,
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
/// As [`object`]; `FailedPrecondition` if a sandbox is meant.
pub(crate) fn task(
    gateway: &Gateway,
    owners: &Owners,
    name: &str,
) -> Result<(Arc<Sandbox>, Arc<Task>)> {
    let (tasks, sandboxes): (Vec<_>, Vec<_>) = all(gateway)?
        .into_iter()
        .partition(|found| found.task.is_some());
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
    let Found { sandbox, task } = found;
    Ok((
        sandbox,
        task.ok_or_else(|| Error::internal("a sandbox was found among tasks"))?,
    ))
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
            Some(Found {
                sandbox,
                task: Some(task),
            })
        }));
        all.extend(sandboxes.into_values().map(|sandbox| Found {
            sandbox,
            task: None,
        }));
    }
    Ok(all)
}

// === impl Found ===

impl Found {
    fn candidate(&self, owners: &Owners) -> Candidate {
        let Self { sandbox, task } = self;
        let meta = task.as_ref().map_or(&sandbox.meta, |task| &task.meta);
        Candidate {
            id: match task {
                Some(task) => ObjectId::Task(task.id, sandbox.id),
                None => ObjectId::Sandbox(sandbox.id),
            },
            owner: meta.owner.as_str(),
            state: task
                .as_ref()
                .map_or(sandbox.state.as_str(), |task| task.state.as_str()),
            name: meta.name.clone(),
            display_name: owners.names(sandbox, task.as_deref()).to_string(),
            created_at: meta.created_at,
        }
    }
}
