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

/// Choice of who attaches new sandboxes to the gateway's bridges. An attachment is undone by whoever has made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeDriverChoice {
    /// CNI plugins.
    #[default]
    Cni,
    /// The daemon itself, where the kernel can do all that it needs; else CNI plugins.
    Native,
}

/// Choice of the sandboxes on the gateway's bridges that send with their own addresses alone, if the daemon attaches them itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PinChoice {
    /// Those none of whose tasks may change addresses, by the capability NET_ADMIN.
    #[default]
    Auto,
    /// All.
    All,
    /// None.
    None,
}

/// Choice of the bridges of the gateway that reach each other, other than by published ports. Each reaches itself.
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

/// Values of `network.bridge.driver`, `network.isolation` and `network.direct_routing` on a node whose configuration does not set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkDefaults {
    /// CNI plugins attach sandboxes, and all bridges reach each other: as on nodes with objects of versions that had no other defaults.
    Cni,
    /// The daemon attaches them itself, and keeps its bridges apart.
    Native,
}

// === impl BridgeDriverChoice ===

impl BridgeDriverChoice {
    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cni => "cni",
            Self::Native => "native",
        }
    }
}

// === impl IsolationChoice ===

impl IsolationChoice {
    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bridge => "bridge",
            Self::Owner => "owner",
        }
    }
}

// === impl NetworkDefaults ===

impl NetworkDefaults {
    /// All.
    pub const ALL: [Self; 2] = [Self::Cni, Self::Native];

    /// The driver.
    #[must_use]
    pub const fn driver(self) -> BridgeDriverChoice {
        match self {
            Self::Cni => BridgeDriverChoice::Cni,
            Self::Native => BridgeDriverChoice::Native,
        }
    }
}

// === impl BridgeConfig ===

impl Default for BridgeConfig {
    fn default() -> Self {
        Self {
            name: "switchyard0".into(),
            subnets: vec!["172.26.80.0/20".into()],
            mtu: 0,
            addresses_dir: "/var/lib/cni/networks".into(),
            driver: None,
            pin: PinChoice::default(),
            ipv6: true,
        }
    }
}

impl BridgeConfig {
    /// Returns who attaches new sandboxes; plugins while that is not settled.
    #[must_use]
    pub fn driver(&self) -> BridgeDriverChoice {
        self.driver.unwrap_or_default()
    }

    /// Returns whether the daemon is to attach sandboxes itself.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.driver() == BridgeDriverChoice::Native
    }
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Sets the keys that no source sets to what they are on a node with these defaults. What closes something is for bridges that the daemon
    /// makes itself: with plugins, also by the key alone, all is open. Idempotent. Pure.
    pub fn settle(&mut self, defaults: NetworkDefaults) {
        let driver = self.bridge.driver.unwrap_or(defaults.driver());
        let is_closed = defaults == NetworkDefaults::Native && driver == BridgeDriverChoice::Native;
        let isolation = if is_closed {
            IsolationChoice::Bridge
        } else {
            IsolationChoice::None
        };
        self.bridge.driver = Some(driver);
        self.isolation = Some(self.isolation.unwrap_or(isolation));
        self.direct_routing = Some(self.direct_routing.unwrap_or(!is_closed));
    }

    /// Returns whether the defaults of the node make a difference: not if the keys that they are for are set. Pure.
    #[must_use]
    pub fn depends_on_defaults(&self) -> bool {
        let [cni, native] = NetworkDefaults::ALL.map(|defaults| {
            let mut settled = self.clone();
            settled.settle(defaults);
            settled
        });
        cni != native
    }

    /// Returns which of the gateway's bridges reach each other; all while that is not settled.
    #[must_use]
    pub fn isolation(&self) -> IsolationChoice {
        self.isolation.unwrap_or_default()
    }

    /// Returns whether other machines reach containers by their addresses; they do while that is not settled.
    #[must_use]
    pub fn direct_routing(&self) -> bool {
        self.direct_routing.unwrap_or(true)
    }

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

    /// Checks what keeps bridges apart: a key that would have no effect is refused, since it was to close something. While it is not settled
    /// who attaches sandboxes, that is not known.
    fn check_isolation(&self) -> Result<(), (&'static str, String)> {
        let mut names = self.isolation_allow.iter().flat_map(|(a, b)| [a, b]);
        if let Some(error) = names.find_map(|name| BridgeName::new(name).err()) {
            return Err(("isolation_allow", error.to_string()));
        }
        let closing = [
            ("isolation", self.isolation() != IsolationChoice::None),
            ("direct_routing", !self.direct_routing()),
            ("bridge.pin", self.bridge.pin == PinChoice::All),
        ];
        match closing.into_iter().find(|(_, closes)| *closes) {
            Some((key, _)) if self.bridge.driver == Some(BridgeDriverChoice::Cni) => Err((
                key,
                "only the driver \"native\" closes this: set network.bridge.driver to it, since CNI plugins leave it open".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
