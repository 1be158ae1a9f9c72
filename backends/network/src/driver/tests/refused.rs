//! Tables that the kernel refuses, as where another program owns those of their name.

use super::*;
use crate::netlink::Mac;
use crate::nft::NftError;

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

/// The elements of all tables.
fn all_elements() -> Vec<BTreeSet<Element>> {
    NftFamily::TABLES.map(elements_of).to_vec()
}

/// The kernel has done it, and its answer was lost, as behind a buffer that was full.
#[test]
fn what_was_added_without_an_answer_goes_with_the_failed_attachment() {
    for (ports, is_pinned) in [
        (&both(8080)[..], true),
        (&both(8080), false),
        (&[], true),
        (&[port(Transport::Udp, 53)], true),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            // So that all tables are there.
            let mut first = Container::new("first");
            first.request.is_pinned = true;
            node.driver.attach(&first.request).unwrap();
            let before = all_elements();
            let limit = |max| {
                let mut state = node.driver.tables.lock();
                let kernel = state.kernel(node.driver.tables.name()).unwrap();
                kernel.tables.limit_receive(max)
            };
            let container = Container::with_ports("container", ports);
            let addresses: Vec<IpAddr> = ["10.88.0.77", "fd00:88::77"]
                .map(|text| text.parse().unwrap())
                .to_vec();
            let mac: Mac = "02:00:00:00:00:07".parse().unwrap();
            let host = node.driver.host_link(&container.request.holder);
            let pin = is_pinned.then_some(mac);
            let elements = container_elements(&host, ports, pin, &addresses);
            let whole = limit(8);
            let mut state = node.driver.tables.lock();
            let published = node
                .driver
                .publish(&mut state, &container.request, elements);
            drop(state);
            limit(whole);
            let error = published.unwrap_err();
            let is_unanswered = matches!(error, DriverError::Rules(NftError::Unanswered { .. }));
            assert!(is_unanswered, "{error}");
            assert_ne!(all_elements(), before, "{ports:?}");
            let error = node.driver.undone(&container.request, addresses, error);
            assert!(error.is_undone(), "{error}");
            assert_eq!(all_elements(), before, "{ports:?} {is_pinned}");
        });
    }
}

/// Nothing of it is there any more: whoever detaches has nothing to wait for.
#[test]
fn container_is_detached_although_another_program_owns_a_table() {
    for family in NftFamily::TABLES {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS);
            let mut container = Container::with_ports("a", &both(8080));
            container.request.is_pinned = true;
            let attached = node.driver.attach(&container.request).unwrap();
            run(
                "nft",
                "nftables",
                &["delete", "table", family.name(), "switchyard"],
            );
            let mut owner = NftTables::open(TableName::default()).unwrap();
            owner.own_table(family);
            let attachment = Attachment {
                pin: Some(attached.mac),
                ..container.attachment(Some(&attached))
            };
            node.driver.detach(&attachment).unwrap();
            assert!(node.in_use().is_empty(), "{family:?}");
        });
    }
}
