//! Execs that a predecessor started in tasks that still run: their clients are gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::services::v1 as api;
use futures::future::BoxFuture;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_core::{ErrorKind, Result};

use super::predecessor_fifos::{exec_dirs, open_fifos};
use crate::base::fs::remove_tree;
use crate::cleanup::Cleanup;
use crate::client::{Client, QUICK, SLOW, call, ignore_not_found};
use crate::exec::Execs;
use crate::task::TaskEntry;

impl Execs {
    /// Ends the execs that a predecessor started in a running task, in the background: their clients are
    /// gone.
    pub(crate) fn end_predecessor_execs(&self, task: &TaskEntry) {
        for dir in exec_dirs(&task.dirs.run) {
            let client = self.client.clone();
            let cleanup = Arc::clone(&self.cleanup);
            let id = task.id;
            let held = self.predecessor_fifos.take(&dir);
            self.tracker.spawn(async move {
                let _held = held;
                tracing::info!(task = %id, dir = %dir.display(), "ending an exec of a predecessor: its client is gone");
                if let Err(error) = end_exec(&client, id, &dir).await {
                    tracing::warn!(
                        task = %id,
                        error = error.report(),
                        "cannot end an exec of a predecessor: the cleanup queue retries it"
                    );
                    cleanup.enqueue(ExecCleanup { client, task: id, dir });
                }
            });
        }
    }
}

/// Ends and deletes an exec of which only the directory is known, and then removes the directory. Idempotent.
async fn end_exec(client: &Client, task: TaskId, dir: &Path) -> Result<()> {
    let task = task.to_string();
    let exec = dir
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // The shim may be blocked until the other end of one of them is opened.
    let _held = open_fifos(dir);
    let what = format!("end an exec in task {task}");
    let delete = || api::DeleteProcessRequest {
        container_id: task.clone(),
        exec_id: exec.clone(),
    };
    match call(&what, SLOW, client.tasks().delete_process(delete())).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // The process still runs.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::FailedPrecondition | ErrorKind::Internal
            ) =>
        {
            let kill = api::KillRequest {
                container_id: task.clone(),
                exec_id: exec.clone(),
                signal: u32::from(Signal::KILL.number()),
                all: false,
            };
            ignore_not_found(call(&what, QUICK, client.tasks().kill(kill)).await)?;
            let wait = api::WaitRequest {
                container_id: task.clone(),
                exec_id: exec.clone(),
            };
            ignore_not_found(call(&what, SLOW, client.tasks().wait(wait)).await)?;
            ignore_not_found(call(&what, SLOW, client.tasks().delete_process(delete())).await)?;
        }
        Err(error) => return Err(error),
    }
    remove_tree(dir).await
}

/// Ends an exec that a predecessor started in a task, by the exec's directory.
#[derive(Debug)]
struct ExecCleanup {
    client: Client,
    task: TaskId,
    dir: PathBuf,
}

impl Cleanup for ExecCleanup {
    fn description(&self) -> String {
        format!("exec in task {}", self.task)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { end_exec(&self.client, self.task, &self.dir).await })
    }
}
