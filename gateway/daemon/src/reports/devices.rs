//! Vendors' device plugins, and the devices that are offered to a kubelet.

use parking_lot::RwLock;
use switchyard_device_host::{Hosted, PluginState, Report};
use switchyard_device_plugin::Registrations;
use switchyard_operator::control::{PluginHost, Reporter};
use switchyard_operator::metrics::ReportedFigures;
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::HostView;

use super::plugins;

/// Both, as the configuration enables them.
#[derive(Debug, Default)]
pub(crate) struct DeviceReport {
    hosted: RwLock<Option<Hosted>>,
    kubelet: RwLock<Option<Registrations>>,
}

// === impl DeviceReport ===

impl DeviceReport {
    /// Sets the registration host of vendors' device plugins; `None` while they cannot register.
    pub(crate) fn set_hosted(&self, hosted: Option<Hosted>) {
        *self.hosted.write() = hosted;
    }

    /// Sets the counter of resources that are offered to a kubelet; `None` while none is.
    pub(crate) fn set_kubelet(&self, registrations: Option<Registrations>) {
        *self.kubelet.write() = registrations;
    }

    fn hosted(&self) -> Option<Report> {
        self.hosted.read().as_ref().map(Hosted::report)
    }
}

impl Reporter for DeviceReport {
    fn parts(&self) -> Vec<Part> {
        let kubelet = self.kubelet.read().as_ref().and_then(kubelet);
        let plugins = self.hosted().map(|report| device_plugins(&report));
        kubelet.into_iter().chain(plugins).collect()
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.plugins = self.hosted().map(|report| plugins::figures(&report));
    }
}

impl PluginHost for DeviceReport {
    fn view(&self) -> Option<HostView> {
        self.hosted().map(plugins::view)
    }
}

/// Reports whether a kubelet has registered the offered resources; `None` if none is offered.
fn kubelet(registrations: &Registrations) -> Option<Part> {
    let offered = registrations.resources();
    let followed = registrations.followed();
    let condition = match (offered, followed) {
        (0, _) => return None,
        (_, 0) => Condition::Down(format!("no kubelet follows any of {offered} resources")),
        (_, _) if followed < offered => Condition::Down(format!(
            "a kubelet follows {followed} of {offered} resources"
        )),
        (_, _) => Condition::Up(format!("a kubelet follows {offered} resources")),
    };
    // Not needed: the node may have no kubelet at the moment.
    Some(Part::optional("kubelet devices", condition))
}

/// Reports whether vendors' device plugins can register, and the registered ones are connected.
fn device_plugins(report: &Report) -> Part {
    let away = report
        .plugins
        .iter()
        .filter(|plugin| plugin.state.is_faulty());
    let away: Vec<_> = away
        .map(|plugin| format!("{} ({})", plugin.resource, plugin.state.as_str()))
        .collect();
    let condition = match &report.fault {
        Some(fault) => Condition::Down(format!("none can register: {fault}")),
        None if away.is_empty() => Condition::Up(format!(
            "{} connected",
            report.count(PluginState::Connected)
        )),
        None => Condition::Down(format!(
            "{} of {} not connected: {}",
            away.len(),
            report.plugins.len(),
            away.join(", ")
        )),
    };
    // Not needed: tasks without their devices can be created without it.
    Part::optional("device plugins", condition)
}
