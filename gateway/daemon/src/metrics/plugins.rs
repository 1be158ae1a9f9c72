//! Metrics of hosted plugins: vendors' device plugins that register with the gateway.

use std::time::UNIX_EPOCH;

use prometheus::{IntCounterVec, IntGaugeVec, Registry};
use switchyard_device_host::{PluginReport, PluginState, Report};

use super::families::{counters, gauges};

/// Gauges of the registration host, and its own counter of failures.
#[derive(Debug)]
pub(super) struct PluginMetrics {
    plugins: IntGaugeVec,
    devices: IntGaugeVec,
    since: IntGaugeVec,
    failures: IntCounterVec,
}

impl PluginMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            plugins: gauges(
                registry,
                "switchyard_device_host_plugins",
                "Resources that device plugins of vendors have registered, by what their plugin is now.",
                &["state"],
            )?,
            devices: gauges(
                registry,
                "switchyard_device_host_devices",
                "Devices that a vendor's plugin has listed, by whether they can be given to a task.",
                &["resource", "health"],
            )?,
            since: gauges(
                registry,
                "switchyard_device_host_state_since_timestamp_seconds",
                "Since when the plugin of a resource is what it is now, in seconds since 1970.",
                &["resource", "state"],
            )?,
            failures: counters(
                registry,
                "switchyard_device_host_failures_total",
                "What has failed of device plugins of vendors, by reason.",
                &["reason"],
            )?,
        })
    }

    pub(super) fn set(&self, report: &Report) {
        for state in PluginState::ALL {
            self.plugins.with_label_values(&[state.as_str()]).set(signed(report.count(state)));
        }
        self.since.reset();
        for PluginReport { resource, state, since, devices, healthy, .. } in &report.plugins {
            for (health, count) in [("healthy", *healthy), ("unhealthy", devices.saturating_sub(*healthy))] {
                self.devices.with_label_values(&[resource.as_str(), health]).set(signed(count));
            }
            let seconds = since.duration_since(UNIX_EPOCH).map_or(0, |since| signed(since.as_secs()));
            self.since.with_label_values(&[resource.as_str(), state.as_str()]).set(seconds);
        }
        for (reason, count) in &report.failures {
            let counter = self.failures.with_label_values(&[*reason]);
            // The host counts; this counter only takes over its value.
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}
