//! Creating, stopping, restarting and removing sandboxes.

use std::future::Future;
use std::sync::Arc;

use futures::future;

use super::{Gateway, Op, Scope, Shared, ignore_not_found};
use crate::error::{Error, Result};
use crate::id::SandboxId;
use crate::keyed_lock::KeyedLockGuard;
use crate::object::Sandbox;
use crate::operation::{OperationKind, Subject, plain_step, step};
use crate::singleflight::Decision;
use crate::spec::{SandboxSpec, Subnet};
use crate::state::{SandboxEvent, SandboxState};
use crate::table::no_sandbox;

impl Scope {
    /// Sets the address ranges for this owner's sandboxes. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`SandboxBackend::set_ranges`](crate::backend::SandboxBackend::set_ranges).
    pub async fn set_ranges(&self, ranges: Vec<Subnet>) -> Result<()> {
        self.gateway.ready()?;
        let gateway = self.gateway.clone();
        let owner = self.owner;
        let operation = self.begin(OperationKind::SetRanges, Subject::default());
        let work = operation.run(async move { gateway.shared.backend.set_ranges(owner, ranges).await });
        self.gateway.run_detached(format!("change of the address ranges of {owner}"), work).await
    }

    /// Creates a sandbox and makes it ready. Idempotent by name: the same request joins the creation in
    /// flight or returns the sandbox that it created. Cancel-safe: the work continues, and a retry finds the
    /// sandbox.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is held by a sandbox with another configuration, or by one that is no
    /// longer ready; `FailedPrecondition` if another holder has a host port that it claims; those of
    /// [`SandboxBackend::create_sandbox`](crate::backend::SandboxBackend::create_sandbox).
    pub async fn create_sandbox(&self, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
        let shared = self.gateway.ready()?;
        if spec.meta.owner != self.owner {
            return Err(Error::internal(format!(
                "a sandbox of {} was asked for by {}",
                spec.meta.owner, self.owner
            )));
        }
        let key = format!("sandbox {}/{}", self.owner, spec.meta.name);
        let request = spec.meta.record.clone();
        let decide = || match shared.table.sandbox_named(self.owner, &spec.meta.name) {
            None => Decision::Begin,
            Some(held) if !held.state.is_ready() => Decision::Answer(Err(Error::already_exists(format!(
                "sandbox name {:?} is held by {}, which is {}: remove it first",
                spec.meta.name,
                held.id,
                held.state.as_str()
            )))),
            Some(held) if held.meta.record != request => {
                Decision::Answer(Err(Error::already_exists(format!(
                    "sandbox name {:?} is held by {} with another configuration",
                    spec.meta.name, held.id
                ))))
            }
            Some(held) => Decision::Answer(Ok(held)),
        };
        let work = || {
            let id = SandboxId::random();
            let subject = Subject::new_sandbox(id, Arc::new(spec.meta.clone()));
            let operation = self.begin(OperationKind::CreateSandbox, subject);
            operation.run(make_sandbox(self.gateway.clone(), id, spec.clone()))
        };
        shared.new_sandboxes.run(key, &request, decide, work).await
    }

    /// Stops a sandbox: kills its tasks and releases its network. Idempotent: succeeds if it does not exist.
    /// Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`SandboxBackend::stop_sandbox`](crate::backend::SandboxBackend::stop_sandbox); it can be
    /// stopped again.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        match self.sandbox(id) {
            Ok(sandbox) => ignore_not_found(self.gateway.stop_sandbox(sandbox.id).await),
            Err(error) => ignore_not_found(Err(error)),
        }
    }

    /// Makes a sandbox ready again, with the addresses it had; `spec` is the spec it was created from. A
    /// sandbox that is not stopped yet is stopped first. Idempotent: succeeds for a ready one. Cancel-safe:
    /// the work continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is being removed, or is stopped meanwhile; those of
    /// [`SandboxBackend::start_sandbox`](crate::backend::SandboxBackend::start_sandbox). After an error the
    /// sandbox is stopped.
    pub async fn start_sandbox(&self, id: SandboxId, spec: SandboxSpec) -> Result<()> {
        let sandbox = self.sandbox_by_id(id)?;
        let work = || {
            let operation = self.begin(OperationKind::StartSandbox, Subject::sandbox(&sandbox));
            operation.run(start_sandbox(self.gateway.clone(), id, spec))
        };
        self.gateway.shared.sandbox_ops.run(Op::Start(id), b"", || Decision::Begin, work).await
    }

    /// Stores the frontend's note about a ready sandbox, which `make` makes from the sandbox with its
    /// previous note; it is part of the sandbox's details, also after a restart. No other note comes between.
    /// Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not ready; those of
    /// [`SandboxBackend::amend_sandbox`](crate::backend::SandboxBackend::amend_sandbox).
    pub async fn amend_sandbox(
        &self,
        id: SandboxId,
        make: impl FnOnce(&Sandbox) -> Vec<u8> + Send + 'static,
    ) -> Result<()> {
        let id = self.sandbox_by_id(id)?.id;
        let gateway = self.gateway.clone();
        self.gateway.run_detached(format!("note on sandbox {id}"), amend_sandbox(gateway, id, make)).await
    }

    /// Stops a sandbox, removes its tasks and then the sandbox. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of stopping and removing; it can be removed again.
    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let id = match self.sandbox(id) {
            Ok(sandbox) => sandbox.id,
            Err(error) if error.kind() == crate::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        self.gateway.remove_sandbox(id).await
    }
}

