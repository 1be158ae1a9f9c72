//! Bridges whose subnets have addresses in common, which no table can have beside each other.

use super::*;
use crate::nft::bridges::{BridgeRules, Isolation, bridge_elements};

fn rules(name: &str, subnet: (&str, u8)) -> BridgeRules {
    BridgeRules {
        name: bridge(name),
        owner: "swarm".to_owned(),
        subnets: vec![NftSubnet::new(subnet.0.parse().unwrap(), subnet.1).unwrap()],
        is_gateway: true,
        masquerade: true,
        direct_routing: false,
    }
}

#[test]
fn bridge_keeps_no_other_one_from_the_table() {
    for (family, large, small, other) in [
        (
            NftFamily::Ip4,
            ("10.98.0.0", 16),
            ("10.98.0.0", 24),
            ("10.99.0.0", 16),
        ),
        (
            NftFamily::Ip4,
            ("10.98.0.0", 16),
            ("10.98.255.0", 24),
            ("10.97.0.0", 16),
        ),
        (
            NftFamily::Ip6,
            ("fd00:98::", 48),
            ("fd00:98:0:7::", 64),
            ("fd00:99::", 64),
        ),
    ] {
        in_private_netns(|| {
            let mut tables = NftTables::open(TableName::default()).unwrap();
            let [large, small, other] = [("sw0", large), ("sw1", small), ("sw2", other)]
                .map(|(name, subnet)| rules(name, subnet));
            // They come and go in any order.
            for bridges in [
                vec![&small],
                vec![&small, &other],
                vec![&small, &other, &large],
                vec![&other, &large],
                vec![&large, &small],
                vec![&small],
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
