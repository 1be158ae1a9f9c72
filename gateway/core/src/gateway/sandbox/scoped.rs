//! Sandboxes, as seen by one owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Sandboxes, amend_sandbox, make_sandbox, start_sandbox};
use crate::backend::{Inspection, SandboxStats, Unreadable, UnreadableKind};
use crate::error::{Error, ErrorKind, Result};
use crate::event::ListAndWatch;
use crate::gateway::access::OwnerAccess;
use crate::gateway::op::{Op, ignore_not_found};
use crate::id::SandboxId;
use crate::object::Sandbox;
use crate::operation::{OperationKind, Subject};
use crate::singleflight::Decision;
use crate::spec::{SandboxSpec, Subnet};
use crate::stats::InterfaceStats;
use crate::stream::Dialled;
use crate::table::{SandboxWithTasks, no_sandbox, sandbox_not_ready};

/// The sandboxes of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ScopedSandboxes<'s> {
    access: &'s OwnerAccess,
    sandboxes: &'s Arc<Sandboxes>,
}

// === impl ScopedSandboxes ===

impl<'s> ScopedSandboxes<'s> {
    pub(in crate::gateway) const fn new(
        access: &'s OwnerAccess,
        sandboxes: &'s Arc<Sandboxes>,
    ) -> Self {
        Self { access, sandboxes }
    }

