//! The metric of processes whose program was replaced.

use prometheus::{IntGaugeVec, Registry};
use switchyard_operator_api::programs::ProgramView;

use super::families::gauges;

#[derive(Debug)]
pub(super) struct ProgramMetrics(IntGaugeVec);

impl ProgramMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self(gauges(
            registry,
            "switchyard_replaced_programs",
            "Whether a process still runs a program whose file was replaced, as by an upgrade.",
            &["part"],
        )?))
    }

    pub(super) fn set(&self, programs: &[ProgramView]) {
        self.0.reset();
        for program in programs {
            self.0.with_label_values(&[&program.part]).set(i64::from(program.replaced));
        }
    }
}
