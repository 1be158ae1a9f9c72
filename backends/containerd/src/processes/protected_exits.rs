//! Protects the exit code of a task that exits while containerd is down.
//!
//! containerd 1.6 reads the exit from the shim when it starts again. Later versions take a shim without a
//! running process for a leaked one and terminate it, which loses the exit code, unless their sandbox store
//! has a record with the same id. So where containerd has such a store, each task gets a record there while
//! it runs. The record has no other purpose: there is no sandbox of containerd's sandbox API behind it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use containerd_client::services::v1::sandbox as api;
use containerd_client::types;
use futures::future::BoxFuture;
use switchyard_core::{Error, ErrorKind, Result};

use crate::base::config::Runtime;
use crate::base::crash_points::CrashPoint;
use crate::cleanup::{Cleanup, upgrade};
use crate::client::{QUICK, call, ignore_not_found};
use crate::processes::Processes;
use crate::record::INSTANCE;

impl Processes {
    /// Creates the sandbox-store record of this task. A failure is only logged: the task runs without it, and
    /// its exit is lost only if it exits while containerd is down.
    pub(crate) async fn protect_exit(&self, id: &str, runtime: &Runtime) {
        if !self.features.has_sandbox_store() {
            return;
        }
        let sandbox = types::Sandbox {
            sandbox_id: id.to_owned(),
            runtime: Some(types::sandbox::Runtime {
                name: runtime.type_.clone(),
                options: None,
            }),
            labels: HashMap::from([(INSTANCE.to_owned(), self.client.instance().to_owned())]),
            ..Default::default()
        };
        let request = api::StoreCreateRequest {
            sandbox: Some(sandbox),
        };
        let protected = call(
            &format!("protect the exit of {id}"),
            QUICK,
            self.client.sandboxes().create(request),
        )
        .await;
        match protected {
            Ok(_) => switchyard_crash_points::reach(CrashPoint::ExitProtected),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => self.warn_unprotected(&error),
        }
    }

    /// Deletes the record of [`Processes::protect_exit`], after the task is deleted. Idempotent.
    pub(crate) async fn unprotect_exit(&self, id: &str) -> Result<()> {
        if !self.features.has_sandbox_store() {
            return Ok(());
        }
        let request = api::StoreDeleteRequest {
            sandbox_id: id.to_owned(),
        };
        let what = format!("unprotect the exit of {id}");
        match ignore_not_found(call(&what, QUICK, self.client.sandboxes().delete(request)).await) {
            Err(error) if error.kind() == ErrorKind::Unimplemented => {
                self.warn_unprotected(&error);
                Ok(())
            }
            Ok(()) => {
                switchyard_crash_points::reach(CrashPoint::ExitUnprotected);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the records of all tasks but `wanted`, and creates those that `wanted` lacks: the tasks that
    /// may run without a persisted exit, each with its runtime handler, as they are once the records are
    /// listed. A predecessor may have been killed between the two, or have used another version of
    /// containerd. For recovery, once all tasks are known and before requests are served. Returns the records that
    /// containerd does not delete now, which protect nothing and only take space; after the first one the others are
    /// not tried.
    pub(crate) async fn sync_protected_exits(
        self: &Arc<Self>,
        wanted: impl FnOnce() -> BTreeMap<String, String>,
    ) -> Vec<ProtectedExitCleanup> {
        if !self.features.has_sandbox_store() {
            return Vec::new();
        }
        let request = api::StoreListRequest {
            filters: vec![format!(
                "labels.\"{INSTANCE}\"==\"{}\"",
                self.client.instance()
            )],
        };
        let listed = match call(
            "list protected exits",
            QUICK,
            self.client.sandboxes().list(request),
        )
        .await
        {
            Ok(listed) => listed.list,
            Err(error) => {
                // Without the list the record of each running task would be created again, and a store that
                // does not answer would take the whole timeout for each.
                tracing::warn!(
                    error = error.report(),
                    "cannot list the exits that are protected: they stay as a predecessor left them until the next start"
                );
                return Vec::new();
            }
        };
        let protected: BTreeSet<String> = listed
            .into_iter()
            .map(|sandbox| sandbox.sandbox_id)
            .collect();
        let wanted = wanted();
        let mut refused = Vec::new();
        for id in protected.iter().filter(|id| !wanted.contains_key(*id)) {
            if refused.is_empty() {
                let Err(error) = self.unprotect_exit(id).await else {
                    continue;
                };
                tracing::warn!(
                    task = id,
                    error = error.report(),
                    "the exit of a task that is gone stays protected: trying again while requests are served"
                );
            }
            refused.push(ProtectedExitCleanup {
                processes: Arc::downgrade(self),
                id: id.clone(),
            });
        }
        for (id, handler) in wanted.iter().filter(|(id, _)| !protected.contains(*id)) {
            match self.context.runtime(handler) {
                Ok(runtime) => self.protect_exit(id, &runtime).await,
                Err(error) => {
                    tracing::warn!(
                        task = id,
                        error = error.report(),
                        "the exit of a task is lost if it exits while containerd is down"
                    );
                }
            }
        }
        refused
    }

    fn warn_unprotected(&self, error: &Error) {
        if error.kind() == ErrorKind::Unimplemented {
            self.features.mark_no_sandbox_store();
        }
        tracing::warn!(
            error = error.report(),
            "the exit of a task is lost if it exits while containerd is down"
        );
    }
}

/// Deletes the sandbox-store record of a task that did not run when recovery found the record.
#[derive(Debug)]
pub(crate) struct ProtectedExitCleanup {
    processes: Weak<Processes>,
    id: String,
}

impl Cleanup for ProtectedExitCleanup {
    fn description(&self) -> String {
        format!("protected exit of {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let processes = upgrade(&self.processes)?;
            if processes.shims.live.may_have_process(&self.id) {
                // It was started meanwhile: the record protects its exit, and goes with its process.
                return Ok(());
            }
            processes.unprotect_exit(&self.id).await
        })
    }
}
