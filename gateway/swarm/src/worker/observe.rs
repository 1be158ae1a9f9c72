//! A started task: its exit, and its health meanwhile.

use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::object::Task;
use switchyard_core::state::{Exit, TaskState};
use switchyard_core::stop_request::StopReason;
use switchyard_core::{Error, ErrorKind, Result};

use super::{Performed, Worker, wanted_otherwise};
use crate::health::{CheckedTask, HealthState, Monitor};
use crate::life::{LOST, Outcome, State};
use crate::record::Record;
use crate::to_proto;

/// The observed state of a running task.
enum Observed {
    /// It has exited by itself.
    Exited(Exit),
    /// Its first check has passed.
    Healthy,
    /// It is to be stopped.
    Unhealthy,
}

impl Worker {
    /// Waits until a started task is healthy for the first time; one whose health is not checked is so at once. A task
    /// that completes before has succeeded too.
    pub(super) async fn become_healthy(&mut self) -> Performed {
        let task = match self.started_object() {
            Ok(task) => task,
            Err(error) => return Some(self.unwatched(&error).await),
        };
        if !self.is_checked(&task) {
            return Some(Outcome::Done);
        }
        match self.observe(&task).await? {
            Ok(Observed::Healthy) => Some(Outcome::Done),
            // The wait for its exit follows.
            Ok(Observed::Exited(exit)) if to_proto::failure(&exit).is_none() => Some(Outcome::Done),
            Ok(Observed::Exited(exit)) => Some(self.ended(to_proto::failure(&exit)).await),
            Ok(Observed::Unhealthy) => Some(self.end_unhealthy().await),
            Err(error) => Some(self.unwatched(&error).await),
        }
    }

    /// Waits for the exit, or until the task is unhealthy, and releases what it held.
    pub(super) async fn wait(&mut self) -> Performed {
        loop {
            let task = match self.started_object() {
                Ok(task) => task,
                Err(error) => return Some(self.unwatched(&error).await),
            };
            match self.observe(&task).await? {
                Ok(Observed::Healthy) => {}
                Ok(Observed::Exited(exit)) => {
                    return Some(self.ended(to_proto::failure(&exit)).await);
                }
                Ok(Observed::Unhealthy) => return Some(self.end_unhealthy().await),
                Err(error) => return Some(self.unwatched(&error).await),
            }
        }
    }

    fn started_object(&self) -> Result<Arc<Task>> {
        self.task_object()?.ok_or_else(|| Error::not_found(LOST))
    }

    fn is_checked(&self, task: &Task) -> bool {
        self.monitor.is_some() || Record::of(&task.meta).check().is_some()
    }

    /// Waits until something becomes of a task that has been started; `None` if it is wanted otherwise.
    async fn observe(&mut self, task: &Task) -> Option<Result<Observed>> {
        if self.monitor.is_none() {
            self.monitor = self.new_monitor(task).map(Box::new);
        }
        // Its stop has failed, and is tried again: an exit meanwhile is the work of the stop.
        if self
            .monitor
            .as_ref()
            .is_some_and(|monitor| monitor.state() == HealthState::Unhealthy)
        {
            return Some(Ok(Observed::Unhealthy));
        }
        let id = task.id.to_string();
        let wanted = self.wanted.clone();
        let checks = &self.shared.checks;
        let monitor = &mut self.monitor;
        let changed = async {
            match monitor {
                Some(monitor) => monitor.next_state(checks).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = wanted_otherwise(wanted) => None,
            // A check that ends with its task says nothing.
            exit = self.shared.scope.tasks().wait(&id) => Some(exit.map(Observed::Exited)),
            state = changed => Some(Ok(match state {
                HealthState::Unhealthy => Observed::Unhealthy,
                HealthState::Starting | HealthState::Healthy => Observed::Healthy,
            })),
        }
    }

    fn new_monitor(&self, task: &Task) -> Option<Monitor> {
        let check = Record::of(&task.meta).check()?;
        let since = match &task.state {
            TaskState::Running { started_at, .. } | TaskState::Stopping { started_at, .. } => {
                *started_at
            }
            // There is nothing to check; its exit is known.
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => return None,
        };
        // 0 if the clock was set back.
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        let checked = CheckedTask {
            name: self.id.clone(),
            object: task.id.to_string(),
            age,
        };
        Some(match self.state {
            // Its manager has it running: it was healthy under an earlier daemon.
            State::Running => Monitor::running(checked, check),
            State::Assigned
            | State::Accepted
            | State::Preparing
            | State::Ready
            | State::Starting
            | State::Complete
            | State::Shutdown
            | State::Failed
            | State::Rejected
            | State::Remove
            | State::Orphaned => Monitor::starting(checked, check),
        })
    }

    /// Stops an unhealthy task, which has failed whatever its exit code is.
    async fn end_unhealthy(&mut self) -> Outcome {
        if let Err(error) = Box::pin(self.stop(StopReason::Unhealthy)).await {
            return Outcome::Temporary(error.status_text());
        }
        let exit = match self.task_object() {
            Ok(Some(task)) => match &task.state {
                TaskState::Exited { exit, .. } => Some(exit.clone()),
                TaskState::Created
                | TaskState::Starting
                | TaskState::Unattended
                | TaskState::Running { .. }
                | TaskState::Stopping { .. }
                | TaskState::Removing { .. } => None,
            },
            Ok(None) | Err(_) => None,
        };
        Outcome::Fatal(to_proto::unhealthy(exit.as_ref()))
    }

    /// The outcome of a task that has exited, once what it held is free for the next one.
    async fn ended(&self, failure: Option<String>) -> Outcome {
        if let Err(error) = Box::pin(self.release()).await {
            return Outcome::Temporary(error.status_text());
        }
        failure.map_or(Outcome::Done, Outcome::Fatal)
    }

    /// The outcome if the task cannot be watched. One that is given up does not run on.
    async fn unwatched(&mut self, error: &Error) -> Outcome {
        if error.kind() == ErrorKind::NotFound {
            return Outcome::Fatal(LOST.to_owned());
        }
        let outcome = self.outcome(error);
        match outcome {
            Outcome::Fatal(why) => self.ended(Some(why)).await,
            Outcome::Done | Outcome::Temporary(_) => outcome,
        }
    }
}
