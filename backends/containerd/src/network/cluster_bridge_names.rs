//! The names of the bridges of clusters.

use sha2::{Digest, Sha256};
use switchyard_core::spec::NetworkName;

/// Prefix of the names of bridges. With eleven digits they have the 15 bytes that Linux allows.
const PREFIX: &str = "swy-";
const DIGITS: usize = 11;

/// The name of the bridge of a network. Gateways whose own bridges differ have different ones.
pub(super) fn interface_name(own_bridge: &str, id: &NetworkName) -> String {
    let digest = Sha256::new()
        .chain_update(own_bridge)
        .chain_update([0])
        .chain_update(id.as_str())
        .finalize();
    let digits = hex::encode(digest);
    format!("{PREFIX}{}", &digits[..DIGITS])
}

/// Returns whether a bridge of this name can be one of ours.
pub(super) fn is_interface_name(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_of_a_network_has_a_short_name_that_differs_between_gateways() {
        let id = NetworkName::parse("id", "ymkwbbwalorn3wk0pf1a1y09r").unwrap();
        let name = interface_name("switchyard0", &id);
        assert!(name.len() == 15 && is_interface_name(&name), "{name}");
        assert_ne!(name, interface_name("switchyard1", &id));
        for other in [
            "",
            "swy-",
            "swy-../../../..",
            "swy-0123456789",
            "eth0",
            "swy-0123456789ag",
        ] {
            assert!(!is_interface_name(other), "{other}");
        }
    }
}
