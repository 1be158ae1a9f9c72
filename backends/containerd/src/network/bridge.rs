//! The gateway's own network: a bridge on the node, created from a configuration of the gateway, not of the node, by CNI plugins or by the
//! daemon itself ([`super::native`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_cni as cni;
use switchyard_core::spec::Subnet;
use switchyard_core::{Error, Result};
use switchyard_linux::files::Durable;
use switchyard_linux::packages::{Needed, OsRelease};
use switchyard_namespaces::files;

use crate::base::config;
use crate::base::error::{from_cni, from_namespaces};
use crate::base::fs::{blocking, create_private_dir_blocking};
use crate::base::layout::Layout;
use crate::network::routes::{Conflict, Routes};

/// The longest interface name that Linux allows, in bytes.
const NAME_MAX: usize = 15;

/// The smallest MTU with which the kernel has IPv6.
pub(super) const IPV6_MTU_MIN: u32 = 1280;

/// The bits of the smallest range: the plugin host-local takes none with fewer than four addresses.
const RANGE_BITS_MIN: u8 = 2;

/// Ranges whose addresses no container can have on a bridge: of loopback, multicast, and of IPv6 the link-local ones.
const SPECIAL: [(IpAddr, u8); 6] = [
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 96),
    (IpAddr::V6(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped()), 96),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// A bridge network of the gateway: its own, or that of pods.
#[derive(Debug, Clone)]
pub(crate) struct BridgeNetwork {
    list: Arc<cni::NetworkList>,
    subnets: Vec<Subnet>,
    key: RangeKey,
}

/// Source of the ranges of a bridge.
#[derive(Debug, Clone, Copy)]
pub(super) enum RangeKey {
    /// The configuration of the gateway's own bridge.
    Own,
    /// The configuration of the bridge of pods.
    Pods,
    /// The kubelet, for the bridge of pods.
    Told,
}

// === impl config::BridgeConfig ===

impl config::BridgeConfig {
    /// Checks the values beyond their types.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the key.
    pub fn check(&self) -> Result<()> {
        self.ranges().map(drop)
    }

    fn ranges(&self) -> Result<Vec<Subnet>> {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let sound = self.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && self.name.chars().all(letter);
        if !sound || self.name.len() > NAME_MAX {
            let why = format!(
                "{:?} is not the name of an interface, of at most {NAME_MAX} letters and digits",
                self.name
            );
            return Err(Error::invalid("name", why));
        }
        let ranges: Vec<Subnet> = self
            .subnets
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_>>()?;
        let of_six = ranges
            .iter()
            .filter(|range| range.first().is_ipv6())
            .count();
        if ranges.is_empty() || of_six > 1 || ranges.len() - of_six > 1 {
            let why = format!(
                "a range of IPv4, one of IPv6, or both, not {}",
                self.subnets.join(", ")
            );
            return Err(Error::invalid("subnets", why));
        }
        if let Some(why) = ranges.iter().find_map(unusable) {
            return Err(Error::invalid("subnets", why));
        }
        // Below its minimum the kernel takes no address of a family.
        let least = if of_six > 0 { IPV6_MTU_MIN } else { 68 };
        if self.mtu != 0 && !(least..=65_535).contains(&self.mtu) {
            let family = if of_six > 0 { " with IPv6" } else { "" };
            let why = format!(
                "{} is neither 0 nor within {least} to 65535{family}",
                self.mtu
            );
            return Err(Error::invalid("mtu", why));
        }
        Ok(ranges)
    }

