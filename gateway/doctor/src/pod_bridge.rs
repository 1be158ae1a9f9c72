//! The ranges of the gateway's bridges: of its own one, and of that of pods, on a node whose kubelet does without CNI configurations.

use std::net::Ipv6Addr;

use switchyard_config::Config;
use switchyard_containerd::config::PodNetworkChoice;
use switchyard_core::spec::Subnet;

use super::facts::Facts;

/// The addresses of the node's interfaces; a kernel without IPv6 has no such file.
pub(super) const ADDRESSES: &str = "/proc/net/if_inet6";

/// The most addresses of IPv6 that are looked at.
const ADDRESSES_MAX: usize = 100_000;

/// The ranges of the gateway's own bridge: those of its configuration, and that of IPv6 which it has by itself, if it has an address of it.
pub(super) fn own_ranges(facts: &Facts) -> Vec<Subnet> {
    let bridge = &facts.config.network.bridge;
    let mut ranges = parsed(&bridge.subnets);
    let record = bridge.ipv6_record(&facts.config.paths.state);
    let text = facts.view.text(record);
    let range = text.and_then(|text| bridge.recorded_ipv6(&text));
    ranges.extend(range.filter(|range| has_address(facts, &bridge.name, range)));
    ranges
}

/// Those of these texts that are ranges.
fn parsed(texts: &[String]) -> Vec<Subnet> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns whether an interface has an address of a range of IPv6.
fn has_address(facts: &Facts, interface: &str, range: &Subnet) -> bool {
    let text = facts.view.text(ADDRESSES).unwrap_or_default();
    let is_one = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let digits = fields.next().unwrap_or_default();
        let bits = u128::from_str_radix(digits, 16);
        let is_in = bits.is_ok_and(|bits| range.contains(Ipv6Addr::from_bits(bits).into()));
        is_in && fields.last() == Some(interface)
    };
    text.lines().take(ADDRESSES_MAX).any(is_one)
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
