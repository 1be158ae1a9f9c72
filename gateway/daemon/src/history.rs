//! What happens on the node: operations in flight, the audit log, and the latest events.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::operation::{EndedOperation, OperationKind, OperationObserver, Operations};

use crate::audit::AuditLog;
use crate::config::AuditConfig;
use crate::events::EventLog;
use crate::metrics::{Metrics, OperationMetrics};

/// The records of what happens. Clones share them.
#[derive(Debug, Clone)]
pub struct History {
    /// The operations that change something.
    pub operations: Operations,
    /// The audit log.
    pub audit: AuditLog,
    /// The latest events.
    pub events: EventLog,
}

/// Writes a line of the audit log and observes metrics when an operation ends.
#[derive(Debug)]
struct Observer {
    audit: AuditLog,
    metrics: OperationMetrics,
}

impl History {
    /// Begins to record what happens.
    #[must_use]
    pub fn start(audit: &AuditConfig, metrics: &Metrics) -> Self {
        let operations = Operations::default();
        let audit = AuditLog::start(audit);
        let observer = Observer { audit: audit.clone(), metrics: metrics.operations.clone() };
        operations.observe(Arc::new(observer));
        Self { operations, audit, events: EventLog::default() }
    }

    /// Waits until the lines of the audit log so far are written, for a bounded time.
    pub(crate) async fn flush(&self) {
        let audit = self.audit.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || audit.flush()).await {
            tracing::error!(%error, "writing the last lines of the audit log panicked");
        }
    }
}

impl OperationObserver for Observer {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        self.metrics.ended(operation);
        self.audit.record(operation);
    }

    fn step_ended(&self, kind: OperationKind, step: &'static str, took: Duration) {
        self.metrics.step_ended(kind, step, took);
    }
}
