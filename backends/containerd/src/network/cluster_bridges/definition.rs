//! The node's realisation of a cluster's bridge network: its bridge, its addresses, its configuration list.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use switchyard_core::spec::{BridgeAddresses, ClusterBridge, NetworkName, Subnet};
use switchyard_core::{Error, Result};

use crate::network::bridge::{BridgeList, conflist};

/// Prefix of the names of bridges. With eleven digits they have the 15 bytes that Linux allows.
const PREFIX: &str = "swy-";
const DIGITS: usize = 11;

/// Pool of the networks without a subnet: 256 ranges of 254 addresses. Documented in `docs/swarm.md`.
const POOL: Ipv4Addr = Ipv4Addr::new(172, 29, 0, 0);
const POOL_PREFIX: u8 = 24;

/// A network as this node has made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    id: String,
    name: String,
    addresses: BridgeAddresses,
    /// True if this node has chosen the addresses.
    is_chosen: bool,
    is_internal: bool,
    has_masquerade: bool,
    mtu: Option<u16>,
}

/// The contents of its file. Fields that are not known are ignored.
#[derive(Serialize, Deserialize)]
struct DefinitionFile {
    id: String,
    name: String,
    subnet: String,
    range: Option<String>,
    gateway: Ipv4Addr,
    is_chosen: bool,
    is_internal: bool,
    has_masquerade: bool,
    mtu: Option<u16>,
}

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

impl Definition {
    /// Defines a network with the requested addresses, or with free ones. `conflict` returns the present user
    /// of addresses of a subnet. Pure.
    ///
    /// # Errors
    /// `FailedPrecondition` if the addresses are taken, or no free ones are left.
    pub(super) fn new(
        asked: &ClusterBridge,
        conflict: impl Fn(&Subnet) -> Option<String>,
    ) -> Result<Self> {
        let ClusterBridge {
            id,
            name,
            addresses,
            is_internal,
            has_masquerade,
            mtu,
        } = asked;
        let made = match addresses {
            Some(addresses) => {
                let subnet = addresses.subnet();
                if let Some(holder) = conflict(subnet) {
                    return Err(Error::failed_precondition(format!(
                        "network {name:?}: {subnet} is taken on this node: {holder}; create the network with another subnet"
                    )));
                }
                *addresses
            }
            None => free_addresses(id, conflict).ok_or_else(|| {
                let pool = Subnet::of_v4(POOL, 16);
                Error::failed_precondition(format!(
                    "network {name:?}: the node has a route to every part of {pool}: create the network with a subnet"
                ))
            })?,
        };
        Ok(Self {
            id: id.as_str().to_owned(),
            name: name.clone(),
            addresses: made,
            is_chosen: addresses.is_none(),
            is_internal: *is_internal,
            has_masquerade: *has_masquerade,
            mtu: *mtu,
        })
    }

