//! Checks of the addresses that the plugin `host-local` gives out: how many are left, and for whom the others are held.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde_json::Value;
use switchyard_cni::NetworkList;
use switchyard_core::spec::Subnet;
use switchyard_operator_api::Objects;
use switchyard_operator_api::text::short;

use super::codes::runtime::FEW_ADDRESSES;
use super::facts::{Facts, ask};
use super::finding::{Finding, Severity};
use super::network::networks;
use super::pod_bridge::{bridge_ranges, has_pods_on_bridge, own_ranges, told_ranges};
use super::text::first_of;

/// The plugin's default data directory.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// From which part of them in use on few addresses are left, in percent.
const NEAR: u128 = 90;

/// The most sets of ranges of one network.
const SETS_MAX: usize = 64;

/// The most addresses whose holders are looked up.
const HOLDERS_MAX: usize = 4096;

/// Maximum number of addresses that a finding names.
const NAMED_MAX: usize = 3;

/// The addresses of a network of which each of its sandboxes gets one.
struct AddressPool {
    /// The network.
    network: String,
    /// The directory in which each address in use has a file, with its holder.
    dir: PathBuf,
    ranges: Vec<AddressRange>,
}

/// The addresses from one to another.
struct AddressRange {
    first: IpAddr,
    last: IpAddr,
    /// The address of the gateway, which no sandbox gets.
    gateway: IpAddr,
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let pools = pools(facts);
    pools
        .iter()
        .filter_map(|pool| nearly_used(facts, pool))
        .collect()
}

/// The pools of the gateway's bridge network, and of the network of pods.
fn pools(facts: &Facts) -> Vec<AddressPool> {
    let mut found = Vec::new();
    if facts.config.nomad.enabled {
        let bridge = &facts.config.network.bridge;
        let subnets = own_ranges(&facts.config).into_iter();
        found.extend(subnets.map(|subnet| AddressPool {
            network: bridge.name.clone(),
            dir: bridge.addresses_dir.join(&bridge.name),
            ranges: vec![AddressRange::of(subnet)],
        }));
    }
    if has_pods_on_bridge(&facts.config) {
        found.extend(pools_of_bridge(facts));
    } else if facts.config.cri.enabled {
        let network = networks(facts).into_iter().flatten().next();
        found.extend(network.iter().flat_map(|network| pools_of(facts, network)));
    }
    found
}

/// The pools of the bridge of pods.
fn pools_of_bridge(facts: &Facts) -> Vec<AddressPool> {
    let network = &facts.config.network;
    let pool = |range| AddressPool {
        network: network.pods.name.clone(),
        dir: network.bridge.addresses_dir.join(&network.pods.name),
        ranges: vec![AddressRange::of(range)],
    };
    bridge_ranges(facts).into_iter().map(pool).collect()
}

fn pools_of(facts: &Facts, network: &NetworkList) -> Vec<AddressPool> {
    let mut found = Vec::new();
    for plugin in &network.plugins {
        let Some(ipam) = plugin.get("ipam") else {
            continue;
        };
        if ipam["type"] != "host-local" {
            continue;
        }
        let data_dir = ipam.get("dataDir").and_then(Value::as_str);
        let dir = Path::new(data_dir.unwrap_or(DATA_DIR)).join(&network.name);
        let mut sets = sets_of(ipam);
        let capabilities = plugin.get("capabilities");
        if sets.is_empty() && capabilities.is_some_and(|known| known["ipRanges"] == true) {
            let told = told_ranges(facts).into_iter();
            sets = told.map(|range| vec![AddressRange::of(range)]).collect();
        }
        let sets = sets.into_iter().take(SETS_MAX);
        found.extend(sets.map(|ranges| AddressPool {
            network: network.name.clone(),
            dir: dir.clone(),
            ranges,
        }));
    }
    found
}

/// The sets of ranges in a configuration of the plugin, of both forms. A sandbox gets one address of each set.
fn sets_of(ipam: &Value) -> Vec<Vec<AddressRange>> {
    let single = AddressRange::of_json(ipam).map(|range| vec![range]);
    let several = ipam.get("ranges").and_then(Value::as_array);
    let several = several.into_iter().flatten().filter_map(|set| {
        let ranges = set.as_array()?.iter();
        Some(ranges.filter_map(AddressRange::of_json).collect())
    });
    single.into_iter().chain(several).collect()
}