    /// This owner's sandboxes now, and its events from now on, until the gateway shuts down.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn list_and_watch(self) -> Result<ListAndWatch> {
        let context = self.access.ready()?;
        let (since, sandboxes, events) = context.table.list_and_watch(self.access.owner());
        Ok(ListAndWatch {
            since,
            sandboxes,
            events,
            ended: context.shutdown.clone(),
        })
    }

    /// This owner's sandboxes.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn list(self) -> Result<Vec<Arc<Sandbox>>> {
        Ok(self.access.ready()?.table.sandboxes(self.access.owner()))
    }

    /// The sandbox with this id, or the only one whose id has this prefix.
    ///
    /// # Errors
    /// `NotFound` if there is none, also for a text that cannot be an id; `InvalidArgument` if the prefix is
    /// ambiguous.
    pub fn find(self, id: &str) -> Result<Arc<Sandbox>> {
        self.access.sandbox(id)
    }

    /// A sandbox by id, if it still exists.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn by_id(self, id: SandboxId) -> Result<Arc<Sandbox>> {
        self.access.sandbox_by_id(id)
    }

    /// The sandbox with this name, if it exists.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn named(self, name: &str) -> Result<Option<Arc<Sandbox>>> {
        Ok(self
            .access
            .ready()?
            .table
            .sandbox_named(self.access.owner(), name))
    }

    /// This owner's sandboxes whose names have this prefix. The cost does not depend on the number of other
    /// sandboxes.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn with_prefix(self, beginning: &str) -> Result<Vec<Arc<Sandbox>>> {
        Ok(self
            .access
            .ready()?
            .table
            .sandboxes_with_prefix(self.access.owner(), beginning))
    }

    /// Checks that no object of this owner that cannot be read has one of the names that `is_rival` accepts: an
    /// orchestrator that does not find its object starts another one, under a name of its own. `name` is the new
    /// one.
    ///
    /// # Errors
    /// `FailedPrecondition`, naming the object and what to do; `Unavailable` before recovery.
    pub fn check_rivals(self, name: &str, is_rival: impl Fn(&str) -> bool) -> Result<()> {
        let owner = self.access.owner();
        let is_meant = |held: &Unreadable| held.owner == Some(owner) && is_rival(&held.name);
        let what = || format!("the place of {name:?}");
        self.access.ready()?.check_unreadable(is_meant, what)
    }

    /// This owner's objects that cannot be read, sandboxes and tasks. While the daemon runs, none is added and none
    /// goes.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn unreadable(self) -> Result<Vec<Arc<Unreadable>>> {
        let owner = self.access.owner();
        let mut all = self.access.ready()?.table.unreadable();
        all.retain(|held| held.owner == Some(owner));
        Ok(all)
    }

    /// One of this owner's sandboxes with its tasks, as of one moment.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` before recovery.
    pub fn with_tasks(self, id: SandboxId) -> Result<SandboxWithTasks> {
        let found = self.access.ready()?.table.sandbox_with_tasks(id);
        found
            .filter(|entry| entry.sandbox.meta.owner == self.access.owner())
            .ok_or_else(|| no_sandbox(id))
    }

    /// The sandbox with this id, if it is ready.
    ///
    /// # Errors
    /// As for [`ScopedSandboxes::find`]; `FailedPrecondition` if it is not ready.
    pub fn require_ready(self, id: &str) -> Result<Arc<Sandbox>> {
        let sandbox = self.access.sandbox(id)?;
        if sandbox.state.is_ready() {
            Ok(sandbox)
        } else {
            Err(sandbox_not_ready(sandbox.id, &sandbox.state))
        }
    }

    /// Sets the address ranges for this owner's sandboxes. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`SandboxBackend::set_ranges`](crate::backend::SandboxBackend::set_ranges).
    pub async fn set_ranges(self, ranges: Vec<Subnet>) -> Result<()> {
        self.access.ready()?;
        let sandboxes = Arc::clone(self.sandboxes);
        let owner = self.access.owner();
        let operation = self
            .access
            .begin(OperationKind::SetRanges, Subject::default());
        let work =
            operation.run(async move { sandboxes.context.backend.set_ranges(owner, ranges).await });
        self.access
            .context()
            .run_detached(format!("change of the address ranges of {owner}"), work)
            .await
    }

    /// Creates a sandbox and makes it ready. Idempotent by name: the same request joins the creation in
    /// flight or returns the sandbox that it created. Cancel-safe: the work continues, and a retry finds the
    /// sandbox.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is held by a sandbox with another configuration, or by one that is no
    /// longer ready; `FailedPrecondition` if the name is held by a sandbox that cannot be read, or if another
    /// holder has a host port that it claims; those of
    /// [`SandboxBackend::create_sandbox`](crate::backend::SandboxBackend::create_sandbox).
    pub async fn create(self, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
        let context = self.access.ready()?;
        if spec.meta.owner != self.access.owner() {
            return Err(Error::internal(format!(
                "a sandbox of {} was asked for by {}",
                spec.meta.owner,
                self.access.owner()
            )));
        }
        let key = format!("sandbox {}/{}", self.access.owner(), spec.meta.name);
        let request = spec.meta.record.clone();
        let decide = || match context
            .table
            .sandbox_named(self.access.owner(), &spec.meta.name)
        {
            None => match context.check_name(
                UnreadableKind::Sandbox,
                self.access.owner(),
                &spec.meta.name,
            ) {
                Ok(()) => Decision::Begin,
                Err(error) => Decision::Answer(Err(error)),
            },
            Some(held) if !held.state.is_ready() => {
                Decision::Answer(Err(Error::already_exists(format!(
                    "sandbox name {:?} is held by {}, which is {}: remove it first",
                    spec.meta.name,
                    held.id,
                    held.state.as_str()
                ))))
            }
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
            let operation = self.access.begin(OperationKind::CreateSandbox, subject);
            operation.run(make_sandbox(Arc::clone(self.sandboxes), id, spec.clone()))
        };
        self.sandboxes
            .new_sandboxes
            .run(key, &request, decide, work)
            .await
    }

    /// Stops a sandbox: kills its tasks and releases its network. Idempotent: succeeds if it does not exist.
    /// Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `FailedPrecondition` if it, or a task in it, cannot be read; those of
    /// [`SandboxBackend::stop_sandbox`](crate::backend::SandboxBackend::stop_sandbox); it can be stopped again.
    pub async fn stop(self, id: &str) -> Result<()> {
        match self.access.sandbox(id) {
            Ok(sandbox) => ignore_not_found(self.sandboxes.stop(sandbox.id).await),
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
    pub async fn start(self, id: SandboxId, spec: SandboxSpec) -> Result<()> {
        let sandbox = self.access.sandbox_by_id(id)?;
        let work = || {
            let operation = self
                .access
                .begin(OperationKind::StartSandbox, Subject::sandbox(&sandbox));
            operation.run(start_sandbox(Arc::clone(self.sandboxes), id, spec))
        };
        self.sandboxes
            .sandbox_ops
            .run(Op::Start(id), b"", || Decision::Begin, work)
            .await
    }

    /// Stores the frontend's note about a ready sandbox, which `make` makes from the sandbox with its
    /// previous note; it is part of the sandbox's details, also after a restart. No other note comes between.
    /// Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not ready; those of
    /// [`SandboxBackend::amend_sandbox`](crate::backend::SandboxBackend::amend_sandbox).
    pub async fn amend(
        self,
        id: SandboxId,
        make: impl FnOnce(&Sandbox) -> Vec<u8> + Send + 'static,
    ) -> Result<()> {
        let id = self.access.sandbox_by_id(id)?.id;
        let sandboxes = Arc::clone(self.sandboxes);
        self.access
            .context()
            .run_detached(
                format!("note on sandbox {id}"),
                amend_sandbox(sandboxes, id, make),
            )
            .await
    }

    /// Stops a sandbox, removes its tasks and then the sandbox. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of stopping and removing, also `FailedPrecondition` if it cannot be read; it can be removed again.
    pub async fn remove(self, id: &str) -> Result<()> {
        let id = match self.access.sandbox(id) {
            Ok(sandbox) => sandbox.id,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        self.sandboxes.remove(id).await
    }

    /// Connects to a TCP port on the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not ready; `Unavailable` if no process listens on the port.
    pub async fn dial(self, id: &str, port: u16) -> Result<Dialled> {
        let sandbox = self.require_ready(id)?;
        let subject = Subject::sandbox(&sandbox).with_argument(&port.to_string());
        let operation = self.access.begin(OperationKind::PortForward, subject);
        operation
            .run(self.access.context().backend.dial(sandbox.id, port))
            .await
    }

    /// Usage of a sandbox.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if it cannot be read.
    pub async fn stats(self, id: SandboxId) -> Result<SandboxStats> {
        let id = self.access.sandbox_by_id(id)?.id;
        self.access.context().backend.sandbox_stats(id).await
    }

    /// Traffic of these sandboxes; those that do not exist any more or use the host's network are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn traffic(
        self,
        ids: &[SandboxId],
    ) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        let table = &self.access.ready()?.table;
        let ids: Vec<SandboxId> = ids
            .iter()
            .copied()
            .filter(|id| {
                table
                    .sandbox(*id)
                    .is_some_and(|sandbox| sandbox.meta.owner == self.access.owner())
            })
            .collect();
        self.access.context().backend.sandbox_traffic(&ids).await
    }

    /// Information about a sandbox for people.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if they cannot be read.
    pub async fn inspect(self, id: SandboxId) -> Result<Inspection> {
        let id = self.access.sandbox_by_id(id)?.id;
        self.access.context().backend.inspect_sandbox(id).await
    }

    /// As [`ScopedSandboxes::inspect`], for somebody who is then shown what the sandbox may keep secret: an
    /// operation, so that it is recorded.
    ///
    /// # Errors
    /// Those of [`ScopedSandboxes::inspect`].
    pub async fn show_secrets(self, id: SandboxId) -> Result<Inspection> {
        let id = self.access.sandbox_by_id(id)?.id;
        let operation = self
            .access
            .context()
            .begin_on_sandbox(OperationKind::ShowSecrets, id);
        operation
            .run(self.access.context().backend.inspect_sandbox(id))
            .await
    }
}
