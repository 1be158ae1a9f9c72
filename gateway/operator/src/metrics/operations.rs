//! Metrics of the operations that change something: how long they and their steps take, why they fail, and which are
//! in flight; and pulls by registry.

use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec, Registry};
use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::operation::{
    EndedOperation, EndedStep, OperationAges, OperationKind, Outcome,
};

use super::families::{
    counters, float_gauges, gauges, histograms, operation_buckets, signed, step_buckets,
};
use super::label_names::LabelNames;
use super::table;

/// The owner of the daemon's own operations.
const NODE: &str = "node";

/// Histograms and counters that observe operations as they end.
#[derive(Debug, Clone)]
pub(crate) struct OperationMetrics {
    duration: HistogramVec,
    failures: IntCounterVec,
    steps: HistogramVec,
    step_failures: IntCounterVec,
    pulls: IntCounterVec,
    registries: LabelNames,
}

/// Gauges of the operations in flight, set for each scrape.
#[derive(Debug)]
pub(super) struct InFlightMetrics {
    count: IntGaugeVec,
    oldest: GaugeVec,
}

impl OperationMetrics {
    /// `registries` are those that are named.
    pub(super) fn register(
        registry: &Registry,
        registries: LabelNames,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            duration: histograms(registry, table::OPERATION_DURATION, operation_buckets())?,
            failures: counters(registry, table::OPERATION_FAILURES)?,
            steps: histograms(registry, table::STEP_DURATION, step_buckets())?,
            step_failures: counters(registry, table::STEP_FAILURES)?,
            pulls: counters(registry, table::IMAGE_PULLS)?,
            registries,
        })
    }

    pub(crate) fn ended(&self, operation: &EndedOperation<'_>) {
        let result = match operation.outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped => "dropped",
        };
        let owner = owner_label(operation.owner);
        let kind = operation.kind.as_str();
        self.duration
            .with_label_values(&[owner, kind, result])
            .observe(operation.took.as_secs_f64());
        if let Outcome::Failed(error) = operation.outcome {
            self.failures
                .with_label_values(&[owner, kind, error.kind().as_str()])
                .inc();
        }
        if operation.kind == OperationKind::PullImage {
            self.pull_ended(operation);
        }
    }

    fn pull_ended(&self, operation: &EndedOperation<'_>) {
        let result = match operation.outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(error) => error.kind().as_str(),
            Outcome::Dropped => ErrorKind::Cancelled.as_str(),
        };
        let host = operation.subject.registry().unwrap_or_default();
        let registry = self.registries.value(&host);
        self.pulls.with_label_values(&[&*registry, result]).inc();
    }

    pub(crate) fn step_ended(&self, step: EndedStep) {
        let EndedStep {
            operation,
            name,
            took,
            failure,
        } = step;
        self.steps
            .with_label_values(&[operation.as_str(), name])
            .observe(took.as_secs_f64());
        if let Some(failure) = failure {
            self.step_failures
                .with_label_values(&[operation.as_str(), name, failure.as_str()])
                .inc();
        }
    }
}

impl InFlightMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            count: gauges(registry, table::OPERATIONS_IN_FLIGHT)?,
            oldest: float_gauges(registry, table::OLDEST_OPERATION)?,
        })
    }

    pub(super) fn set(&self, ages: &OperationAges) {
        // A combination without operations must not keep its former count.
        self.count.reset();
        for kind in OperationKind::ALL {
            self.oldest.with_label_values(&[kind.as_str()]).set(0.0);
        }
        for ((owner, kind), (count, age)) in ages {
            self.count
                .with_label_values(&[owner_label(*owner), kind.as_str()])
                .set(signed(*count));
            let oldest = self.oldest.with_label_values(&[kind.as_str()]);
            oldest.set(oldest.get().max(age.as_secs_f64()));
        }
    }
}

fn owner_label(owner: Option<Owner>) -> &'static str {
    owner.map_or(NODE, Owner::as_str)
}
