//! The gateway: decides what each request means and has the backend carry it out.
//!
//! Operations that change state run as spawned tasks of the gateway, so that a caller that goes away leaves
//! nothing half done; concurrent callers of the same operation share one run ([`crate::singleflight`]). An
//! object whose creation outlived its caller stays in the table: the retry finds it under its name. A start
//! does not outlive its last caller: it is given up, and its program does not run on.
//!
//! Calls at the same time are ordered by what they share, each lock in the order of the calls:
//!
//! | calls | order |
//! |---|---|
//! | two creations under one name | one run (`new_sandboxes`, `new_tasks`); another configuration is refused |
//! | start, update, checkpoint, removal of one task | `task_locks`; `TaskState::apply` refuses what does not fit |
//! | a stop, and anything else on the task | it waits for a start in flight, and takes no lock while it waits for the exit; later stops send no second stop signal. A removal stops first, then takes the lock, and stops again if a start came first |
//! | a command, and the end of its task | none: it is refused when the task does not run, and ends with it |
//! | stop, start, note, removal of one sandbox | `sandbox_locks`; its network is attached and detached under it |
//! | a stop of a sandbox, and a creation of a task in it | from the stop on the table adds none; the stop waits for creations in flight, and one that ends later removes its task again |
//! | a removal of an image, and a creation of a task from it | images of tasks in creation count as used |
//! | two leases of devices for one owner | `lease_locks`, until the lease is on disk |
//! | claims of one host port, core or device | the ledger; who comes second is refused, with the holder. Ports of a stopped sandbox, whose network is still being released, are waited for, 20 s at most |
//! | a stop of the daemon, and everything | [`Gateway::shut_down`]; what is left when the time is over is as after a kill |
//!
//! Each noun has a component, which owns the fields of that noun: see `parts`. A frontend uses them through the views of
//! its [`Scope`], which show the objects of one owner alone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BackendStatus, Unreadable};
use crate::error::{Error, Result};
use crate::event::Subscription;
use crate::id::Owner;
use crate::keyed_lock::LockInUse;
use crate::ledger::{LeaseStore, MemoryStore};
use crate::names::Names;
use crate::operation::Operations;
use crate::spec::Meta;
use crate::state::TaskState;

mod access;
mod callers;
mod claims;
mod context;
mod devices;
mod exec;
mod image;
mod limits;
mod op;
mod parts;
mod sandbox;
mod scope;
mod start_limiter;
mod task;
mod volume;

pub use callers::Callers;
pub use claims::{Claims, LedgerReport, ScopedClaims};
pub use devices::{DeviceLeases, Leased, ResourceUse, ScopedDevices};
pub use exec::{Commands, ExecOutput, OutputShare, ScopedCommands};
pub use image::{Images, ScopedImages};
pub use limits::{Limits, NamedDevices, PortConflict};
pub use sandbox::{Sandboxes, ScopedSandboxes};
pub use scope::Scope;
pub use task::{ScopedTasks, Tasks, UnendedTask};
pub use volume::{ScopedVolumes, Volumes};

use context::Context;
use parts::Parts;

/// One node's sandboxes, tasks and images.
#[derive(Clone)]
pub struct Gateway {
    parts: Arc<Parts>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("table", &self.parts.context.table)
            .finish_non_exhaustive()
    }
}

// === impl Gateway ===

