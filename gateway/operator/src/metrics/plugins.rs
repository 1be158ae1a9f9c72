//! Metrics of hosted plugins: vendors' device plugins that register with the gateway.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{IntCounterVec, IntGaugeVec, Registry};

use super::families::{counters, gauges, signed, take_over};
use super::table;

/// Vendors' device plugins and their failures, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginFigures {
    /// Number of plugins in each state, for all states.
    pub states: Vec<(&'static str, usize)>,
    /// The newest plugin of each resource.
    pub plugins: Vec<PluginFigure>,
    /// Failures since the daemon started, by reason.
    pub failures: Vec<(&'static str, u64)>,
}

/// The newest plugin of a resource, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFigure {
    /// The resource.
    pub resource: String,
    /// Its state, in one word.
    pub state: &'static str,
    /// Since when.
    pub since: SystemTime,
    /// Number of devices in its last list.
    pub devices: usize,
    /// Number of healthy devices among them.
    pub healthy: usize,
}

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
            plugins: gauges(registry, table::PLUGINS)?,
            devices: gauges(registry, table::PLUGIN_DEVICES)?,
            since: gauges(registry, table::PLUGIN_SINCE)?,
            failures: counters(registry, table::PLUGIN_FAILURES)?,
        })
    }

    /// Sets the values; `None` if no plugin is hosted any more.
    pub(super) fn set(&self, figures: Option<&PluginFigures>) {
        self.plugins.reset();
        self.devices.reset();
        self.since.reset();
        let Some(figures) = figures else { return };
        for (state, count) in &figures.states {
            self.plugins
                .with_label_values(&[*state])
                .set(signed(*count));
        }
        for PluginFigure {
            resource,
            state,
            since,
            devices,
            healthy,
        } in &figures.plugins
        {
            for (health, count) in [
                ("healthy", *healthy),
                ("unhealthy", devices.saturating_sub(*healthy)),
            ] {
                self.devices
                    .with_label_values(&[resource.as_str(), health])
                    .set(signed(count));
            }
            let seconds = since
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| signed(since.as_secs()));
            self.since
                .with_label_values(&[resource.as_str(), *state])
                .set(seconds);
        }
        for (reason, count) in &figures.failures {
            take_over(&self.failures.with_label_values(&[*reason]), *count);
        }
    }
}
