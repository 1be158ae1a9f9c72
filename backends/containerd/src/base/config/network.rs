//! Checks of the section `[network]`, the drivers of the gateway's bridges, and the network of pods.

use serde::{Deserialize, Serialize};
use switchyard_linux::resolv_conf::{Families, unreachable};
use switchyard_namespaces::files::check_server;

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

// === impl BridgeConfig ===

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
        self.bridge
            .check()
            .map_err(|error| ("bridge", error.to_string()))?;
        self.pods
            .check(&self.bridge)
            .map_err(|error| ("pods", error.to_string()))
    }
}
