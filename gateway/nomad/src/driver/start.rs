//! StartTask: from a request to a running task; after an error nothing is left behind, or it is removed in the
//! background.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::device::Reservation;
use switchyard_core::gateway::{Callers, Scope};
use switchyard_core::image::ImageId;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::LeaseClaim;
use switchyard_core::state::TaskState;
use switchyard_core::waiters::Waiters;
use switchyard_core::{ErrorKind, Reason, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use super::unfinished::Disposal;
use crate::identity::{self, Record, task_key};
use crate::plan::Plan;
use crate::session::Session;
use crate::to_proto;
use crate::{from_proto, preparation};

/// The leases of a start, which are given up unless it succeeds: agents do not report that they will not repeat it.
struct StartLeases<'a> {
    scope: &'a Scope,
    leases: Vec<LeaseClaim>,
}

/// The object that exists under the id of a start.
#[derive(Debug, PartialEq, Eq)]
enum Existing {
    /// Nothing.
    Nothing,
    /// The task of the same request, which runs or has exited: the agent did not get the answer to its start.
    Started,
    /// The task of the same request, not known to have started: its start was requested from a predecessor,
    /// or never.
    Created,
    /// An incomplete task, one of a different request, or one whose removal has failed before.
    Stale,
}

impl Driver {
    /// Starts a task, or adopts the one that an earlier call with the same request has started. If the caller
    /// goes away before the task has started, nothing is left behind: an agent that repeats the call, or
    /// whose successor does, gets another task. Only if the daemon ends meanwhile, the start continues, and
    /// is found by the repeated request.
    ///
    /// # Errors
    /// Those of the plan, of [`Images::get`](crate::images::Images::get), of the leases and of the creation.
    /// Nothing is left behind; whatever cannot be removed at once, as while containerd is down, is removed in
    /// the background. A conflict with resources of another owner is `FailedPrecondition`: an agent may
    /// retry.
    pub(super) async fn start(
        &self,
        session: Arc<Session>,
        request: nomad::TaskConfig,
    ) -> Result<nomad::StartTaskResponse> {
        identity::check(&request)?;
        self.shared.references.note_task(&session.id, &request.id);
        let record = Record::new(&request);
        // Malformed leases are ignored: they are the reason of the refusal.
        let leases = from_proto::leases(&request).unwrap_or_default();
        let leases = StartLeases {
            scope: &self.shared.scope,
            leases,
        };
        let started = async {
            match self.clear_stale(&record).await? {
                Some(task) => Ok(task),
                None => Box::pin(self.begin(&session, &request, record)).await,
            }
        };
        let task = leases.settle(started.await)?;
        // Note it again: it did not exist yet when it was first named, and may have been dropped as gone.
        self.shared
            .references
            .note_task(&session.id, &task.meta.name);
        Ok(to_proto::started(
            request,
            self.sandbox_of(&task).as_deref(),
            &task,
        ))
    }

    /// Removes other starts of the task, and adopts a started task of the same request.
    async fn clear_stale(&self, record: &Record) -> Result<Option<Arc<Task>>> {
        let driver = self.clone();
        let record = record.clone();
        let what = format!("start of task {}", record.id);
        let waiters = Waiters::default();
        let _waiter = waiters.join();
        let callers = self.shared.scope.callers(waiters);
        let work = async move {
            let _guard = driver
                .shared
                .task_locks
                .lock(task_key(&record.id).to_owned())
                .await;
            driver.clear_stale_locked(&record, &callers).await
        };
        self.shared.scope.run_detached(what, work).await
    }

    async fn begin(
        &self,
        session: &Arc<Session>,
        request: &nomad::TaskConfig,
        record: Record,
    ) -> Result<Arc<Task>> {
        let plan = self.prepare_on_pool(session, request).await?;
        let events = self.shared.events.sender_for(&session.id, request);
        for warning in &plan.warnings {
            events.send(warning, &[]);
        }
        let images = &self.shared.images;
        let auth = &session.config.auth;
        let gc = &session.config.gc;
        let local = Path::new(&request.alloc_dir)
            .join(&request.name)
            .join("local");
        let mut tries = 0;
        loop {
            tries += 1;
            let local_dir = (allocation(&request.alloc_id), local.as_path());
            let image = images
                .get(&plan.image, local_dir, &plan.sandbox.handler, auth, &events)
                .await?;
            let mut of_image = plan.clone();
            image.as_str().clone_into(&mut of_image.task.image);
            let delay = gc.image.then_some(gc.image_delay);
            let made = Box::pin(self.make_detached(&record, of_image, (&image, delay))).await;
            match made.map_err(|error| plan.named(error)) {
                // The image was removed between the check and the creation of the task.
                Err(error) if error.kind() == ErrorKind::NotFound && tries == 1 => {
                    tracing::debug!(
                        name = request.id,
                        error = error.report(),
                        "the image was removed meanwhile: pulling it again"
                    );
                }
                Err(error) => {
                    if error.kind() == ErrorKind::FailedPrecondition {
                        events.send(format!("Cannot start yet: {}", error.status_text()), &[]);
                    }
                    return Err(error);
                }
                Ok(task) => {
                    if let Some(text) = unfulfilled(&task.details.warnings) {
                        events.send(text, &[]);
                    }
                    return Ok(task);
                }
            }
        }
    }