    /// Parses a file; `None` if it is malformed.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let DefinitionFile {
            id,
            name,
            subnet,
            range,
            gateway,
            is_chosen,
            is_internal,
            has_masquerade,
            mtu,
        } = serde_json::from_slice(text).ok()?;
        let range = range
            .map(|range| range.parse::<Subnet>())
            .transpose()
            .ok()?;
        let addresses =
            BridgeAddresses::new(subnet.parse().ok()?, range, Some(gateway.into())).ok()?;
        Some(Self {
            id,
            name,
            addresses,
            is_chosen,
            is_internal,
            has_masquerade,
            mtu,
        })
    }

    pub(super) fn to_json(&self) -> String {
        let Self {
            id,
            name,
            addresses,
            is_chosen,
            is_internal,
            has_masquerade,
            mtu,
        } = self;
        let file = DefinitionFile {
            id: id.clone(),
            name: name.clone(),
            subnet: addresses.subnet().to_string(),
            range: addresses.range().map(ToString::to_string),
            gateway: addresses.gateway(),
            is_chosen: *is_chosen,
            is_internal: *is_internal,
            has_masquerade: *has_masquerade,
            mtu: *mtu,
        };
        format!("{:#}\n", json!(file))
    }

    /// Checks that another sandbox asks for this network.
    ///
    /// # Errors
    /// `FailedPrecondition` if it asks for another one, or for other addresses or options.
    pub(super) fn check_same(&self, asked: &ClusterBridge) -> Result<()> {
        // A network is not changed in its cluster.
        let ClusterBridge {
            id,
            name,
            addresses,
            is_internal,
            has_masquerade,
            mtu,
        } = asked;
        let has_addresses = match addresses {
            None => self.is_chosen,
            Some(asked) => !self.is_chosen && self.addresses == *asked,
        };
        let has_options = (self.is_internal, self.has_masquerade, self.mtu)
            == (*is_internal, *has_masquerade, *mtu);
        if self.id == id.as_str() && has_addresses && has_options {
            return Ok(());
        }
        Err(Error::failed_precondition(format!(
            "network {name:?}: tasks of this node use its bridge with other properties (network {:?}, {}): end them first",
            self.name,
            self.subnet()
        )))
    }

    /// All its addresses.
    pub(super) const fn subnet(&self) -> &Subnet {
        self.addresses.subnet()
    }

    /// Returns its name for people.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The configuration list for the plugins. An internal network has neither a gateway nor a way out.
    pub(super) fn conflist(
        &self,
        interface: &str,
        addresses_dir: &Path,
        default_mtu: u32,
    ) -> Value {
        let mut pool = json!({ "subnet": self.subnet().to_string() });
        if let Some([first, last]) = self.addresses.pool() {
            pool["rangeStart"] = json!(first);
            pool["rangeEnd"] = json!(last);
        }
        if !self.is_internal {
            pool["gateway"] = json!(self.addresses.gateway());
        }
        let out = json!({ "dst": "0.0.0.0/0" });
        conflist(BridgeList {
            name: interface,
            is_gateway: !self.is_internal,
            has_masquerade: self.has_masquerade && !self.is_internal,
            mtu: self.mtu.map_or(default_mtu, u32::from),
            addresses_dir,
            ranges: vec![json!([pool])],
            routes: if self.is_internal {
                Vec::new()
            } else {
                vec![out]
            },
        })
    }
}

