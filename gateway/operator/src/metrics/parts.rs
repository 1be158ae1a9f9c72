//! Metrics of the parts, and of what the backend reports as wrong.

use prometheus::{IntGauge, IntGaugeVec, Registry};
use switchyard_core::backend::{Trouble, Troubles};

use super::families::{gauge, gauges, signed};
use super::table;
use crate::status::Part;

#[derive(Debug)]
pub(super) struct PartMetrics {
    up: IntGaugeVec,
    ready: IntGauge,
    runtime_down: IntGaugeVec,
    troubles: IntGaugeVec,
}

impl PartMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            up: gauges(registry, table::UP)?,
            ready: gauge(registry, table::READY)?,
            runtime_down: gauges(registry, table::RUNTIME_DOWN)?,
            troubles: gauges(registry, table::TROUBLES)?,
        })
    }

    /// Sets the values of these parts, of the reason why the runtime cannot be used, and of the objects with a trouble.
    pub(super) fn set(&self, parts: &[Part], runtime_fault: Option<&str>, troubles: &Troubles) {
        // Some parts come and go.
        self.up.reset();
        for part in parts {
            self.up
                .with_label_values(&[part.name])
                .set(i64::from(part.is_up()));
        }
        let is_ready = !parts.iter().any(Part::blocks_readiness);
        self.ready.set(i64::from(is_ready));
        self.runtime_down.reset();
        if let Some(reason) = runtime_fault {
            self.runtime_down.with_label_values(&[reason]).set(1);
        }
        for kind in Trouble::ALL {
            let count = troubles.get(&kind).map_or(0, Vec::len);
            self.troubles
                .with_label_values(&[kind.as_str()])
                .set(signed(count));
        }
    }
}