    /// Prepares on the pool for host paths: the paths that are accessed may be on a file system that hangs.
    async fn prepare_on_pool(
        &self,
        session: &Arc<Session>,
        request: &nomad::TaskConfig,
    ) -> Result<Plan> {
        let session = Arc::clone(session);
        let request = request.clone();
        let object = allocation(&request.alloc_id);
        self.shared
            .pool
            .run(object, move || preparation::prepare(&request, &session))
            .await
    }

    /// Creates and starts the planned task; undoes that if the caller goes away. If it fails the image is released after
    /// the delay, if one is given, and the leases of a caller that has gone are given up.
    async fn make_detached(
        &self,
        record: &Record,
        plan: Plan,
        (image, delay): (&ImageId, Option<Duration>),
    ) -> Result<Arc<Task>> {
        let mut plan = self
            .with_lease_devices(plan)
            .inspect_err(|_| self.release_image(image, delay))?;
        let record = record.clone().with_plan(&plan);
        let meta = identity::meta(&record, &plan.task.meta, SystemTime::now());
        (plan.sandbox.meta, plan.task.meta) = (meta.clone(), meta);
        let driver = self.clone();
        let what = format!("start of task {}", record.id);
        let waiters = Waiters::default();
        let _waiter = waiters.join();
        let callers = self.shared.scope.callers(waiters);
        let image = image.clone();
        let leases = plan.task.leases.clone();
        // Boxed: the plan is large and held across several awaits.
        let work = Box::pin(async move {
            let _guard = driver
                .shared
                .task_locks
                .lock(task_key(&record.id).to_owned())
                .await;
            let made = driver.clear_and_make(&record, plan, delay, &callers).await;
            made.inspect_err(|_| {
                driver.release_image(&image, delay);
                // A caller that went away while the task was being created could not give them up. One that still waits
                // keeps them: it may pull the image again.
                if callers.are_gone() {
                    driver.shared.scope.devices().start_failed(&leases);
                }
            })
        });
        self.shared.scope.run_detached(what, work).await
    }

    /// Within the lock of the task key.
    async fn clear_and_make(
        &self,
        record: &Record,
        plan: Plan,
        image_delay: Option<Duration>,
        callers: &Callers,
    ) -> Result<Arc<Task>> {
        match self.clear_stale_locked(record, callers).await? {
            Some(task) => Ok(task),
            None => self.make(plan, image_delay, callers).await,
        }
    }

    /// Releases the image of a start that has failed after the delay, if one is given.
    fn release_image(&self, image: &ImageId, delay: Option<Duration>) {
        if let Some(delay) = delay {
            self.shared.image_gc.schedule(image, delay);
        }
    }

    /// Adds what the task's leases give it, with the devices as they are now: during the image pull, a device
    /// may have been moved to another port. An unknown lease is refused when the task is created.
    pub(super) fn with_lease_devices(&self, plan: Plan) -> Result<Plan> {
        let reserved: Vec<Reservation> = plan
            .task
            .leases
            .iter()
            .filter_map(|claim| {
                self.shared
                    .scope
                    .devices()
                    .reservation(claim.token)
                    .transpose()
            })
            .collect::<Result<_>>()?;
        Ok(plan.with_reservations(reserved))
    }

    async fn make(
        &self,
        mut plan: Plan,
        image_delay: Option<Duration>,
        callers: &Callers,
    ) -> Result<Arc<Task>> {
        let scope = &self.shared.scope;
        callers.check("create a task")?;
        if let Some(sibling) = &plan.sibling {
            let id = &plan.sandbox.meta.name;
            plan.sandbox.network = self.network_of_sibling(id, sibling)?;
        }
        let sandbox = scope.sandboxes().create(plan.sandbox).await?;
        let made = async {
            let task = scope
                .tasks()
                .create(&sandbox.id.to_string(), plan.task)
                .await?
                .id
                .to_string();
            self.start_for(&task, callers).await?;
            scope.tasks().find(&task)
        };
        match made.await {
            Ok(task) => Ok(task),
            Err(error) => {
                // Agents do not destroy a task that they could not start. A failed removal is logged, and the
                // agent receives the error of the start.
                drop(
                    self.dispose_eventually(
                        &sandbox,
                        Disposal {
                            keep: false,
                            image_delay,
                        },
                    )
                    .await,
                );
                Err(error)
            }
        }
    }

