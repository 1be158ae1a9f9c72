//! Checks of overlapping address ranges and port ranges.

use switchyard_core::spec::Subnet;
use switchyard_linux::routes;

use super::codes::runtime::{PORTS_OVERLAP, SUBNET_ROUTED, SUBNETS_OVERLAP};
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::network::{networks, ranges};
use super::nomad;
use super::pod_bridge::{bridge_ranges, own_ranges};
use super::text::{first_of, port_range};

/// The ports of Services of type NodePort, unless the API server is configured otherwise.
const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// The dynamic ports of a Nomad agent, unless its configuration says otherwise.
const NOMAD_PORTS: (u16, u16) = (20_000, 32_000);

/// The ports that a kubelet and a Nomad agent listen on.
const KUBELET_PORTS: [u16; 2] = [10_248, 10_250];
const AGENT_PORTS: [u16; 3] = [4646, 4647, 4648];

/// The most ranges of one network.
const RANGES_MAX: usize = 64;

/// Maximum number of ports that a finding names.
const NAMED_MAX: usize = 8;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if facts.config.nomad.enabled {
        found.extend(routed(facts));
    }
    found.extend(overlapping_networks(facts));
    found.extend(overlapping_ports(facts));
    found
}

/// The gateway's bridge network, if the node reaches some of its addresses by another interface.
fn routed(facts: &Facts) -> Vec<Finding> {
    let bridge = &facts.config.network.bridge;
    let text = |path| facts.view.text(path).unwrap_or_default();
    let routes = routes::parse(&text(routes::FOUR), &text(routes::SIX));
    let conflict = |subnet: Subnet| {
        let mut others = routes
            .iter()
            .filter(|route| !route.is_default() && route.interface != bridge.name)
            .map(|route| (&route.interface, Subnet::of(route.to, route.prefix)));
        let (interface, to) = others.find(|(_, to)| to.overlaps(&subnet))?;
        let found = format!(
            "{} has {subnet}, and the node reaches {to} by {interface}",
            bridge.name
        );
        Some(Finding::new(&SUBNET_ROUTED, found).command("ip route"))
    };
    let subnets = own_ranges(&facts.config).into_iter();
    subnets.filter_map(conflict).collect()
}

/// Two networks on this node with overlapping addresses.
fn overlapping_networks(facts: &Facts) -> Vec<Finding> {
    let config = &facts.config.network;
    let mut all: Vec<(String, Subnet)> = Vec::new();
    if facts.config.nomad.enabled {
        let subnets = own_ranges(&facts.config).into_iter();
        let name = format!("network.bridge ({})", config.bridge.name);
        all.extend(subnets.map(|subnet| (name.clone(), subnet)));
    }
    let of_pods = bridge_ranges(facts).into_iter();
    let name = format!("network.pods ({})", config.pods.name);
    all.extend(of_pods.map(|subnet| (name.clone(), subnet)));
    for network in networks(facts).into_iter().flatten() {
        let name = network.source.display().to_string();
        let subnets = ranges(&network).take(RANGES_MAX);
        all.extend(subnets.map(|subnet| (name.clone(), subnet)));
    }
    let mut found = Vec::new();
    for (at, (name, subnet)) in all.iter().enumerate() {
        let other = all[..at]
            .iter()
            .find(|(other, range)| other != name && range.overlaps(subnet));
        if let Some((other, range)) = other {
            let text = format!("{name} has {subnet}, {other} has {range}");
            found.push(Finding::new(&SUBNETS_OVERLAP, text));
        }
    }
    found
}

fn overlapping_ports(facts: &Facts) -> Vec<Finding> {
    let agent = nomad::agent(facts);
    let nomad_ports = agent.as_ref().map(|agent| {
        let port = |key: &str, default| agent.number(&["client", key]).unwrap_or(default);
        (
            port("min_dynamic_port", NOMAD_PORTS.0),
            port("max_dynamic_port", NOMAD_PORTS.1),
        )
    });
    let node_ports = facts.has_kubelet().then_some(NODE_PORTS);
    let text = |path: &str| facts.view.text(path).unwrap_or_default();
    let local = port_range(&text("/proc/sys/net/ipv4/ip_local_port_range"));
    let reserved: Vec<(u16, u16)> = text("/proc/sys/net/ipv4/ip_local_reserved_ports")
        .split(',')
        .filter_map(port_range)
        .collect();
    let named = [
        (
            "the node's outgoing connections (net.ipv4.ip_local_port_range)",
            local,
        ),
        ("NodePorts of Services", node_ports),
        ("dynamic ports of the Nomad agent", nomad_ports),
    ];
    let ranges: Vec<(&str, (u16, u16))> = named
        .into_iter()
        .filter_map(|(name, range)| Some((name, range?)))
        .collect();
    let mut found = Vec::new();
    for (at, (name, range)) in ranges.iter().enumerate() {
        for (other, against) in &ranges[at + 1..] {
            let both = (range.0.max(against.0), range.1.min(against.1));
            let is_reserved = reserved
                .iter()
                .any(|known| known.0 <= both.0 && both.1 <= known.1);
            if both.0 <= both.1 && !is_reserved {
                let text = format!("ports {} to {} are {name}, and {other}", both.0, both.1);
                found.push(Finding::new(&PORTS_OVERLAP, text));
            }
        }
    }
    found.extend(local.and_then(|local| fixed_ports(facts, local, &reserved, agent.is_some())));
    found
}

/// Ports that are listened on, among those of outgoing connections.
fn fixed_ports(
    facts: &Facts,
    local: (u16, u16),
    reserved: &[(u16, u16)],
    has_agent: bool,
) -> Option<Finding> {
    let mut ports = vec![facts.config.admin.listen.port()];
    ports.extend(
        facts
            .config
            .admin
            .metrics_listen
            .map(|address| address.port()),
    );
    if facts.has_kubelet() {
        ports.extend(KUBELET_PORTS);
    }
    if has_agent {
        ports.extend(AGENT_PORTS);
    }
    let is_within = |port: &u16, range: &(u16, u16)| range.0 <= *port && *port <= range.1;
    let taken: Vec<String> = ports
        .iter()
        .filter(|port| **port != 0 && is_within(port, &local))
        .filter(|port| !reserved.iter().any(|range| is_within(port, range)))
        .map(u16::to_string)
        .collect();
    (!taken.is_empty()).then(|| {
        let named = first_of(&taken, NAMED_MAX);
        let text = format!(
            "servers of this node listen on {named}, and outgoing connections use {} to {}",
            local.0, local.1
        );
        Finding::new(&PORTS_OVERLAP, text).severity(Severity::Note)
    })
}