impl Gateway {
    /// Continues a removal that a predecessor had begun, until it succeeds, the sandbox is ready again, or
    /// the gateway shuts down. A concurrent removal request joins it.
    pub(super) fn resume_removal(&self, id: SandboxId) {
        let gateway = self.clone();
        // All attempts are one operation, which nobody has requested from this daemon.
        let operation = self.begin_on_sandbox(OperationKind::RemoveSandbox, id);
        self.shared.operations.spawn(operation.run(async move {
            let shared: &Shared = &gateway.shared;
            let mut backoff = shared.limits.get().backoff();
            let mut warned = false;
            tracing::info!(sandbox.id = %id, "continuing a removal that a predecessor had begun");
            while let Err(error) = gateway.remove_sandbox(id).await {
                if warned {
                    tracing::debug!(sandbox.id = %id, error = error.report(), "a removal still fails");
                } else {
                    tracing::warn!(sandbox.id = %id, error = error.report(), "a removal fails: it is retried until it succeeds");
                    warned = true;
                }
                if !plain_step("wait_for_retry", backoff.wait_unless(&shared.shutdown)).await {
                    return Err(error.context("the daemon ends: the next one continues the removal"));
                }
                if shared.table.sandbox(id).is_some_and(|sandbox| sandbox.state.is_ready()) {
                    return Err(error.context("the removal was given up: the sandbox was started again"));
                }
            }
            Ok(())
        }));
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        let work = || {
            let operation = self.begin_on_sandbox(OperationKind::RemoveSandbox, id);
            operation.run(remove_sandbox(self.clone(), id))
        };
        self.shared.sandbox_ops.run(Op::Remove(id), b"", || Decision::Begin, work).await
    }

    /// Watches a sandbox that has a process of its own, until it fails, is no longer ready, or the gateway
    /// shuts down.
    pub(super) fn watch_sandbox(&self, sandbox: &Sandbox) {
        if sandbox.details.pid.is_none() || !sandbox.state.is_ready() {
            return;
        }
        let gateway = self.clone();
        let id = sandbox.id;
        let pid = sandbox.details.pid;
        self.shared.watchers.spawn(async move {
            let shared: &Shared = &gateway.shared;
            let mut backoff = shared.limits.get().backoff();
            let reason = loop {
                let waited = tokio::select! {
                    waited = shared.backend.wait_sandbox(id) => waited,
                    () = shared.unwatched.cancelled() => return,
                };
                let error = match waited {
                    Ok(reason) => break reason,
                    Err(error) if error.kind() == crate::ErrorKind::NotFound => return,
                    Err(error) => error,
                };
                tracing::debug!(sandbox.id = %id, error = error.report(), "waiting for a sandbox failed: retrying");
                if !backoff.wait_unless(&shared.unwatched).await {
                    return;
                }
                if shared.table.sandbox(id).is_none_or(|sandbox| !sandbox.state.is_ready()) {
                    return;
                }
            };
            // A stop ends the process as well, and then its exit is expected. The sandbox may also have a new
            // process by now.
            let is_unexpected = |sandbox: &Sandbox| sandbox.state.is_ready() && sandbox.details.pid == pid;
            if shared.table.sandbox_failed(id, is_unexpected, &reason) {
                tracing::warn!(sandbox.id = %id, reason, "a sandbox has failed");
            }
        });
    }

    /// Waits for the earlier operation on a sandbox.
    async fn lock_sandbox(&self, id: SandboxId) -> KeyedLockGuard {
        plain_step("wait_for_earlier_operation", self.shared.sandbox_locks.lock(id)).await
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        let work = || {
            let operation = self.begin_on_sandbox(OperationKind::StopSandbox, id);
            operation.run(stop_sandbox(self.clone(), id))
        };
        self.shared.sandbox_ops.run(Op::Stop(id), b"", || Decision::Begin, work).await
    }
}

async fn make_sandbox(gateway: Gateway, id: SandboxId, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
    let shared: &Shared = &gateway.shared;
    gateway.claim_ports(id, &spec)?;
    let details =
        match shared.start_limiter.run(spec.meta.owner, shared.backend.create_sandbox(id, &spec)).await {
            Ok(details) => details,
            Err(error) => {
                gateway.release_when_undone(id);
                return Err(error);
            }
        };
    let sandbox =
        Sandbox { id, meta: Arc::new(spec.meta), handler: spec.handler, details, state: SandboxState::Ready };
    // Only this operation creates a sandbox under this name now, so the name is free: a failure here is a
    // bug.
    let sandbox = shared.table.insert_sandbox(sandbox)?;
    gateway.watch_sandbox(&sandbox);
    Ok(sandbox)
}