    /// The configuration list for the plugins.
    fn conflist(&self, subnets: &[Subnet]) -> Value {
        let ranges: Vec<Value> = subnets
            .iter()
            .map(|subnet| json!([{ "subnet": subnet.to_string() }]))
            .collect();
        let all = |subnet: &Subnet| {
            if subnet.first().is_ipv6() {
                "::/0"
            } else {
                "0.0.0.0/0"
            }
        };
        let routes: Vec<Value> = subnets
            .iter()
            .map(|subnet| json!({ "dst": all(subnet) }))
            .collect();
        conflist(BridgeList {
            name: &self.name,
            is_gateway: true,
            has_masquerade: true,
            mtu: self.mtu,
            addresses_dir: &self.addresses_dir,
            ranges,
            routes,
        })
    }
}

/// The reason why a bridge cannot have a range, if it cannot.
fn unusable(range: &Subnet) -> Option<String> {
    let bits: u8 = if range.first().is_ipv4() { 32 } else { 128 };
    if bits.saturating_sub(range.prefix()) < RANGE_BITS_MIN {
        return Some(format!("{range} has fewer than four addresses"));
    }
    let mut special = SPECIAL
        .iter()
        .map(|(first, prefix)| Subnet::of(*first, *prefix));
    let special = special.find(|special| special.overlaps(range))?;
    Some(format!(
        "{range} has addresses of {special}, which are of loopback, multicast or link-local: choose a private range, as 172.26.80.0/20 or fd00:26:80::/64"
    ))
}

/// In what the configuration lists of bridge networks differ.
pub(super) struct BridgeList<'a> {
    /// The name of the network and of its bridge.
    pub(super) name: &'a str,
    /// True if the bridge has an address, by which sandboxes reach other networks.
    pub(super) is_gateway: bool,
    /// True if packets to other networks get the address of the node.
    pub(super) has_masquerade: bool,
    /// The MTU in bytes; 0 for the kernel's default.
    pub(super) mtu: u32,
    /// Directory in which `host-local` stores the addresses in use.
    pub(super) addresses_dir: &'a Path,
    /// The pools of addresses, and the routes of sandboxes, as `host-local` takes them.
    pub(super) ranges: Vec<Value>,
    pub(super) routes: Vec<Value>,
}

