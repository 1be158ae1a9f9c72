//! Device plugins of vendors, which register with the gateway.

use prometheus::{IntCounterVec, IntGaugeVec, Registry};
use switchyard_device_host::Counts;

use super::{counters, gauges};

/// Gauges of the host of plugins, and its own count of failures.
#[derive(Debug)]
pub(super) struct Plugins {
    plugins: IntGaugeVec,
    failures: IntCounterVec,
}

impl Plugins {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            plugins: gauges(
                registry,
                "switchyard_device_host_plugins",
                "Resources that device plugins of vendors have registered, by what their plugin is now.",
                &["state"],
            )?,
            failures: counters(
                registry,
                "switchyard_device_host_failures_total",
                "What has failed of device plugins of vendors, by reason.",
                &["reason"],
            )?,
        })
    }

    pub(super) fn set(&self, counts: &Counts) {
        let Counts { connected, ended, failures } = counts;
        for (state, count) in [("connected", connected), ("ended", ended)] {
            self.plugins.with_label_values(&[state]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        for (reason, count) in failures {
            let counter = self.failures.with_label_values(&[*reason]);
            // The host counts; here is only shown what it says.
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}
