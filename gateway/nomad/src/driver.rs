//! Nomad's task driver over one scope of the gateway.
//!
//! ```text
//!  StartTask ─► remove stale starts ─► plan ─► image ─► sandbox ─► task ─► start   (serialised per task key)
//!      │             │                           └ cancelled with the call; later steps are undone if it is
//!      │             └ same id: adopt it if it has started, else remove it; other ids of the task: remove
//!  DestroyTask ─► wait for the operation in progress ─► remove sandbox and task ─► schedule image removal
//! ```
//!
//! A removal that fails is completed in the background: agents repeat none ([`unfinished`]).
//!
//! Tasks belong to no session: every call finds its task by its id. Each id that a session names is noted, so
//! that tasks that no agent references any more can be found ([`crate::reconcile`]). What is answered about a task that
//! cannot be read is in [`unreadable`].

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use switchyard_core::blocking_pool::{self, BlockingPool};
use switchyard_core::gateway::Scope;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::{Error, Result, threads};
use switchyard_linux::process::Stat;
use switchyard_proto::nomad::drivers::proto as nomad;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::events::Events;
use crate::fingerprint;
use crate::identity;
use crate::images::{ImageGc, Images};
use crate::reconcile::AgentReferences;
use crate::session::{Session, Sessions, caller};
use crate::status::{shutting_down, status, unknown_task};
use crate::times::{duration, interval};
use unfinished::UnfinishedRemovals;

mod exec;
mod lifecycle;
mod network;
mod start;
mod stats;
mod streaming;
mod unfinished;
mod unreadable;

/// Serves `hashicorp.nomad.plugins.drivers.proto.Driver` for all sessions. Clones share state.
#[derive(Clone)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    scope: Scope,
    sessions: Sessions,
    /// Serialises changes of one task of an allocation, across the ids of its starts.
    task_locks: KeyedLock<String>,
    images: Images,
    image_gc: Arc<ImageGc>,
    events: Events,
    references: AgentReferences,
    /// The sandboxes whose removal has failed.
    unfinished: UnfinishedRemovals,
    /// Runs file system calls on allocation directories, whose file system may hang.
    pool: Arc<BlockingPool>,
}

/// A stream of responses.
type DriverStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The result of a tonic handler.
type RpcResult<T> = Result<Response<T>, Status>;

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("scope", &self.shared.scope)
            .finish_non_exhaustive()
    }
}

// === impl Driver ===

impl Driver {
    /// The driver over `scope`, normally that of [`Owner::Nomad`](switchyard_core::id::Owner::Nomad), for
    /// these sessions. The caller must also poll [`Driver::run_background`].
    pub(crate) fn new(scope: Scope, sessions: Sessions) -> Self {
        let image_gc = Arc::new(ImageGc::new(scope.clone(), sessions.clone()));
        let pool = Arc::new(BlockingPool::new(
            threads::FRONTEND_POOL,
            blocking_pool::LIMIT,
        ));
        let shared = Shared {
            images: Images::new(scope.clone(), Arc::clone(&image_gc), Arc::clone(&pool)),
            pool,
            image_gc,
            scope,
            sessions,
            task_locks: KeyedLock::default(),
            events: Events::default(),
            unfinished: UnfinishedRemovals::default(),
            references: AgentReferences::new(
                Stat::of(std::process::id().cast_signed()).map(|stat| stat.id.started),
            ),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Removes unused images and dangling tasks and networks, and completes removals that have failed, while it is
    /// polled. Cancel-safe.
    pub(crate) async fn run_background(&self) {
        self.shared.scope.recovered().await;
        tokio::join!(
            self.shared.image_gc.run(),
            self.reconcile(),
            self.finish_removals()
        );
    }

    /// The gateway's view of Nomad's tasks and images.
    pub(crate) fn scope(&self) -> &Scope {
        &self.shared.scope
    }

    /// The open sessions.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.shared.sessions.all()
    }

    /// The ids that sessions have named.
    pub(crate) fn references(&self) -> &AgentReferences {
        &self.shared.references
    }

    /// The pool for file system calls on allocation directories.
    pub(crate) fn pool(&self) -> &BlockingPool {
        &self.shared.pool
    }

    /// The garbage collection of images.
    pub(crate) fn image_gc(&self) -> &ImageGc {
        &self.shared.image_gc
    }

    /// The session of a call.
    fn session(&self, metadata: &MetadataMap) -> Result<Arc<Session>> {
        self.shared.sessions.for_call(metadata)
    }

    /// Notes which agent makes a call of a session: the one that owns this allocation directory.
    fn note_caller(&self, session: &Session, metadata: &MetadataMap, alloc_dir: &str) {
        let seen = &self.shared.references;
        seen.note_process(&session.id, caller(metadata));
        seen.note_agent(&session.id, identity::Agent::new(alloc_dir));
    }

    /// Waits for recovery, and notes that the session of a call references this task.
    async fn await_recovery(&self, metadata: &MetadataMap, id: &str) {
        if let Ok(session) = self.session(metadata) {
            self.shared.references.note_task(&session.id, id);
        }
        self.shared.scope.recovered().await;
    }

    /// The task with this Nomad id.
    ///
    /// # Errors
    /// `NotFound`; those of [`Driver::find_task`].
    fn task(&self, id: &str) -> Result<Arc<Task>> {
        self.find_task(id)?.ok_or_else(|| unknown_task(id))
    }

    /// The task with this Nomad id, if it exists.
    ///
    /// # Errors
    /// `FailedPrecondition` if it exists and cannot be read; `Unavailable` before recovery.
    fn find_task(&self, id: &str) -> Result<Option<Arc<Task>>> {
        let found = self.shared.scope.tasks().named(id)?;
        if found.is_none() {
            self.check_readable(id)?;
        }
        Ok(found)
    }

    /// The sandbox of a task, unless it has just been removed.
    fn sandbox_of(&self, task: &Task) -> Option<Arc<Sandbox>> {
        self.shared.scope.sandboxes().by_id(task.sandbox).ok()
    }
}

/// Converts a result to that of a tonic handler.
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

