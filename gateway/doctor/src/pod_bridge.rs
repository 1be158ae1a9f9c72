//! The ranges of the gateway's bridges: of its own one, and of that of pods, on a node whose kubelet does without CNI configurations.

use switchyard_config::Config;
use switchyard_containerd::config::PodNetworkChoice;
use switchyard_core::spec::Subnet;

use super::facts::Facts;

/// The ranges of the gateway's own bridge.
pub(super) fn own_ranges(config: &Config) -> Vec<Subnet> {
    parsed(&config.network.bridge.subnets)
}

/// Those of these texts that are ranges.
fn parsed(texts: &[String]) -> Vec<Subnet> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns whether new pods are on a bridge of the gateway.
pub(super) fn has_pods_on_bridge(config: &Config) -> bool {
    config.cri.enabled && config.cri.network == PodNetworkChoice::Bridge
}

/// The ranges that the kubelet has told the daemon; none while it does not answer.
pub(super) fn told_ranges(facts: &Facts) -> Vec<Subnet> {
    let status = facts.status.as_ref().ok();
    let known = status.and_then(|status| status.facts.get("network.ranges"));
    let text = known.map_or("", String::as_str);
    // They stand among other words.
    text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '='))
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// The ranges of the bridge, as the daemon takes them: those that it was told, else those of the configuration. None if neither
/// is known, or if pods are elsewhere.
pub(super) fn bridge_ranges(facts: &Facts) -> Vec<Subnet> {
    if !has_pods_on_bridge(&facts.config) {
        return Vec::new();
    }
    let told = told_ranges(facts);
    if !told.is_empty() {
        return told;
    }
    parsed(&facts.config.network.pods.subnets)
}
