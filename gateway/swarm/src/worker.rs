//! The work on one task: from its assignment to its removal, one step after the other.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::backoff::Backoff;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::LeaseClaim;
use switchyard_core::state::TaskState;
use switchyard_core::stop_request::StopReason;
use switchyard_core::trace::{InSpan, Span};
use switchyard_core::{Error, ErrorKind, Result, threads};
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;

use crate::health::Monitor;
use crate::life::{self, Next, Object, Outcome, Report, Resume, State, Step};
use crate::plan::TaskPlan;
use crate::record::Record;
use crate::task_context::TaskContext;
use crate::{from_proto, to_proto};

mod devices;
mod hold;
mod observe;
mod prepare;
mod remove;
#[cfg(test)]
mod tests;
mod unmet;

use prepare::Prepared;

/// The pauses between the tries of a step that fails for a while.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(8);

/// Maximum number of tries of a step that fails although the runtime is reachable.
const TRIES_MAX: u32 = 10;

/// The desired state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DesiredState {
    /// The state.
    pub(crate) state: State,
    /// True if it is removed after its stop.
    pub(crate) removed: bool,
}

/// Works on one task.
pub(crate) struct Worker {
    shared: Arc<TaskContext>,
    id: String,
    /// As it was assigned; dropped when it is prepared. `None` for a task that is only removed.
    task: Option<Arc<swarm::Task>>,
    wanted: watch::Receiver<DesiredState>,
    state: State,
    /// True if the manager knows the end of the task.
    quiet: bool,
    /// Between the check and the preparation.
    plan: Option<TaskPlan>,
    /// The specs to create, the same for each try.
    prepared: Option<Prepared>,
    /// Checks the task from its start on; boxed, since most tasks have none.
    monitor: Option<Box<Monitor>>,
    /// The leases of its devices.
    leases: Vec<LeaseClaim>,
    /// The last report.
    last: Option<Report>,
    /// From the first step of an assignment until the task runs, if that is traced.
    trace: Option<Span>,
    backoff: Backoff,
    tries: u32,
}

/// The outcome of a step; `None` if the task is wanted otherwise meanwhile.
type Performed = Option<Outcome>;

impl DesiredState {
    /// Chooses the next action for a task in `state`; `None` if it is to be removed, also when it has ended.
    fn next(self, state: State) -> Option<Next> {
        (!self.removed).then(|| life::next(state, self.state))
    }
}

impl Worker {
    pub(crate) const fn new(
        shared: Arc<TaskContext>,
        id: String,
        task: Option<Arc<swarm::Task>>,
        wanted: watch::Receiver<DesiredState>,
    ) -> Self {
        Self {
            shared,
            id,
            task,
            wanted,
            state: State::Assigned,
            quiet: false,
            plan: None,
            prepared: None,
            monitor: None,
            leases: Vec::new(),
            last: None,
            trace: None,
            backoff: Backoff::new(RETRY_MIN, RETRY_MAX),
            tries: 0,
        }
    }

    /// Works until the task is removed, or the gateway ends: then nothing more is reported.
    pub(crate) async fn run(self) {
        let ended = self.shared.scope.ended();
        tokio::select! {
            biased;
            () = ended => {}
            // Boxed: it is large, and one of many.
            () = Box::pin(self.work()) => {}
        }
    }

