//! The range of IPv6 that the gateway's own bridge has by itself: it counts as one of the configuration.

use std::path::Path;

use switchyard_config::Config;
use switchyard_core::spec::Subnet;

use super::view::{NETWORK_DEVICES, NodeView};

/// The range with which the bridge was made, or with which its first container makes it.
pub(super) fn recorded_range(view: &dyn NodeView, config: &Config) -> Option<Subnet> {
    let bridge = &config.network.bridge;
    let record = view.text(bridge.ipv6_record(&config.paths.state))?;
    bridge.recorded_ipv6(&record)
}

/// Adds the range to those of the configuration, as the daemon does at a start, if the bridge is there and was made with one.
pub(super) fn add_own_ipv6(view: &dyn NodeView, config: &mut Config) {
    let range = recorded_range(view, config);
    let bridge = &mut config.network.bridge;
    let is_there = view.exists(Path::new(NETWORK_DEVICES).join(&bridge.name));
    let range = range.filter(|_| is_there);
    bridge.subnets.extend(range.map(|range| range.to_string()));
}
