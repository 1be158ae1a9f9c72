//! The exit of a task that ends while containerd is away.
//!
//! A containerd of 1.6 finds it when it comes back. Later ones take a shim without a process for a leak, and end it together with
//! the exit code, unless their store of sandboxes has a record with the same id. So a task gets one while it runs, where there is
//! such a store. It says nothing else: no sandbox of containerd's stands behind it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use containerd_client::services::v1::sandbox as api;
use containerd_client::types;
use switchyard_core::{Error, ErrorKind, Result};

use crate::backend::Inner;
use crate::client::{QUICK, call, ignore_not_found};
use crate::config::Runtime;
use crate::record::INSTANCE;
use crate::steps::Step;
use crate::task::TaskEntry;

impl Inner {
    /// Has containerd keep the exit of this task. If that fails the task is as good without, but for that one case.
    pub(crate) async fn protect_exit(&self, id: &str, runtime: &Runtime) {
        if !self.containerd_features.has_sandbox_store() {
            return;
        }
        let sandbox = types::Sandbox {
            sandbox_id: id.to_owned(),
            runtime: Some(types::sandbox::Runtime { name: runtime.type_.clone(), options: None }),
            labels: HashMap::from([(INSTANCE.to_owned(), self.client.instance().to_owned())]),
            ..Default::default()
        };
        let request = api::StoreCreateRequest { sandbox: Some(sandbox) };
        let kept =
            call(&format!("keep the exit of {id}"), QUICK, self.client.sandboxes().create(request)).await;
        match kept {
            Ok(_) => switchyard_steps::reach(Step::ExitKept),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => self.exit_unprotected(&error),
        }
    }

    /// Removes what [`Inner::keep_exit`] has made, after the task is deleted. Idempotent.
    pub(crate) async fn unprotect_exit(&self, id: &str) -> Result<()> {
        if !self.containerd_features.has_sandbox_store() {
            return Ok(());
        }
        let request = api::StoreDeleteRequest { sandbox_id: id.to_owned() };
        let what = format!("forget the exit of {id}");
        match ignore_not_found(call(&what, QUICK, self.client.sandboxes().delete(request)).await) {
            Err(error) if error.kind() == ErrorKind::Unimplemented => {
                self.exit_unprotected(&error);
                Ok(())
            }
            Ok(()) => {
                switchyard_steps::reach(Step::ExitForgotten);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Forgets the exits of tasks that have ended, and has those kept of tasks that may run: a predecessor may have been killed in between,
    /// or have had another containerd. For recovery, when all tasks are known and nothing else goes on.
    pub(crate) async fn sync_protected_exits(&self) -> Result<()> {
        if !self.containerd_features.has_sandbox_store() {
            return Ok(());
        }
        let request = api::StoreListRequest {
            filters: vec![format!("labels.\"{INSTANCE}\"==\"{}\"", self.client.instance())],
        };
        let listed = call("list kept exits", QUICK, self.client.sandboxes().list(request)).await?.list;
        let kept: BTreeSet<String> = listed.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
        // The exit of one that has ended is on record already.
        let wanted: BTreeMap<String, Arc<TaskEntry>> = {
            let tasks = self.tasks();
            let runs = |task: &&Arc<TaskEntry>| task.may_have_process() && !task.is_exit_persisted();
            tasks.values().filter(runs).map(|task| (task.id.to_string(), Arc::clone(task))).collect()
        };
        for id in kept.iter().filter(|id| !wanted.contains_key(*id)) {
            self.unprotect_exit(id).await?;
        }
        for (id, task) in wanted.iter().filter(|(id, _)| !kept.contains(*id)) {
            let handler = task.record().handler.clone();
            match self.runtime(&handler) {
                Ok(runtime) => self.protect_exit(id, runtime).await,
                Err(error) => {
                    tracing::warn!(
                        task.id = id,
                        error = error.report(),
                        "a task's exit is lost if it ends while containerd is away"
                    );
                }
            }
        }
        Ok(())
    }

    fn exit_unprotected(&self, error: &Error) {
        if error.kind() == ErrorKind::Unimplemented {
            self.containerd_features.mark_no_sandbox_store();
        }
        tracing::warn!(error = error.report(), "a task's exit is lost if it ends while containerd is away");
    }
}