    async fn work(mut self) {
        let shared = Arc::clone(&self.shared);
        let _guard = shared.locks.lock(self.id.clone()).await;
        if self.hold().await {
            return;
        }
        if !self.is_removed() {
            // Boxed, as each step but the wait: most of its life a task runs, and then none of them takes memory.
            Box::pin(self.take_up()).await;
        }
        while let Some(next) = self.next() {
            match next {
                // If nobody can want anything any more, the executor is gone: the next one takes the task up.
                Next::Idle => {
                    if self.wanted.changed().await.is_err() {
                        return;
                    }
                }
                Next::Enter(state) => {
                    self.state = state;
                    self.report(Report::of(state));
                }
                Next::Do(step) => {
                    let trace = self.trace.take().or_else(|| self.begin_trace(step));
                    let performed = InSpan::of(trace.as_ref(), self.perform(step)).await;
                    self.trace = trace;
                    let Some(outcome) = performed else { continue };
                    let failed_for_a_while = matches!(outcome, Outcome::Temporary(_));
                    let report = life::after(self.state, step, outcome);
                    let stays = report.state == self.state;
                    self.state = report.state;
                    self.end_trace(&report);
                    self.report(report);
                    if self.state.is_terminal() {
                        (self.task, self.plan, self.prepared) = (None, None, None);
                        self.monitor = None;
                    }
                    if failed_for_a_while || stays {
                        self.pause().await;
                    } else {
                        self.backoff.reset();
                        self.tries = 0;
                    }
                }
            }
        }
        Box::pin(self.remove()).await;
    }

    /// Begins the trace of an assignment with this step, if it is one on the way to the start.
    fn begin_trace(&self, step: Step) -> Option<Span> {
        match step {
            Step::Check | Step::Prepare | Step::Start => {}
            Step::Wait | Step::Stop => return None,
        }
        let mut span = self.shared.scope.begin_trace("swarm_assignment")?;
        span.set_with("switchyard.swarm.task", || self.id.clone());
        Some(span)
    }

    /// Ends the trace of an assignment once the task runs or has ended.
    fn end_trace(&mut self, report: &Report) {
        let ends = self.state.is_terminal() || self.state == State::Running;
        match self.trace.take_if(|_| ends) {
            Some(span) if self.state == State::Running => span.end(),
            Some(span) if report.error.is_empty() => span.fail("swarm_task", report.message),
            Some(span) => span.fail("swarm_task", &report.error),
            None => {}
        }
    }

    /// Chooses the next action; `None` if the task is to be removed. State and removal are read at once: a
    /// removal between two reads would count as seen, and nothing would follow it.
    fn next(&mut self) -> Option<Next> {
        let wanted = *self.wanted.borrow_and_update();
        wanted.next(self.state)
    }

    fn is_removed(&self) -> bool {
        self.wanted.borrow().removed
    }

    /// Determines the state from which the task continues.
    async fn take_up(&mut self) {
        let Some(task) = &self.task else { return };
        let known = task
            .status
            .as_ref()
            .map_or(State::Assigned, |status| State::from_wire(status.state));
        let wanted = self.wanted.borrow().state;
        let object = match self.object(known) {
            Ok(object) => object,
            // Only before recovery, for which the agent waits.
            Err(error) => {
                tracing::error!(
                    swarm_task = self.id,
                    error = error.report(),
                    "cannot look for the object of a task"
                );
                None
            }
        };
        match life::resume(object, known, wanted) {
            Resume::From(State::Assigned) => self.clear().await,
            Resume::From(state) => {
                self.state = state;
                self.task = None;
                // Another report would make the task younger than it is.
                if state > known {
                    self.report(Report::of(state));
                }
            }
            Resume::Ended(report) => {
                self.state = report.state;
                self.report(report);
                self.stop_quietly().await;
            }
            Resume::Quietly => {
                self.state = known;
                self.quiet = true;
                self.stop_quietly().await;
            }
        }
    }

    /// Stops what may run of a task that has ended for its cluster, until that succeeds or it is removed.
    async fn stop_quietly(&mut self) {
        self.task = None;
        while let Err(error) = self.stop(StopReason::Requested).await {
            tracing::debug!(
                swarm_task = self.id,
                error = error.report(),
                "stopping an ended task fails: retrying"
            );
            if !self.pause_unless_removed().await {
                return;
            }
        }
    }

