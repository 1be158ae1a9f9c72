//! Nomad's task driver over one scope of the gateway.
//!
//! ```text
//!  StartTask ─► clear the place ─► plan ─► image ─► sandbox ─► task ─► start        each place has one change at a time
//!      │             │                       └ ends with its caller; the rest is seen through without it
//!      │             └ the same id: what runs or ran is adopted, what is half made is taken away; other ids: destroyed
//!  DestroyTask ─► after whatever the place is at ─► the sandbox with all that is in it ─► the image is let go, later
//! ```
//!
//! Tasks belong to no session: every call finds its task by its id. What a session names is noted, so that tasks that no agent knows
//! any more can be found ([`crate::reconcile`]).

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use switchyard_core::blocking_pool::{self, BlockingPool};
use switchyard_core::gateway::Scope;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::table::{Sandbox, Task};
use switchyard_core::{Error, Result, threads};
use switchyard_process::Stat;
use switchyard_proto::nomad::drivers::proto as nomad;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::events::Events;
use crate::identity;
use crate::images::{ImageGc, Images};
use crate::reconcile::AgentReferences;
use crate::session::{Session, Sessions, caller};
use crate::status::{shutting_down, status, unknown_task};
use crate::times::{duration, interval};
use crate::{fingerprint, to_proto};

mod exec;
mod lifecycle;
mod network;
mod start;
mod stats;
mod streaming;

/// Serves `hashicorp.nomad.plugins.drivers.proto.Driver`, of all sessions. Clones are the same.
#[derive(Clone)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    scope: Scope,
    sessions: Sessions,
    /// Changes of one task of an allocation come one after the other, whatever the ids of its starts are.
    task_locks: KeyedLock<String>,
    images: Images,
    image_gc: Arc<ImageGc>,
    events: Events,
    references: AgentReferences,
    /// Looks at the directories of allocations, which may be on a file system that hangs.
    pool: Arc<BlockingPool>,
}

/// The answers of a stream.
type DriverStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a handler of tonic's gives.
type RpcResult<T> = Result<Response<T>, Status>;

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("scope", &self.shared.scope).finish_non_exhaustive()
    }
}

// === impl Driver ===

impl Driver {
    /// The driver over `scope`, which ought to be that of [`Owner::Nomad`](switchyard_core::id::Owner::Nomad), for these sessions.
    /// Somebody has to poll [`Driver::tend`] as well.
    pub(crate) fn new(scope: Scope, sessions: Sessions) -> Self {
        let keep = Arc::new(ImageGc::new(scope.clone(), sessions.clone()));
        let looks = Arc::new(BlockingPool::new(threads::FRONTEND_POOL, blocking_pool::LIMIT));
        let shared = Shared {
            images: Images::new(scope.clone(), Arc::clone(&keep), Arc::clone(&looks)),
            pool: looks,
            image_gc: keep,
            scope,
            sessions,
            task_locks: KeyedLock::default(),
            events: Events::default(),
            references: AgentReferences::new(
                Stat::of(std::process::id().cast_signed()).map(|stat| stat.id.started),
            ),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lets go of images and of tasks that nobody needs any more, for as long as it is polled. Cancel-safe.
    pub(crate) async fn run_background(&self) {
        self.shared.scope.recovered().await;
        tokio::join!(self.shared.image_gc.run(), self.reconcile());
    }

    /// The tasks and images that this is about.
    pub(crate) fn scope(&self) -> &Scope {
        &self.shared.scope
    }

    /// The sessions that are open.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.shared.sessions.all()
    }

    /// What sessions have named.
    pub(crate) fn references(&self) -> &AgentReferences {
        &self.shared.references
    }

    /// Looks at the directories of agents.
    pub(crate) fn pool(&self) -> &BlockingPool {
        &self.shared.pool
    }

    /// Which images are let go.
    pub(crate) fn image_gc(&self) -> &ImageGc {
        &self.shared.image_gc
    }

    /// The session of a call.
    fn session(&self, metadata: &MetadataMap) -> Result<Arc<Session>> {
        self.shared.sessions.for_call(metadata)
    }

    /// Notes which agent calls by a session: the one that has this directory of an allocation.
    fn note_caller(&self, session: &Session, metadata: &MetadataMap, alloc_dir: &str) {
        let seen = &self.shared.references;
        seen.note_process(&session.id, caller(metadata));
        seen.note_agent(&session.id, identity::Agent::new(alloc_dir));
    }

    /// Waits until tasks are known, and notes that the session of a call knows this one.
    async fn await_recovery(&self, metadata: &MetadataMap, id: &str) {
        if let Ok(session) = self.session(metadata) {
            self.shared.references.note_task(&session.id, id);
        }
        self.shared.scope.recovered().await;
    }

    /// The task that Nomad knows by this id.
    fn task(&self, id: &str) -> Result<Arc<Task>> {
        self.shared.scope.task_named(id)?.ok_or_else(|| unknown_task(id))
    }

    /// The sandbox of a task, unless it is just being removed.
    fn sandbox_of(&self, task: &Task) -> Option<Arc<Sandbox>> {
        self.shared.scope.sandbox_by_id(task.sandbox).ok()
    }
}

/// What a call gives, as tonic wants it.
fn respond<T>(result: Result<T>) -> RpcResult<T> {
    result.map(Response::new).map_err(|error| status(&error))
}

#[tonic::async_trait]
impl nomad::driver_server::Driver for Driver {
    type FingerprintStream = DriverStream<nomad::FingerprintResponse>;
    type TaskStatsStream = DriverStream<nomad::TaskStatsResponse>;
    type TaskEventsStream = DriverStream<nomad::DriverTaskEvent>;
    type ExecTaskStreamingStream = DriverStream<nomad::ExecTaskStreamingResponse>;

