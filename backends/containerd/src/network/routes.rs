//! The node's routes and addresses, as far as a network of ours may not have their addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use switchyard_core::spec::Subnet;
use switchyard_core::{Error, Result};
use switchyard_linux::routes::{self, Route};
use switchyard_namespaces::node_addresses;

use super::cluster_bridge_names::is_interface_name;

/// The routes of the node, of both families, and its own addresses.
#[derive(Debug)]
pub(super) struct Routes {
    routes: Vec<Route>,
    /// Each with the name of its interface.
    addresses: Vec<(String, IpAddr)>,
}

/// Interface that has addresses of a range.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) interface: String,
    /// Description of what it has, for people.
    pub(super) why: String,
}

impl Routes {
    /// Reads files of the kernel, and asks it for the addresses. `network` is whose ranges have to be free, for error messages. Blocks: there
    /// may be many routes.
    ///
    /// # Errors
    /// `Unavailable`, naming the network, if the kernel does not tell them: nobody knows then what is free.
    pub(super) fn read(network: &str) -> Result<Self> {
        let unknown = |what: &str| {
            Error::unavailable(format!(
                "network {network:?}: cannot read the {what} of the node, so that nobody knows whether its addresses are free; try again"
            ))
        };
        let routes = routes::read().map_err(|fault| unknown("routes").with_source(fault))?;
        let addresses =
            node_addresses().map_err(|fault| unknown("addresses").with_source(fault))?;
        Ok(Self { routes, addresses })
    }

    /// A route that overlaps `subnet`, save default routes and those of the interface `own`.
    pub(super) fn conflict(&self, subnet: &Subnet, own: &str) -> Option<Conflict> {
        self.find(own, |_, range| range.overlaps(subnet))
    }

    /// The same, or an interface that has an address of `subnet`, although no route leads there.
    pub(super) fn conflict_or_address(&self, subnet: &Subnet, own: &str) -> Option<Conflict> {
        let has = || self.with_address(own, |address| subnet.contains(address));
        self.conflict(subnet, own).or_else(has)
    }

    /// The interfaces by which the node reaches most others.
    pub(super) fn uplinks(&self) -> Vec<String> {
        let ways = self.routes.iter().filter(|route| route.is_default());
        let names: BTreeSet<&String> = ways.map(|route| &route.interface).collect();
        names.into_iter().cloned().collect()
    }

    /// Finds what has addresses of `subnet`, which a cluster gave the node: a route to some of them alone, an interface with an address of
    /// them, or a router that the node asks; save those of the interface `own`. A route to more addresses gives way to that of the subnet,
    /// unless it is that of a cluster's bridge. The first address of the subnet is not counted: no container has it, and flannel gives it to
    /// its own interface on each node.
    pub(super) fn conflict_within(&self, subnet: &Subnet, own: &str) -> Option<Conflict> {
        let is_first =
            |range: &Subnet| range.first() == subnet.first() && range.first() == range.last();
        let is_taken = |interface: &str, range: &Subnet| {
            subnet.contains_all(range) && !is_first(range)
                || is_interface_name(interface) && range.overlaps(subnet)
        };
        let has = self.with_address(own, |address| {
            subnet.contains(address) && address != subnet.first()
        });
        let router = |route: &Route| {
            let gateway = route.gateway.filter(|gateway| subnet.contains(*gateway))?;
            let interface = &route.interface;
            (interface != own).then(|| Conflict {
                interface: interface.clone(),
                why: format!("the node reaches others by {gateway} and {interface}"),
            })
        };
        let found = self.find(own, is_taken).or(has);
        found.or_else(|| self.routes.iter().find_map(router))
    }

    /// The range of IPv4 that the bridge `own` has instead of that of these, if it has another one: by the route that goes with an address.
    pub(super) fn former(&self, own: &str, ranges: &[Subnet]) -> Option<Subnet> {
        ranges.iter().find(|range| range.first().is_ipv4())?;
        let of_own = self.routes.iter().filter(|route| {
            route.interface == own && route.to.is_ipv4() && route.gateway.is_none()
        });
        let mut of_own = of_own.map(|route| Subnet::of(route.to, route.prefix));
        of_own.find(|range| !ranges.contains(range))
    }

    /// An interface other than `own` that has such an address.
    fn with_address(&self, own: &str, is_it: impl Fn(IpAddr) -> bool) -> Option<Conflict> {
        let mut addresses = self.addresses.iter();
        let has = addresses.find(|(name, address)| name != own && is_it(*address));
        has.map(|(interface, address)| Conflict {
            interface: interface.clone(),
            why: format!("{interface} has the address {address}"),
        })
    }