    /// Removes what an interrupted preparation of a predecessor left.
    async fn clear(&mut self) {
        while let Err(error) = self.remove_objects().await {
            tracing::debug!(
                swarm_task = self.id,
                error = error.report(),
                "removing what was left fails: retrying"
            );
            if !self.pause_unless_removed().await {
                return;
            }
        }
    }

    /// The object that the gateway has of the task, for a manager that knows it in this state.
    fn object(&self, known: State) -> Result<Option<Object>> {
        let Some(task) = self.task_object()? else {
            return Ok(None);
        };
        Ok(match &task.state {
            // The start that a predecessor began may come to nothing: then the task is created again.
            TaskState::Created | TaskState::Unattended => {
                // After a reboot there is nothing to start it in.
                let ready = self
                    .sandbox_object()?
                    .is_some_and(|sandbox| sandbox.state.is_ready());
                (ready || known == State::Running).then_some(Object::Created)
            }
            TaskState::Starting => Some(Object::Starting),
            TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited {
                started_at: Some(_),
                ..
            } => Some(Object::Started),
            TaskState::Exited {
                started_at: None, ..
            } => Some(Object::StartFailed),
            TaskState::Removing { .. } => None,
        })
    }

    fn task_object(&self) -> Result<Option<Arc<Task>>> {
        self.shared.scope.tasks().named(&self.id)
    }

    fn sandbox_object(&self) -> Result<Option<Arc<Sandbox>>> {
        self.shared.scope.sandboxes().named(&self.id)
    }

    /// Reports the state of the task, unless it is removed: then the manager has forgotten it.
    fn report(&mut self, report: Report) {
        if report.state.is_terminal() {
            self.shared.reservations.lock().remove(&self.id);
        }
        let wanted = self.wanted.borrow();
        if wanted.removed || self.quiet {
            return;
        }
        self.note_waiting(&report);
        // A step that fails again in the same way is no news.
        if self.last.as_ref() == Some(&report) {
            return;
        }
        self.last = Some(report.clone());
        let task = self.task_object().ok().flatten();
        // While the desired state is held, no removal comes between.
        let status = to_proto::status(report, task.as_deref(), SystemTime::now());
        self.shared.reports.report(&self.id, status);
    }

    // --- steps ---

    async fn perform(&mut self, step: Step) -> Performed {
        let done = match step {
            Step::Check => return Box::pin(self.check()).await,
            Step::Prepare => return Box::pin(self.prepare()).await,
            Step::Start => return Box::pin(self.start()).await,
            Step::Wait => return self.wait().await,
            Step::Stop => Box::pin(self.stop(StopReason::Requested)).await,
        };
        Some(match done {
            Ok(()) => Outcome::Done,
            Err(error) => self.outcome(&error),
        })
    }

    /// Decides whether a failed step is retried.
    fn outcome(&mut self, error: &Error) -> Outcome {
        let text = error.status_text();
        let temporary = match error.kind() {
            // However long the runtime is away: the task is not to blame.
            ErrorKind::Unavailable => true,
            ErrorKind::AlreadyExists | ErrorKind::DeadlineExceeded | ErrorKind::Cancelled => {
                self.tries += 1;
                self.tries < TRIES_MAX
            }
            ErrorKind::NotFound
            | ErrorKind::InvalidArgument
            | ErrorKind::FailedPrecondition
            | ErrorKind::ResourceExhausted
            | ErrorKind::Unauthenticated
            | ErrorKind::Unimplemented
            | ErrorKind::Internal => false,
        };
        if temporary {
            Outcome::Temporary(text)
        } else {
            Outcome::Fatal(text)
        }
    }

    /// Plans the task.
    async fn check(&mut self) -> Performed {
        let planned = tokio::select! {
            planned = self.planned() => planned,
            () = wanted_otherwise(self.wanted.clone()) => return None,
        };
        Some(match planned {
            Ok(plan) => {
                self.plan = Some(plan);
                Outcome::Done
            }
            Err(error) => self.outcome(&error),
        })
    }

