//! The node's routes, as far as a network of ours may not have their addresses.

use switchyard_core::spec::Subnet;
use switchyard_linux::routes::{self, Route};

/// The routes of the node, of both families.
#[derive(Debug)]
pub(super) struct Routes(Vec<Route>);

impl Routes {
    /// Reads small files of the kernel. Without one, its family has no routes.
    pub(super) fn read() -> Self {
        Self(routes::read())
    }

    /// The interface and the range of a route that overlaps `subnet`, save default routes and those of the
    /// interface `own`.
    pub(super) fn conflict(&self, subnet: &Subnet, own: &str) -> Option<(String, Subnet)> {
        self.find(own, |range| range.overlaps(subnet))
    }

    /// The interface and the range of a route to addresses of `subnet` alone, save those of the interface `own`. A route to more
    /// addresses gives way to that of the subnet.
    pub(super) fn conflict_within(&self, subnet: &Subnet, own: &str) -> Option<(String, Subnet)> {
        self.find(own, |range| subnet.contains_all(range))
    }

    fn find(&self, own: &str, is_it: impl Fn(&Subnet) -> bool) -> Option<(String, Subnet)> {
        let others = self
            .0
            .iter()
            .filter(|route| !route.is_default() && route.interface != own);
        let mut ranges = others.map(|route| (&route.interface, Subnet::of(route.to, route.prefix)));
        let (interface, range) = ranges.find(|(_, range)| is_it(range))?;
        Some((interface.clone(), range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(interface: &str, to: &str, prefix: u8) -> Routes {
        Routes(vec![Route {
            interface: interface.to_owned(),
            to: to.parse().unwrap(),
            prefix,
        }])
    }

    fn conflict(interface: &str, to: &str, prefix: u8, subnet: &str) -> Option<(String, String)> {
        routes(interface, to, prefix)
            .conflict(&subnet.parse().unwrap(), "swy-own")
            .map(|(interface, range)| (interface, range.to_string()))
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
            let there = Some(("eth1".to_owned(), format!("{to}/{prefix}")));
            assert_eq!(
                conflict("eth1", to, prefix, subnet),
                there.filter(|_| is_taken),
                "{to}/{prefix} {subnet}"
            );
            assert_eq!(conflict("swy-own", to, prefix, subnet), None);
        }
    }
}
