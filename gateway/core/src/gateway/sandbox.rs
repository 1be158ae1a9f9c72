//! Making, stopping, starting again and removing sandboxes.

use std::sync::Arc;

use futures::future;

use super::{Gateway, Op, Scope, Shared, ignore_not_found};
use crate::error::{Error, Result};
use crate::id::SandboxId;
use crate::singleflight::Decision;
use crate::spec::{SandboxSpec, Subnet};
use crate::state::{SandboxEvent, SandboxState};
use crate::table::Sandbox;

impl Scope {
    /// Names the ranges that this owner's sandboxes are to get their addresses from. Idempotent. Cancel-safe: the work goes on.
    ///
    /// # Errors
    /// Those of [`Backend::set_ranges`](crate::backend::Backend::set_ranges).
    pub async fn set_ranges(&self, ranges: Vec<Subnet>) -> Result<()> {
        self.gateway.ready()?;
        let gateway = self.gateway.clone();
        let owner = self.owner;
        let work = async move { gateway.shared.backend.set_ranges(owner, ranges).await };
        self.gateway.run_detached(format!("change of the ranges of {owner}"), work).await
    }

    /// Makes a sandbox ready. Idempotent under its name: the same request joins the one in flight or gets the sandbox that it made.
    /// Cancel-safe: the work goes on, and a retry finds it.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is held by a sandbox with another configuration, or by one that is no longer ready; `FailedPrecondition`
    /// if somebody else has a port of the host that it claims; those of [`Backend::create_sandbox`](crate::backend::Backend::create_sandbox).
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
        let gateway = self.gateway.clone();
        let making = spec.clone();
        shared.new_sandboxes.run(key, &request, decide, move || make_sandbox(gateway, making)).await
    }

    /// Stops a sandbox: ends its tasks at once and releases its network. Idempotent; what does not exist is stopped.
    /// Cancel-safe: the work goes on.
    ///
    /// # Errors
    /// Those of [`Backend::stop_sandbox`](crate::backend::Backend::stop_sandbox); it can be stopped again.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        match self.sandbox(id) {
            Ok(sandbox) => ignore_not_found(self.gateway.stop_sandbox(sandbox.id).await),
            Err(error) => ignore_not_found(Err(error)),
        }
    }

    /// Makes a sandbox ready again that is not, with the addresses it had; `spec` is what it was made from. What is left of it is
    /// stopped first. Idempotent: a ready one is left alone. Cancel-safe: the work goes on.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is being removed, or stopped meanwhile; those of
    /// [`Backend::start_sandbox`](crate::backend::Backend::start_sandbox). It is stopped then.
    pub async fn start_sandbox(&self, id: SandboxId, spec: SandboxSpec) -> Result<()> {
        let id = self.sandbox_by_id(id)?.id;
        let gateway = self.gateway.clone();
        let work = move || start_sandbox(gateway, id, spec);
        self.gateway.shared.sandbox_ops.run(Op::Start(id), b"", || Decision::Begin, work).await
    }

    /// Keeps what the frontend puts down about a ready sandbox; it is found in its details, also after a restart. Cancel-safe: the
    /// work goes on.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not ready; those of
    /// [`Backend::amend_sandbox`](crate::backend::Backend::amend_sandbox).
    pub async fn amend_sandbox(&self, id: SandboxId, note: Vec<u8>) -> Result<()> {
        let id = self.sandbox_by_id(id)?.id;
        let gateway = self.gateway.clone();
        self.gateway.run_detached(format!("note on sandbox {id}"), amend_sandbox(gateway, id, note)).await
    }

    /// Stops a sandbox, removes its tasks and then the sandbox. Idempotent. Cancel-safe: the work goes on.
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
    /// Goes on with a removal that a predecessor had begun, until it is done, the sandbox has been made ready again, or the gateway shuts
    /// down. Who asks for the same joins it.
    pub(super) fn resume_removal(&self, id: SandboxId) {
        let gateway = self.clone();
        self.shared.operations.spawn(async move {
            let shared: &Shared = &gateway.shared;
            let mut pause = shared.limits.retry_min;
let mut told = false;
            tracing::info!(sandbox.id = %id, "a removal that a predecessor had begun goes on");
            while let Err(error) = gateway.remove_sandbox(id).await {
                if told {
                    tracing::debug!(sandbox.id = %id, error = error.report(), "a removal does not get on yet");
                } else {
                    tracing::warn!(sandbox.id = %id, error = error.report(), "a removal does not get on: it is tried until it does");
                    told = true;
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.shutdown.cancelled() => return,
                }
                pause = (pause * 2).min(shared.limits.retry_max);
                if shared.table.sandbox(id).is_some_and(|sandbox| sandbox.state.is_ready()) {
                    return;
                }
            }
        });
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        let gateway = self.clone();
        let work = move || remove_sandbox(gateway, id);
        self.shared.sandbox_ops.run(Op::Remove(id), b"", || Decision::Begin, work).await
    }

    /// Watches a sandbox that has a process of its own, until it breaks, is no longer ready, or the gateway shuts down.
    pub(super) fn watch_sandbox(&self, sandbox: &Sandbox) {
        if sandbox.details.pid.is_none() || !sandbox.state.is_ready() {
            return;
        }
        let gateway = self.clone();
        let id = sandbox.id;
        let pid = sandbox.details.pid;
        self.shared.watchers.spawn(async move {
            let shared: &Shared = &gateway.shared;
            let mut pause = shared.limits.retry_min;
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
                tracing::debug!(sandbox.id = %id, error = error.report(), "lost sight of a sandbox: looking again");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.unwatched.cancelled() => return,
                }
                pause = (pause * 2).min(shared.limits.retry_max);
                if shared.table.sandbox(id).is_none_or(|sandbox| !sandbox.state.is_ready()) {
                    return;
                }
            };
            // The end of the process is what a stop brings about, and then no news; another may have been started since.
            let is_news = |sandbox: Arc<Sandbox>| sandbox.state.is_ready() && sandbox.details.pid == pid;
            if shared.table.sandbox(id).is_some_and(is_news) {
                tracing::warn!(sandbox.id = %id, reason, "a sandbox has broken");
                if let Err(error) = shared.table.apply_sandbox(id, SandboxEvent::Lost { reason }) {
                    tracing::debug!(sandbox.id = %id, error = error.report(), "it was stopped meanwhile");
                }
            }
        });
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        let gateway = self.clone();
        let work = move || stop_sandbox(gateway, id);
        self.shared.sandbox_ops.run(Op::Stop(id), b"", || Decision::Begin, work).await
    }
}

