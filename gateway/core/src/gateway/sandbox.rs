//! Sandboxes: created, stopped, restarted and removed, with the tasks in them.

use std::future::Future;
use std::sync::Arc;

use futures::future;

use super::claims::Claims;
use super::context::Context;
use super::devices::DeviceLeases;
use super::op::{Op, ignore_not_found};
use super::start_limiter::StartLimiter;
use super::task::Tasks;
use crate::backend::Blocker;
use crate::error::Result;
use crate::id::SandboxId;
use crate::keyed_lock::{KeyedLock, KeyedLockGuard, LockInUse};
use crate::object::Sandbox;
use crate::operation::{OperationKind, plain_step, step};
use crate::singleflight::{Decision, Singleflight};
use crate::spec::SandboxSpec;
use crate::state::{SandboxEvent, SandboxState};
use crate::table::{Counts, no_sandbox};

mod scoped;
mod watch;

pub use scoped::ScopedSandboxes;

/// The sandboxes of all owners: operations on one run in order.
#[derive(Debug)]
pub struct Sandboxes {
    context: Arc<Context>,
    claims: Arc<Claims>,
    devices: Arc<DeviceLeases>,
    tasks: Arc<Tasks>,
    start_limiter: Arc<StartLimiter>,
    new_sandboxes: Singleflight<String, Arc<Sandbox>>,
    sandbox_ops: Singleflight<Op<SandboxId>, ()>,
    /// Serialises notes, starts, stops and recording the removal of one sandbox.
    sandbox_locks: KeyedLock<SandboxId>,
}

/// The components that sandboxes use.
#[derive(Debug)]
pub(super) struct SandboxParts {
    pub(super) claims: Arc<Claims>,
    pub(super) devices: Arc<DeviceLeases>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) start_limiter: Arc<StartLimiter>,
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Without operations.
    pub(super) fn new(context: Arc<Context>, parts: SandboxParts) -> Self {
        let SandboxParts {
            claims,
            devices,
            tasks,
            start_limiter,
        } = parts;
        let new_sandboxes = Singleflight::new(context.operations.clone());
        let sandbox_ops = Singleflight::new(context.operations.clone());
        Self {
            context,
            claims,
            devices,
            tasks,
            start_limiter,
            new_sandboxes,
            sandbox_ops,
            sandbox_locks: KeyedLock::default(),
        }
    }

    /// The sandboxes whose locks are held.
    pub(super) fn locks_in_use(&self) -> Vec<LockInUse> {
        self.sandbox_locks.in_use("sandbox_locks")
    }

    /// The number of sandboxes by owner and state.
    #[must_use]
    pub fn count(&self) -> Counts {
        self.context.table.count_sandboxes()
    }

    /// The programs that hold up a sandbox: see
    /// [`StatsBackend::sandbox_blockers`](crate::backend::StatsBackend::sandbox_blockers).
    pub async fn blockers(&self, id: SandboxId) -> Vec<Blocker> {
        self.context.backend.sandbox_blockers(id).await
    }

    /// Continues a removal that a predecessor had begun, until it succeeds, the sandbox is ready again, or
    /// the gateway shuts down. A concurrent removal request joins it.
    pub(super) fn resume_removal(self: &Arc<Self>, id: SandboxId) {
        let sandboxes = Arc::clone(self);
        // All attempts are one operation, which nobody has requested from this daemon.
        let operation = self
            .context
            .begin_on_sandbox(OperationKind::RemoveSandbox, id);
        self.context.operations.spawn(operation.run(async move {
            let context = &sandboxes.context;
            let mut backoff = context.limits.get().backoff();
            let mut warned = false;
            tracing::info!(sandbox = %id, "continuing a removal that a predecessor had begun");
            while let Err(error) = sandboxes.remove(id).await {
                if warned {
                    tracing::debug!(sandbox = %id, error = error.report(), "a removal still fails");
                } else {
                    tracing::warn!(sandbox = %id, error = error.report(), "a removal fails: it is retried until it succeeds");
                    warned = true;
                }
                if !plain_step("wait_for_retry", backoff.wait_unless(&context.shutdown)).await {
                    return Err(error.context("the daemon ends: the next one continues the removal"));
                }
                if context.table.sandbox(id).is_some_and(|sandbox| sandbox.state.is_ready()) {
                    return Err(error.context("the removal was given up: the sandbox was started again"));
                }
            }
            Ok(())
        }));
    }

    async fn remove(self: &Arc<Self>, id: SandboxId) -> Result<()> {
        let work = || {
            let operation = self
                .context
                .begin_on_sandbox(OperationKind::RemoveSandbox, id);
            operation.run(remove_sandbox(Arc::clone(self), id))
        };
        self.sandbox_ops
            .run(Op::Remove(id), b"", || Decision::Begin, work)
            .await
    }

    /// Waits for the earlier operation on a sandbox.
    async fn lock(&self, id: SandboxId) -> KeyedLockGuard {
        plain_step("wait_for_earlier_operation", self.sandbox_locks.lock(id)).await
    }

    async fn stop(self: &Arc<Self>, id: SandboxId) -> Result<()> {
        let work = || {
            let operation = self
                .context
                .begin_on_sandbox(OperationKind::StopSandbox, id);
            operation.run(stop_sandbox(Arc::clone(self), id))
        };
        self.sandbox_ops
            .run(Op::Stop(id), b"", || Decision::Begin, work)
            .await
    }
}