    async fn init(&self, _: Request<nomad::InitRequest>) -> RpcResult<nomad::InitResponse> {
        respond(Ok(nomad::InitResponse {}))
    }

    /// Ends nothing: tasks outlive sessions, and the launcher ends its own.
    async fn shutdown(&self, _: Request<nomad::ShutdownRequest>) -> RpcResult<nomad::ShutdownResponse> {
        respond(Ok(nomad::ShutdownResponse {}))
    }

    async fn task_config_schema(
        &self,
        _: Request<nomad::TaskConfigSchemaRequest>,
    ) -> RpcResult<nomad::TaskConfigSchemaResponse> {
        respond(Ok(nomad::TaskConfigSchemaResponse { spec: Some(crate::schema::task_schema()) }))
    }

    async fn capabilities(
        &self,
        request: Request<nomad::CapabilitiesRequest>,
    ) -> RpcResult<nomad::CapabilitiesResponse> {
        respond(self.session(request.metadata()).map(|session| nomad::CapabilitiesResponse {
            capabilities: Some(crate::capabilities::capabilities(&session.config)),
        }))
    }

    async fn fingerprint(
        &self,
        request: Request<nomad::FingerprintRequest>,
    ) -> RpcResult<Self::FingerprintStream> {
        let scope = self.shared.scope.clone();
        respond(
            self.session(request.metadata())
                .map(|session| -> Self::FingerprintStream { Box::pin(fingerprint::stream(scope, session)) }),
        )
    }

    async fn task_events(
        &self,
        request: Request<nomad::TaskEventsRequest>,
    ) -> RpcResult<Self::TaskEventsStream> {
        let events = &self.shared.events;
        let ended = self.shared.scope.ended();
        respond(
            self.session(request.metadata()).map(|session| -> Self::TaskEventsStream {
                Box::pin(events.stream(session.id.clone(), ended))
            }),
        )
    }

    async fn start_task(
        &self,
        request: Request<nomad::StartTaskRequest>,
    ) -> RpcResult<nomad::StartTaskResponse> {
        let (metadata, _, request) = request.into_parts();
        let session = self.session(&metadata).map_err(|error| status(&error))?;
        let task = request.task.ok_or_else(|| status(&Error::invalid("task", "it is missing")))?;
        self.note_caller(&session, &metadata, &task.alloc_dir);
        self.shared.scope.recovered().await;
        respond(self.start(session, task).await)
    }

    async fn recover_task(
        &self,
        request: Request<nomad::RecoverTaskRequest>,
    ) -> RpcResult<nomad::RecoverTaskResponse> {
        let (metadata, _, nomad::RecoverTaskRequest { task_id, handle }) = request.into_parts();
        let config = handle.and_then(|handle| handle.config).unwrap_or_default();
        let id = if config.id.is_empty() { &task_id } else { &config.id };
        self.await_recovery(&metadata, id).await;
        if let Ok(session) = self.session(&metadata) {
            self.note_caller(&session, &metadata, &config.alloc_dir);
        }
        respond(self.recover(id))
    }

