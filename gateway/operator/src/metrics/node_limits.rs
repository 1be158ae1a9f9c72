//! Metrics of the limits of the node.

use prometheus::{GaugeVec, Registry};
use switchyard_linux::node_limits::NodeLimit;

use super::families::float_gauges;
use super::table;

/// The parts of limits that are in use.
#[derive(Debug)]
pub(super) struct LimitMetrics(GaugeVec);

impl LimitMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        float_gauges(registry, table::NODE_LIMITS).map(Self)
    }

    pub(super) fn set(&self, limits: &[NodeLimit]) {
        // One that is not known now has no series.
        self.0.reset();
        for limit in limits {
            self.0.with_label_values(&[limit.name]).set(limit.ratio());
        }
    }
}
