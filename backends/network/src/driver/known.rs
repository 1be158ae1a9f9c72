//! Facts about one bridge: what the tables need of it, and whether this process has set it up.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::netlink::LinkName;
use crate::nft::{BridgeName, BridgeRules, Element, NftSubnet};

/// A bridge whose elements are in the tables.
#[derive(Debug, Clone)]
pub(super) struct KnownBridge {
    pub(super) rules: BridgeRules,
    /// True if tables are kept for it also while nothing is attached.
    pub(super) is_kept: bool,
    /// The index of the device whose settings were made by this process.
    pub(super) device: Option<u32>,
    /// True if a former process has left a device of its name.
    pub(super) was_there: bool,
}

// === impl KnownBridge ===

impl KnownBridge {
    pub(super) fn new(rules: &BridgeRules) -> Self {
        Self {
            rules: with_subnets(rules, &[]),
            is_kept: false,
            device: None,
            was_there: false,
        }
    }

    /// Takes over other rules of the same bridge. Containers may still have addresses of the subnets of before, which stay.
    pub(super) fn change(&mut self, rules: &BridgeRules) {
        if !self.has(rules) {
            self.rules = with_subnets(rules, &self.rules.subnets);
            self.device = None;
        }
    }

    /// Returns whether it has all of these rules.
    pub(super) fn has(&self, rules: &BridgeRules) -> bool {
        with_subnets(rules, &self.rules.subnets) == self.rules
    }

    /// Returns whether there is such a bridge, as far as this process has seen.
    pub(super) fn is_there(&self) -> bool {
        self.was_there || self.device.is_some()
    }

    /// The subnet with some of these addresses, if it has any.
    pub(super) fn overlap(&self, subnet: &NftSubnet) -> Option<NftSubnet> {
        let mut subnets = self.rules.subnets.iter().copied();
        subnets.find(|own| own.overlaps(subnet))
    }
}

/// The rules of a bridge with more subnets. Of two subnets with addresses in common one is a part of the other one: a table has the larger.
fn with_subnets(rules: &BridgeRules, more: &[NftSubnet]) -> BridgeRules {
    let all: BTreeSet<NftSubnet> = rules.subnets.iter().chain(more).copied().collect();
    let is_part = |one: &NftSubnet| all.iter().any(|other| one.is_part_of(other));
    BridgeRules {
        subnets: all.iter().filter(|one| !is_part(one)).copied().collect(),
        ..rules.clone()
    }
}

/// Returns whether an element is one of the bridge of this name and with these addresses, of which nothing else is known. Those of
/// containers are none.
pub(super) fn is_of_bridge(element: &Element, name: &LinkName, addresses: &[IpAddr]) -> bool {
    let is_it = |bridge: &BridgeName| bridge.as_str() == name.as_str();
    match element {
        Element::Bridge(bridge) | Element::Same(bridge) | Element::Apart(bridge) => is_it(bridge),
        Element::Allowed(from, to) => is_it(from) || is_it(to),
        Element::Masqueraded(subnet) | Element::Closed(subnet) => {
            addresses.iter().any(|address| subnet.has(address))
        }
        Element::Port { .. }
        | Element::Hairpin(_)
        | Element::PinnedPort(_)
        | Element::PinnedMac(..)
        | Element::PinnedAddress(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::subnet;

    /// Addresses of a pool may change while containers have some of the former one.
    #[test]
    fn subnets_of_before_stay_beside_those_that_they_have_no_address_in_common_with() {
        let subnets =
            |texts: &[&str]| -> Vec<NftSubnet> { texts.iter().map(|text| subnet(text)).collect() };
        let rules = |texts: &[&str]| BridgeRules {
            name: BridgeName::new("pods0").unwrap(),
            owner: String::new(),
            subnets: subnets(texts),
            is_gateway: true,
            masquerade: true,
            direct_routing: true,
        };
        for (before, after, expected, is_changed) in [
            (
                &["10.1.0.0/24"][..],
                &["10.1.0.0/24"][..],
                &["10.1.0.0/24"][..],
                false,
            ),
            (
                &["fd00::/64", "10.1.0.0/24"],
                &["10.1.0.0/24", "fd00::/64"],
                &["10.1.0.0/24", "fd00::/64"],
                false,
            ),
            (
                &["10.1.0.0/24"],
                &["10.2.0.0/24"],
                &["10.1.0.0/24", "10.2.0.0/24"],
                true,
            ),
            (&["10.1.0.0/24"], &["10.1.0.0/16"], &["10.1.0.0/16"], true),
            (&["10.1.0.0/16"], &["10.1.7.0/24"], &["10.1.0.0/16"], false),
            (
                &["10.1.0.0/16"],
                &["10.1.7.0/24", "10.1.8.0/24"],
                &["10.1.0.0/16"],
                false,
            ),
            (
                &["10.1.0.0/24"],
                &["fd00::/64"],
                &["10.1.0.0/24", "fd00::/64"],
                true,
            ),
        ] {
            let mut known = KnownBridge::new(&rules(before));
            known.device = Some(7);
            known.change(&rules(after));
            assert_eq!(
                known.rules.subnets,
                subnets(expected),
                "{before:?} {after:?}"
            );
            assert_eq!(known.device.is_none(), is_changed, "{before:?} {after:?}");
        }
    }

    #[test]
    fn element_is_of_a_bridge_by_its_name_or_by_the_network_of_its_addresses() {
        let name = LinkName::new("pods0").unwrap();
        let [own, other] = ["pods0", "sw0"].map(|name| BridgeName::new(name).unwrap());
        let addresses: [IpAddr; 3] =
            ["10.1.0.1", "fd00::1", "fe80::1"].map(|text| text.parse().unwrap());
        for (element, expected) in [
            (Element::Bridge(own.clone()), true),
            (Element::Same(own.clone()), true),
            (Element::Apart(own.clone()), true),
            (Element::Allowed(own.clone(), other.clone()), true),
            (Element::Allowed(other.clone(), own.clone()), true),
            (Element::Bridge(other.clone()), false),
            (Element::Allowed(other.clone(), other.clone()), false),
            (Element::Masqueraded(subnet("10.1.0.0/24")), true),
            (Element::Closed(subnet("fd00::/64")), true),
            (Element::Masqueraded(subnet("10.2.0.0/24")), false),
            (Element::Closed(subnet("fd00:0:0:1::/64")), false),
            (Element::Hairpin(addresses[0]), false),
            (Element::PinnedPort(own.clone()), false),
        ] {
            let found = is_of_bridge(&element, &name, &addresses);
            assert_eq!(found, expected, "{element}");
        }
    }
}