    fn find(&self, own: &str, is_it: impl Fn(&str, &Subnet) -> bool) -> Option<Conflict> {
        let others = self
            .routes
            .iter()
            .filter(|route| !route.is_default() && route.interface != own);
        let mut ranges = others.map(|route| (&route.interface, Subnet::of(route.to, route.prefix)));
        let (interface, range) = ranges.find(|(interface, range)| is_it(interface, range))?;
        Some(Conflict {
            interface: interface.clone(),
            why: format!("the node reaches {range} by {interface}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(interface: &str, to: &str, prefix: u8) -> Routes {
        let route = Route {
            interface: interface.to_owned(),
            to: to.parse().unwrap(),
            prefix,
            gateway: None,
        };
        Routes {
            routes: vec![route],
            addresses: Vec::new(),
        }
    }

    #[test]
    fn a_way_to_more_addresses_leaves_a_range_to_who_has_a_way_to_it_alone() {
        for (to, prefix, subnet, is_taken) in [
            ("10.0.0.0", 8, "10.244.1.0/24", false),
            ("10.244.0.0", 16, "10.244.1.0/24", false),
            ("10.244.1.0", 24, "10.244.1.0/24", true),
            ("10.244.1.128", 25, "10.244.1.0/24", true),
            ("10.244.2.0", 24, "10.244.1.0/24", false),
            ("0.0.0.0", 0, "10.244.1.0/24", false),
            ("fd00::", 16, "fd00:1::/64", false),
            ("fd00:1::7", 128, "fd00:1::/64", true),
        ] {
            let routes = routes("eth1", to, prefix);
            let subnet = subnet.parse().unwrap();
            let found = routes.conflict_within(&subnet, "swy-own");
            assert_eq!(found.is_some(), is_taken, "{to}/{prefix} {subnet}");
            assert_eq!(routes.conflict_within(&subnet, "eth1"), None);
        }
    }

    #[test]
    fn a_range_that_nobody_asked_for_leaves_every_address_of_the_node() {
        let range = "fd33:fbb1:fdc2:c40e::/64".parse().unwrap();
        let why = |routes: &Routes| {
            let found = routes.conflict_or_address(&range, "own");
            found.map(|found| found.why)
        };
        for (interface, to, prefix, expected) in [
            ("eth0", "::", 0, None),
            (
                "eth0",
                "fd00::",
                8,
                Some("the node reaches fd00::/8 by eth0"),
            ),
            (
                "wg0",
                "fd33:fbb1:fdc2::",
                48,
                Some("the node reaches fd33:fbb1:fdc2::/48 by wg0"),
            ),
            ("wg0", "fd33:fbb1:fdc3::", 48, None),
            ("own", "fd33:fbb1:fdc2:c40e::", 64, None),
        ] {
            let mut routes = routes(interface, to, prefix);
            assert_eq!(why(&routes).as_deref(), expected, "{interface} {to}");
            let address = "fd33:fbb1:fdc2:c40e::7".parse().unwrap();
            routes.addresses.push(("own".to_owned(), address));
            assert_eq!(why(&routes).as_deref(), expected, "{interface} {to}");
            routes.addresses.push(("dummy0".to_owned(), address));
            let has = "dummy0 has the address fd33:fbb1:fdc2:c40e::7";
            assert_eq!(why(&routes).as_deref(), expected.or(Some(has)));
        }
    }

    #[test]
    fn ways_to_most_others_are_those_of_both_families() {
        let mut all = routes("eth0", "0.0.0.0", 0);
        for (interface, to, prefix) in [
            ("eth0", "::", 0),
            ("tun0", "128.0.0.0", 1),
            ("tun1", "2000::", 3),
            ("docker0", "172.17.0.0", 16),
            ("wg0", "fd00::", 8),
        ] {
            all.routes.extend(routes(interface, to, prefix).routes);
        }
        assert_eq!(all.uplinks(), ["eth0", "tun0", "tun1"]);
        assert!(routes("docker0", "172.17.0.0", 16).uplinks().is_empty());
    }

    #[test]
    fn a_bridge_has_a_former_range_by_a_route_of_its_own() {
        for (interface, to, prefix, gateway, is_former) in [
            ("pods", "10.244.2.0", 24, None, true),
            ("pods", "10.244.0.0", 16, None, true),
            ("pods", "10.244.1.0", 24, None, false),
            ("pods", "10.9.0.0", 16, Some("10.244.1.7"), false),
            ("cni0", "10.244.2.0", 24, None, false),
            // A bridge may have several of these.
            ("pods", "fd00:2::", 64, None, false),
        ] {
            let mut routes = routes(interface, to, prefix);
            routes.routes[0].gateway = gateway.map(|gateway| gateway.parse().unwrap());
            let ranges: [Subnet; 2] =
                ["10.244.1.0/24", "fd00:1::/64"].map(|text| text.parse().unwrap());
            let found = routes.former("pods", &ranges);
            assert_eq!(found.is_some(), is_former, "{interface} {to}/{prefix}");
            assert_eq!(routes.former("pods", &ranges[1..]), None);
        }
    }

    #[test]
    fn a_bridge_of_a_cluster_leaves_none_of_its_addresses() {
        for (interface, to, prefix, is_taken) in [
            ("swy-0123456789a", "10.244.0.0", 16, true),
            ("swy-0123456789a", "10.244.1.0", 24, true),
            ("swy-0123456789a", "10.244.1.64", 26, true),
            ("swy-0123456789a", "10.245.0.0", 16, false),
            // Names of others.
            ("swy-eth0", "10.244.0.0", 16, false),
            ("eth0", "10.244.0.0", 16, false),
        ] {
            let routes = routes(interface, to, prefix);
            let found = routes.conflict_within(&"10.244.1.0/24".parse().unwrap(), "pods");
            let why = format!("the node reaches {to}/{prefix} by {interface}");
            let why = Some(why).filter(|_| is_taken);
            assert_eq!(found.map(|found| found.why), why, "{interface} {to}");
        }
    }

    /// As a range within the network of the node: its route has more addresses.
    #[test]
    fn an_address_of_the_node_and_its_router_take_a_range() {
        for (interface, address, router, expected) in [
            (
                "eth0",
                "10.0.0.5",
                "10.0.9.1",
                Some("eth0 has the address 10.0.0.5"),
            ),
            (
                "eth0",
                "10.0.9.5",
                "10.0.0.1",
                Some("the node reaches others by 10.0.0.1 and eth0"),
            ),
            ("eth0", "10.0.9.5", "10.0.9.1", None),
            ("pods", "10.0.0.1", "10.0.0.1", None),
            // As flannel has it on the node to which it leads the others.
            ("flannel.1", "10.0.0.0", "10.0.9.1", None),
            ("eth0", "fd00::5", "fd00::1", None),
        ] {
            let way = Route {
                interface: interface.to_owned(),
                to: [0, 0, 0, 0].into(),
                prefix: 0,
                gateway: Some(router.parse().unwrap()),
            };
            let mut routes = routes(interface, "10.0.0.0", 16);
            routes.routes.push(way);
            let own = (interface.to_owned(), address.parse().unwrap());
            routes.addresses.push(own);
            let found = routes.conflict_within(&"10.0.0.0/24".parse().unwrap(), "pods");
            let why = found.map(|found| found.why);
            assert_eq!(why.as_deref(), expected, "{interface} {address} {router}");
        }
    }

    #[test]
    fn a_way_to_some_of_its_addresses_takes_a_range() {
        for (to, prefix, subnet, is_taken) in [
            ("172.26.64.0", 20, "172.26.64.0/20", true),
            ("172.26.64.0", 20, "172.26.70.0/24", true),
            ("172.26.64.0", 20, "172.26.0.0/16", true),
            ("172.26.64.0", 20, "172.26.80.0/20", false),
            ("172.26.64.0", 20, "fd00::/64", false),
            ("fd00::", 64, "fd00::/64", true),
            ("fd00::", 64, "fd00::80:0/112", true),
            ("fd00::", 64, "fd00::/48", true),
            ("fd00::7", 128, "fd00::/64", true),
            ("fd00::", 64, "fd00:0:0:1::/64", false),
            ("fd00::", 64, "172.26.64.0/20", false),
            // A default route covers all addresses.
            ("0.0.0.0", 0, "172.26.64.0/20", false),
            ("::", 0, "fd00::/64", false),
            // So do those that a program for a VPN adds.
            ("128.0.0.0", 1, "172.26.64.0/20", false),
            ("fc00::", 7, "fd00::/64", false),
            ("fd00::", 8, "fd00::/64", true),
            ("172.16.0.0", 12, "172.26.64.0/20", true),
        ] {
            let subnet = subnet.parse().unwrap();
            let conflict = |interface: &str| {
                let found = routes(interface, to, prefix).conflict(&subnet, "swy-own");
                found.map(|found| found.why)
            };
            let there = Some(format!("the node reaches {to}/{prefix} by eth1"));
            let there = there.filter(|_| is_taken);
            assert_eq!(conflict("eth1"), there, "{to}/{prefix} {subnet}");
            assert_eq!(conflict("swy-own"), None);
        }
    }
}
