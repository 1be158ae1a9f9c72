//! Checks of the driver that connects containers to the gateway's bridges without CNI plugins.

use std::collections::BTreeSet;
use std::path::Path;

use switchyard_config::NetworkDefaults;
use switchyard_core::spec::Subnet;
use switchyard_linux::routes::{self, Route};
use switchyard_network::iptables::accept_conditions;

use super::accepted::{Accepted, BridgeWays};
use super::codes::runtime::{
    FORMER_NETWORK, NATIVE_DROPPED, NATIVE_LACKING, TABLE_CHANGED, UNKNOWN_NETWORK,
};
use super::facts::Facts;
use super::families::{of_own_bridge, of_pod_bridge};
use super::finding::Finding;
use super::firewalld::Firewalld;
use super::kernel::Modules;
use super::network::{FILTERS, Filter, forward_rules, has_nf_tables, with_chains};
use super::network_defaults::UsedDefaults;
use super::pod_bridge::{bridge_ranges, has_pods_on_bridge, own_ranges};
use super::text::first_of;
use super::view::NETWORK_DEVICES;

/// The feature by which the daemon says whether the kernel can do all of it.
pub(super) const NATIVE_BRIDGE: &str = "native_bridge";

/// The feature by which it says whether the kernel can pin containers to their addresses.
pub(super) const NATIVE_PINS: &str = "native_bridge_pins";

/// Modules of the kernel that the tables need.
const MODULES: [&str; 6] = [
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "nft_masq",
    "nft_ct",
    "nft_fib_ipv4",
];

/// Module that the tables of IPv6 need besides.
const MODULE_SIX: &str = "nft_fib_ipv6";

/// The chain in which operators accept packets beside docker.
const DOCKER_USER: &str = "DOCKER-USER";
/// Text that FORWARD has if ufw keeps its rules, in chains `ufw-…` and `ufw6-…`.
const UFW: &str = "-j ufw";

/// Maximum number of interfaces that a finding names.
const NAMED_MAX: usize = 4;

/// The command after which the daemon adds the rules itself.
const RESTART: &str = "systemctl restart switchyard";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    // Tables stay when the driver is another one by now.
    let mut found: Vec<Finding> = changed(facts).into_iter().collect();
    found.extend(defaults(facts));
    if !facts.config.network.bridge.is_native() {
        return found;
    }
    let network = &facts.config.network;
    let own = of_own_bridge(facts).map(|has| (network.bridge.name.as_str(), has));
    let of_pods = of_pod_bridge(facts).map(|has| (network.pods.name.as_str(), has));
    let bridges: Vec<_> = own.into_iter().chain(of_pods).collect();
    if bridges.is_empty() {
        return found;
    }
    // What the daemon has tried itself is among its features.
    let features = facts.status.iter().flat_map(|status| &status.features);
    if !features
        .map(|feature| feature.name.as_str())
        .any(|name| name == NATIVE_BRIDGE)
    {
        let has_six = bridges.iter().any(|(_, has)| has.six);
        found.extend(lacking(facts, has_six));
    }
    let firewalld = Firewalld::of(facts);
    // The daemon keeps the own bridge, and knows that of pods from its first pod on: before, it has no rules for it.
    let is_known = |bridge: &str| bridge == network.bridge.name || has_ports(facts, bridge);
    for (bridge, has) in bridges.into_iter().filter(|(bridge, _)| is_known(bridge)) {
        let filters = FILTERS.iter();
        let filters = filters.filter(|filter| if filter.is_six { has.six } else { has.four });
        found.extend(filters.filter_map(|filter| dropped(facts, filter, bridge)));
        let firewalld = firewalld.as_ref();
        found.extend(firewalld.and_then(|it| it.check(facts, bridge, &subnets(facts, bridge))));
    }
    found
}

/// Says what the bridges of the node have by default, where that is not what new nodes have.
fn defaults(facts: &Facts) -> Option<Finding> {
    let config = &facts.config;
    let has_bridge = config.nomad.enabled || config.swarm.enabled || has_pods_on_bridge(config);
    match &facts.network_defaults {
        UsedDefaults::Known(NetworkDefaults::Cni) if has_bridge => {
            let network = &config.network;
            let found = format!(
                "driver {}, isolation {}, direct_routing {}",
                network.bridge.driver().name(),
                network.isolation().name(),
                network.direct_routing()
            );
            let finding = Finding::new(&FORMER_NETWORK, found);
            Some(finding.command("switchyard config dump --origin"))
        }
        UsedDefaults::Unknown(why) => Some(Finding::new(&UNKNOWN_NETWORK, why)),
        UsedDefaults::None | UsedDefaults::Known(_) => None,
    }
}

/// Returns whether containers are connected to a bridge.
fn has_ports(facts: &Facts, bridge: &str) -> bool {
    let ports = Path::new(NETWORK_DEVICES).join(bridge).join("brif");
    facts.view.list(&ports).is_ok_and(|ports| !ports.is_empty())
}

