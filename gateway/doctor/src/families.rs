//! The address families of the networks of containers, and checks of IPv6 on the node.

use std::net::IpAddr;

use switchyard_core::spec::Subnet;
use switchyard_linux::resolv_conf::Families;
use switchyard_linux::routes;

use super::codes::runtime::{NO_IPV6, PORTS_ON_IPV4};
use super::facts::Facts;
use super::finding::Finding;
use super::network::{node_network, ranges};
use super::nomad;

/// The addresses of the node's interfaces; a kernel without IPv6 has no such file.
const ADDRESSES: &str = "/proc/net/if_inet6";

/// Returns whether an orchestrator gives the node tasks that are on the gateway's bridge network.
pub(super) fn has_tasks(facts: &Facts) -> bool {
    let has_agent = facts.config.nomad.enabled && nomad::agent(facts).is_some();
    let swarm = facts.swarm.as_ref();
    has_agent || swarm.is_some_and(|swarm| swarm.state != "not_joined")
}

/// The first addresses of the ranges of the gateway's bridge network; none while it has no tasks.
pub(super) fn of_bridge(facts: &Facts) -> Vec<IpAddr> {
    if !has_tasks(facts) {
        return Vec::new();
    }
    let ranges = facts.config.network.bridge.subnets.iter();
    ranges
        .filter_map(|text| text.parse::<Subnet>().ok())
        .map(|range| range.first())
        .collect()
}

/// And of those of the network of pods, as far as its configuration has ranges.
fn of_pods(facts: &Facts) -> Vec<IpAddr> {
    if !facts.config.cri.enabled {
        return Vec::new();
    }
    let (network, _) = node_network(facts);
    let ranges = network.iter().flat_map(ranges);
    ranges.map(|range| range.first()).collect()
}

/// The families between whose addresses and other machines the node forwards. A network whose ranges are not known counts as
/// one of IPv4, and so does a node without networks.
pub(super) fn forwarded(facts: &Facts) -> Families {
    let pods = of_pods(facts);
    let are_unknown =
        pods.is_empty() && facts.config.cri.enabled && node_network(facts).0.is_some();
    let known = [of_bridge(facts), pods].concat();
    let has = |six: bool| known.iter().any(|address| address.is_ipv6() == six);
    Families {
        four: has(false) || are_unknown || known.is_empty(),
        six: has(true),
    }
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let bridge = of_bridge(facts);
    if bridge.is_empty() {
        return Vec::new();
    }
    let name = &facts.config.network.bridge.name;
    let has_six = Families::of(&bridge).six;
    if has_six && !facts.view.exists(ADDRESSES) {
        let found = format!("{name} has a range of IPv6, and the kernel has no {ADDRESSES}");
        return vec![Finding::new(&NO_IPV6, found)];
    }
    let text = facts.view.text(routes::SIX).unwrap_or_default();
    let routes = routes::parse("", &text);
    let default = routes.iter().find(|route| route.is_default());
    let by = default.filter(|_| !has_six).map(|route| {
        let interface = &route.interface;
        format!("the node has IPv6 by {interface}, and {name} has no range of it")
    });
    by.map(|found| Finding::new(&PORTS_ON_IPV4, found).command("ip -6 route"))
        .into_iter()
        .collect()
}
