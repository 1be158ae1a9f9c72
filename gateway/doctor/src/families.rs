//! The address families of the networks of containers, and checks of IPv6 on the node.

use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;
use switchyard_cni::{NetworkList, PluginConf};
use switchyard_core::spec::Subnet;
use switchyard_linux::resolv_conf::Families;
use switchyard_linux::routes;
use switchyard_network::netlink::learnt_devices;

use super::codes::runtime::{NO_IPV6, PORTS_ON_IPV4, ROUTERS_IGNORED};
use super::facts::Facts;
use super::finding::Finding;
use super::network::{DEFAULT_BRIDGE, node_network, ranges};
use super::nomad;
use super::own_ipv6::recorded_range;
use super::pod_bridge::{bridge_ranges, has_pods_on_bridge, own_ranges};
use super::text::first_of;

/// The addresses of the node's interfaces; a kernel without IPv6 has no such file.
const ADDRESSES: &str = "/proc/net/if_inet6";

/// The parameters of interfaces; those of `default` are what new ones begin with.
const PARAMETERS: &str = "/proc/sys/net/ipv6/conf";

/// The most addresses and routes of routers that are looked at.
const LEARNT_MAX: usize = 100_000;

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
    let ranges = own_ranges(&facts.config).into_iter();
    ranges.map(|range| range.first()).collect()
}

/// The network of pods that the node's CNI configuration has; none if pods are on a bridge of the gateway.
fn cni_network(facts: &Facts) -> Option<NetworkList> {
    let has_pods = facts.config.cri.enabled && !has_pods_on_bridge(&facts.config);
    has_pods.then(|| node_network(facts).0).flatten()
}

/// The families of these ranges of a network. One whose ranges are not known counts as one of IPv4.
fn known_or_four(ranges: &[IpAddr]) -> Families {
    let has = |six: bool| ranges.iter().any(|address| address.is_ipv6() == six);
    Families {
        four: has(false) || ranges.is_empty(),
        six: has(true),
    }
}

/// Those of the gateway's bridge network; `None` while it has no tasks.
pub(super) fn of_own_bridge(facts: &Facts) -> Option<Families> {
    let ranges = of_bridge(facts);
    (!ranges.is_empty()).then(|| known_or_four(&ranges))
}

/// Those of the bridge of pods; `None` if pods are elsewhere.
pub(super) fn of_pod_bridge(facts: &Facts) -> Option<Families> {
    has_pods_on_bridge(&facts.config).then(|| {
        let ranges = bridge_ranges(facts).into_iter();
        let firsts: Vec<IpAddr> = ranges.map(|range| range.first()).collect();
        known_or_four(&firsts)
    })
}

/// Those of the CNI configuration's network of pods; `None` if pods are elsewhere.
fn of_cni_network(facts: &Facts) -> Option<Families> {
    let network = cni_network(facts)?;
    let firsts: Vec<IpAddr> = ranges(&network).map(|range| range.first()).collect();
    Some(known_or_four(&firsts))
}

/// The families between whose addresses and other machines the node forwards. A node without networks counts as one of IPv4.
pub(super) fn forwarded(facts: &Facts) -> Families {
    let networks = [
        of_own_bridge(facts),
        of_pod_bridge(facts),
        of_cni_network(facts),
    ];
    let known: Vec<Families> = networks.into_iter().flatten().collect();
    Families {
        four: known.iter().any(|has| has.four) || known.is_empty(),
        six: known.iter().any(|has| has.six),
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
    let config = &facts.config.network;
    let of_tasks = of_tasks.then(|| config.bridge.name.clone());
    let on_bridge = bridge_ranges(facts).into_iter().any(is_six);
    let on_bridge = on_bridge.then(|| config.pods.name.clone());
    let network = cni_network(facts).filter(|network| ranges(network).any(is_six));
    let of_network = network.iter().flat_map(with_gateway);
    let own = of_tasks.into_iter().chain(on_bridge);
    own.chain(of_network).collect()
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

/// The interfaces whose addresses or default route of IPv6 the kernel learns from routers, which it does not listen to any more once the node
/// forwards.
pub(super) fn learning_interfaces(facts: &Facts) -> Vec<String> {
    let [addresses, routes] =
        [ADDRESSES, routes::SIX].map(|file| facts.view.text(file).unwrap_or_default());
    let mut learning: Vec<String> = learnt_devices(&addresses, &routes)
        .take(LEARNT_MAX)
        .filter(|interface| parameter(facts, interface, "accept_ra") == Some(1))
        .map(str::to_owned)
        .collect();
    learning.sort_unstable();
    learning.dedup();
    learning
}

/// The settings by which all these interfaces go on listening to routers when the node forwards. With slashes, which names of interfaces have no
/// need to be rewritten for.
pub(super) fn keeping_routers(interfaces: &[String]) -> String {
    let all = interfaces.iter();
    let all = all.map(|interface| format!("net/ipv6/conf/{interface}/accept_ra=2"));
    all.collect::<Vec<_>>().join(" ")
}

/// Such interfaces of a node that forwards for a network of containers.
fn routers_ignored(facts: &Facts) -> Option<Finding> {
    if !forwarded(facts).six {
        return None;
    }
    let learning = learning_interfaces(facts);
    if learning.is_empty() {
        return None;
    }
    let command = format!("sysctl -w {}", keeping_routers(&learning));
    let named = first_of(&learning, NAMED_MAX);
    let found =
        format!("a network of containers has a range of IPv6, and accept_ra = 1 of {named}");
    Some(Finding::new(&ROUTERS_IGNORED, found).command(command))
}

/// The value of a parameter of IPv6 of an interface.
fn parameter(facts: &Facts, interface: &str, name: &str) -> Option<u64> {
    let file = Path::new(PARAMETERS).join(interface).join(name);
    facts.view.number(file)
}

/// A node with IPv6 whose tasks have none, and get none with their bridge.
fn ports_on_four(facts: &Facts) -> Option<Finding> {
    let bridge = of_bridge(facts);
    let is_to_have_six = recorded_range(&*facts.view, &facts.config).is_some();
    if bridge.is_empty() || Families::of(&bridge).six || is_to_have_six {
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