    /// The plan of the task. Templates of secrets and configs take long, and do so on a thread for bulk work: neither
    /// other tasks nor the assignments wait for them.
    async fn planned(&self) -> Result<TaskPlan> {
        let task = self.task.clone().ok_or_else(|| self.unassigned())?;
        let node = self.shared.plan_context();
        let dependencies = self.shared.dependencies.lock().of_task(&task)?;
        if dependencies.has_templates() {
            threads::bulk(move || from_proto::plan(&task, &node, &dependencies)).await
        } else {
            from_proto::plan(&task, &node, &dependencies)
        }
    }

    fn unassigned(&self) -> Error {
        Error::internal(format!("task {} is not assigned any more", self.id))
    }

    /// Starts the task, and waits until it is healthy. What it held is free if that fails for good.
    async fn start(&mut self) -> Performed {
        let Err(error) = self.start_object().await else {
            return self.become_healthy().await;
        };
        Some(match self.outcome(&error) {
            Outcome::Fatal(why) => match self.release().await {
                Ok(()) => Outcome::Fatal(why),
                Err(error) => Outcome::Temporary(error.status_text()),
            },
            outcome @ (Outcome::Done | Outcome::Temporary(_)) => outcome,
        })
    }

    /// Starts the object of the task, or joins the start that a predecessor began.
    async fn start_object(&self) -> Result<()> {
        let scope = &self.shared.scope;
        let lost = || Error::not_found(life::LOST);
        let task = self.task_object()?.ok_or_else(lost)?;
        let started = match &task.state {
            TaskState::Created | TaskState::Starting | TaskState::Unattended => {
                // Detached: what this worker does not want any more it stops itself.
                let detached = scope.clone();
                let id = task.id.to_string();
                let what = format!("start of task {id}");
                scope
                    .run_detached(what, async move { detached.tasks().start(&id).await })
                    .await
            }
            TaskState::Running { .. } | TaskState::Stopping { .. } | TaskState::Exited { .. } => {
                Ok(())
            }
            TaskState::Removing { .. } => Err(lost()),
        };
        let now = self.task_object()?.ok_or_else(lost)?;
        match (&now.state, started) {
            // A start that failed is final, however it failed.
            (
                TaskState::Exited {
                    started_at: None,
                    exit,
                },
                _,
            ) => {
                let why = to_proto::failure(exit).unwrap_or_default();
                Err(Error::failed_precondition(why))
            }
            (_, started) => started,
        }
    }

    /// Stops the task, and releases what it held. The event of its exit names the reason. Idempotent.
    async fn stop(&mut self, reason: StopReason) -> Result<()> {
        if let Some(task) = self.task_object()? {
            let grace = Record::of(&task.meta).stop_grace();
            self.shared
                .scope
                .tasks()
                .stop_for(&task.id.to_string(), None, grace, reason)
                .await?;
        }
        self.release().await
    }

    // --- pauses ---

    /// Waits for the next try, or until the task is wanted otherwise.
    async fn pause(&mut self) {
        let mut wanted = self.wanted.clone();
        tokio::select! {
            () = self.backoff.wait() => {}
            changed = wanted.changed() => if changed.is_err() { self.backoff.wait().await },
        }
    }

    /// As [`Worker::pause`]; `false` if the task is removed.
    async fn pause_unless_removed(&mut self) -> bool {
        let mut wanted = self.wanted.clone();
        tokio::select! {
            () = self.backoff.wait() => {}
            _ = wanted.wait_for(|wanted| wanted.removed) => {}
        }
        !self.is_removed()
    }
}

/// Waits until a task is to be stopped or removed. Cancel-safe.
async fn wanted_otherwise(mut wanted: watch::Receiver<DesiredState>) {
    let stops = |wanted: &DesiredState| wanted.removed || wanted.state >= State::Shutdown;
    if wanted.wait_for(stops).await.is_err() {
        // Nobody can want anything any more: the executor is gone.
        std::future::pending::<()>().await;
    }
}
