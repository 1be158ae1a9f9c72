//! Checks of the section `[network]`, the drivers of the gateway's bridges, and the network of pods.

use serde::{Deserialize, Serialize};
use switchyard_linux::resolv_conf::{Families, unreachable};
use switchyard_namespaces::files::check_server;
use switchyard_network::nft::BridgeName;

use super::{BridgeConfig, NetworkConfig};

/// `cri.network`: the network of new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodNetworkChoice {
    /// That of the node's CNI configuration.
    #[default]
    Cni,
    /// A bridge of the gateway, which needs no such configuration.
    Bridge,
}

/// `[network.pods]`: the bridge of pods, if they have one of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PodsConfig {
    /// The name of the network and of its bridge, which is created for the first pod.
    pub name: String,
    /// The ranges of its addresses while no kubelet has told the `podCIDR` of the node: one of IPv4, one of IPv6, both, or none.
    pub subnets: Vec<String>,
    /// The MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
}

impl Default for PodsConfig {
    fn default() -> Self {
        Self {
            name: "switchyard-pods".into(),
            subnets: Vec::new(),
            mtu: 0,
        }
    }
}

/// Who attaches new sandboxes to the gateway's bridges. An attachment is undone by whoever has made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeDriverChoice {
    /// CNI plugins.
    #[default]
    Cni,
    /// The daemon itself, where the kernel can do all that it needs; else CNI plugins.
    Native,
}

/// Which bridges of the gateway reach each other, other than by published ports. Each reaches itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationChoice {
    /// All do.
    #[default]
    None,
    /// None do.
    Bridge,
    /// Those of one owner do.
    Owner,
}

// === impl BridgeConfig ===

impl Default for BridgeConfig {
    fn default() -> Self {
        Self {
            name: "switchyard0".into(),
            subnets: vec!["172.26.80.0/20".into()],
            mtu: 0,
            addresses_dir: "/var/lib/cni/networks".into(),
            driver: BridgeDriverChoice::default(),
            ipv6: true,
        }
    }
}

impl BridgeConfig {
    /// Returns whether the daemon is to attach sandboxes itself.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.driver == BridgeDriverChoice::Native
    }
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Checks the values beyond their types.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let wrong = self.dns.iter().find_map(|server| {
            let families = Families::of(&[]);
            if let Err(error) = check_server(server) {
                return Some(error.to_string());
            }
            let why = unreachable(server, families)?.as_str();
            Some(format!("{server} {why}: no container can ask it"))
        });
        if let Some(why) = wrong {
            return Err(("dns", why));
        }
        self.check_isolation()?;
        self.bridge
            .check()
            .map_err(|error| ("bridge", error.to_string()))?;
        self.pods
            .check(&self.bridge)
            .map_err(|error| ("pods", error.to_string()))
    }

    /// Checks what keeps bridges apart: a key that would have no effect is refused, since it was to close something.
    fn check_isolation(&self) -> Result<(), (&'static str, String)> {
        let mut names = self.isolation_allow.iter().flat_map(|(a, b)| [a, b]);
        if let Some(error) = names.find_map(|name| BridgeName::new(name).err()) {
            return Err(("isolation_allow", error.to_string()));
        }
        let closing = [
            ("isolation", self.isolation != IsolationChoice::None),
            ("direct_routing", !self.direct_routing),
        ];
        match closing.into_iter().find(|(_, closes)| *closes) {
            Some((key, _)) if !self.bridge.is_native() => Err((
                key,
                "only the driver \"native\" closes this: set network.bridge.driver to it, since CNI plugins leave it open".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_native_driver_closes_is_refused_with_plugins() {
        let wrong = |change: &dyn Fn(&mut NetworkConfig), is_native: bool| {
            let mut config = NetworkConfig::default();
            if is_native {
                config.bridge.driver = BridgeDriverChoice::Native;
            }
            change(&mut config);
            config.check().err().map(|(key, _)| key)
        };
        let isolated = |choice| move |config: &mut NetworkConfig| config.isolation = choice;
        let closed = |config: &mut NetworkConfig| config.direct_routing = false;
        let open = isolated(IsolationChoice::None);
        let by_bridge = isolated(IsolationChoice::Bridge);
        let by_owner = isolated(IsolationChoice::Owner);
        for is_native in [true, false] {
            let refused = |key| (!is_native).then_some(key);
            assert_eq!(wrong(&open, is_native), None);
            assert_eq!(wrong(&by_bridge, is_native), refused("isolation"));
            assert_eq!(wrong(&by_owner, is_native), refused("isolation"));
            assert_eq!(wrong(&closed, is_native), refused("direct_routing"));
            for (a, b, is_name) in [
                ("switchyard0", "swy-2", true),
                ("switchyard0", "switchyard0", true),
                ("switchyard0", "", false),
                ("sw*", "switchyard0", false),
                ("switchyard0", "sixteen-bytes-xx", false),
                ("a b", "switchyard0", false),
            ] {
                let pair = |config: &mut NetworkConfig| {
                    config.isolation_allow = vec![(a.to_owned(), b.to_owned())];
                };
                let expected = (!is_name).then_some("isolation_allow");
                assert_eq!(wrong(&pair, is_native), expected, "{a:?} {b:?}");
            }
        }
    }
}
