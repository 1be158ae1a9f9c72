//! Checks of the section `[network]`, and the drivers of the gateway's own bridge.

use serde::{Deserialize, Serialize};
use switchyard_linux::resolv_conf::{Families, unreachable};
use switchyard_namespaces::files::check_server;

use super::{BridgeConfig, NetworkConfig};

/// Who attaches new sandboxes to the gateway's own bridge. An attachment is undone by whoever has made it.
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
            .map_err(|error| ("bridge", error.to_string()))
    }
}