    /// Stops nothing: tasks outlive sessions, and the launcher exits by itself.
    async fn shutdown(
        &self,
        _: Request<nomad::ShutdownRequest>,
    ) -> RpcResult<nomad::ShutdownResponse> {
        respond(Ok(nomad::ShutdownResponse {}))
    }

    async fn task_config_schema(
        &self,
        _: Request<nomad::TaskConfigSchemaRequest>,
    ) -> RpcResult<nomad::TaskConfigSchemaResponse> {
        respond(Ok(nomad::TaskConfigSchemaResponse {
            spec: Some(crate::schema::task_schema()),
        }))
    }

    async fn capabilities(
        &self,
        request: Request<nomad::CapabilitiesRequest>,
    ) -> RpcResult<nomad::CapabilitiesResponse> {
        respond(
            self.session(request.metadata())
                .map(|session| nomad::CapabilitiesResponse {
                    capabilities: Some(crate::capabilities::capabilities(&session.config)),
                }),
        )
    }

    async fn fingerprint(
        &self,
        request: Request<nomad::FingerprintRequest>,
    ) -> RpcResult<Self::FingerprintStream> {
        let scope = self.shared.scope.clone();
        respond(
            self.session(request.metadata())
                .map(|session| -> Self::FingerprintStream {
                    Box::pin(fingerprint::stream(scope, session))
                }),
        )
    }

    async fn task_events(
        &self,
        request: Request<nomad::TaskEventsRequest>,
    ) -> RpcResult<Self::TaskEventsStream> {
        let events = &self.shared.events;
        let ended = self.shared.scope.ended();
        respond(
            self.session(request.metadata())
                .map(|session| -> Self::TaskEventsStream {
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
        let task = request
            .task
            .ok_or_else(|| status(&Error::invalid("task", "it is missing")))?;
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
        let id = if config.id.is_empty() {
            &task_id
        } else {
            &config.id
        };
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
        let (
            metadata,
            _,
            nomad::StopTaskRequest {
                task_id,
                timeout,
                signal,
            },
        ) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.stop(&task_id, &signal, duration(timeout)).await)
    }

    async fn destroy_task(
        &self,
        request: Request<nomad::DestroyTaskRequest>,
    ) -> RpcResult<nomad::DestroyTaskResponse> {
        let (metadata, _, nomad::DestroyTaskRequest { task_id, force }) = request.into_parts();
        // The session's configuration says whether the task is kept for inspection, and what happens to its
        // image.
        let session = self.session(&metadata).map_err(|error| status(&error))?;
        self.shared.scope.recovered().await;
        respond(
            self.destroy(task_id, force, session.config.gc.clone())
                .await,
        )
    }

    async fn inspect_task(
        &self,
        request: Request<nomad::InspectTaskRequest>,
    ) -> RpcResult<nomad::InspectTaskResponse> {
        let (metadata, _, nomad::InspectTaskRequest { task_id }) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.inspect(&task_id))
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
        let (
            metadata,
            _,
            nomad::TaskStatsRequest {
                task_id,
                collection_interval,
            },
        ) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        let processors = self
            .session(&metadata)
            .map(|session| session.processors)
            .unwrap_or_default();
        respond(self.stats(&task_id, interval(collection_interval), processors))
    }

    async fn exec_task(
        &self,
        request: Request<nomad::ExecTaskRequest>,
    ) -> RpcResult<nomad::ExecTaskResponse> {
        let (
            metadata,
            _,
            nomad::ExecTaskRequest {
                task_id,
                command,
                timeout,
            },
        ) = request.into_parts();
        self.await_recovery(&metadata, &task_id).await;
        respond(self.exec(&task_id, command, duration(timeout)).await)
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<nomad::ExecTaskStreamingRequest>>,
    ) -> RpcResult<Self::ExecTaskStreamingStream> {
        let (metadata, _, requests) = request.into_parts();
        self.exec_streaming(&metadata, requests)
            .await
            .map(Response::new)
    }

    async fn create_network(
        &self,
        request: Request<nomad::CreateNetworkRequest>,
    ) -> RpcResult<nomad::CreateNetworkResponse> {
        let (metadata, _, nomad::CreateNetworkRequest { alloc_id, hostname }) =
            request.into_parts();
        let session = self.session(&metadata).ok();
        if let Some(session) = &session {
            self.shared
                .references
                .note_process(&session.id, caller(&metadata));
        }
        self.shared.scope.recovered().await;
        respond(
            self.make_network(session.as_deref(), &alloc_id, &hostname)
                .await,
        )
    }

    async fn destroy_network(
        &self,
        request: Request<nomad::DestroyNetworkRequest>,
    ) -> RpcResult<nomad::DestroyNetworkResponse> {
        let nomad::DestroyNetworkRequest {
            alloc_id,
            isolation_spec: _,
        } = request.into_inner();
        self.shared.scope.recovered().await;
        respond(self.remove_network(&alloc_id).await)
    }
}

#[cfg(test)]
mod tests;