/// The configuration list of a bridge network. `hairpinMode` and `snat` let a sandbox reach ports that are
/// published on the node from inside; the rules of the `firewall` plugin admit forwarded packets where the
/// node's own policy drops them.
pub(super) fn conflist(list: BridgeList<'_>) -> Value {
    let BridgeList {
        name,
        is_gateway,
        has_masquerade,
        mtu,
        addresses_dir,
        ranges,
        routes,
    } = list;
    let mut bridge = json!({
        "type": "bridge", "bridge": name, "isGateway": is_gateway, "ipMasq": has_masquerade, "hairpinMode": true,
        "capabilities": { "mac": true, "ips": true },
        "ipam": { "type": "host-local", "dataDir": addresses_dir, "ranges": ranges, "routes": routes },
    });
    if mtu != 0 {
        bridge["mtu"] = mtu.into();
    }
    json!({
        "cniVersion": "1.0.0", "name": name, "plugins": [
            bridge,
            { "type": "firewall" },
            { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
        ],
    })
}

/// The programs that the plugins of bridge networks run; `firewall` needs both, whatever the families of a network are.
const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

/// Checks that the node has the programs that the plugins of bridge networks run.
///
/// # Errors
/// `Unavailable`, naming the network.
pub(super) fn check_programs(network: &str) -> Result<()> {
    match missing(&PROGRAMS, is_program) {
        None => Ok(()),
        Some(missing) => Err(Error::unavailable(format!(
            "network {network}: its plugins portmap and firewall need {missing}, which is not in PATH: {}",
            OsRelease::of_node().advice(Needed::Iptables)
        ))),
    }
}

/// The programs that are missing, for people.
fn missing(programs: &[&str], is_there: impl Fn(&str) -> bool) -> Option<String> {
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|program| !is_there(program))
        .collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

// === impl BridgeNetwork ===

impl BridgeNetwork {
    /// The network of this configuration. Its configuration list is also written to a file, for inspection: that it
    /// cannot be written is no error. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid configuration.
    pub(crate) fn new(config: &config::BridgeConfig, layout: &Layout) -> Result<Self> {
        let path = layout.bridge(&config.name);
        let (network, text) = Self::of(config, &path, RangeKey::Own)
            .map_err(|error| error.context("network.bridge"))?;
        if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            let written = create_private_dir_blocking(path.parent().unwrap_or(Path::new("/")))
                .and_then(|()| {
                    files::write(&path, text.as_bytes(), 0o644, Durable::No)
                        .map_err(from_namespaces)
                });
            if let Err(error) = written {
                tracing::warn!(
                    error = error.report(),
                    "cannot write the configuration of the gateway's own network for inspection"
                );
            }
        }
        Ok(network)
    }

    /// The network of this configuration, and its configuration list as text, which may be stored at `path`. Pure.
    pub(super) fn of(
        config: &config::BridgeConfig,
        path: &Path,
        key: RangeKey,
    ) -> Result<(Self, String)> {
        let subnets = config.ranges()?;
        let text = format!("{:#}\n", config.conflist(&subnets));
        let list = cni::NetworkList::parse(path, text.as_bytes()).map_err(from_cni)?;
        let list = Arc::new(list);
        let network = Self { list, subnets, key };
        Ok((network, text))
    }

    /// Its configuration list.
    pub(crate) fn list(&self) -> &Arc<cni::NetworkList> {
        &self.list
    }

    /// The host's address on the bridge, of the first range.
    pub(crate) fn host(&self) -> IpAddr {
        let first = self.hosts().next();
        first.unwrap_or_else(|| unreachable!("a bridge has a range"))
    }

    /// The host's addresses on the bridge: plugins give it the first one of each range.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().map(|subnet| match subnet.first() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().saturating_add(1)).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits().saturating_add(1)).into(),
        })
    }

    /// Its ranges.
    pub(crate) fn subnets(&self) -> &[Subnet] {
        &self.subnets
    }

    /// Its name and ranges, for the status.
    pub(crate) fn summary(&self) -> String {
        let subnets: Vec<_> = self.subnets.iter().map(ToString::to_string).collect();
        format!("{} {}", self.list.name, subnets.join(" "))
    }

    /// Its configuration list, for a sandbox that is to be connected. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the node already has a route to addresses of the ranges, or if its routes are not known.
    pub(crate) async fn list_if_free(&self) -> Result<Arc<cni::NetworkList>> {
        // Once the bridge exists, the routes to its ranges are its own.
        if !switchyard_namespaces::has_device(&self.list.name) {
            let network = self.clone();
            blocking(move || network.check_routes(&Routes::read(&network.list.name)?)).await?;
        }
        Ok(Arc::clone(&self.list))
    }

    /// Checks that nobody else of the node has an address of the ranges: no route of another interface; of ranges that a cluster has given,
    /// those to more addresses do not count. Pure.
    ///
    /// # Errors
    /// `Unavailable` if somebody has.
    pub(super) fn check_routes(&self, routes: &Routes) -> Result<()> {
        let name = &self.list.name;
        let mut ranges = self.subnets.iter();
        let (found, key) = match self.key {
            RangeKey::Own => (
                ranges.find_map(|range| routes.conflict(range, name)),
                "network.bridge.subnets",
            ),
            RangeKey::Pods => (
                ranges.find_map(|range| routes.conflict(range, name)),
                "network.pods.subnets",
            ),
            RangeKey::Told => (
                ranges.find_map(|range| routes.conflict_within(range, name)),
                "the podCIDR of the node",
            ),
        };
        let Some(Conflict { interface, why }) = found else {
            return Ok(());
        };
        Err(Error::unavailable(format!(
            "network {name}: {} is taken: {why}; choose a free range as {key}, or delete {interface} if it is a bridge that nothing uses any more",
            self.summary()
        )))
    }
}

