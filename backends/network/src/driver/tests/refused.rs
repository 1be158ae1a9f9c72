//! Tables that the kernel refuses, as where another program owns those of their name.

use super::*;

#[test]
fn bridge_needs_the_tables_of_its_own_families_alone() {
    for (subnets, refused, is_attached) in [
        (&["10.99.0.0/24"][..], NftFamily::Ip6, true),
        (&["fd00:99::/64"], NftFamily::Ip4, true),
        (&["10.99.0.0/24"], NftFamily::Ip4, false),
        (&["fd00:99::/64"], NftFamily::Ip6, false),
        (&["10.99.0.0/24", "fd00:99::/64"], NftFamily::Ip6, false),
    ] {
        in_private_netns(|| {
            let when = format!("{subnets:?}, refused is {refused:?}");
            // Its bridge has both families.
            let node = Node::new(&SUBNETS);
            node.driver.attach(&Container::new("a").request).unwrap();
            let words = ["delete", "table", refused.name(), "switchyard"];
            run("nft", "nftables", &words);
            let mut owner = NftTables::open(TableName::default()).unwrap();
            owner.own_table(refused);
            let second = BridgeSettings {
                name: LinkName::new("swtest1").unwrap(),
                ..settings(node.addresses.path(), subnets)
            };
            let second = BridgeDriver::new(second, Arc::clone(&node.driver.tables)).unwrap();
            let container = Container::with_ports("b", &both(8080));
            let attached = second.attach(&container.request);
            assert_eq!(attached.is_ok(), is_attached, "{when}: {attached:?}");
            assert!(node.driver.tables.is_behind(), "{when}");
            assert_eq!(node.driver.tables.knows(&second), is_attached, "{when}");
            if let Err(error) = attached {
                let table = format!("table {} switchyard", refused.name());
                let is_told = error.to_string().contains(&table);
                assert!(is_told && error.is_undone(), "{when}: {error}");
            }
        });
    }
}