fn nearly_used(facts: &Facts, pool: &AddressPool) -> Option<Finding> {
    let names = facts.view.list(&pool.dir).ok()?;
    let taken: Vec<(IpAddr, &String)> = names
        .iter()
        .filter_map(|name| Some((address(name)?, name)))
        .filter(|(address, _)| pool.ranges.iter().any(|range| range.contains(*address)))
        .collect();
    let used = u128::try_from(taken.len()).unwrap_or(u128::MAX);
    let sizes = pool.ranges.iter().map(AddressRange::size);
    let size = sizes.fold(0, u128::saturating_add);
    if size == 0 || used.saturating_mul(100) < size.saturating_mul(NEAR) {
        return None;
    }
    let ranges: Vec<String> = pool
        .ranges
        .iter()
        .map(|range| format!("{} to {}", range.first, range.last))
        .collect();
    let mut found = format!(
        "{}: {used} of {size} addresses are in use ({})",
        pool.network,
        first_of(&ranges, NAMED_MAX)
    );
    let strangers = strangers(facts, pool, &taken);
    if !strangers.is_empty() {
        found.push_str(&format!(
            "; {} of them for containers that the daemon does not know: {}",
            strangers.len(),
            first_of(&strangers, NAMED_MAX)
        ));
    }
    let severity = if used < size {
        Severity::Warning
    } else {
        Severity::Error
    };
    let list = format!("grep -r . {}", pool.dir.display());
    Some(
        Finding::new(&FEW_ADDRESSES, found)
            .severity(severity)
            .command(list),
    )
}

/// The addresses whose holders are no sandboxes of the daemon; none if it does not answer.
fn strangers(facts: &Facts, pool: &AddressPool, taken: &[(IpAddr, &String)]) -> Vec<String> {
    let objects = ask::<Objects>(&*facts.view, &facts.admin_socket, "/v1/objects");
    let Ok(objects) = objects else {
        return Vec::new();
    };
    let sandboxes = objects.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    let unreadable = objects.unreadable.iter().map(|held| held.id.as_str());
    let known: BTreeSet<&str> = sandboxes.chain(unreadable).collect();
    let stranger = |(address, name): &(IpAddr, &String)| {
        // It may have been freed meanwhile.
        let text = facts.view.text(pool.dir.join(name))?;
        let holder = text.lines().next().unwrap_or_default().trim();
        (!known.contains(holder)).then(|| format!("{address} ({})", short(holder)))
    };
    taken
        .iter()
        .take(HOLDERS_MAX)
        .filter_map(stranger)
        .collect()
}

/// The address that a file of the plugin is about; IPv6 addresses may have another character instead of colons.
fn address(name: &str) -> Option<IpAddr> {
    let plain = name.parse::<IpAddr>().ok();
    plain.or_else(|| {
        let other = name.replace('_', ":").parse::<Ipv6Addr>();
        other.ok().map(IpAddr::V6)
    })
}

/// An address as a number.
const fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u128,
        IpAddr::V6(address) => address.to_bits(),
    }
}

// === impl AddressRange ===

impl AddressRange {
    /// The range that the plugin takes by default: without the first address and, in IPv4, the last.
    fn of(subnet: Subnet) -> Self {
        let first = match subnet.first() {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from(first.to_bits().saturating_add(1))),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from(first.to_bits().saturating_add(1))),
        };
        let last = match subnet.last() {
            IpAddr::V4(last) => IpAddr::V4(Ipv4Addr::from(last.to_bits().saturating_sub(1))),
            last @ IpAddr::V6(_) => last,
        };
        Self {
            first,
            last,
            gateway: first,
        }
    }

    /// A range in the plugin's configuration.
    fn of_json(range: &Value) -> Option<Self> {
        let subnet = range.get("subnet")?.as_str()?.parse().ok()?;
        let address = |key: &str| range.get(key)?.as_str()?.parse::<IpAddr>().ok();
        let whole = Self::of(subnet);
        Some(Self {
            first: address("rangeStart").unwrap_or(whole.first),
            last: address("rangeEnd").unwrap_or(whole.last),
            gateway: address("gateway").unwrap_or(whole.gateway),
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        // Addresses of IPv4 come before those of IPv6.
        (self.first..=self.last).contains(&address)
    }

    /// The number of its addresses for sandboxes.
    fn size(&self) -> u128 {
        let between = bits(self.last).checked_sub(bits(self.first));
        let all = between.map_or(0, |between| between.saturating_add(1));
        all.saturating_sub(u128::from(self.contains(self.gateway)))
    }
}
