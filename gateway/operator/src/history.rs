//! The history of the node: operations in flight, the audit log, events, and traces.

use std::path::Path;
use std::sync::Arc;

use switchyard_core::operation::{
    ContextField, EndedOperation, EndedStep, OperationInFlight, OperationObserver, Operations,
    Subject,
};
use switchyard_core::spec::Meta;
use switchyard_linux::{WorkLost, blocking, report};
use switchyard_operator_api::{EventView, ExitView, OperationView, TroubleView};
use switchyard_telemetry::{TraceSettings, TraceSettingsError, Traces};

use crate::config::AuditConfig;

use crate::audit::{AuditLog, log_name};
use crate::events::{EventLog, ExitObserver};
use crate::metrics::{ExitMetrics, Metrics, OperationMetrics};
use crate::owners::Owners;
use crate::span_attributes;

mod failing;
mod failures;

use failing::RecentOutcomes;
use failures::FailureLog;

/// The records of what happens. Clones share them.
#[derive(Debug, Clone)]
pub struct History {
    /// The operations that change something.
    pub operations: Operations,
    /// The audit log.
    pub audit: AuditLog,
    /// The events.
    pub events: EventLog,
    /// The traces, if they are exported.
    pub traces: Option<Arc<Traces>>,
    /// The frontends' knowledge of the objects.
    pub owners: Owners,
    outcomes: Arc<RecentOutcomes>,
}

/// Writes a line of the audit log and observes metrics when an operation ends, and logs operations that failed.
#[derive(Debug)]
struct Observer {
    audit: AuditLog,
    metrics: OperationMetrics,
    events: EventLog,
    outcomes: Arc<RecentOutcomes>,
    failures: FailureLog,
    owners: Owners,
}

/// Writes a line of the audit log and counts when a task exits.
#[derive(Debug)]
struct ExitRecorder {
    audit: AuditLog,
    exits: ExitMetrics,
}

impl History {
    /// Begins to record what happens; events are on record in the state directory.
    #[must_use]
    pub fn start(audit: &AuditConfig, metrics: &Metrics, owners: Owners, state: &Path) -> Self {
        let operations = Operations::default();
        let audit = AuditLog::start(audit, owners);
        let exits = ExitRecorder {
            audit: audit.clone(),
            exits: metrics.exits.clone(),
        };
        let events = EventLog::start(owners, state, Arc::new(exits));
        let outcomes = Arc::new(RecentOutcomes::new());
        operations.observe(Arc::new(Observer {
            audit: audit.clone(),
            metrics: metrics.operations.clone(),
            events: events.clone(),
            outcomes: Arc::clone(&outcomes),
            failures: FailureLog::default(),
            owners,
        }));
        Self {
            operations,
            audit,
            events,
            traces: None,
            owners,
            outcomes,
        }
    }

    /// The kinds of operations of which most have failed in the last ten minutes; `None` if there are none.
    pub(crate) fn failing_operations(&self) -> Option<TroubleView> {
        self.outcomes.failing()
    }

    /// The operations in flight, for display.
    pub fn in_flight(&self) -> impl Iterator<Item = OperationView> {
        let in_flight = self.operations.in_flight().into_iter();
        in_flight.map(move |operation| self.view(operation))
    }

    /// An operation in flight, for display.
    pub(crate) fn view(&self, operation: OperationInFlight) -> OperationView {
        let names =
            |sandbox: &Meta, task: Option<&Meta>| self.owners.names_in_record(sandbox, task);
        OperationView::of(operation, names)
    }

    /// The same records, and traces of operations if there are settings. It must be called within a runtime.
    ///
    /// # Errors
    /// [`TraceSettingsError`] if no connection to the collector can be made.
    pub fn with_traces(self, settings: Option<&TraceSettings>) -> Result<Self, TraceSettingsError> {
        let Some(settings) = settings else {
            return Ok(self);
        };
        let traces = Traces::start(settings)?;
        self.operations.trace(traces.tracer().clone());
        Ok(Self {
            traces: Some(Arc::new(traces)),
            ..self
        })
    }

