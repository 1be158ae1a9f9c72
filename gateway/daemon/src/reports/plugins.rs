//! Vendors' device plugins, for display and for metrics.

use switchyard_device_host::{LastError, PluginReport, PluginState, Report};
use switchyard_operator::metrics::{PluginFigure, PluginFigures};
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{ErrorView, HostView, PluginView};

/// The registration host of vendors' device plugins, for display.
#[must_use]
pub fn view(report: Report) -> HostView {
    let Report {
        fault,
        plugins,
        refused,
        failures: _,
    } = report;
    HostView {
        fault,
        plugins: plugins.into_iter().map(plugin_view).collect(),
        last_refused: refused.map(error_view),
    }
}

/// The same for metrics.
#[must_use]
pub fn figures(report: &Report) -> PluginFigures {
    let figure = |plugin: &PluginReport| PluginFigure {
        resource: plugin.resource.clone(),
        state: plugin.state.as_str(),
        since: plugin.since,
        devices: plugin.devices,
        healthy: plugin.healthy,
    };
    PluginFigures {
        states: PluginState::ALL
            .map(|state| (state.as_str(), report.count(state)))
            .to_vec(),
        plugins: report.plugins.iter().map(figure).collect(),
        failures: report
            .failures
            .iter()
            .map(|(reason, count)| (*reason, *count))
            .collect(),
    }
}

fn plugin_view(report: PluginReport) -> PluginView {
    let PluginReport {
        resource,
        endpoint,
        state,
        since,
        devices,
        healthy,
        last_error,
    } = report;
    PluginView {
        resource,
        endpoint,
        state: state.as_str().to_owned(),
        since: rfc3339(since),
        devices,
        healthy,
        last_error: last_error.map(error_view),
    }
}

fn error_view(LastError { at, text }: LastError) -> ErrorView {
    ErrorView {
        at: rfc3339(at),
        error: text,
    }
}
