//! The routes of the node, of both families, as the kernel prints them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fs, io};

use crate::files::if_present;

/// The kernel's routing table of IPv4.
pub const FOUR: &str = "/proc/net/route";

/// The kernel's routing table of IPv6. A kernel without IPv6 has none.
pub const SIX: &str = "/proc/net/ipv6_route";

/// The most routes of a family that are looked at.
const ROUTES_MAX: usize = 100_000;

/// A route to other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The interface by which they are reached.
    pub interface: String,
    /// The first of their addresses.
    pub to: IpAddr,
    /// Number of bits that all their addresses have in common.
    pub prefix: u8,
    /// The machine that passes packets on to them, if there is one.
    pub gateway: Option<IpAddr>,
}

// === impl Route ===

impl Route {
    /// Returns whether it is a way to most other machines, and not to a network of its own: a default route, or one of those that
    /// programs for VPNs add instead, such as `0.0.0.0/1`, `2000::/3` and `fc00::/7`. The most of IPv6 that is a network of its own
    /// is `fd00::/8`.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        match self.to {
            IpAddr::V4(_) => self.prefix <= 1,
            IpAddr::V6(_) => self.prefix < 8,
        }
    }
}

/// Reads the routing tables. Without one, the family has no routes. Blocks.
///
/// # Errors
/// One is there, and cannot be read.
pub fn read() -> io::Result<Vec<Route>> {
    read_from(FOUR.as_ref(), SIX.as_ref())
}

fn read_from(four: &Path, six: &Path) -> io::Result<Vec<Route>> {
    let bytes = |path: &Path| if_present(fs::read(path)).map(Option::unwrap_or_default);
    let [four, six] = [bytes(four)?, bytes(six)?];
    // The name of an interface may have any bytes.
    let [four, six] = [&four, &six].map(|bytes| String::from_utf8_lossy(bytes));
    Ok(parse(&four, &six))
}

/// The routes in the texts of [`FOUR`] and [`SIX`]. Those to addresses that every interface or the node itself has are left
/// out: of loopback, link-local and multicast ones of IPv6.
#[must_use]
pub fn parse(four: &str, six: &str) -> Vec<Route> {
    let four = four.lines().skip(1).take(ROUTES_MAX).filter_map(of_four);
    let six = six.lines().take(ROUTES_MAX).filter_map(of_six);
    four.chain(six).collect()
}

/// The kernel prints an address of IPv4 as one hexadecimal number in the machine's byte order.
fn of_four(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let to = Ipv4Addr::from_bits(number(fields.get(1)?)?);
    let gateway = Ipv4Addr::from_bits(number(fields.get(2)?)?);
    let prefix = number(fields.get(7)?)?.count_ones();
    Some(Route {
        interface: (*fields.first()?).to_owned(),
        to: to.into(),
        prefix: u8::try_from(prefix).ok()?,
        gateway: Some(gateway.into()).filter(|_| !gateway.is_unspecified()),
    })
}

/// And one of IPv6 as 32 hexadecimal digits.
fn of_six(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let address = |text: &str| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from_bits);
    let to = address(fields.first()?)?;
    let gateway = address(fields.get(4)?)?;
    let prefix = u8::from_str_radix(fields.get(1)?, 16).ok()?;
    let interface = *fields.get(9)?;
    let is_own =
        to.is_multicast() || to.is_unicast_link_local() || to.is_loopback() || interface == "lo";
    (!is_own && prefix <= 128).then(|| Route {
        interface: interface.to_owned(),
        to: to.into(),
        prefix,
        gateway: Some(gateway.into()).filter(|_| !gateway.is_unspecified()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(four: &str, six: &str) -> Vec<String> {
        let routes = parse(four, six);
        let text = |route: &Route| {
            let by = route.gateway.map(|gateway| format!(" via {gateway}"));
            let by = by.unwrap_or_default();
            format!("{}/{} {}{by}", route.to, route.prefix, route.interface)
        };
        routes.iter().map(text).collect()
    }

    #[test]
    fn routes_of_both_families_are_those_to_other_machines() {
        // As this machine prints them.
        let [to, mask] = [[172, 26, 64, 0], [255, 255, 240, 0]].map(u32::from_ne_bytes);
        let router = u32::from_ne_bytes([192, 168, 1, 1]);
        let zero = "0".repeat(32);
        let six_by = |to: &str, prefix: &str, by: &str, interface: &str| {
            format!(
                "{to} {prefix} {zero} 00 {by} 00000100 00000001 00000000 00000001 {interface}\n"
            )
        };
        let six = |to: &str, prefix: &str, interface: &str| six_by(to, prefix, &zero, interface);
        let four = format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t{router:08X}\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth1\t{to:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\t0\t0\nnonsense\n"
        );
        let six = [
            six_by(&zero, "00", "fd000005000000000000000000000009", "eth0"),
            six("fd000005000000000000000000000000", "40", "eth1"),
            six("fe800000000000000000000000000000", "40", "eth1"),
            six("ff000000000000000000000000000000", "08", "eth1"),
            six("fd000005000000000000000000000001", "80", "lo"),
            "fd00 40\n".to_owned(),
        ]
        .concat();
        let expected = [
            "0.0.0.0/0 eth0 via 192.168.1.1",
            "172.26.64.0/20 eth1",
            "::/0 eth0 via fd00:5::9",
            "fd00:5::/64 eth1",
        ];
        assert_eq!(shown(&four, &six), expected);
        assert_eq!(shown("", ""), [""; 0]);
    }

    #[test]
    fn table_that_is_missing_has_no_routes_and_one_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let [missing, odd] = ["missing", "odd"].map(|name| dir.path().join(name));
        let [to, mask] = [[10, 0, 0, 0], [255, 0, 0, 0]].map(u32::from_ne_bytes);
        let line = format!("\t{to:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\t0\t0\n");
        let names: [&[u8]; 2] = [b"eth\xff", b"eth1"];
        let lines = names.map(|name| [name, line.as_bytes()].concat());
        fs::write(&odd, [&b"Iface\n"[..], &lines.concat()].concat()).unwrap();
        for (four, six, expected) in [
            (&missing, &missing, Some(0)),
            (&odd, &missing, Some(2)),
            // Those are no files.
            (&dir.path().to_owned(), &missing, None),
            (&odd, &dir.path().to_owned(), None),
            (&missing, &odd.join("below"), None),
        ] {
            let found = read_from(four, six).map(|routes| routes.len());
            assert_eq!(
                found.as_ref().ok(),
                expected.as_ref(),
                "{four:?} {six:?}: {found:?}"
            );
        }
    }

    #[test]
    fn route_to_a_large_part_of_all_addresses_is_a_default_route() {
        for (to, prefix, expected) in [
            ("0.0.0.0", 0, true),
            ("0.0.0.0", 1, true),
            ("128.0.0.0", 1, true),
            ("10.0.0.0", 8, false),
            ("172.16.0.0", 12, false),
            ("::", 0, true),
            ("8000::", 1, true),
            ("2000::", 3, true),
            ("3000::", 4, true),
            ("fc00::", 7, true),
            ("fd00::", 8, false),
            ("2001:db8::", 32, false),
        ] {
            let route = Route {
                interface: "tun0".to_owned(),
                to: to.parse().unwrap(),
                prefix,
                gateway: None,
            };
            assert_eq!(route.is_default(), expected, "{to}/{prefix}");
        }
    }
}
