//! Checks of CNI configurations, CNI plugins and the packet filter.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use switchyard_cni::{NetworkList, PluginConf};
use switchyard_core::spec::Subnet;
use switchyard_linux::packages::Needed;
use switchyard_linux::report;

use super::accepted::{Accepted, BridgeWays, drops_by_policy, jumps};
use super::codes::runtime::{
    CNI_CONFIG_SKIPPED, FORWARD_DROP, NO_BRIDGE_PLUGIN, NO_CNI_CONFIG, NO_CNI_PLUGIN, NO_IPTABLES,
};
use super::facts::Facts;
use super::finding::Finding;
use super::pod_bridge::has_pods_on_bridge;
use super::text::listed;
use super::view::FILE_MAX;

/// The bridge of the plugin `bridge`, unless its configuration names one.
pub(super) const DEFAULT_BRIDGE: &str = "cni0";

/// Maximum number of configurations of a directory that are read.
const CONFIGS_MAX: usize = 64;

/// The most chains of a filter that are read besides FORWARD, and of those the most that cannot be: the program may wait for others each time.
const CHAINS_MAX: usize = 32;
const UNREAD_MAX: usize = 3;

/// The plugins of the gateway's own bridge network.
const BRIDGE_PLUGINS: [&str; 4] = ["bridge", "host-local", "firewall", "portmap"];

/// The packet filter of a family.
pub(super) struct Filter {
    pub(super) program: &'static str,
    /// The tables that an old one has loaded.
    tables: &'static str,
    pub(super) is_six: bool,
}

pub(super) const FILTERS: [Filter; 2] = [
    Filter {
        program: "iptables",
        tables: "/proc/net/ip_tables_names",
        is_six: false,
    },
    Filter {
        program: "ip6tables",
        tables: "/proc/net/ip6_tables_names",
        is_six: true,
    },
];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let (network, skipped) = node_network(facts);
    let pods_on_bridge = has_pods_on_bridge(&facts.config);
    if facts.config.cri.enabled && !pods_on_bridge {
        found.extend(
            skipped
                .iter()
                .map(|why| Finding::new(&CNI_CONFIG_SKIPPED, why)),
        );
        match &network {
            Some(network) => found.extend(plugins(facts, network)),
            None => found.push(Finding::new(
                &NO_CNI_CONFIG,
                format!("{} has none", facts.config.network.conf_dir.display()),
            )),
        }
        let policies = network.iter().flat_map(|network| {
            let has_six = ranges(network).any(|range| range.first().is_ipv6());
            let filters = FILTERS
                .iter()
                .filter(move |filter| has_six || !filter.is_six);
            filters.filter_map(move |filter| forward_policy(facts, network, filter))
        });
        found.extend(policies);
    }
    // Where the kernel cannot do without plugins, that is a finding of its own.
    let is_native = facts.config.network.bridge.is_native();
    if (facts.config.nomad.enabled || pods_on_bridge) && !is_native {
        found.extend(bridge_plugins(facts));
        let missing = FILTERS.iter().map(|filter| filter.program);
        let missing: Vec<&str> = missing
            .filter(|program| facts.program(program).is_none())
            .collect();
        if !missing.is_empty() {
            let dirs = listed(&facts.program_dirs);
            let found_in = format!("{} in none of {dirs}", missing.join(", "));
            let finding = Finding::new(&NO_IPTABLES, found_in);
            found.push(finding.command_if(facts.install_command(Needed::Iptables)));
        }
    }
    found
}

/// The configurations in the directory, in the order in which they are tried.
pub(super) fn networks(facts: &Facts) -> Vec<Result<NetworkList, String>> {
    let dir = &facts.config.network.conf_dir;
    let names = facts.view.list(dir).unwrap_or_default();
    let files = names
        .iter()
        .map(|name| dir.join(name))
        .filter(|path| is_config(path));
    files
        .take(CONFIGS_MAX)
        .map(|path| parse(facts, &path))
        .collect()
}

fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("conflist" | "conf" | "json"))
}

fn parse(facts: &Facts, path: &Path) -> Result<NetworkList, String> {
    let raw = facts
        .view
        .read(path, FILE_MAX)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    // The text of a configuration may hold anything: of the error only the cause is shown.
    NetworkList::parse_file(path, &raw).map_err(|error| report(&error))
}

/// The network of pods, and why files before it are skipped.
pub(super) fn node_network(facts: &Facts) -> (Option<NetworkList>, Vec<String>) {
    let mut skipped = Vec::new();
    for network in networks(facts) {
        match network {
            Ok(network) => return (Some(network), skipped),
            Err(why) => skipped.push(why),
        }
    }
    (None, skipped)
}

/// The ranges in a host-local configuration, of both forms.
fn subnets_of(ipam: &Value) -> Vec<Subnet> {
    let single = ipam.get("subnet").into_iter();
    let sets = ipam
        .get("ranges")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let several = sets
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|range| range.get("subnet"));
    single
        .chain(several)
        .filter_map(Value::as_str)
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// The ranges of a network, as far as its configuration has any.
pub(super) fn ranges(network: &NetworkList) -> impl Iterator<Item = Subnet> {
    let plugins = network.plugins.iter();
    plugins
        .filter_map(|plugin| plugin.get("ipam"))
        .flat_map(subnets_of)
}

