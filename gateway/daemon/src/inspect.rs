//! Reads all that is known of one sandbox or task of any owner, and the images with the tasks that use them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::gateway::{Gateway, Scope};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::table::{Sandbox, Task};
use switchyard_core::{Error, Result};

use crate::status::{Candidate, Disclosure, ImageView, Inspected, InspectionView, ObjectId, select};
use crate::wiring;

/// How long the backend may take to tell what it knows of an object, and to list the images.
const LIMIT: Duration = Duration::from_secs(10);

/// The sandbox or task that is meant by `name`: see [`select`]. If the backend does not answer, the answer has
/// what the daemon knows itself; one with secrets fails then.
///
/// # Errors
/// Those of [`select`]; `Unavailable` before recovery.
pub(crate) async fn read(gateway: &Gateway, name: &str, disclosure: Disclosure) -> Result<InspectionView> {
    let (owner, id) = find(gateway, name)?;
    let scope = gateway.scope(owner);
    match id {
        ObjectId::Sandbox(id) => sandbox(&scope, id, disclosure).await,
        ObjectId::Task(id, _) => task(&scope, id, disclosure).await,
    }
}

/// The images with the tasks that use them.
///
/// # Errors
/// `Unavailable` before recovery, or if the images cannot be listed.
pub(crate) async fn images(gateway: &Gateway) -> Result<Vec<ImageView>> {
    if !gateway.is_recovered() {
        return Err(Error::unavailable("what a predecessor left is being recovered: try again"));
    }
    let images = tokio::time::timeout(LIMIT, gateway.images().list()).await;
    let images = images.map_err(|_| late())??;
    let mut tasks = Vec::new();
    for owner in Owner::ALL {
        tasks.extend(gateway.scope(owner).tasks()?);
    }
    Ok(ImageView::of_all(images, &tasks))
}

fn find(gateway: &Gateway, name: &str) -> Result<(Owner, ObjectId)> {
    let mut candidates = Vec::new();
    let mut owners = Vec::new();
    for owner in Owner::ALL {
        let scope = gateway.scope(owner);
        // The tasks come first: then the sandboxes of new ones are in the list.
        let tasks = scope.tasks()?;
        let sandboxes: BTreeMap<_, _> =
            scope.sandboxes()?.into_iter().map(|sandbox| (sandbox.id, sandbox)).collect();
        candidates.extend(sandboxes.values().map(|found| candidate_sandbox(found)));
        // A task whose sandbox was removed meanwhile is being removed itself.
        let with_sandbox = tasks.iter().filter_map(|task| Some((sandboxes.get(&task.sandbox)?, task)));
        candidates.extend(with_sandbox.map(|(sandbox, task)| candidate_task(sandbox, task)));
        owners.resize(candidates.len(), owner);
    }
    let found = select(&candidates, name)?;
    let owner = candidates.iter().zip(owners).find(|(candidate, _)| candidate.id == found.id);
    let owner = owner.map(|(_, owner)| owner).ok_or_else(|| Error::internal("an object has no owner"))?;
    Ok((owner, found.id))
}

fn candidate_sandbox(sandbox: &Sandbox) -> Candidate {
    Candidate {
        id: ObjectId::Sandbox(sandbox.id),
        owner: sandbox.meta.owner.as_str(),
        state: sandbox.state.as_str(),
        name: sandbox.meta.name.clone(),
        display_name: wiring::names(sandbox, None).to_string(),
    }
}

fn candidate_task(sandbox: &Sandbox, task: &Task) -> Candidate {
    Candidate {
        id: ObjectId::Task(task.id, task.sandbox),
        owner: task.meta.owner.as_str(),
        state: task.state.as_str(),
        name: task.meta.name.clone(),
        display_name: wiring::names(sandbox, Some(task)).to_string(),
    }
}

async fn sandbox(scope: &Scope, id: SandboxId, disclosure: Disclosure) -> Result<InspectionView> {
    let found = scope.sandbox_with_tasks(id)?;
    let inspection = match disclosure {
        Disclosure::Names => in_time(scope.inspect_sandbox(id)).await,
        Disclosure::Secrets => Ok(in_time(scope.show_sandbox_secrets(id)).await?),
    };
    let sandbox = &found.sandbox;
    let name = |task: &Arc<Task>| (task.id.to_string(), wiring::names(sandbox, Some(task)).to_string());
    let inspected = Inspected {
        sandbox,
        names: &wiring::names(sandbox, None),
        inspection: &inspection,
        annotations: &wiring::annotations(&sandbox.meta, None),
        disclosure,
    };
    Ok(InspectionView::of_sandbox(&inspected, found.tasks.iter().map(name).collect()))
}

async fn task(scope: &Scope, id: TaskId, disclosure: Disclosure) -> Result<InspectionView> {
    let task = scope.task(&id.to_string())?;
    let sandbox = scope.sandbox_by_id(task.sandbox)?;
    let inspection = match disclosure {
        Disclosure::Names => in_time(scope.inspect_task(id)).await,
        Disclosure::Secrets => Ok(in_time(scope.show_task_secrets(id)).await?),
    };
    let inspected = Inspected {
        sandbox: &sandbox,
        names: &wiring::names(&sandbox, Some(&task)),
        inspection: &inspection,
        annotations: &wiring::annotations(&sandbox.meta, Some(&task.meta)),
        disclosure,
    };
    Ok(InspectionView::of_task(&inspected, &task))
}

async fn in_time<T>(query: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, query).await.unwrap_or_else(|_| Err(late()))
}

fn late() -> Error {
    Error::deadline(format!("the backend did not answer within {LIMIT:?}"))
}