/// Returns whether a program is where plugins look for one.
fn is_program(name: &str) -> bool {
    std::env::split_paths(&cni::program_path()).any(|dir| dir.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_bridge_is_refused_by_its_key() {
        let check = |change: fn(&mut config::BridgeConfig), key: &str| {
            let mut config = config::BridgeConfig::default();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        config::BridgeConfig::default().check().unwrap();
        check(
            |config| config.name = "a name that is too long".into(),
            "name: ",
        );
        check(|config| config.name = "a/b".into(), "name: ");
        check(|config| config.subnets.clear(), "subnets: ");
        check(
            |config| config.subnets.push("10.1.0.0/16".into()),
            "subnets: ",
        );
        check(|config| config.subnets = vec!["10.1".into()], "subnet: ");
        for (range, is_right) in [
            ("172.26.80.0/20", true),
            ("10.1.2.0/30", true),
            ("10.1.2.0/31", false),
            ("127.1.0.0/16", false),
            ("224.0.0.0/24", false),
            ("0.0.0.0/0", false),
            ("fd00::/64", true),
            ("2001:db8::/126", true),
            ("fd00::/127", false),
            ("fe80::/64", false),
            ("ff02::/64", false),
            ("::/112", false),
            ("::ffff:10.1.0.0/112", false),
        ] {
            let config = config::BridgeConfig {
                subnets: vec![range.into()],
                ..config::BridgeConfig::default()
            };
            let found = config.check().map_err(|error| error.to_string());
            let is_told = |error: &String| error.starts_with("subnets: ") && error.contains('/');
            assert_eq!(found.is_ok(), is_right, "{range}: {found:?}");
            assert!(found.as_ref().err().is_none_or(is_told), "{found:?}");
        }
        for (six, mtu, is_right) in [
            (false, 7, false),
            (false, 68, true),
            (false, 1279, true),
            (true, 0, true),
            (true, 1279, false),
            (true, 1280, true),
            (true, 65_536, false),
        ] {
            let mut config = config::BridgeConfig {
                mtu,
                ..config::BridgeConfig::default()
            };
            if six {
                config.subnets.push("fd00::/64".into());
            }
            let found = config.check().map_err(|error| error.to_string());
            let is_told = |error: &String| error.starts_with("mtu: ");
            assert_eq!(found.is_ok(), is_right, "{six} {mtu}: {found:?}");
            assert!(found.as_ref().err().is_none_or(is_told), "{found:?}");
        }
    }

    #[test]
    fn programs_of_both_families_are_needed() {
        let found = |there: &[&str]| missing(&PROGRAMS, |program| there.contains(&program));
        for (there, expected) in [
            (&["iptables", "ip6tables"][..], None),
            (&["iptables"][..], Some("ip6tables")),
            (&["ip6tables"][..], Some("iptables")),
            (&[][..], Some("iptables and ip6tables")),
        ] {
            assert_eq!(found(there).as_deref(), expected);
        }
    }

    #[test]
    fn network_is_there_without_its_file_for_inspection() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("network"),
            "a file in the way of the directory",
        )
        .unwrap();
        let layout = Layout::new(dir.path(), dir.path());
        BridgeNetwork::new(&config::BridgeConfig::default(), &layout).unwrap();
    }

    #[test]
    fn both_families_have_a_range_and_a_route_each() {
        let config = config::BridgeConfig {
            subnets: vec!["10.1.2.3/16".into(), "fd00::/64".into()],
            mtu: 1400,
            ..config::BridgeConfig::default()
        };
        let list = config.conflist(&config.ranges().unwrap());
        let plugin = &list["plugins"][0];
        assert_eq!(plugin["mtu"], 1400);
        assert_eq!(
            plugin["ipam"]["ranges"],
            json!([[{ "subnet": "10.1.0.0/16" }], [{ "subnet": "fd00::/64" }]])
        );
        assert_eq!(
            plugin["ipam"]["routes"],
            json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])
        );
    }
}