async fn make_sandbox(
    sandboxes: Arc<Sandboxes>,
    id: SandboxId,
    spec: SandboxSpec,
) -> Result<Arc<Sandbox>> {
    let context = &sandboxes.context;
    sandboxes.claims.claim_ports(id, &spec).await?;
    let created = async {
        sandboxes.claims.check_listeners(&spec).await?;
        let created = context.backend.create_sandbox(id, &spec);
        sandboxes.start_limiter.run(spec.meta.owner, created).await
    };
    let details = match created.await {
        Ok(details) => details,
        Err(error) => {
            sandboxes.claims.release_when_undone(id);
            return Err(Blocker::explain_late(error, sandboxes.blockers(id)).await);
        }
    };
    let SandboxSpec {
        meta,
        handler,
        network,
        ..
    } = spec;
    let sandbox = Sandbox {
        id,
        meta: Arc::new(meta),
        handler,
        details,
        state: SandboxState::Ready,
    };
    // Only this operation creates a sandbox under this name now, so the name is free: a failure here is a
    // bug.
    let sandbox = context.table.insert_sandbox(sandbox)?;
    sandboxes.watch(&sandbox);
    let ips = &sandbox.details.ips;
    sandboxes
        .claims
        .announce_not_forwarded(sandbox.meta.owner, &network, ips);
    Ok(sandbox)
}

async fn amend_sandbox(
    sandboxes: Arc<Sandboxes>,
    id: SandboxId,
    make: impl FnOnce(&Sandbox) -> Vec<u8> + Send,
) -> Result<()> {
    let context = &sandboxes.context;
    let _guard = sandboxes.lock(id).await;
    context.check_ready(id)?;
    let note = make(&*context.table.sandbox(id).ok_or_else(|| no_sandbox(id))?);
    context.backend.amend_sandbox(id, &note).await?;
    context.table.set_note(id, note)
}

async fn stop_sandbox(sandboxes: Arc<Sandboxes>, id: SandboxId) -> Result<()> {
    let context = &sandboxes.context;
    context.check_tasks_readable(id)?;
    let sandbox = context
        .table
        .apply_sandbox(id, SandboxEvent::StopRequested)?;
    if matches!(
        sandbox.state,
        SandboxState::Stopped | SandboxState::Removing
    ) {
        return Ok(());
    }
    // While this lock is held, no note and no removal is recorded for the sandbox.
    let _guard = sandboxes.lock(id).await;
    // From here on no task can be added; creations in flight finish and undo themselves.
    let creations = sandboxes.tasks.wait_creations_in(id);
    let creations = tokio::time::timeout(context.limits.get().kill, creations);
    if plain_step("wait_for_task_creations", creations)
        .await
        .is_err()
    {
        tracing::warn!(sandbox = %id, "a task is still being created in a sandbox that is being stopped: the task will be removed");
    }
    let tasks = context.table.tasks_of(id);
    let kills = tasks.iter().map(|task| sandboxes.tasks.kill(task.id));
    let stopped = match step("kill_tasks", all_done(kills)).await {
        // No process runs any more: the network can be released while the tasks are cleaned up.
        Ok(()) => {
            let exits = all_done(
                tasks
                    .iter()
                    .map(|task| sandboxes.tasks.wait_exit_published(task.id)),
            );
            let exits = step("wait_for_exits", exits);
            let released = step("release_network", context.backend.stop_sandbox(id));
            let (stopped, exits) = future::join(released, exits).await;
            stopped.and(exits)
        }
        Err(error) => Err(error),
    };
    match stopped {
        Ok(()) => {
            sandboxes.devices.release(id).await;
            let stopped = context.table.apply_sandbox(id, SandboxEvent::Stopped);
            // Those of a network that the backend still releases, and of no other.
            sandboxes.claims.release_when_undone(id);
            stopped.map(drop)
        }
        Err(error) => {
            context.table.apply_sandbox(
                id,
                SandboxEvent::Lost {
                    reason: error.report(),
                },
            )?;
            Err(error.context(format!("stop sandbox {id}")))
        }
    }
}