    /// Starts a created task, unless its callers go away.
    async fn start_for(&self, task: &str, callers: &Callers) -> Result<()> {
        // Without this waiter the gateway gives the start up.
        let start = self.shared.scope.tasks().start(task);
        callers
            .unless_gone(&format!("start task {task}"), start)
            .await?
    }

    /// The caller holds the lock of the task key.
    async fn clear_stale_locked(
        &self,
        record: &Record,
        callers: &Callers,
    ) -> Result<Option<Arc<Task>>> {
        let scope = &self.shared.scope;
        let here = task_key(&record.id);
        scope
            .sandboxes()
            .check_rivals(&record.id, |name| task_key(name) == here)?;
        for sandbox in scope.sandboxes().with_prefix(here)? {
            let name = &sandbox.meta.name;
            if task_key(name) == here && *name != record.id {
                tracing::info!(
                    name,
                    by = record.id,
                    "removing an earlier start of the task, which no agent references"
                );
                self.dispose_eventually(&sandbox, Disposal::REMOVE).await?;
            }
        }
        let sandbox = scope.sandboxes().named(&record.id)?;
        let task = scope.tasks().named(&record.id)?;
        let existing = if self.has_unfinished_removal(&record.id)? {
            Existing::Stale
        } else {
            existing(sandbox.as_deref(), task.as_deref(), &record.digest)
        };
        match (existing, task) {
            (Existing::Started, Some(task)) => return Ok(Some(task)),
            (Existing::Created, Some(task)) => {
                let id = task.id.to_string();
                match self.start_for(&id, callers).await {
                    Ok(()) => return Ok(Some(scope.tasks().find(&id)?)),
                    // The next daemon finds what became of the start.
                    Err(error) if error.reason() == Some(Reason::DaemonEnds) => return Err(error),
                    Err(error) => {
                        tracing::debug!(
                            name = record.id,
                            error = error.report(),
                            "cannot start the existing task: creating it again"
                        );
                    }
                }
            }
            (Existing::Nothing | Existing::Stale | Existing::Started | Existing::Created, _) => {}
        }
        if let Some(sandbox) = sandbox {
            self.dispose_eventually(&sandbox, Disposal::REMOVE).await?;
        }
        Ok(None)
    }
}

// === impl StartLeases ===

impl StartLeases<'_> {
    /// The start has ended with this result: its leases are given up if it has failed, also during a shutdown.
    fn settle<T>(mut self, result: Result<T>) -> Result<T> {
        let leases = std::mem::take(&mut self.leases);
        if result.is_err() {
            self.scope.devices().start_failed(&leases);
        }
        result
    }
}

impl Drop for StartLeases<'_> {
    /// Acts if the caller goes away, but not if the daemon ends: then the start continues, and its successor
    /// finds it.
    fn drop(&mut self) {
        if self.scope.callers(Waiters::default()).are_gone() {
            self.scope.devices().start_failed(&self.leases);
        }
    }
}

/// The event about what the node could not fulfil, if there is anything. It is one for all: an agent keeps only the last
/// events of a task.
fn unfulfilled(warnings: &[String]) -> Option<String> {
    /// Maximum number of warnings that are shown.
    const SHOWN: usize = 5;
    let shown = warnings.get(..SHOWN).unwrap_or(warnings).join("; ");
    match warnings.len().saturating_sub(SHOWN) {
        0 if shown.is_empty() => None,
        0 => Some(format!("Not fulfilled in full: {shown}")),
        more => Some(format!("Not fulfilled in full: {shown}; and {more} more")),
    }
}

/// The owner of the accessed directories, for errors.
fn allocation(id: &str) -> String {
    format!("allocation {id}")
}

/// Compares the sandbox and task under the id of a start with the request of this digest.
fn existing(sandbox: Option<&Sandbox>, task: Option<&Task>, digest: &[u8]) -> Existing {
    let Some(task) = task else {
        return if sandbox.is_some() {
            Existing::Stale
        } else {
            Existing::Nothing
        };
    };
    if Record::of(&task.meta).digest != digest {
        return Existing::Stale;
    }
    match task.state {
        TaskState::Running { .. }
        | TaskState::Stopping { .. }
        | TaskState::Exited {
            started_at: Some(_),
            ..
        } => Existing::Started,
        TaskState::Created | TaskState::Starting | TaskState::Unattended => Existing::Created,
        TaskState::Exited {
            started_at: None, ..
        }
        | TaskState::Removing { .. } => Existing::Stale,
    }
}