async fn amend_sandbox(
    gateway: Gateway,
    id: SandboxId,
    make: impl FnOnce(&Sandbox) -> Vec<u8> + Send,
) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let _guard = gateway.lock_sandbox(id).await;
    gateway.check_ready(id)?;
    let note = make(&*shared.table.sandbox(id).ok_or_else(|| no_sandbox(id))?);
    shared.backend.amend_sandbox(id, &note).await?;
    shared.table.set_note(id, note)
}

async fn stop_sandbox(gateway: Gateway, id: SandboxId) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let sandbox = shared.table.apply_sandbox(id, SandboxEvent::StopRequested)?;
    if matches!(sandbox.state, SandboxState::Stopped | SandboxState::Removing) {
        return Ok(());
    }
    // While this lock is held, no note and no removal is recorded for the sandbox.
    let _guard = gateway.lock_sandbox(id).await;
    // From here on no task can be added; creations in flight finish and undo themselves.
    let creations = shared.new_tasks.wait_matching(|key| key.sandbox == id);
    let creations = tokio::time::timeout(shared.limits.get().kill, creations);
    if plain_step("wait_for_task_creations", creations).await.is_err() {
        tracing::warn!(sandbox.id = %id, "a task is still being created in a sandbox that is being stopped: the task will be removed");
    }
    let tasks = shared.table.tasks_of(id);
    let kills = tasks.iter().map(|task| gateway.kill_task(task.id));
    let stopped = match step("kill_tasks", all_done(kills)).await {
        // No process runs any more: the network can be released while the tasks are cleaned up.
        Ok(()) => {
            let exits = all_done(tasks.iter().map(|task| gateway.wait_exit_published(task.id)));
            let exits = step("wait_for_exits", exits);
            let released = step("release_network", shared.backend.stop_sandbox(id));
            let (stopped, exits) = future::join(released, exits).await;
            stopped.and(exits)
        }
        Err(error) => Err(error),
    };
    match stopped {
        Ok(()) => {
            gateway.release(id).await;
            shared.table.apply_sandbox(id, SandboxEvent::Stopped).map(drop)
        }
        Err(error) => {
            shared.table.apply_sandbox(id, SandboxEvent::Lost { reason: error.report() })?;
            Err(error.context(format!("stop sandbox {id}")))
        }
    }
}

async fn start_sandbox(gateway: Gateway, id: SandboxId, spec: SandboxSpec) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    if shared.table.sandbox(id).is_some_and(|sandbox| sandbox.state.is_ready()) {
        return Ok(());
    }
    gateway.stop_sandbox(id).await?;
    // A stop requested from here on waits until this start is finished.
    let _guard = gateway.lock_sandbox(id).await;
    gateway.claim_ports(id, &spec).map_err(|error| error.context(format!("start sandbox {id}")))?;
    if let Err(error) = shared.table.apply_sandbox(id, SandboxEvent::StartRequested) {
        gateway.release(id).await;
        return Err(error);
    }
    match shared.start_limiter.run(spec.meta.owner, shared.backend.start_sandbox(id, &spec)).await {
        Ok(details) => {
            let sandbox = shared.table.sandbox_started(id, details)?;
            gateway.watch_sandbox(&sandbox);
            gateway.check_ready(id).map(drop)
        }
        Err(error) => {
            // First leave the state `Starting`: in that state the ports belong to the start.
            let failed = shared.table.apply_sandbox(id, SandboxEvent::StartFailed);
            gateway.release_when_undone(id);
            failed?;
            Err(error.context(format!("start sandbox {id}")))
        }
    }
}

async fn remove_sandbox(gateway: Gateway, id: SandboxId) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    if shared.table.sandbox(id).is_none() {
        return Ok(());
    }
    shared.table.apply_sandbox(id, SandboxEvent::StopRequested)?;
    let recorded = {
        // After a stop in flight: that would otherwise record the sandbox as stopped and overwrite the
        // removal.
        let _guard = gateway.lock_sandbox(id).await;
        shared.backend.begin_removal(id).await
    };
    // If the removal could not be recorded, no recovery would continue it; stop the sandbox nevertheless.
    gateway.stop_sandbox(id).await?;
    recorded.map_err(|error| error.context(format!("remove sandbox {id}")))?;
    shared.table.apply_sandbox(id, SandboxEvent::RemoveRequested)?;
    let tasks = shared.table.tasks_of(id);
    let removals = tasks.iter().map(|task| gateway.remove_task(task.id));
    let removed = match step("remove_tasks", all_done(removals)).await {
        Ok(()) => step("remove_objects", shared.backend.remove_sandbox(id)).await,
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => {
            gateway.release(id).await;
            shared.table.remove_sandbox(id);
            Ok(())
        }
        Err(error) => {
            shared.table.apply_sandbox(id, SandboxEvent::Lost { reason: error.report() })?;
            Err(error.context(format!("remove sandbox {id}")))
        }
    }
}

/// Does all of it, and returns the first error; `NotFound` (the task is gone) does not count.
async fn all_done(works: impl IntoIterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    future::join_all(works).await.into_iter().try_for_each(ignore_not_found)
}
