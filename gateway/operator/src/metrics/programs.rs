//! The metric of processes whose program was replaced.

use prometheus::{IntGaugeVec, Registry};
use switchyard_operator_api::programs::ProgramView;

use super::families::gauges;
use super::table;

#[derive(Debug)]
pub(super) struct ProgramMetrics(IntGaugeVec);

impl ProgramMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self(gauges(registry, table::REPLACED_PROGRAMS)?))
    }

    pub(super) fn set(&self, programs: &[ProgramView]) {
        self.0.reset();
        for program in programs {
            self.0
                .with_label_values(&[&program.part])
                .set(i64::from(program.replaced));
        }
    }
}