    async fn wait_task(
        &self,
        request: Request<nomad::WaitTaskRequest>,
    ) -> RpcResult<nomad::WaitTaskResponse> {
        let (metadata, _, nomad::WaitTaskRequest { task_id }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        tokio::select! {
            biased;
            waited = self.wait(&task_id) => respond(waited),
            () = self.shared.scope.ended() => Err(shutting_down()),
        }
    }

    async fn stop_task(
        &self,
        request: Request<nomad::StopTaskRequest>,
    ) -> RpcResult<nomad::StopTaskResponse> {
        let (metadata, _, nomad::StopTaskRequest { task_id, timeout, signal }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.stop(&task_id, &signal, duration(timeout)).await)
    }

    async fn destroy_task(
        &self,
        request: Request<nomad::DestroyTaskRequest>,
    ) -> RpcResult<nomad::DestroyTaskResponse> {
        let (metadata, _, nomad::DestroyTaskRequest { task_id, force }) = request.into_parts();
        // Without its configuration it is not known what is to stay for a look, and which images.
        let session = self.session(&metadata).map_err(|error| status(&error))?;
        self.shared.scope.recovered().await;
        respond(self.destroy(task_id, force, session.config.gc.clone()).await)
    }

    async fn inspect_task(
        &self,
        request: Request<nomad::InspectTaskRequest>,
    ) -> RpcResult<nomad::InspectTaskResponse> {
        let (metadata, _, nomad::InspectTaskRequest { task_id }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.task(&task_id).map(|task| to_proto::inspected(self.sandbox_of(&task).as_deref(), &task)))
    }

    async fn signal_task(
        &self,
        request: Request<nomad::SignalTaskRequest>,
    ) -> RpcResult<nomad::SignalTaskResponse> {
        let (metadata, _, nomad::SignalTaskRequest { task_id, signal }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.signal(&task_id, &signal).await)
    }

    async fn task_stats(
        &self,
        request: Request<nomad::TaskStatsRequest>,
    ) -> RpcResult<Self::TaskStatsStream> {
        let (metadata, _, nomad::TaskStatsRequest { task_id, collection_interval }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        let processors = self.session(&metadata).map(|session| session.processors).unwrap_or_default();
        respond(self.task(&task_id).map(|task| -> Self::TaskStatsStream {
            let scope = self.shared.scope.clone();
            Box::pin(stats::stream(scope, &task, interval(collection_interval), processors))
        }))
    }

    async fn exec_task(
        &self,
        request: Request<nomad::ExecTaskRequest>,
    ) -> RpcResult<nomad::ExecTaskResponse> {
        let (metadata, _, nomad::ExecTaskRequest { task_id, command, timeout }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.exec(&task_id, command, duration(timeout)).await)
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<nomad::ExecTaskStreamingRequest>>,
    ) -> RpcResult<Self::ExecTaskStreamingStream> {
        let (metadata, _, requests) = request.into_parts();
        self.exec_streaming(&metadata, requests).await.map(Response::new)
    }

    async fn create_network(
        &self,
        request: Request<nomad::CreateNetworkRequest>,
    ) -> RpcResult<nomad::CreateNetworkResponse> {
        let (metadata, _, nomad::CreateNetworkRequest { alloc_id, hostname }) = request.into_parts();
        let session = self.session(&metadata).ok();
        if let Some(session) = &session {
            self.shared.references.note_process(&session.id, caller(&metadata));
        }
        self.shared.scope.recovered().await;
        respond(self.make_network(session.as_deref(), &alloc_id, &hostname).await)
    }

    async fn destroy_network(
        &self,
        request: Request<nomad::DestroyNetworkRequest>,
    ) -> RpcResult<nomad::DestroyNetworkResponse> {
        let nomad::DestroyNetworkRequest { alloc_id, isolation_spec: _ } = request.into_inner();
        self.shared.scope.recovered().await;
        respond(self.remove_network(&alloc_id).await)
    }
}

#[cfg(test)]
mod tests;
