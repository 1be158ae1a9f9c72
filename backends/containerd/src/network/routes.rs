//! The node's routes, as far as a network of ours may not have their addresses.

use std::net::{IpAddr, Ipv4Addr};

use switchyard_core::spec::Subnet;

/// The kernel's IPv4 routing table.
const ROUTES: &str = "/proc/net/route";

/// The routing table of the node, as text.
#[derive(Debug)]
pub(super) struct Routes(String);

impl Routes {
    /// Reads a small file of the kernel. Without it, there are no routes.
    pub(super) fn read() -> Self {
        Self(std::fs::read_to_string(ROUTES).unwrap_or_default())
    }

    /// The interface and the range of a route that overlaps `subnet`, save default routes and those of the
    /// interface `own`. The kernel prints an address as one hexadecimal number in the machine's byte order.
    pub(super) fn conflict(&self, subnet: &Subnet, own: &str) -> Option<(String, Subnet)> {
        self.0.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
            let to = number(fields.get(1)?)?;
            let mask = number(fields.get(7)?)?;
            let prefix = u8::try_from(mask.count_ones())
                .ok()
                .filter(|prefix| *prefix > 0)?;
            let route = Subnet::of_v4(Ipv4Addr::from_bits(to), prefix);
            let interface = *fields.first()?;
            let overlaps = matches!(subnet.first(), IpAddr::V4(_)) && route.overlaps(subnet);
            (overlaps && interface != own).then(|| (interface.to_owned(), route))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(line: &str, subnet: &str) -> Option<(String, String)> {
        let routes = Routes(format!("Iface\tDestination\tGateway\n{line}\n"));
        routes
            .conflict(&subnet.parse().unwrap(), "swy-own")
            .map(|(interface, route)| (interface, route.to_string()))
    }

    #[test]
    fn a_way_to_some_of_its_addresses_takes_a_range() {
        // 172.26.64.0/20 by eth1, as a little-endian machine prints it.
        let [to, mask] = [[172, 26, 64, 0], [255, 255, 240, 0]].map(u32::from_ne_bytes);
        let line = format!("eth1\t{to:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\t0\t0");
        let there = Some(("eth1".to_owned(), "172.26.64.0/20".to_owned()));
        assert_eq!(routed(&line, "172.26.64.0/20"), there);
        assert_eq!(routed(&line, "172.26.70.0/24"), there);
        assert_eq!(routed(&line, "172.26.0.0/16"), there);
        assert_eq!(routed(&line, "172.26.80.0/20"), None);
        assert_eq!(routed(&line, "fd00::/64"), None);
        assert_eq!(
            routed(&line.replace("eth1", "swy-own"), "172.26.64.0/20"),
            None
        );
        // The default route covers all addresses.
        let line = "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0";
        assert_eq!(routed(line, "172.26.80.0/20"), None);
    }
}