    /// Waits until the lines of the audit log and the events so far are written and the spans so far are sent, for a
    /// bounded time. Spans that end later are lost.
    pub async fn flush(&self) {
        if let Some(traces) = &self.traces {
            traces.end().await;
        }
        let audit = self.audit.clone();
        let events = self.events.clone();
        let flushed: Result<(), WorkLost> = blocking(
            "writing the last lines of the audit log and the last events",
            move || {
                events.flush();
                audit.flush();
                Ok(())
            },
        )
        .await;
        if let Err(error) = flushed {
            tracing::error!(
                error = report(&error),
                "lines of the audit log and events may be missing"
            );
        }
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "what is not observed would be missing unnoticed"
)]
impl OperationObserver for Observer {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        self.metrics.ended(operation);
        self.audit.record(operation);
        self.outcomes.ended(operation);
        if self.failures.ended(operation) {
            self.events.note_failure(operation);
        }
    }

    fn step_ended(&self, step: EndedStep) {
        self.metrics.step_ended(step);
    }

    fn names(&self, subject: &Subject) -> Vec<ContextField> {
        let Some(sandbox) = subject.sandbox_meta.as_deref() else {
            return Vec::new();
        };
        let names = self
            .owners
            .names_in_record(sandbox, subject.task_meta.as_deref());
        names
            .iter()
            .map(|(label, value)| (log_name(label), value.to_owned()))
            .collect()
    }

    fn span_attributes(&self, subject: &Subject) -> Vec<(&'static str, String)> {
        span_attributes::of(self.owners, subject)
    }
}

impl ExitObserver for ExitRecorder {
    fn task_exited(&self, event: &EventView, exit: &ExitView) {
        self.exits.ended(&event.owner, &exit.cause);
        self.audit.record_exit(event, exit);
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::Error;
    use switchyard_core::id::Owner;
    use switchyard_core::operation::OperationKind;

    use super::*;
    use crate::config::AuditTarget;

    #[tokio::test]
    async fn failures_are_events_unless_they_are_repeated_and_count_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let audit = AuditConfig {
            to: AuditTarget::Off,
            ..AuditConfig::default()
        };
        let metrics = Metrics::new().unwrap();
        let history = History::start(&audit, &metrics, Owners::default(), dir.path());
        let fail = async |kind: OperationKind, error: Error| {
            let subject = Subject::argument("example.com/app:1");
            let owner = Some(Owner::Nomad);
            let operation = history.operations.begin(kind, owner, None, subject);
            let failed = operation.run(async move { Err::<(), _>(error) }).await;
            assert!(failed.is_err());
        };
        for _ in 0..3 {
            fail(OperationKind::PullImage, Error::unavailable("one")).await;
            fail(OperationKind::ExecSync, Error::unavailable("two")).await;
        }
        fail(OperationKind::PullImage, Error::not_found("three")).await;
        let failed = |event: &EventView| event.event == "operation_failed";
        let details: Vec<String> = history
            .events
            .latest(10, failed)
            .iter()
            .map(|event| format!("{} {}", event.owner, event.detail))
            .collect();
        assert_eq!(
            details,
            ["nomad pull_image: three", "nomad pull_image: one"]
        );
        let failing = history.failing_operations().unwrap();
        assert_eq!(
            failing.objects,
            ["pull_image of nomad: 4 of 4 in 10 minutes, the last one: three"]
        );
    }

    #[tokio::test]
    async fn each_record_of_a_long_error_names_the_object_and_the_reason() {
        let long = |word: &str| word.repeat(1000);
        for (kind, error, object, reason) in [
            (
                OperationKind::PullImage,
                Error::unavailable("the registry is away")
                    .context(long("x"))
                    .context("pull example.com/app:1"),
                "pull example.com/app:1: x",
                "x: the registry is away",
            ),
            (
                OperationKind::StartTask,
                Error::invalid("args[0]", "is in no directory of the PATH").context(long("ä")),
                "ää",
                "is in no directory of the PATH",
            ),
            (
                OperationKind::CreateSandbox,
                Error::internal(format!("{}: the last word of a plugin", long("plugin \n"))),
                "plugin",
                ": the last word of a plugin",
            ),
            (
                OperationKind::RemoveSandbox,
                Error::deadline("umount /run/x").context("remove sandbox 7"),
                "remove sandbox 7: ",
                ": umount /run/x",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("audit.log");
            let audit = AuditConfig {
                to: AuditTarget::File,
                file: file.clone(),
                ..AuditConfig::default()
            };
            let metrics = Metrics::new().unwrap();
            let history = History::start(&audit, &metrics, Owners::default(), dir.path());
            for _ in 0..3 {
                let subject = Subject::argument("example.com/app:1");
                let operation = history.operations.begin(kind, None, None, subject);
                let error = error.clone();
                let failed = operation.run(async move { Err::<(), _>(error) }).await;
                assert!(failed.is_err());
            }
            history.flush().await;
            let event = history.events.latest(1, |_| true).remove(0).detail;
            let [failing] = history
                .failing_operations()
                .unwrap()
                .objects
                .try_into()
                .unwrap();
            let lines = std::fs::read_to_string(&file).unwrap();
            let line: crate::audit::AuditLine =
                serde_json::from_str(lines.lines().next().unwrap()).unwrap();
            for text in [line.error.unwrap(), event, failing] {
                assert!(text.contains(object) && text.ends_with(reason), "{text}");
            }
        }
    }
}
