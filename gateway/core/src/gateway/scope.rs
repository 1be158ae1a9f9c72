//! One owner's view of the gateway.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::WaitForCancellationFutureOwned;

use super::access::OwnerAccess;
use super::callers::Callers;
use super::claims::ScopedClaims;
use super::devices::ScopedDevices;
use super::exec::ScopedCommands;
use super::image::ScopedImages;
use super::parts::Parts;
use super::sandbox::ScopedSandboxes;
use super::task::ScopedTasks;
use super::volume::ScopedVolumes;
use crate::backend::{BackendStatus, Handler};
use crate::error::Result;
use crate::event::{EventKind, Subscription, UnmetWork};
use crate::id::Owner;
use crate::trace::{Span, SpanKind};
use crate::waiters::Waiters;

/// One owner's view of the gateway, and the only access that a frontend has. It can neither see nor change
/// another owner's objects.
#[derive(Clone)]
pub struct Scope {
    parts: Arc<Parts>,
    access: OwnerAccess,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}

impl Scope {
    pub(super) fn new(parts: Arc<Parts>, owner: Owner) -> Self {
        let access = OwnerAccess::new(Arc::clone(&parts.context), owner);
        Self { parts, access }
    }

    /// The owner of this view.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.access.owner()
    }

    /// This owner's sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> ScopedSandboxes<'_> {
        ScopedSandboxes::new(&self.access, &self.parts.sandboxes)
    }

    /// This owner's tasks.
    #[must_use]
    pub fn tasks(&self) -> ScopedTasks<'_> {
        ScopedTasks::new(&self.access, &self.parts.tasks)
    }

    /// Further processes in this owner's tasks.
    #[must_use]
    pub fn commands(&self) -> ScopedCommands<'_> {
        ScopedCommands::new(&self.access, &self.parts.commands)
    }

    /// The images, as this owner may use them.
    #[must_use]
    pub fn images(&self) -> ScopedImages<'_> {
        ScopedImages::new(&self.access, &self.parts.images)
    }

    /// This owner's volumes.
    #[must_use]
    pub fn volumes(&self) -> ScopedVolumes<'_> {
        ScopedVolumes::new(&self.access, &self.parts.volumes)
    }

    /// The devices, and this owner's leases of them.
    #[must_use]
    pub fn devices(&self) -> ScopedDevices<'_> {
        ScopedDevices::new(&self.access, &self.parts.devices)
    }

    /// The ports, processors and memory of the node, and the parts of them that others leave.
    #[must_use]
    pub fn claims(&self) -> ScopedClaims<'_> {
        ScopedClaims::new(&self.access, &self.parts.claims)
    }

    /// The callers among `waiters`, for work that a frontend runs detached.
    #[must_use]
    pub fn callers(&self, waiters: Waiters) -> Callers {
        self.parts.context.callers(waiters)
    }

    /// This view, for work that begins after the current request has been answered: its operations are those
    /// of the current caller, and below the current span.
    #[must_use]
    pub fn for_current_caller(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
            access: self.access.for_current_caller(),
        }
    }

    /// Begins a trace of work that no call asks for; `None` if nothing is traced.
    #[must_use]
    pub fn begin_trace(&self, name: &'static str) -> Option<Span> {
        let mut span = self
            .parts
            .context
            .registry
            .tracer()?
            .root(SpanKind::Internal, name, None);
        span.set("switchyard.owner", self.owner().as_str());
        Some(span)
    }

    /// As [`Gateway::status`](super::Gateway::status); also available before recovery.
    #[must_use]
    pub fn status(&self) -> BackendStatus {
        self.parts.context.backend.status()
    }

    /// As [`Gateway::fresh_status`](super::Gateway::fresh_status), for an orchestrator whose sandboxes use the node's network;
    /// also available before recovery.
    pub async fn fresh_status(&self) -> BackendStatus {
        self.parts.context.note_network_user();
        self.parts.context.backend.fresh_status().await
    }

    /// The runtime handlers, the default one first.
    #[must_use]
    pub fn handlers(&self) -> Vec<Handler> {
        self.parts.context.backend.handlers()
    }

    /// This owner's events from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.parts
            .context
            .table
            .events()
            .subscribe(Some(self.owner()))
    }

    /// Publishes that work which this owner was given cannot begin.
    pub fn announce_unmet(&self, work: UnmetWork) {
        let kind = EventKind::Unmet(Arc::new(work));
        self.parts.context.table.announce(self.owner(), kind);
    }

    /// Returns whether requests are served, that is, whether recovery has finished.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.parts.context.is_recovered()
    }

    /// Waits until requests are served. Cancel-safe.
    pub async fn recovered(&self) {
        self.parts.context.recovered().await;
    }

    /// Completes when the gateway shuts down. Whatever waits for it may then stop half way; tasks continue to
    /// run.
    pub fn ended(&self) -> WaitForCancellationFutureOwned {
        self.parts.context.shutdown.clone().cancelled_owned()
    }

    /// Runs work that continues if the caller goes away; `what` names it in errors. A shutdown waits for it.
    /// Cancel-safe.
    ///
    /// # Errors
    /// Those of the work; `Internal` if it panics or is aborted.
    pub async fn run_detached<T: Send + 'static>(
        &self,
        what: String,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.parts.context.run_detached(what, work).await
    }
}