/// Chooses free addresses of the pool. The search begins at a place derived from the id, so that nodes with
/// the same routes choose the same, and a node chooses again what it had before.
fn free_addresses(
    id: &NetworkName,
    conflict: impl Fn(&Subnet) -> Option<String>,
) -> Option<BridgeAddresses> {
    let digest: [u8; 32] = Sha256::digest(id.as_str()).into();
    let [begin, ..] = digest;
    let [first, second, ..] = POOL.octets();
    (0..=u8::MAX)
        .map(|step| {
            Subnet::of_v4(
                Ipv4Addr::new(first, second, begin.wrapping_add(step), 0),
                POOL_PREFIX,
            )
        })
        .find(|subnet| conflict(subnet).is_none())
        .and_then(|subnet| BridgeAddresses::new(subnet, None, None::<IpAddr>).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(addresses: Option<&str>) -> ClusterBridge {
        let addresses =
            addresses.map(|text| BridgeAddresses::new(text.parse().unwrap(), None, None).unwrap());
        ClusterBridge {
            id: NetworkName::parse("id", "ymkwbbwalorn3wk0pf1a1y09r").unwrap(),
            name: "back".into(),
            addresses,
            is_internal: false,
            has_masquerade: true,
            mtu: None,
        }
    }

    fn free(_: &Subnet) -> Option<String> {
        None
    }

    #[test]
    fn bridge_of_a_network_has_a_short_name_that_differs_between_gateways() {
        let id = asked(None).id;
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

    #[test]
    fn free_addresses_are_chosen_by_the_id() {
        let first = Definition::new(&asked(None), free).unwrap();
        assert_eq!(Definition::new(&asked(None), free).unwrap(), first);
        assert!(Subnet::of_v4(POOL, 16).contains_all(first.subnet()));
        let taken = *first.subnet();
        let next = Definition::new(&asked(None), |subnet| {
            subnet.overlaps(&taken).then(|| "eth0".into())
        })
        .unwrap();
        assert_ne!(next.subnet(), first.subnet());
        let error = Definition::new(&asked(None), |_| Some("eth0".into()))
            .unwrap_err()
            .report();
        assert!(
            error.contains("172.29.0.0/16: create the network with a subnet"),
            "{error}"
        );
        assert_eq!(Definition::parse(next.to_json().as_bytes()), Some(next));
    }

    #[test]
    fn file_of_the_first_version_is_read_and_written() {
        let addresses = BridgeAddresses::new(
            "10.7.0.0/16".parse().unwrap(),
            Some("10.7.5.0/24".parse().unwrap()),
            Some("10.7.0.9".parse().unwrap()),
        );
        let asked = ClusterBridge {
            addresses: addresses.ok(),
            mtu: Some(1400),
            ..asked(None)
        };
        let golden = include_str!("golden/network.json");
        let read = Definition::parse(golden.as_bytes()).unwrap();
        assert_eq!(read, Definition::new(&asked, free).unwrap());
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(json(&read.to_json()), json(golden));
    }

    #[test]
    fn taken_addresses_are_refused_with_who_has_them() {
        let error = Definition::new(&asked(Some("10.7.0.0/24")), |_| {
            Some("eth1 has 10.0.0.0/8".into())
        });
        let error = error.unwrap_err().report();
        assert!(
            error.contains(
                "network \"back\": 10.7.0.0/24 is taken on this node: eth1 has 10.0.0.0/8"
            ),
            "{error}"
        );
    }

    #[test]
    fn tasks_share_a_bridge_only_if_they_ask_for_the_same() {
        let made = Definition::new(&asked(Some("10.7.0.0/24")), free).unwrap();
        made.check_same(&asked(Some("10.7.0.0/24"))).unwrap();
        let other_id = ClusterBridge {
            id: NetworkName::parse("id", "x").unwrap(),
            ..asked(Some("10.7.0.0/24"))
        };
        let internal = ClusterBridge {
            is_internal: true,
            ..asked(Some("10.7.0.0/24"))
        };
        for other in [asked(None), asked(Some("10.8.0.0/24")), other_id, internal] {
            let error = made.check_same(&other).unwrap_err().report();
            assert!(error.contains("with other properties"), "{error}");
        }
        Definition::new(&asked(None), free)
            .unwrap()
            .check_same(&asked(None))
            .unwrap();
    }

    #[test]
    fn configuration_list_has_the_addresses_and_an_internal_network_no_way_out() {
        let addresses = BridgeAddresses::new(
            "10.7.0.0/16".parse().unwrap(),
            Some("10.7.5.0/24".parse().unwrap()),
            Some("10.7.0.9".parse().unwrap()),
        );
        let open = ClusterBridge {
            addresses: addresses.ok(),
            mtu: Some(1400),
            ..asked(None)
        };
        let list = Definition::new(&open, free)
            .unwrap()
            .conflist("swy-1", Path::new("/run/a"), 0);
        let bridge = &list["plugins"][0];
        let pool = json!({
            "subnet": "10.7.0.0/16", "rangeStart": "10.7.5.0", "rangeEnd": "10.7.5.255", "gateway": "10.7.0.9",
        });
        let ipam = json!({
            "type": "host-local", "dataDir": "/run/a", "ranges": [[pool]], "routes": [{ "dst": "0.0.0.0/0" }],
        });
        assert_eq!(
            (&bridge["ipam"], &bridge["mtu"], &bridge["bridge"]),
            (&ipam, &json!(1400), &json!("swy-1"))
        );
        assert_eq!(
            (&bridge["isGateway"], &bridge["ipMasq"]),
            (&json!(true), &json!(true))
        );
        let internal = ClusterBridge {
            is_internal: true,
            mtu: None,
            ..open
        };
        let list =
            Definition::new(&internal, free)
                .unwrap()
                .conflist("swy-1", Path::new("/run/a"), 0);
        let bridge = &list["plugins"][0];
        assert_eq!(
            (&bridge["isGateway"], &bridge["ipMasq"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(
            (&bridge["ipam"]["routes"], &bridge["mtu"]),
            (&json!([]), &Value::Null)
        );
    }
}