impl Gateway {
    /// A gateway over `backend` that has not recovered yet: it refuses every request with `Unavailable` until
    /// [`Gateway::recover`] has succeeded. Device leases that no sandbox uses yet are kept in memory only and
    /// are lost when it ends.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> Self {
        Self::with_leases(
            backend,
            limits,
            Arc::new(MemoryStore::default()),
            Operations::default(),
        )
    }

    /// As [`Gateway::new`]; leases that no sandbox uses yet are kept in `leases`, and the operations in flight
    /// are registered in `registry`.
    #[must_use]
    pub fn with_leases(
        backend: Arc<dyn Backend>,
        limits: Limits,
        leases: Arc<dyn LeaseStore>,
        registry: Operations,
    ) -> Self {
        Self {
            parts: Arc::new(Parts::new(backend, limits, leases, registry)),
        }
    }

    /// Sets the function by which refusals name the sandbox that holds what was asked for, as people know it. Without one
    /// they have its name alone; the function that was set first holds.
    pub fn set_names(&self, names: fn(&Meta) -> Names) {
        // It is set once, when the daemon starts.
        let _ = self.parts.context.names.set(names);
    }

    /// Replaces the limits from now on, as a reload of the configuration does. Operations in flight may end
    /// by the former ones; leases of devices are measured by the new ones from the next tick on. The capacity
    /// of the node and the starts at a time stay those that the gateway was created with.
    pub fn set_limits(&self, limits: Limits) {
        let Parts {
            context, claims, ..
        } = &*self.parts;
        claims.set_policy(limits.overcommit);
        let capacity = context.limits.get().capacity;
        context.limits.set(Limits { capacity, ..limits });
    }

    /// Runs the backend's recovery, fills the table and watches every task that runs. Call it once, before
    /// any other call.
    ///
    /// # Errors
    /// Those of [`Backend::recover`]; it may be called again after an error.
    pub async fn recover(&self) -> Result<()> {
        let Parts {
            context,
            claims,
            devices,
            tasks,
            sandboxes,
            ..
        } = &*self.parts;
        let recovered = context.backend.recover().await?;
        let watched: Vec<_> = recovered
            .tasks
            .iter()
            .filter(|task| task.state.is_running())
            .map(|task| task.id)
            .collect();
        let pending = recovered
            .tasks
            .iter()
            .filter(|task| task.state == TaskState::Unattended);
        let pending: Vec<_> = pending.map(|task| task.id).collect();
        let watched_sandboxes = recovered.sandboxes.clone();
        let removals = recovered.removals.clone();
        let found_exits = recovered.found_exits.clone();
        devices.recover(&recovered).await;
        for remnant in &recovered.remnants {
            claims.release_when_undone(remnant.id);
        }
        devices.expire();
        context.table.load(recovered);
        context.table.publish_found_exits(&found_exits);
        for id in pending {
            // This cannot wait: no request is served yet.
            tasks.recover_start(id).await;
        }
        for sandbox in &watched_sandboxes {
            sandboxes.watch(sandbox);
        }
        for id in watched {
            tasks.watch_exit(id);
        }
        for id in removals {
            sandboxes.resume_removal(id);
        }
        context.set_recovered();
        Ok(())
    }

    /// Waits until requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        self.parts.context.recovered().await;
    }

    /// Returns whether requests are served.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.parts.context.is_recovered()
    }

    /// Waits for the operations in flight, stops watching tasks, and then waits for the backend's background
    /// work; `patience` limits all of it together. Tasks continue to run.
    ///
    /// # Errors
    /// `DeadlineExceeded` if something is still in flight; it is cut off when the process exits.
    pub async fn shut_down(&self, patience: Duration) -> Result<()> {
        let Context {
            operations,
            watchers,
            shutdown,
            unwatched,
            backend,
            ..
        } = &*self.parts.context;
        let deadline = Instant::now() + patience;
        shutdown.cancel();
        operations.close();
        let done = timeout_at(deadline, operations.wait()).await;
        unwatched.cancel();
        watchers.close();
        let drained = timeout_at(deadline, async {
            watchers.wait().await;
            backend.drain().await;
        });
        let drained = drained.await;
        done.map_err(|_| {
            Error::deadline(format!(
                "{} operations are still in flight",
                operations.len()
            ))
        })?;
        drained.map_err(|_| Error::deadline("the backend is still cleaning up"))
    }

    /// Cancelled when the gateway begins to shut down. Callers that go away from then on withdraw nothing:
    /// what ends because the daemon does has to end by this, not before.
    #[must_use]
    pub fn ending(&self) -> CancellationToken {
        self.parts.context.shutdown.child_token()
    }

    /// The view of one owner.
    #[must_use]
    pub fn scope(&self, owner: Owner) -> Scope {
        Scope::new(Arc::clone(&self.parts), owner)
    }

    /// The health of the backend. Of the node's network it is what [`Gateway::fresh_status`] found last.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.parts.context.backend.status()
    }

    /// The health of the backend, after a look at the node's network. Takes a few seconds at most. Cancel-safe.
    pub async fn fresh_status(&self) -> BackendStatus {
        self.parts.context.backend.fresh_status().await
    }

    /// Returns whether an orchestrator uses the node's network: a kubelet does, and clients of Nomad and Swarm have networks
    /// of their own.
    #[must_use]
    pub fn has_network_user(&self) -> bool {
        self.parts.context.has_network_user()
    }

    /// The locks of objects that are held at this moment, for those who look for what waits.
    #[must_use]
    pub fn locks_in_use(&self) -> Vec<LockInUse> {
        let Parts {
            context,
            devices,
            tasks,
            sandboxes,
            ..
        } = &*self.parts;
        let mut held = sandboxes.locks_in_use();
        held.extend(tasks.locks_in_use());
        held.extend(devices.locks_in_use());
        held.extend(context.backend.locks_in_use());
        held
    }

    /// The number of the gateway's asynchronous tasks by what they do.
    #[must_use]
    pub fn background_tasks(&self) -> BTreeMap<&'static str, usize> {
        let Context {
            operations,
            watchers,
            ..
        } = &*self.parts.context;
        BTreeMap::from([
            ("operations", operations.len()),
            ("watchers", watchers.len()),
        ])
    }

    /// The events of all owners from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.parts.context.table.events().subscribe(None)
    }

    /// The objects that cannot be read, of all owners; none before recovery.
    #[must_use]
    pub fn unreadable(&self) -> Vec<Arc<Unreadable>> {
        self.parts.context.table.unreadable()
    }

    /// The sandboxes of all owners.
    #[must_use]
    pub fn sandboxes(&self) -> &Arc<Sandboxes> {
        &self.parts.sandboxes
    }

    /// The tasks of all owners.
    #[must_use]
    pub fn tasks(&self) -> &Arc<Tasks> {
        &self.parts.tasks
    }

    /// The images; they are not scoped to an owner.
    #[must_use]
    pub fn images(&self) -> &Arc<Images> {
        &self.parts.images
    }

    /// The volumes of all owners.
    #[must_use]
    pub fn volumes(&self) -> &Arc<Volumes> {
        &self.parts.volumes
    }

    /// The devices and their leases.
    #[must_use]
    pub fn devices(&self) -> &Arc<DeviceLeases> {
        &self.parts.devices
    }

    /// The claims of sandboxes and tasks on the node.
    #[must_use]
    pub fn claims(&self) -> &Arc<Claims> {
        &self.parts.claims
    }
}
