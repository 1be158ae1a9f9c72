//! A backend that counts image pulls, of all frontends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use switchyard_core::backend::{
    Backend, BackendStatus, ExecProcess, Handler, Inspection, Recovered, SandboxDetails, SandboxStats,
    Started, TaskDetails,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Image, ImageId, ImageStore, LoadRequest, PullProgress, PullRequest};
use switchyard_core::spec::{CheckpointSpec, ExecSpec, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate};
use switchyard_core::state::Exit;
use switchyard_core::stats::{DiskUsage, InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_core::{Error, ErrorKind, Result};

use crate::metrics::Metrics;

/// Forwards all calls to the backend, and counts completed pulls.
pub struct CountingBackend {
    inner: Arc<dyn Backend>,
    images: CountingImageStore,
}

struct CountingImageStore {
    inner: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
}

/// Counts one pull when it is dropped.
struct PullCount<'a> {
    metrics: &'a Metrics,
    result: std::result::Result<(), ErrorKind>,
}

impl CountingBackend {
    /// A wrapper of this backend that counts into these metrics.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, metrics: Arc<Metrics>) -> Self {
        Self { images: CountingImageStore { inner: Arc::clone(&inner), metrics }, inner }
    }
}

impl fmt::Debug for CountingBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").finish_non_exhaustive()
    }
}

impl Drop for PullCount<'_> {
    fn drop(&mut self) {
        self.metrics.count_pull(self.result);
    }
}

#[async_trait]
impl ImageStore for CountingImageStore {
    async fn pull(&self, request: &PullRequest) -> Result<ImageId> {
        // If the future was dropped before its end, the pull was cancelled.
        let mut pull = PullCount { metrics: &self.metrics, result: Err(ErrorKind::Cancelled) };
        let pulled = self.inner.images().pull(request).await;
        pull.result = pulled.as_ref().map(|_| ()).map_err(Error::kind);
        pulled
    }

    async fn load(&self, request: LoadRequest) -> Result<ImageId> {
        self.inner.images().load(request).await
    }

    fn progress(&self, request: &PullRequest) -> Option<PullProgress> {
        self.inner.images().progress(request)
    }

    async fn get(&self, reference: &str) -> Result<Option<Image>> {
        self.inner.images().get(reference).await
    }

    async fn config(&self, id: &ImageId) -> Result<String> {
        self.inner.images().config(id).await
    }

    async fn list(&self) -> Result<Vec<Image>> {
        self.inner.images().list().await
    }

    async fn remove(&self, reference: &str, owner: Owner, in_use: bool) -> Result<()> {
        self.inner.images().remove(reference, owner, in_use).await
    }

    async fn usage(&self) -> Result<Vec<DiskUsage>> {
        self.inner.images().usage().await
    }
}

#[async_trait]
impl Backend for CountingBackend {
    fn status(&self) -> BackendStatus {
        self.inner.status()
    }

    fn handlers(&self) -> Vec<Handler> {
        self.inner.handlers()
    }

    async fn recover(&self) -> Result<Recovered> {
        self.inner.recover().await
    }

    async fn drain(&self) {
        self.inner.drain().await;
    }

    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>> {
        self.inner.resolve_start(id).await
    }

    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.inner.create_sandbox(id, spec).await
    }

    async fn wait_network_released(&self, id: SandboxId) {
        self.inner.wait_network_released(id).await;
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        self.inner.stop_sandbox(id).await
    }

    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.inner.start_sandbox(id, spec).await
    }

    async fn begin_removal(&self, id: SandboxId) -> Result<()> {
        self.inner.begin_removal(id).await
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        self.inner.remove_sandbox(id).await
    }

    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()> {
        self.inner.amend_sandbox(id, note).await
    }

    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails> {
        self.inner.create_task(id, sandbox, spec).await
    }

    async fn start_task(&self, id: TaskId) -> Result<Started> {
        self.inner.start_task(id).await
    }

    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        self.inner.set_ranges(owner, ranges).await
    }

    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        self.inner.remove_volume(owner, name).await
    }

    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        self.inner.signal_task(id, signal).await
    }

    async fn wait_sandbox(&self, id: SandboxId) -> Result<String> {
        self.inner.wait_sandbox(id).await
    }

    async fn wait_end(&self, id: TaskId) -> Result<()> {
        self.inner.wait_end(id).await
    }

    async fn wait_task(&self, id: TaskId) -> Result<Exit> {
        self.inner.wait_task(id).await
    }

    async fn remove_task(&self, id: TaskId) -> Result<()> {
        self.inner.remove_task(id).await
    }

    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        self.inner.update_task(id, update).await
    }

    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()> {
        self.inner.checkpoint_task(id, spec).await
    }

    fn exec_blocked(&self, id: TaskId) -> Option<Error> {
        self.inner.exec_blocked(id)
    }

    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
        self.inner.exec(id, spec).await
    }

    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment> {
        self.inner.attach(id, spec).await
    }

    async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()> {
        self.inner.resize_task(id, width, height).await
    }

    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled> {
        self.inner.dial(id, port).await
    }

    async fn reopen_log(&self, id: TaskId) -> Result<()> {
        self.inner.reopen_log(id).await
    }

    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        self.inner.task_stats(ids).await
    }

    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        self.inner.task_metrics(ids).await
    }

    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        self.inner.sandbox_traffic(ids).await
    }

    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        self.inner.sandbox_stats(id).await
    }

    async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        self.inner.inspect_task(id).await
    }

    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        self.inner.inspect_sandbox(id).await
    }

    fn images(&self) -> &dyn ImageStore {
        &self.images
    }
}
