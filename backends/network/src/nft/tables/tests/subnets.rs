//! Subnets that take the place of others with which they have addresses in common: no table can have both beside each other.

use super::*;
use crate::nft::bridges::{BridgeRules, Isolation, bridge_elements};
use crate::testing;

fn rules(name: &str, subnet: &str) -> BridgeRules {
    BridgeRules {
        name: bridge(name),
        owner: "swarm".to_owned(),
        subnets: vec![testing::subnet(subnet)],
        is_gateway: true,
        masquerade: true,
        direct_routing: false,
    }
}

#[test]
fn subnet_takes_the_place_of_its_part_or_whole() {
    for (family, large, small, other) in [
        (
            NftFamily::Ip4,
            "10.98.0.0/16",
            "10.98.0.0/24",
            "10.99.0.0/16",
        ),
        (
            NftFamily::Ip4,
            "10.98.0.0/16",
            "10.98.255.0/24",
            "10.97.0.0/16",
        ),
        (
            NftFamily::Ip6,
            "fd00:98::/48",
            "fd00:98:0:7::/64",
            "fd00:99::/64",
        ),
    ] {
        in_private_netns(|| {
            let mut tables = NftTables::open(TableName::default()).unwrap();
            let [large, small, other] = [("sw0", large), ("sw1", small), ("sw2", other)]
                .map(|(name, subnet)| rules(name, subnet));
            for bridges in [
                vec![&small],
                vec![&small, &other],
                vec![&other, &large],
                vec![&small],
                vec![&large],
                vec![&other, &small],
            ] {
                let bridges: Vec<BridgeRules> = bridges.into_iter().cloned().collect();
                let wanted = bridge_elements(&bridges, Isolation::Bridge, &[]);
                tables.restore(family, &wanted).unwrap();
                let found = tables.read(family).unwrap().unwrap();
                assert_eq!(found.elements(), &wanted, "{bridges:?}");
            }
        });
    }
}
