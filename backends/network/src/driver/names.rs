//! The names of devices, which follow from the container, so that they are found without a record.

use sha2::{Digest, Sha256};

use crate::addresses::Holder;
use crate::netlink::LinkName;
use crate::nft::TableName;

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

/// The device for the limit of what the container behind a host's end sends.
pub(super) fn ifb_link(host: &LinkName) -> LinkName {
    let digits = host.as_str().trim_start_matches(HOST_PREFIX);
    link_name(&format!("{IFB_PREFIX}{digits}"))
}

/// The group of all links of an instance of the daemon: never 0, in which all other links are.
pub(super) fn group_of(table: &TableName) -> u32 {
    let digest: [u8; 32] = Sha256::digest(table.as_str()).into();
    let [a, b, c, d, ..] = digest;
    // The first bit is left out, since some programs read the number as signed.
    u32::from_be_bytes([a & 0x7f, b, c, d]).max(1)
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
}
