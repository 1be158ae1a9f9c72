//! The address families of the networks of containers, and checks of IPv6 on the node.

use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;
use switchyard_cni::{NetworkList, PluginConf};
use switchyard_core::spec::Subnet;
use switchyard_linux::resolv_conf::Families;
use switchyard_linux::routes;

use super::codes::runtime::{NO_IPV6, PORTS_ON_IPV4, ROUTERS_IGNORED};
use super::facts::Facts;
use super::finding::Finding;
use super::network::{node_network, ranges};
use super::nomad;
use super::text::first_of;

/// The addresses of the node's interfaces; a kernel without IPv6 has no such file.
const ADDRESSES: &str = "/proc/net/if_inet6";

/// The parameters of interfaces; those of `default` are what new ones begin with.
const PARAMETERS: &str = "/proc/sys/net/ipv6/conf";

/// The bridge of the plugin `bridge`, unless its configuration names one.
const DEFAULT_BRIDGE: &str = "cni0";

/// The most addresses that are looked at.
const ADDRESSES_MAX: usize = 100_000;

/// The flag of an address that does not expire, and so was not learnt.
const PERMANENT: u8 = 0x80;

/// Maximum number of interfaces that a finding names.
const NAMED_MAX: usize = 4;

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
    let mut found: Vec<Finding> = bridges(facts)
        .iter()
        .filter_map(|bridge| cannot_have_six(facts, bridge))
        .collect();
    if found.is_empty() {
        found.extend(routers_ignored(facts));
    }
    found.extend(ports_on_four(facts));
    found
}

/// The bridges of the node that get an address of IPv6: that of tasks, and that of pods.
fn bridges(facts: &Facts) -> Vec<String> {
    let is_six = |range: Subnet| range.first().is_ipv6();
    let of_tasks = of_bridge(facts).iter().any(IpAddr::is_ipv6);
    let of_tasks = of_tasks.then(|| facts.config.network.bridge.name.clone());
    let network = facts
        .config
        .cri
        .enabled
        .then(|| node_network(facts).0)
        .flatten()
        .filter(|network| ranges(network).any(is_six));
    let of_pods = network.iter().flat_map(with_gateway);
    of_tasks.into_iter().chain(of_pods).collect()
}

/// The bridges of a network that are the gateways of its pods.
fn with_gateway(network: &NetworkList) -> impl Iterator<Item = String> {
    let is_set =
        |plugin: &PluginConf, key: &str| plugin.get(key).and_then(Value::as_bool) == Some(true);
    let bridges = network.plugins.iter().filter(move |plugin| {
        let is_bridge = plugin.get("type").and_then(Value::as_str) == Some("bridge");
        is_bridge && (is_set(plugin, "isGateway") || is_set(plugin, "isDefaultGateway"))
    });
    bridges.map(|plugin| {
        let name = plugin.get("bridge").and_then(Value::as_str);
        name.unwrap_or(DEFAULT_BRIDGE).to_owned()
    })
}

/// A bridge to which the plugin cannot give its address of IPv6.
fn cannot_have_six(facts: &Facts, bridge: &str) -> Option<Finding> {
    if !facts.view.exists(ADDRESSES) {
        let found = format!("{bridge} has a range of IPv6, and the kernel has no {ADDRESSES}");
        return Some(Finding::new(&NO_IPV6, found));
    }
    // A name that leads elsewhere is none of an interface.
    let own = Some(bridge).filter(|name| !name.contains('/'));
    let known = own.filter(|name| facts.view.exists(Path::new(PARAMETERS).join(name)));
    let interface = known.unwrap_or("default");
    (parameter(facts, interface, "disable_ipv6") == Some(1)).then(|| {
        // With slashes, which names of interfaces have no need to be rewritten for.
        let key = format!("net/ipv6/conf/{interface}/disable_ipv6");
        let found = format!("{bridge} has a range of IPv6, and {key} = 1");
        Finding::new(&NO_IPV6, found).command(format!("sysctl -w {key}=0"))
    })
}

/// The interfaces whose addresses of IPv6 the kernel learns from routers, which it does not listen to any more once the node
/// forwards for a network of containers.
fn routers_ignored(facts: &Facts) -> Option<Finding> {
    if !forwarded(facts).six {
        return None;
    }
    let text = facts.view.text(ADDRESSES)?;
    let mut learning: Vec<String> = text
        .lines()
        .take(ADDRESSES_MAX)
        .filter_map(learnt_by)
        .filter(|interface| parameter(facts, interface, "accept_ra") == Some(1))
        .map(str::to_owned)
        .collect();
    learning.sort_unstable();
    learning.dedup();
    let first = learning.first()?;
    let command = format!("sysctl -w net/ipv6/conf/{first}/accept_ra=2");
    let named = first_of(&learning, NAMED_MAX);
    let found =
        format!("a network of containers has a range of IPv6, and accept_ra = 1 of {named}");
    Some(Finding::new(&ROUTERS_IGNORED, found).command(command))
}

/// The interface of a line of [`ADDRESSES`], if its address is a global one that expires.
fn learnt_by(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[_, _, _, scope, flags, interface] = fields.as_slice() else {
        return None;
    };
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (scope == "00" && flags & PERMANENT == 0).then_some(interface)
}

/// The value of a parameter of IPv6 of an interface.
fn parameter(facts: &Facts, interface: &str, name: &str) -> Option<u64> {
    let file = Path::new(PARAMETERS).join(interface).join(name);
    facts.view.number(file)
}

/// A node with IPv6 whose tasks have none.
fn ports_on_four(facts: &Facts) -> Option<Finding> {
    let bridge = of_bridge(facts);
    if bridge.is_empty() || Families::of(&bridge).six {
        return None;
    }
    let name = &facts.config.network.bridge.name;
    let text = facts.view.text(routes::SIX).unwrap_or_default();
    let routes = routes::parse("", &text);
    let default = routes.iter().find(|route| route.is_default())?;
    let interface = &default.interface;
    let found = format!("the node has IPv6 by {interface}, and {name} has no range of it");
    Some(Finding::new(&PORTS_ON_IPV4, found).command("ip -6 route"))
}
