//! The request that ended a task, as the event of its exit names it.

use std::time::{Duration, Instant, SystemTime};

use crate::operation::{self, Caller, OperationId, OperationKind};
use crate::state::Exit;

/// The time by which an exit may seem to be earlier than it was: the clock of a shim may be coarse.
const COARSE: Duration = Duration::from_secs(1);

/// The reason of a request to stop a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A client wants the task, or its sandbox, to end.
    Requested,
    /// Its health check has failed.
    Unhealthy,
    /// Nobody waited for its start any more.
    StartWithdrawn,
}

/// A request to stop a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRequest {
    /// Time of the request.
    pub at: Instant,
    /// The reason.
    pub reason: StopReason,
    /// The operation that the stop is, or is a part of; `None` outside of one.
    pub operation: Option<OperationKind>,
    /// The id of that operation.
    pub operation_id: Option<OperationId>,
    /// The caller of the operation; `None` if the gateway or a frontend began it by itself.
    pub caller: Option<Caller>,
}

impl StopRequest {
    /// The request of the operation that the current asynchronous task works for.
    #[must_use]
    pub fn current(reason: StopReason) -> Self {
        let operation = operation::current();
        Self {
            at: Instant::now(),
            reason,
            operation: operation.as_ref().map(|operation| operation.kind),
            operation_id: operation.as_ref().map(|operation| operation.id),
            caller: operation.map_or_else(Caller::current, |operation| operation.caller),
        }
    }

    /// Returns whether it came before an exit that is known now. The ages of both are compared, so that a clock which was
    /// set between them counts for nothing.
    #[must_use]
    pub(crate) fn precedes(&self, exit: &Exit) -> bool {
        let age = SystemTime::now().duration_since(exit.finished_at);
        age.unwrap_or_default() <= self.at.elapsed() + COARSE
    }
}
