//! Elements of the bridges of a node, which decide which bridges reach each other: a pure decision.

use std::collections::BTreeSet;

use super::element::Element;
use super::family::{BridgeName, NftSubnet};

/// Choice of the bridges that reach each other other than by published ports. Each reaches itself always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// All do.
    None,
    /// None do.
    Bridge,
    /// Those of one owner do.
    Owner,
}

/// Facts about one of our bridges that the tables need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeRules {
    /// Its name.
    pub name: BridgeName,
    /// The owner of its containers, in any spelling: only whether two are equal counts.
    pub owner: String,
    /// The subnets of its containers, of both families.
    pub subnets: Vec<NftSubnet>,
    /// True if the node is the gateway of its containers. Else these reach only each other.
    pub is_gateway: bool,
    /// True if connections to the outside have the address of the node.
    pub masquerade: bool,
    /// True if other machines reach containers by their addresses, without a published port.
    pub direct_routing: bool,
}

/// Returns the elements of all bridges of a node. Those that are addresses are in the table of their family, the others in both
/// ([`Element::fits`]). The caller sees to it that no two subnets have an address in common: a table cannot have both.
///
/// `allow` has pairs of bridges that reach each other whatever the isolation is, in both directions, since answers need theirs. Pairs with a
/// bridge that is not ours have no effect: only our bridges are kept apart.
#[must_use]
pub fn bridge_elements(
    bridges: &[BridgeRules],
    isolation: Isolation,
    allow: &[(BridgeName, BridgeName)],
) -> BTreeSet<Element> {
    let mut elements = BTreeSet::new();
    for bridge in bridges {
        let name = &bridge.name;
        elements.insert(Element::Bridge(name.clone()));
        elements.insert(Element::Same(name.clone()));
        for subnet in &bridge.subnets {
            if bridge.masquerade {
                elements.insert(Element::Masqueraded(*subnet));
            }
            if !bridge.direct_routing {
                elements.insert(Element::Closed(*subnet));
            }
        }
        if isolation != Isolation::None {
            elements.insert(Element::Apart(name.clone()));
            let reached = bridges
                .iter()
                .filter(|other| reach_each_other(bridge, other, isolation, allow));
            elements
                .extend(reached.map(|other| Element::Allowed(name.clone(), other.name.clone())));
        }
    }
    elements
}

/// Returns whether packets from one bridge may enter the other one.
fn reach_each_other(
    from: &BridgeRules,
    to: &BridgeRules,
    isolation: Isolation,
    allow: &[(BridgeName, BridgeName)],
) -> bool {
    let same_owner = isolation == Isolation::Owner && from.owner == to.owner;
    let listed = allow
        .iter()
        .any(|(a, b)| (a, b) == (&from.name, &to.name) || (b, a) == (&from.name, &to.name));
    from.name == to.name || same_owner || listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::NftFamily;
    use crate::testing::subnet;

    fn name(name: &str) -> BridgeName {
        BridgeName::new(name).unwrap()
    }

    fn bridge(bridge: &str, owner: &str) -> BridgeRules {
        BridgeRules {
            name: name(bridge),
            owner: owner.to_owned(),
            subnets: Vec::new(),
            is_gateway: true,
            masquerade: true,
            direct_routing: false,
        }
    }

    #[test]
    fn bridges_reach_each_other_by_isolation_and_list() {
        let bridges = [
            bridge("k0", "kubernetes"),
            bridge("n0", "nomad"),
            bridge("n1", "nomad"),
        ];
        let own = ["k0 k0", "n0 n0", "n1 n1"];
        let none: &[(&str, &str)] = &[];
        let nothing: &[&str] = &[];
        for (isolation, allow, more) in [
            (Isolation::Bridge, none, nothing),
            (Isolation::Owner, none, &["n0 n1", "n1 n0"][..]),
            (
                Isolation::Bridge,
                &[("k0", "n1")][..],
                &["k0 n1", "n1 k0"][..],
            ),
            (
                Isolation::Owner,
                &[("k0", "n1")][..],
                &["k0 n1", "n0 n1", "n1 k0", "n1 n0"][..],
            ),
            (
                Isolation::Bridge,
                &[("k0", "docker0"), ("x", "y")][..],
                nothing,
            ),
            (Isolation::Bridge, &[("n0", "n0")][..], nothing),
        ] {
            let allow: Vec<_> = allow.iter().map(|(a, b)| (name(a), name(b))).collect();
            let elements = bridge_elements(&bridges, isolation, &allow);
            let pairs: BTreeSet<String> = elements
                .iter()
                .filter(|element| matches!(element, Element::Allowed(..)))
                .map(|pair| pair.to_string().replace('"', "").replace(" . ", " "))
                .collect();
            let wanted: BTreeSet<String> = own
                .iter()
                .chain(more)
                .map(|pair| (*pair).to_owned())
                .collect();
            assert_eq!(pairs, wanted, "{isolation:?} {allow:?}");
            let apart = |element: &&Element| matches!(element, Element::Apart(_));
            assert_eq!(elements.iter().filter(apart).count(), 3);
        }
        let open = bridge_elements(&bridges, Isolation::None, &[]);
        assert!(
            open.iter()
                .all(|element| matches!(element, Element::Bridge(_) | Element::Same(_)))
        );
    }

    #[test]
    fn subnets_are_masqueraded_and_closed_each_by_its_setting() {
        let both = ["10.88.0.0/16", "fd00:88::/64"].map(subnet);
        for (masquerade, direct_routing, masqueraded, closed) in [
            (true, false, 2, 2),
            (false, true, 0, 0),
            (true, true, 2, 0),
            (false, false, 0, 2),
        ] {
            let bridge = BridgeRules {
                subnets: both.to_vec(),
                masquerade,
                direct_routing,
                ..bridge("sw0", "nomad")
            };
            let elements = bridge_elements(&[bridge], Isolation::None, &[]);
            let count =
                |wanted: fn(&Element) -> bool| elements.iter().filter(|e| wanted(e)).count();
            assert_eq!(
                count(|element| matches!(element, Element::Masqueraded(_))),
                masqueraded
            );
            assert_eq!(
                count(|element| matches!(element, Element::Closed(_))),
                closed
            );
            for family in NftFamily::ALL {
                let here = elements
                    .iter()
                    .filter(|element| element.fits(family))
                    .count();
                assert_eq!(here, 2 + masqueraded / 2 + closed / 2);
            }
        }
    }

    #[test]
    fn subnet_that_is_masqueraded_is_no_part_of_one_that_is_closed() {
        let [large, small] = ["10.98.0.0/16", "10.98.1.0/24"].map(subnet);
        for (one, other, expected) in [
            (Element::Closed(small), Element::Closed(large), true),
            (
                Element::Masqueraded(small),
                Element::Masqueraded(large),
                true,
            ),
            (Element::Closed(small), Element::Masqueraded(large), false),
            (Element::Closed(large), Element::Closed(small), false),
            (Element::Closed(large), Element::Closed(large), false),
        ] {
            assert_eq!(one.is_part_of(&other), expected, "{one} {other}");
        }
    }
}
