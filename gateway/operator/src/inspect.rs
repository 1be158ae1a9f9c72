//! Reads all that is known of one sandbox or task of any owner, and the images with the tasks that use them.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::backend::Inspection;
use switchyard_core::gateway::{Gateway, Scope};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::object::Task;
use switchyard_core::{Error, Result};
use switchyard_operator_api::{Disclosure, ImageLeaseView, ImageView, Inspected, InspectionView};

use crate::blockers;
use crate::find::{self, Found};
use crate::owners::Owners;

/// Time for the backend to report its view of an object, and to list the images.
const LIMIT: Duration = Duration::from_secs(10);

/// The sandbox or task that is meant by `name`: see `find::object`. If the backend does not answer, the answer has
/// what the daemon knows itself; one with secrets fails then. Of an object that cannot be read it has what is held for it.
///
/// # Errors
/// Those of `find::object`.
pub async fn read(
    gateway: &Gateway,
    owners: &Owners,
    name: &str,
    disclosure: Disclosure,
) -> Result<InspectionView> {
    let (within, of) = match find::object(gateway, owners, name)? {
        Found::Readable {
            sandbox: within,
            task: of,
        } => (within, of),
        Found::Unreadable(held) => return Ok(InspectionView::of_unreadable(&held)),
    };
    let scope = gateway.scope(within.meta.owner);
    match of {
        None => sandbox((gateway, &scope), owners, within.id, disclosure).await,
        Some(of) => task((gateway, &scope), owners, of.id, disclosure).await,
    }
}

/// The leases that keep content without an image.
///
/// # Errors
/// `Unavailable` if they cannot be listed.
pub async fn image_leases(gateway: &Gateway) -> Result<Vec<ImageLeaseView>> {
    let leases = in_time(gateway.images().store().leases()).await?;
    Ok(leases.into_iter().map(Into::into).collect())
}

/// The images with the tasks that use them.
///
/// # Errors
/// `Unavailable` before recovery, or if the images cannot be listed.
pub async fn images(gateway: &Gateway) -> Result<Vec<ImageView>> {
    if !gateway.is_recovered() {
        return Err(Error::unavailable(
            "what a predecessor left is being recovered: try again",
        ));
    }
    let images = in_time(gateway.images().store().list()).await?;
    let mut tasks = Vec::new();
    for owner in Owner::ALL {
        tasks.extend(gateway.scope(owner).tasks().list()?);
    }
    Ok(ImageView::of_all(images, &tasks, &gateway.unreadable()))
}

async fn sandbox(
    (gateway, scope): (&Gateway, &Scope),
    owners: &Owners,
    id: SandboxId,
    disclosure: Disclosure,
) -> Result<InspectionView> {
    let found = scope.sandboxes().with_tasks(id)?;
    let inspection = async {
        match disclosure {
            Disclosure::Names => in_time(scope.sandboxes().inspect(id)).await,
            Disclosure::Secrets => in_time(scope.sandboxes().show_secrets(id)).await,
        }
    };
    let blockers = blockers::of_tasks(gateway, scope, &found.tasks);
    let (inspection, blockers) = tokio::join!(inspection, blockers);
    let inspection = disclosed(inspection, disclosure)?;
    let sandbox = &found.sandbox;
    let name = |task: &Arc<Task>| {
        (
            task.id.to_string(),
            owners.names(sandbox, Some(task)).to_string(),
        )
    };
    let inspected = Inspected {
        sandbox,
        names: &owners.names(sandbox, None),
        inspection: &inspection,
        annotations: &owners.annotations(&sandbox.meta, None),
        disclosure,
    };
    let tasks = found.tasks.iter().map(name).collect();
    Ok(InspectionView {
        blockers,
        ..InspectionView::of_sandbox(&inspected, tasks)
    })
}

async fn task(
    (gateway, scope): (&Gateway, &Scope),
    owners: &Owners,
    id: TaskId,
    disclosure: Disclosure,
) -> Result<InspectionView> {
    let task = scope.tasks().find(&id.to_string())?;
    let sandbox = scope.sandboxes().by_id(task.sandbox)?;
    let inspection = async {
        match disclosure {
            Disclosure::Names => in_time(scope.tasks().inspect(id)).await,
            Disclosure::Secrets => in_time(scope.tasks().show_secrets(id)).await,
        }
    };
    let blockers = blockers::of_tasks(gateway, scope, std::slice::from_ref(&task));
    let (inspection, blockers) = tokio::join!(inspection, blockers);
    let inspection = disclosed(inspection, disclosure)?;
    let inspected = Inspected {
        sandbox: &sandbox,
        names: &owners.names(&sandbox, Some(&task)),
        inspection: &inspection,
        annotations: &owners.annotations(&sandbox.meta, Some(&task.meta)),
        disclosure,
    };
    Ok(InspectionView {
        blockers,
        ..InspectionView::of_task(&inspected, &task)
    })
}

/// The report of the backend, or why there is none. Secrets are known to it alone: without it, a request for them fails.
fn disclosed(inspection: Result<Inspection>, disclosure: Disclosure) -> Result<Result<Inspection>> {
    match disclosure {
        Disclosure::Names => Ok(inspection),
        Disclosure::Secrets => inspection.map(Ok),
    }
}

pub(crate) async fn in_time<T>(query: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, query)
        .await
        .unwrap_or_else(|_| Err(late()))
}

fn late() -> Error {
    Error::deadline(format!("the backend did not answer within {LIMIT:?}"))
}
