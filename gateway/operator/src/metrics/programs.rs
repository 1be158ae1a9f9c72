//! Metrics of the processes of Switchyard: whether they are as installed, and their versions.

use std::collections::BTreeMap;

use prometheus::{IntGaugeVec, Registry};
use switchyard_operator_api::programs::ProgramView;

use super::families::{gauges, signed};
use super::table;

#[derive(Debug)]
pub(super) struct ProgramMetrics {
    replaced: IntGaugeVec,
    former_configurations: IntGaugeVec,
    versions: IntGaugeVec,
}

impl ProgramMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            replaced: gauges(registry, table::REPLACED_PROGRAMS)?,
            former_configurations: gauges(registry, table::FORMER_CONFIGURATIONS)?,
            versions: gauges(registry, table::PROGRAM_VERSIONS)?,
        })
    }

    /// Sets the values of these processes, and of the launchers by version.
    pub(super) fn set(&self, programs: &[ProgramView], launchers: &BTreeMap<String, u64>) {
        self.replaced.reset();
        self.former_configurations.reset();
        self.versions.reset();
        for program in programs {
            let part = program.part.as_str();
            self.replaced
                .with_label_values(&[part])
                .set(i64::from(program.replaced));
            if let Some(is_current) = program.configuration_current {
                self.former_configurations
                    .with_label_values(&[part])
                    .set(i64::from(!is_current));
            }
            if let Some(version) = &program.version {
                self.versions
                    .with_label_values(&[part, version.as_str()])
                    .set(1);
            }
        }
        for (version, count) in launchers {
            self.versions
                .with_label_values(&["nomad-launcher", version.as_str()])
                .set(signed(*count));
        }
    }
}
