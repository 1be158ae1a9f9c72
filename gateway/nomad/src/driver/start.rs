//! StartTask: from a request to a task that runs, with nothing left where it fails.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::device::Reservation;
use switchyard_core::spec::LeaseClaim;
use switchyard_core::state::TaskState;
use switchyard_core::table::{Sandbox, Task};
use switchyard_core::{ErrorKind, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::from_proto;
use crate::identity::{self, Record, task_key};
use crate::plan::Plan;
use crate::session::Session;
use crate::to_proto;

/// What is there already under the id of a start.
#[derive(Debug, PartialEq, Eq)]
enum Existing {
    /// Nothing.
    Nothing,
    /// The task of the same request, which runs or did: its start was not heard of.
    Started,
    /// The task of the same request, whose start was asked for by a predecessor, or never.
    Created,
    /// Something half made, or of another request.
    Stale,
}

impl Driver {
    /// Starts a task, or takes up the one that an earlier call with the same request has started. If the caller goes while the image
    /// comes, nothing is left; later, the task is started nevertheless, for a retry to find it.
    ///
    /// # Errors
    /// Those of the plan, of [`Images::get`](crate::images::Images::get), of the leases and of the creation. Nothing is left. What another
    /// owner has of the node is `FailedPrecondition`: an agent may try again.
    pub(super) async fn start(
        &self,
        session: Arc<Session>,
        request: nomad::TaskConfig,
    ) -> Result<nomad::StartTaskResponse> {
        identity::check(&request)?;
        self.shared.references.note_task(&session.id, &request.id);
        let record = Record::new(&request);
        let task = match self.clear_stale(&record).await? {
            Some(task) => task,
            None => match Box::pin(self.begin(&session, &request, record)).await {
                Ok(task) => task,
                Err(error) => {
                    // No agent says of a task that it will not be started again. Leases that cannot be read are why it was refused.
                    self.shared.scope.start_failed(&from_proto::leases(&request).unwrap_or_default());
                    return Err(error);
                }
            },
        };
        // It was not there yet when it was named first.
        self.shared.references.note_task(&session.id, &task.meta.name);
        Ok(to_proto::started(request, self.sandbox_of(&task).as_deref(), &task))
    }

    /// Makes the place of a task free, but for a task of the same request that has started.
    async fn clear_stale(&self, record: &Record) -> Result<Option<Arc<Task>>> {
        let driver = self.clone();
        let record = record.clone();
        let what = format!("start of task {}", record.id);
        let work = async move {
            let _turn = driver.shared.task_locks.lock(task_key(&record.id).to_owned()).await;
            driver.clear_stale_locked(&record).await
        };
        self.shared.scope.run_detached(what, work).await
    }

    async fn begin(
        &self,
        session: &Arc<Session>,
        request: &nomad::TaskConfig,
        record: Record,
    ) -> Result<Arc<Task>> {
        let plan = self.plan_on_pool(session, request).await?;
        let teller = self.shared.events.sender_for(&session.id, request);
        for warning in &plan.warnings {
            teller.send(warning, &[]);
        }
        let images = &self.shared.images;
        let auth = &session.config.auth;
        let gc = &session.config.gc;
        let local = Path::new(&request.alloc_dir).join(&request.name).join("local");
        let mut tries = 0;
        loop {
            tries += 1;
            let place = (allocation(&request.alloc_id), local.as_path());
            let image = images.get(&plan.image, place, &plan.sandbox.handler, auth, &teller).await?;
            let mut plan = plan.clone();
            image.as_str().clone_into(&mut plan.task.image);
            match Box::pin(self.make_detached(&record, plan)).await {
                // It was let go between the look and the making.
                Err(error) if error.kind() == ErrorKind::NotFound && tries == 1 => {
                    tracing::debug!(
                        task = request.id,
                        error = error.report(),
                        "its image has gone: once more"
                    );
                }
                Err(error) => {
                    if error.kind() == ErrorKind::FailedPrecondition {
                        teller.send(format!("Cannot start yet: {}", error.status_text()), &[]);
                    }
                    if gc.image {
                        self.shared.image_gc.schedule(&image, gc.image_delay);
                    }
                    return Err(error);
                }
                Ok(task) => return Ok(task),
            }
        }
    }

    /// Plans off the threads that serve others: it looks at paths, which may be on a file system that hangs.
    async fn plan_on_pool(&self, session: &Arc<Session>, request: &nomad::TaskConfig) -> Result<Plan> {
        let session = Arc::clone(session);
        let request = request.clone();
        let whose = allocation(&request.alloc_id);
        self.shared.pool.run(whose, move || Plan::make(&request, &session)).await
    }

    /// Makes and starts what is planned; goes on when its caller has gone.
    async fn make_detached(&self, record: &Record, plan: Plan) -> Result<Arc<Task>> {
        let mut plan = self.with_lease_devices(plan)?;
        let record = record.clone().with_plan(&plan);
        let meta = identity::meta(&record, &plan.task.meta, SystemTime::now());
        (plan.sandbox.meta, plan.task.meta) = (meta.clone(), meta);
        let driver = self.clone();
        let what = format!("start of task {}", record.id);
        // What is planned is big, and this waits in several places.
        let work = Box::pin(async move {
            let _turn = driver.shared.task_locks.lock(task_key(&record.id).to_owned()).await;
            match driver.clear_stale_locked(&record).await? {
                Some(task) => Ok(task),
                None => driver.make(plan).await,
            }
        });
        self.shared.scope.run_detached(what, work).await
    }

    /// Adds what the leases of a task give it, as the devices are now: while its image came, one may have been plugged in elsewhere. A lease
    /// that is not known any more is refused when the task is made.
    pub(super) fn with_lease_devices(&self, plan: Plan) -> Result<Plan> {
        let given = |claim: &LeaseClaim| self.shared.scope.reservation(claim.token).transpose();
        let reserved: Vec<Reservation> = plan.task.leases.iter().filter_map(given).collect::<Result<_>>()?;
        Ok(plan.with_reservations(reserved))
    }

    async fn make(&self, plan: Plan) -> Result<Arc<Task>> {
        let scope = &self.shared.scope;
        let sandbox = scope.create_sandbox(plan.sandbox).await?.id.to_string();
        let made = async {
            let task = scope.create_task(&sandbox, plan.task).await?.id.to_string();
            scope.start_task(&task).await?;
            scope.task(&task)
        };
        match made.await {
            Ok(task) => Ok(task),
            Err(error) => {
                // What cannot be taken away now goes with the next start in its place, or as a task that no agent knows.
                if let Err(left) = scope.remove_sandbox(&sandbox).await {
                    tracing::warn!(
                        sandbox,
                        error = left.report(),
                        "what is left of a failed start goes later"
                    );
                }
                Err(error)
            }
        }
    }

    /// Whoever calls this has the turn of the place.
    async fn clear_stale_locked(&self, record: &Record) -> Result<Option<Arc<Task>>> {
        let scope = &self.shared.scope;
        let here = task_key(&record.id);
        for sandbox in scope.sandboxes_with_prefix(here)? {
            let name = &sandbox.meta.name;
            if task_key(name) == here && *name != record.id {
                tracing::info!(task = name, by = record.id, "a start that no agent heard of is taken away");
                scope.remove_sandbox(&sandbox.id.to_string()).await?;
            }
        }
        let sandbox = scope.sandbox_named(&record.id)?;
        let task = scope.task_named(&record.id)?;
        match (existing(sandbox.as_deref(), task.as_deref(), &record.digest), task) {
            (Existing::Started, Some(task)) => return Ok(Some(task)),
            (Existing::Created, Some(task)) => {
                let id = task.id.to_string();
                match scope.start_task(&id).await {
                    Ok(()) => return Ok(Some(scope.task(&id)?)),
                    Err(error) => {
                        tracing::debug!(task = record.id, error = error.report(), "it is made anew");
                    }
                }
            }
            (Existing::Nothing | Existing::Stale | Existing::Started | Existing::Created, _) => {}
        }
        if let Some(sandbox) = sandbox {
            scope.remove_sandbox(&sandbox.id.to_string()).await?;
        }
        Ok(None)
    }
}

/// Whose directories are looked at, as errors say.
fn allocation(id: &str) -> String {
    format!("allocation {id}")
}

/// What this sandbox and task, both under the id of a start, are to the request of this digest.
fn existing(sandbox: Option<&Sandbox>, task: Option<&Task>, digest: &[u8]) -> Existing {
    let Some(task) = task else {
        return if sandbox.is_some() { Existing::Stale } else { Existing::Nothing };
    };
    if Record::of(&task.meta).digest != digest {
        return Existing::Stale;
    }
    match task.state {
        TaskState::Running { .. }
        | TaskState::Stopping { .. }
        | TaskState::Exited { started_at: Some(_), .. } => Existing::Started,
        TaskState::Created | TaskState::Starting => Existing::Created,
        TaskState::Exited { started_at: None, .. } | TaskState::Removing { .. } => Existing::Stale,
    }
}
