//! The processes that hold up operations and objects, as texts for people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use switchyard_core::backend::Blocker;
use switchyard_core::gateway::{Gateway, Scope};
use switchyard_core::object::Task;
use switchyard_core::operation::{OperationInFlight, OperationKind, Subject};
use switchyard_core::state::TaskState;
use tokio::time::timeout;

/// Operations that wait for processes of their object, or for the programs that start and end it.
const ON_OBJECTS: [OperationKind; 7] = [
    OperationKind::CreateSandbox,
    OperationKind::StartSandbox,
    OperationKind::StopSandbox,
    OperationKind::RemoveSandbox,
    OperationKind::StartTask,
    OperationKind::StopTask,
    OperationKind::RemoveTask,
];

/// Operations that wait for the store of images.
const ON_IMAGES: [OperationKind; 3] = [
    OperationKind::CreateTask,
    OperationKind::PullImage,
    OperationKind::LoadImage,
];

/// The age from which an operation is looked at: most end sooner.
const LONG: Duration = Duration::from_secs(5);

/// The most operations of one answer that are looked at.
const OPERATIONS_MAX: usize = 8;

/// The most tasks of a sandbox that are looked at.
const TASKS_MAX: usize = 4;

/// Limit for all looks of one answer.
const LIMIT: Duration = Duration::from_secs(8);

/// The processes that hold up operations which take long, by the numbers of these, as far as they are found in time.
pub(crate) async fn of_operations(
    gateway: &Gateway,
    operations: &[OperationInFlight],
) -> BTreeMap<u64, Vec<String>> {
    let long = operations.iter().filter(|operation| {
        let kind = &operation.kind;
        operation.age >= LONG && (ON_OBJECTS.contains(kind) || ON_IMAGES.contains(kind))
    });
    let looks = long.take(OPERATIONS_MAX).map(|operation| async move {
        // What is not found in time is left out.
        let found = timeout(LIMIT, of_operation(gateway, operation)).await;
        (operation.number, texts(&found.unwrap_or_default()))
    });
    join_all(looks).await.into_iter().collect()
}

/// The processes that hold up a start or an end of these tasks.
pub(crate) async fn of_tasks(gateway: &Gateway, scope: &Scope, tasks: &[Arc<Task>]) -> Vec<String> {
    let found = timeout(LIMIT, held_up(scope, tasks)).await;
    let found = texts(&found.unwrap_or_default());
    if !found.is_empty() {
        return found;
    }
    // Those that a stop has found: they need not wait in the kernel.
    let unended = gateway.tasks().unended();
    let is_shown = |id| tasks.iter().any(|task| task.id == id);
    unended
        .into_iter()
        .filter(|unended| is_shown(unended.id))
        .filter_map(|unended| unended.why)
        .collect()
}

async fn of_operation(gateway: &Gateway, operation: &OperationInFlight) -> Vec<Blocker> {
    let Some(owner) = operation.owner else {
        return Vec::new();
    };
    let scope = gateway.scope(owner);
    if ON_IMAGES.contains(&operation.kind) {
        return scope.images().blockers().await;
    }
    let Subject { sandbox, task, .. } = operation.subject;
    if let Some(id) = task {
        // A task that is gone meanwhile is held up by nothing.
        let task = scope.tasks().find(&id.to_string()).ok();
        return held_up(&scope, task.as_slice()).await;
    }
    let Some(id) = sandbox else {
        return Vec::new();
    };
    // One that is being created is not in the table yet.
    let tasks = scope.sandboxes().with_tasks(id).map(|found| found.tasks);
    let mut found = held_up(&scope, &tasks.unwrap_or_default()).await;
    if found.is_empty() {
        found = gateway.sandboxes().blockers(id).await;
    }
    found
}

/// The processes that hold up those of the tasks that are starting or stopping.
async fn held_up(scope: &Scope, tasks: &[Arc<Task>]) -> Vec<Blocker> {
    let looks = tasks
        .iter()
        .filter(|task| is_changing(&task.state))
        .take(TASKS_MAX)
        .map(|task| scope.tasks().blockers(task.id));
    let found = join_all(looks).await.into_iter().flatten().flatten();
    found
        .filter(|blocker| blocker.wait.is_uninterruptible())
        .collect()
}

const fn is_changing(state: &TaskState) -> bool {
    match state {
        TaskState::Starting | TaskState::Unattended | TaskState::Stopping { .. } => true,
        TaskState::Created
        | TaskState::Running { .. }
        | TaskState::Exited { .. }
        | TaskState::Removing { .. } => false,
    }
}

/// Each process once: tasks of a pod share a shim.
fn texts(blockers: &[Blocker]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for text in blockers.iter().map(ToString::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}