/// The plugins of a network that are not installed.
fn plugins(facts: &Facts, network: &NetworkList) -> Vec<Finding> {
    let mut names: Vec<&str> = Vec::new();
    for plugin in &network.plugins {
        let of_plugin = plugin.get("type").and_then(Value::as_str);
        let of_addresses = plugin
            .get("ipam")
            .and_then(|ipam| ipam.get("type"))
            .and_then(Value::as_str);
        names.extend(of_plugin.into_iter().chain(of_addresses));
    }
    names.sort_unstable();
    names.dedup();
    let missing = names.into_iter().filter(|name| !is_installed(facts, name));
    let dirs = listed(&facts.config.network.bin_dirs);
    missing
        .map(|name| {
            let found = format!(
                "{}: plugin {name:?} is in none of {dirs}",
                network.source.display()
            );
            Finding::new(&NO_CNI_PLUGIN, found)
        })
        .collect()
}

fn is_installed(facts: &Facts, plugin: &str) -> bool {
    // A name with a slash is none: plugins are files of the directories.
    !plugin.contains('/')
        && facts
            .view
            .program(plugin, &facts.config.network.bin_dirs)
            .is_some()
}

fn bridge_plugins(facts: &Facts) -> Option<Finding> {
    let missing: Vec<&str> = BRIDGE_PLUGINS
        .into_iter()
        .filter(|plugin| !is_installed(facts, plugin))
        .collect();
    (!missing.is_empty()).then(|| {
        let dirs = listed(&facts.config.network.bin_dirs);
        Finding::new(
            &NO_BRIDGE_PLUGIN,
            format!("{} in none of {dirs}", missing.join(", ")),
        )
        .command_if(facts.install_command(Needed::CniPlugins))
    })
}

/// The text of a key of a plugin.
fn text_of<'a>(plugin: &'a PluginConf, key: &str) -> Option<&'a str> {
    plugin.get(key).and_then(Value::as_str)
}

/// Checks whether forwarded packets of the node's CNI network are dropped. The gateway's own network has the
/// plugin firewall, which accepts its packets.
fn forward_policy(facts: &Facts, network: &NetworkList, filter: &Filter) -> Option<Finding> {
    let plugins = &network.plugins;
    let bridges: Vec<&str> = plugins
        .iter()
        .filter(|plugin| text_of(plugin, "type") == Some("bridge"))
        .map(|plugin| text_of(plugin, "bridge").unwrap_or(DEFAULT_BRIDGE))
        .collect();
    let has_firewall = plugins
        .iter()
        .any(|plugin| text_of(plugin, "type") == Some("firewall"));
    if bridges.is_empty() || has_firewall {
        return None;
    }
    let rules = with_chains(facts, filter, forward_rules(facts, filter)?);
    let mut subnets: Vec<Subnet> = ranges(network).collect();
    subnets.retain(|subnet| subnet.first().is_ipv6() == filter.is_six);
    let program = filter.program;
    drops(&rules, &bridges, &subnets).then(|| {
        let found = format!(
            "{program}: the policy of FORWARD is DROP, and no rule accepts {}",
            bridges.join(", ")
        );
        Finding::new(&FORWARD_DROP, found).command(format!("{program} -S FORWARD"))
    })
}

/// The rules of the chain FORWARD. They are only asked for if that makes the kernel load no module.
pub(super) fn forward_rules(facts: &Facts, filter: &Filter) -> Option<String> {
    let version = facts.output(filter.program, &["--version"])?;
    let loaded = if version.contains("nf_tables") {
        facts.view.exists("/proc/net/netfilter") && has_nf_tables(facts)
    } else {
        facts
            .view
            .text(filter.tables)?
            .lines()
            .any(|table| table == "filter")
    };
    if loaded {
        facts.output(filter.program, &["-S", "FORWARD"])
    } else {
        None
    }
}

/// The same rules, with those of the chains to which they lead, if the policy drops what no rule accepts.
pub(super) fn with_chains(facts: &Facts, filter: &Filter, mut rules: String) -> String {
    if !drops_by_policy(&rules) {
        return rules;
    }
    let mut asked: BTreeSet<String> = BTreeSet::new();
    let mut unread = 0;
    while asked.len() < CHAINS_MAX && unread < UNREAD_MAX {
        let next = jumps(&rules).find(|chain| !asked.contains(*chain));
        let Some(chain) = next.map(str::to_owned) else {
            break;
        };
        match facts.output(filter.program, &["-S", chain.as_str()]) {
            Some(of_chain) => {
                rules.push('\n');
                rules.push_str(&of_chain);
            }
            None => unread += 1,
        }
        asked.insert(chain);
    }
    rules
}

pub(super) fn has_nf_tables(facts: &Facts) -> bool {
    let builtin = facts.modules_dir().join("modules.builtin");
    facts.view.exists("/sys/module/nf_tables")
        || facts
            .view
            .text(builtin)
            .is_some_and(|text| text.contains("/nf_tables.ko"))
}

/// Returns whether the rules drop what comes from all these bridges. Pure.
fn drops(rules: &str, bridges: &[&str], subnets: &[Subnet]) -> bool {
    let ways = BridgeWays {
        bridges,
        subnets,
        uplinks: &[],
    };
    let accepted = Accepted::of(rules, &ways);
    accepted.is_some_and(|accepted| !accepted.from)
}