async fn make_sandbox(gateway: Gateway, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
    let shared: &Shared = &gateway.shared;
    let id = SandboxId::random();
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
    // The flight under this name is ours, so the name is free: this cannot fail but by a fault of ours.
    let sandbox = shared.table.insert_sandbox(sandbox)?;
    gateway.watch_sandbox(&sandbox);
    Ok(sandbox)
}

async fn amend_sandbox(gateway: Gateway, id: SandboxId, note: Vec<u8>) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let _turn = shared.sandbox_locks.lock(id).await;
    gateway.check_ready(id)?;
    shared.backend.amend_sandbox(id, &note).await?;
    shared.table.set_note(id, note)
}

async fn stop_sandbox(gateway: Gateway, id: SandboxId) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let sandbox = shared.table.apply_sandbox(id, SandboxEvent::StopRequested)?;
    if matches!(sandbox.state, SandboxState::Stopped | SandboxState::Removing) {
        return Ok(());
    }
    // From here on nothing is put down about it, nor that it is to be removed, until it is stopped.
    let _turn = shared.sandbox_locks.lock(id).await;
    // From here on no task can be added; those being made come to their end and undo themselves.
    let settled = shared.new_tasks.wait_matching(|key| key.sandbox == id);
    if tokio::time::timeout(shared.limits.kill, settled).await.is_err() {
        tracing::warn!(sandbox.id = %id, "a task is still being made in a sandbox that is stopped; it will be undone");
    }
    let tasks = shared.table.tasks_of(id);
    let kills = tasks.iter().map(|task| gateway.kill_task(task.id));
    let stopped = match first_error(future::join_all(kills).await) {
        // No process runs any more: the network can go while what the tasks left is cleared up.
        Ok(()) => {
            let settled = future::join_all(tasks.iter().map(|task| gateway.wait_exit_published(task.id)));
            let (stopped, settled) = future::join(shared.backend.stop_sandbox(id), settled).await;
            stopped.and_then(|()| first_error(settled))
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
    // A stop that is asked for from here on waits for the end of this.
    let _turn = shared.sandbox_locks.lock(id).await;
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
            // First: while it is starting its ports are those of the start.
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
    let marked = {
        // A stop in flight comes first: it would put the sandbox down as stopped.
        let _turn = shared.sandbox_locks.lock(id).await;
        shared.backend.begin_removal(id).await
    };
    // What can be done is done, although nobody would go on with it after a restart.
    gateway.stop_sandbox(id).await?;
    marked.map_err(|error| error.context(format!("remove sandbox {id}")))?;
    shared.table.apply_sandbox(id, SandboxEvent::RemoveRequested)?;
    let tasks = shared.table.tasks_of(id);
    let removals = tasks.iter().map(|task| gateway.remove_task(task.id));
    let removed = match first_error(future::join_all(removals).await) {
        Ok(()) => shared.backend.remove_sandbox(id).await,
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

/// The first error among these, if any; a task that is gone meanwhile is none.
fn first_error(results: Vec<Result<()>>) -> Result<()> {
    results.into_iter().try_for_each(ignore_not_found)
}
