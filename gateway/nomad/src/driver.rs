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
use switchyard_core::gateway::Scope;
use switchyard_core::looks::{self, Looks};
use switchyard_core::table::{Sandbox, Task};
use switchyard_core::turns::Turns;
use switchyard_core::{Error, Result, threads};
use switchyard_process::Stat;
use switchyard_proto::nomad::drivers::proto as nomad;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::events::Events;
use crate::identity;
use crate::images::{Images, Keep};
use crate::reconcile::Seen;
use crate::session::{Session, Sessions, caller};
use crate::status::{ending, status, unknown_task};
use crate::times::{duration, interval};
use crate::{fingerprint, to_proto};

mod exec;
mod life;
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
    turns: Turns<String>,
    images: Images,
    keep: Arc<Keep>,
    events: Events,
    seen: Seen,
    /// Looks at the directories of allocations, which may be on a file system that hangs.
    looks: Arc<Looks>,
}

/// The answers of a stream.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What a handler of tonic's gives.
type Answer<T> = Result<Response<T>, Status>;

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
        let keep = Arc::new(Keep::new(scope.clone(), sessions.clone()));
        let looks = Arc::new(Looks::new(threads::FRONTEND_LOOKS, looks::LIMIT));
        let shared = Shared {
            images: Images::new(scope.clone(), Arc::clone(&keep), Arc::clone(&looks)),
            looks,
            keep,
            scope,
            sessions,
            turns: Turns::default(),
            events: Events::default(),
            seen: Seen::new(Stat::of(std::process::id().cast_signed()).map(|stat| stat.id.started)),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lets go of images and of tasks that nobody needs any more, for as long as it is polled. Cancel-safe.
    pub(crate) async fn tend(&self) {
        self.shared.scope.recovered().await;
        tokio::join!(self.shared.keep.tend(), self.reconcile());
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
    pub(crate) fn seen(&self) -> &Seen {
        &self.shared.seen
    }

    /// Looks at the directories of agents.
    pub(crate) fn looks(&self) -> &Looks {
        &self.shared.looks
    }

    /// Which images are let go.
    pub(crate) fn keep(&self) -> &Keep {
        &self.shared.keep
    }

    /// The session of a call.
    fn session(&self, metadata: &MetadataMap) -> Result<Arc<Session>> {
        self.shared.sessions.of(metadata)
    }

    /// Notes which agent calls by a session: the one that has this directory of an allocation.
    fn heard(&self, session: &Session, metadata: &MetadataMap, alloc_dir: &str) {
        let seen = &self.shared.seen;
        seen.life(&session.id, caller(metadata));
        seen.agent(&session.id, identity::Agent::new(alloc_dir));
    }

    /// Waits until tasks are known, and notes that the session of a call knows this one.
    async fn about(&self, metadata: &MetadataMap, id: &str) {
        if let Ok(session) = self.session(metadata) {
            self.shared.seen.task(&session.id, id);
        }
        self.shared.scope.recovered().await;
    }

    /// The task that Nomad knows by this id.
    fn task(&self, id: &str) -> Result<Arc<Task>> {
        self.shared.scope.task_named(id)?.ok_or_else(|| unknown_task(id))
    }

    /// The sandbox of a task, unless it is just being removed.
    fn home(&self, task: &Task) -> Option<Arc<Sandbox>> {
        self.shared.scope.sandbox_by_id(task.sandbox).ok()
    }
}

/// What a call gives, as tonic wants it.
fn answer<T>(result: Result<T>) -> Answer<T> {
    result.map(Response::new).map_err(|error| status(&error))
}

#[tonic::async_trait]
impl nomad::driver_server::Driver for Driver {
    type FingerprintStream = Answers<nomad::FingerprintResponse>;
    type TaskStatsStream = Answers<nomad::TaskStatsResponse>;
    type TaskEventsStream = Answers<nomad::DriverTaskEvent>;
    type ExecTaskStreamingStream = Answers<nomad::ExecTaskStreamingResponse>;

    async fn init(&self, _: Request<nomad::InitRequest>) -> Answer<nomad::InitResponse> {
        answer(Ok(nomad::InitResponse {}))
    }

    /// Ends nothing: tasks outlive sessions, and the launcher ends its own.
    async fn shutdown(&self, _: Request<nomad::ShutdownRequest>) -> Answer<nomad::ShutdownResponse> {
        answer(Ok(nomad::ShutdownResponse {}))
    }

    async fn task_config_schema(
        &self,
        _: Request<nomad::TaskConfigSchemaRequest>,
    ) -> Answer<nomad::TaskConfigSchemaResponse> {
        answer(Ok(nomad::TaskConfigSchemaResponse { spec: Some(crate::schema::task_schema()) }))
    }

    async fn capabilities(
        &self,
        request: Request<nomad::CapabilitiesRequest>,
    ) -> Answer<nomad::CapabilitiesResponse> {
        answer(self.session(request.metadata()).map(|session| nomad::CapabilitiesResponse {
            capabilities: Some(crate::capabilities::capabilities(&session.config)),
        }))
    }

    async fn fingerprint(
        &self,
        request: Request<nomad::FingerprintRequest>,
    ) -> Answer<Self::FingerprintStream> {
        let scope = self.shared.scope.clone();
        answer(
            self.session(request.metadata())
                .map(|session| -> Self::FingerprintStream { Box::pin(fingerprint::stream(scope, session)) }),
        )
    }

    async fn task_events(
        &self,
        request: Request<nomad::TaskEventsRequest>,
    ) -> Answer<Self::TaskEventsStream> {
        let events = &self.shared.events;
        let ended = self.shared.scope.ended();
        answer(
            self.session(request.metadata()).map(|session| -> Self::TaskEventsStream {
                Box::pin(events.stream(session.id.clone(), ended))
            }),
        )
    }

    async fn start_task(
        &self,
        request: Request<nomad::StartTaskRequest>,
    ) -> Answer<nomad::StartTaskResponse> {
        let (metadata, _, request) = request.into_parts();
        let session = self.session(&metadata).map_err(|error| status(&error))?;
        let task = request.task.ok_or_else(|| status(&Error::invalid("task", "it is missing")))?;
        self.heard(&session, &metadata, &task.alloc_dir);
        self.shared.scope.recovered().await;
        answer(self.start(session, task).await)
    }

    async fn recover_task(
        &self,
        request: Request<nomad::RecoverTaskRequest>,
    ) -> Answer<nomad::RecoverTaskResponse> {
        let (metadata, _, nomad::RecoverTaskRequest { task_id, handle }) = request.into_parts();
        let config = handle.and_then(|handle| handle.config).unwrap_or_default();
        let id = if config.id.is_empty() { &task_id } else { &config.id };
        self.about(&metadata, id).await;
        if let Ok(session) = self.session(&metadata) {
            self.heard(&session, &metadata, &config.alloc_dir);
        }
        answer(self.recover(id))
    }

    async fn wait_task(&self, request: Request<nomad::WaitTaskRequest>) -> Answer<nomad::WaitTaskResponse> {
        let (metadata, _, nomad::WaitTaskRequest { task_id }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        tokio::select! {
            biased;
            waited = self.wait(&task_id) => answer(waited),
            () = self.shared.scope.ended() => Err(ending()),
        }
    }

    async fn stop_task(&self, request: Request<nomad::StopTaskRequest>) -> Answer<nomad::StopTaskResponse> {
        let (metadata, _, nomad::StopTaskRequest { task_id, timeout, signal }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        answer(self.stop(&task_id, &signal, duration(timeout)).await)
    }

    async fn destroy_task(
        &self,
        request: Request<nomad::DestroyTaskRequest>,
    ) -> Answer<nomad::DestroyTaskResponse> {
        let (metadata, _, nomad::DestroyTaskRequest { task_id, force }) = request.into_parts();
        // Without its configuration it is not known what is to stay for a look, and which images.
        let session = self.session(&metadata).map_err(|error| status(&error))?;
        self.shared.scope.recovered().await;
        answer(self.destroy(task_id, force, session.config.gc.clone()).await)
    }

    async fn inspect_task(
        &self,
        request: Request<nomad::InspectTaskRequest>,
    ) -> Answer<nomad::InspectTaskResponse> {
        let (metadata, _, nomad::InspectTaskRequest { task_id }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        answer(self.task(&task_id).map(|task| to_proto::inspected(self.home(&task).as_deref(), &task)))
    }

    async fn signal_task(
        &self,
        request: Request<nomad::SignalTaskRequest>,
    ) -> Answer<nomad::SignalTaskResponse> {
        let (metadata, _, nomad::SignalTaskRequest { task_id, signal }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        answer(self.signal(&task_id, &signal).await)
    }

    async fn task_stats(&self, request: Request<nomad::TaskStatsRequest>) -> Answer<Self::TaskStatsStream> {
        let (metadata, _, nomad::TaskStatsRequest { task_id, collection_interval }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        let processors = self.session(&metadata).map(|session| session.processors).unwrap_or_default();
        answer(self.task(&task_id).map(|task| -> Self::TaskStatsStream {
            let scope = self.shared.scope.clone();
            Box::pin(stats::stream(scope, &task, interval(collection_interval), processors))
        }))
    }

    async fn exec_task(&self, request: Request<nomad::ExecTaskRequest>) -> Answer<nomad::ExecTaskResponse> {
        let (metadata, _, nomad::ExecTaskRequest { task_id, command, timeout }) = request.into_parts();
        self.about(&metadata, &task_id).await;
        answer(self.exec(&task_id, command, duration(timeout)).await)
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<nomad::ExecTaskStreamingRequest>>,
    ) -> Answer<Self::ExecTaskStreamingStream> {
        let (metadata, _, requests) = request.into_parts();
        self.exec_streaming(&metadata, requests).await.map(Response::new)
    }

    async fn create_network(
        &self,
        request: Request<nomad::CreateNetworkRequest>,
    ) -> Answer<nomad::CreateNetworkResponse> {
        let (metadata, _, nomad::CreateNetworkRequest { alloc_id, hostname }) = request.into_parts();
        let session = self.session(&metadata).ok();
        if let Some(session) = &session {
            self.shared.seen.life(&session.id, caller(&metadata));
        }
        self.shared.scope.recovered().await;
        answer(self.make_network(session.as_deref(), &alloc_id, &hostname).await)
    }

    async fn destroy_network(
        &self,
        request: Request<nomad::DestroyNetworkRequest>,
    ) -> Answer<nomad::DestroyNetworkResponse> {
        let nomad::DestroyNetworkRequest { alloc_id, isolation_spec: _ } = request.into_inner();
        self.shared.scope.recovered().await;
        answer(self.remove_network(&alloc_id).await)
    }
}

#[cfg(test)]
mod tests;