/// The subnets of a bridge of the gateway; none of that of pods while nobody tells them.
fn subnets(facts: &Facts, bridge: &str) -> Vec<Subnet> {
    if bridge == facts.config.network.bridge.name {
        own_ranges(&facts.config)
    } else {
        bridge_ranges(facts)
    }
}

/// Looks for tables that are not as a daemon makes them.
fn changed(facts: &Facts) -> Option<Finding> {
    // A look would load the module.
    if !has_nf_tables(facts) {
        return None;
    }
    let changed = || -> BTreeSet<String> {
        let tables = facts.view.network_tables().unwrap_or_default();
        let changed = tables.into_iter().filter(|table| !table.intact);
        changed.map(|table| table.name).collect()
    };
    let first = changed();
    if first.is_empty() {
        return None;
    }
    // While a daemon makes a table anew, one look may see a part of each.
    let names: Vec<String> = first.intersection(&changed()).cloned().collect();
    (!names.is_empty()).then(|| {
        let found = format!("sets, chains or rules of {} are others", names.join(", "));
        Finding::new(&TABLE_CHANGED, found).command("switchyard network show")
    })
}

fn lacking(facts: &Facts, has_six: bool) -> Option<Finding> {
    let modules = Modules::of(facts);
    let missing: Vec<&str> = MODULES
        .into_iter()
        .chain(has_six.then_some(MODULE_SIX))
        .filter(|name| modules.has(name) == Some(false))
        .collect();
    (!missing.is_empty()).then(|| {
        let found = format!(
            "neither loaded, built in nor installed: {}",
            missing.join(", ")
        );
        Finding::new(&NATIVE_LACKING, found)
    })
}

/// Checks whether a filter drops forwarded packets of a bridge of the gateway.
fn dropped(facts: &Facts, filter: &Filter, bridge: &str) -> Option<Finding> {
    let program = filter.program;
    let forward = forward_rules(facts, filter)?;
    let all = with_chains(facts, filter, without_plugins(&forward));
    let mut subnets = subnets(facts, bridge);
    subnets.retain(|subnet| subnet.first().is_ipv6() == filter.is_six);
    let ways = BridgeWays {
        bridges: &[bridge],
        subnets: &subnets,
        uplinks: &uplinks(facts, filter.is_six),
    };
    let accepted = Accepted::of(&all, &ways)?;
    let lacking = match (accepted.from, accepted.to) {
        (true, true) => return None,
        (true, false) => "what goes to ",
        (false, true) => "what comes from ",
        (false, false) => "",
    };
    let by = if accepted.lacking.is_empty() {
        String::new()
    } else {
        format!(" by {}", first_of(&accepted.lacking, NAMED_MAX))
    };
    let found = format!(
        "{program}: the policy of FORWARD is DROP, and no rule accepts {lacking}{bridge}{by}"
    );
    Some(Finding::new(&NATIVE_DROPPED, found).command(accept(program, &forward, bridge, &subnets)))
}

/// The interfaces with a default route of a family.
fn uplinks(facts: &Facts, is_six: bool) -> Vec<String> {
    let file = if is_six { routes::SIX } else { routes::FOUR };
    let text = facts.view.text(file).unwrap_or_default();
    let routes = if is_six {
        routes::parse("", &text)
    } else {
        routes::parse(&text, "")
    };
    let default = routes.into_iter().filter(Route::is_default);
    default.map(|route| route.interface).collect()
}

/// The rules without the one of the plugin firewall, which accepts only what plugins have connected. Pure.
fn without_plugins(forward: &str) -> String {
    let rules = forward
        .lines()
        .filter(|rule| !rule.ends_with("-j CNI-FORWARD"));
    rules.collect::<Vec<_>>().join("\n")
}

/// The commands that accept what the bridge forwards, from addresses of its subnets alone. Subnets that are not known here are known to the
/// daemon. Pure.
fn accept(program: &str, forward: &str, bridge: &str, subnets: &[Subnet]) -> String {
    if subnets.is_empty() {
        return RESTART.to_owned();
    }
    let subnets = subnets.iter().map(ToString::to_string);
    let commands: Vec<String> = if forward.contains(UFW) {
        subnets
            .map(|subnet| format!("ufw route allow in on {bridge} from {subnet}"))
            .chain([format!("ufw route allow out on {bridge}")])
            .collect()
    } else {
        let chain = if forward.contains(&format!("-j {DOCKER_USER}")) {
            DOCKER_USER
        } else {
            "FORWARD"
        };
        accept_conditions(bridge, subnets, true)
            .into_iter()
            .map(|packets| format!("{program} -I {chain} {packets} -j ACCEPT"))
            .collect()
    };
    commands.join(" && ")
}
