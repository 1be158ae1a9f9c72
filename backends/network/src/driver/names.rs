//! Names and hardware addresses of devices, which follow from the container, so that they are found without a record.

use std::net::{IpAddr, Ipv4Addr};

use sha2::{Digest, Sha256};

use crate::addresses::Holder;
use crate::netlink::{LinkName, Mac};
use crate::nft::{BridgeName, TableName};

/// The prefix of the host's end of a pair: that of the plugin bridge, by which network managers and exporters know such devices.
const HOST_PREFIX: &str = "veth";
/// The prefix of a device for the limit of what a container sends.
const IFB_PREFIX: &str = "ifb";
/// With eleven digits, the names have at most the 15 bytes that Linux allows.
const DIGITS: usize = 11;

/// The host's end of a container. Instances of the daemon have different ones.
pub(super) fn host_link(table: &TableName, holder: &Holder) -> LinkName {
    let mut hash = Sha256::new();
    for part in [table.as_str(), holder.container_id(), holder.interface()] {
        hash.update(part);
        hash.update([0]);
    }
    let digits = hex::encode(hash.finalize());
    link_name(&format!("{HOST_PREFIX}{}", &digits[..DIGITS]))
}

/// A host's end as the tables name it.
pub(super) fn bridge_port(host: &LinkName) -> BridgeName {
    BridgeName::new(host.as_str())
        .unwrap_or_else(|error| unreachable!("letters and digits: {error}"))
}

/// The device for the limit of what the container behind a host's end sends.
pub(super) fn ifb_link(host: &LinkName) -> LinkName {
    let digits = host.as_str().trim_start_matches(HOST_PREFIX);
    link_name(&format!("{IFB_PREFIX}{digits}"))
}

/// The group of all links that an instance of the daemon makes for containers: never 0, in which all other links are.
#[must_use]
pub fn group_of(table: &TableName) -> u32 {
    let digest: [u8; 32] = Sha256::digest(table.as_str()).into();
    let [a, b, c, d, ..] = digest;
    // The first bit is left out, since some programs read the number as signed.
    u32::from_be_bytes([a & 0x7f, b, c, d]).max(1)
}

/// A hardware address made of the first address of a device, so that what others remember of it stays right for the next one with that.
pub(super) fn mac_of(first: Option<IpAddr>) -> Mac {
    match first {
        Some(IpAddr::V4(address)) => Mac::of(address),
        Some(IpAddr::V6(address)) => {
            let digest: [u8; 32] = Sha256::digest(address.octets()).into();
            let [a, b, c, d, ..] = digest;
            Mac::of([a, b, c, d].into())
        }
        None => Mac::of(Ipv4Addr::UNSPECIFIED),
    }
}

fn link_name(name: &str) -> LinkName {
    LinkName::new(name).unwrap_or_else(|error| unreachable!("letters and digits: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_between_containers_interfaces_and_instances() {
        let tables = [TableName::default(), TableName::of_instance("2").unwrap()];
        let holders = [("a", "eth0"), ("b", "eth0"), ("a", "eth1"), ("ae", "th0")];
        let mut names = BTreeSet::new();
        for table in &tables {
            for (id, interface) in holders {
                let host = host_link(table, &Holder::new(id, interface).unwrap());
                assert_eq!(host.as_str().len(), 15, "{host}");
                names.insert(ifb_link(&host));
                names.insert(host);
            }
        }
        assert_eq!(names.len(), 2 * tables.len() * holders.len());
        let [first, second] = tables.map(|table| group_of(&table));
        assert!(first != second && first != 0 && second != 0);
    }

    #[test]
    fn hardware_address_follows_from_the_first_address() {
        let of = |address: &str| mac_of(Some(address.parse().unwrap())).to_string();
        assert_eq!(of("10.1.2.3"), "02:42:0a:01:02:03");
        assert_eq!(of("fd00::3"), of("fd00::3"));
        assert_ne!(of("fd00::3"), of("fd00::4"));
    }
}