async fn start_sandbox(sandboxes: Arc<Sandboxes>, id: SandboxId, spec: SandboxSpec) -> Result<()> {
    let context = &sandboxes.context;
    if context
        .table
        .sandbox(id)
        .is_some_and(|sandbox| sandbox.state.is_ready())
    {
        return Ok(());
    }
    sandboxes.stop(id).await?;
    // A stop requested from here on waits until this start is finished.
    let _guard = sandboxes.lock(id).await;
    // Before it waits for ports: a stop that is requested meanwhile finds a start to wait for, and the ports that are claimed
    // are not released as those of a stopped sandbox whose network is released now.
    context
        .table
        .apply_sandbox(id, SandboxEvent::StartRequested)
        .map_err(|error| error.context(format!("start sandbox {id}")))?;
    let started = async {
        sandboxes.claims.claim_ports(id, &spec).await?;
        sandboxes.claims.check_listeners(&spec).await?;
        let started = context.backend.start_sandbox(id, &spec);
        sandboxes.start_limiter.run(spec.meta.owner, started).await
    };
    match started.await {
        Ok(details) => {
            let sandbox = context.table.sandbox_started(id, details)?;
            sandboxes.watch(&sandbox);
            let ips = &sandbox.details.ips;
            sandboxes
                .claims
                .announce_not_forwarded(spec.meta.owner, &spec.network, ips);
            context.check_ready(id).map(drop)
        }
        Err(error) => {
            // First leave the state `Starting`: in that state the ports belong to the start.
            let failed = context.table.apply_sandbox(id, SandboxEvent::StartFailed);
            sandboxes.claims.release_when_undone(id);
            failed?;
            let error = Blocker::explain_late(error, sandboxes.blockers(id)).await;
            Err(error.context(format!("start sandbox {id}")))
        }
    }
}

async fn remove_sandbox(sandboxes: Arc<Sandboxes>, id: SandboxId) -> Result<()> {
    let context = &sandboxes.context;
    if context.table.sandbox(id).is_none() {
        return Ok(());
    }
    context.check_tasks_readable(id)?;
    context
        .table
        .apply_sandbox(id, SandboxEvent::StopRequested)?;
    let recorded = {
        // After a stop in flight: that would otherwise record the sandbox as stopped and overwrite the
        // removal.
        let _guard = sandboxes.lock(id).await;
        context.backend.begin_removal(id).await
    };
    // If the removal could not be recorded, no recovery would continue it; stop the sandbox nevertheless.
    sandboxes.stop(id).await?;
    recorded.map_err(|error| error.context(format!("remove sandbox {id}")))?;
    context
        .table
        .apply_sandbox(id, SandboxEvent::RemoveRequested)?;
    let tasks = context.table.tasks_of(id);
    let removals = tasks.iter().map(|task| sandboxes.tasks.remove(task.id));
    let removed = match step("remove_tasks", all_done(removals)).await {
        Ok(()) => step("remove_objects", context.backend.remove_sandbox(id)).await,
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => {
            sandboxes.devices.release(id).await;
            context.table.remove_sandbox(id);
            Ok(())
        }
        Err(error) => {
            context.table.apply_sandbox(
                id,
                SandboxEvent::Lost {
                    reason: error.report(),
                },
            )?;
            Err(error.context(format!("remove sandbox {id}")))
        }
    }
}

/// Does all of it, and returns the first error; `NotFound` (the task is gone) does not count.
async fn all_done(works: impl IntoIterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    future::join_all(works)
        .await
        .into_iter()
        .try_for_each(ignore_not_found)
}
