//! Metrics of the operations that change something: how long they and their steps take, and which are in
//! flight.

use std::time::Duration;

use prometheus::{GaugeVec, HistogramVec, IntGaugeVec, Registry};
use switchyard_core::id::Owner;
use switchyard_core::operation::{EndedOperation, OperationAges, OperationKind, Outcome};

use super::families::{float_gauges, gauges, histograms, runtime_buckets, signed};
use super::table;

/// The owner of the daemon's own operations.
const NODE: &str = "node";

/// Histograms that observe operations as they end.
#[derive(Debug, Clone)]
pub(crate) struct OperationMetrics {
    duration: HistogramVec,
    steps: HistogramVec,
}

/// Gauges of the operations in flight, set for each scrape.
#[derive(Debug)]
pub(super) struct InFlightMetrics {
    count: IntGaugeVec,
    oldest: GaugeVec,
}

impl OperationMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            duration: histograms(registry, table::OPERATION_DURATION, runtime_buckets()?)?,
            steps: histograms(registry, table::STEP_DURATION, runtime_buckets()?)?,
        })
    }

    pub(crate) fn ended(&self, operation: &EndedOperation<'_>) {
        let result = match operation.outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped => "dropped",
        };
        let labels = [
            owner_label(operation.owner),
            operation.kind.as_str(),
            result,
        ];
        self.duration
            .with_label_values(&labels)
            .observe(operation.took.as_secs_f64());
    }

    pub(crate) fn step_ended(&self, kind: OperationKind, step: &'static str, took: Duration) {
        self.steps
            .with_label_values(&[kind.as_str(), step])
            .observe(took.as_secs_f64());
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
