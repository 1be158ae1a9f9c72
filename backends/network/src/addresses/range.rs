//! Ranges of addresses, and sets of them, as in the configuration of `host-local`.

use std::fmt;
use std::iter::successors;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use switchyard_core::spec::Subnet;

use super::error::AddressError;

/// The bits of a subnet that number its hosts are at least so many: the plugin takes none with fewer than four addresses.
const HOST_BITS_MIN: u8 = 2;

/// The addresses of IPv4 as addresses of IPv6; the plugin takes both for the same.
const MAPPED: (Ipv6Addr, u8) = (Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96);

/// The addresses of a subnet from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    subnet: Subnet,
    first: IpAddr,
    last: IpAddr,
    gateway: IpAddr,
}

/// Parts of a range that are not as by default: `rangeStart`, `rangeEnd` and `gateway` of the plugin's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RangeLimits {
    /// The first address that is assigned. By default the first of a host.
    pub first: Option<IpAddr>,
    /// The last address that is assigned. By default the last of a host.
    pub last: Option<IpAddr>,
    /// The gateway, which is never assigned. By default the first address of a host.
    pub gateway: Option<IpAddr>,
}

/// Ranges of one family, in the order in which they are used; a container gets an address of one of them. Has at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<AddressRange>);

/// An address of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignedAddress {
    /// The address.
    pub address: IpAddr,
    /// The prefix length of its subnet, in bits.
    pub prefix: u8,
    /// The gateway of its subnet.
    pub gateway: IpAddr,
}

/// The address after another one.
fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits().checked_add(1)?;
            Some(Ipv4Addr::from_bits(bits).into())
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits().checked_add(1)?;
            Some(Ipv6Addr::from_bits(bits).into())
        }
    }
}

/// The addresses from one to another, both included; none if the first is after the last.
fn between(first: Option<IpAddr>, last: IpAddr) -> impl Iterator<Item = IpAddr> {
    successors(first, |address| next(*address)).take_while(move |address| *address <= last)
}

/// The last address of a subnet that a host can have: in IPv4 the one before the address of its broadcasts.
fn last_host(subnet: Subnet) -> IpAddr {
    match subnet.last() {
        IpAddr::V4(last) => Ipv4Addr::from_bits(last.to_bits().saturating_sub(1)).into(),
        last @ IpAddr::V6(_) => last,
    }
}

// === impl AddressRange ===

impl AddressRange {
    /// The addresses of a subnet within these limits. Its first address, and in IPv4 its last one, are no host's, and never assigned,
    /// also if the limits include them.
    ///
    /// # Errors
    /// [`AddressError::Range`] if the subnet has fewer than four addresses, or addresses of IPv4 in the form of IPv6, if a limit is not
    /// within it, or if there is no address between them.
    pub fn new(subnet: Subnet, limits: RangeLimits) -> Result<Self, AddressError> {
        let refused = |why: String| AddressError::Range {
            range: subnet.to_string(),
            why,
        };
        let bits: u8 = if subnet.first().is_ipv4() { 32 } else { 128 };
        if bits.saturating_sub(subnet.prefix()) < HOST_BITS_MIN {
            return Err(refused("it has fewer than four addresses".to_owned()));
        }
        let (mapped, prefix) = MAPPED;
        if Subnet::of(mapped.into(), prefix).overlaps(&subnet) {
            let why = "it has addresses of IPv4 in the form of IPv6; write it as of IPv4";
            return Err(refused(why.to_owned()));
        }
        let first_host = next(subnet.first()).unwrap_or(subnet.first());
        let last_host = last_host(subnet);
        let within = |what: &str, given: Option<IpAddr>, default: IpAddr| {
            let address = given.unwrap_or(default);
            if subnet.contains(address) {
                Ok(address)
            } else {
                Err(refused(format!("its {what} {address} is not in it")))
            }
        };
        let first = within("first address", limits.first, first_host)?.max(first_host);
        let last = within("last address", limits.last, last_host)?.min(last_host);
        let gateway = within("gateway", limits.gateway, first_host)?;
        if first > last {
            let why = format!("no host can have an address from {first} to {last}");
            return Err(refused(why));
        }
        if !(first_host..=last_host).contains(&gateway) {
            let why = format!("its gateway {gateway} is no address of a host");
            return Err(refused(why));
        }
        Ok(Self {
            subnet,
            first,
            last,
            gateway,
        })
    }

    /// The gateway of its subnet.
    #[must_use]
    pub const fn gateway(&self) -> IpAddr {
        self.gateway
    }

    fn contains(&self, address: IpAddr) -> bool {
        // Addresses of IPv4 come before those of IPv6.
        (self.first..=self.last).contains(&address)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.first, self.last)
    }
}

// === impl RangeSet ===

impl RangeSet {
    /// The set of these ranges, which are used one after the other.
    ///
    /// # Errors
    /// [`AddressError::Range`] if there are none, if they are of both families, or if two have addresses in common.
    pub fn new(ranges: Vec<AddressRange>) -> Result<Self, AddressError> {
        let refused = |range: String, why: String| Err(AddressError::Range { range, why });
        let Some(head) = ranges.first() else {
            return refused("of a set".to_owned(), "there is none".to_owned());
        };
        for (index, range) in ranges.iter().enumerate() {
            if range.first.is_ipv4() != head.first.is_ipv4() {
                let why = format!("it is of another family than {head}; make it a set of its own");
                return refused(range.to_string(), why);
            }
            if let Some(other) = ranges[..index].iter().find(|other| other.overlaps(range)) {
                return refused(range.to_string(), format!("it overlaps {other}"));
            }
        }
        Ok(Self(ranges))
    }

    /// Its ranges.
    #[must_use]
    pub fn ranges(&self) -> &[AddressRange] {
        &self.0
    }

    /// Two ranges, of this set and of another one, that have addresses in common.
    pub(super) fn overlap<'a>(
        &'a self,
        other: &'a Self,
    ) -> Option<(&'a AddressRange, &'a AddressRange)> {
        let mut pairs = self
            .0
            .iter()
            .flat_map(|one| other.0.iter().map(move |two| (one, two)));
        pairs.find(|(one, two)| one.overlaps(two))
    }

    /// An address of it, with what its range says of it; `None` if it is in no range.
    pub(super) fn assigned(&self, address: IpAddr) -> Option<AssignedAddress> {
        let range = self.0.iter().find(|range| range.contains(address))?;
        Some(AssignedAddress {
            address,
            prefix: range.subnet.prefix(),
            gateway: range.gateway,
        })
    }

    /// All its addresses, gateways too, in the order in which they are tried: from the one after `last` to the end of its range, the
    /// other ranges, and the beginning of that range, `last` included. Without a `last` that is in it, from its beginning.
    pub(super) fn candidates(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> + '_ {
        let end = self.0.last().map(|range| range.last);
        let last = last.filter(|last| self.assigned(*last).is_some()).or(end);
        let start = last.and_then(|last| {
            let index = self.0.iter().position(|range| range.contains(last))?;
            Some((index, last))
        });
        start.into_iter().flat_map(move |(index, last)| {
            let range = &self.0[index];
            let others = self.0[index + 1..].iter().chain(&self.0[..index]);
            between(next(last), range.last)
                .chain(others.flat_map(|other| between(Some(other.first), other.last)))
                .chain(between(Some(range.first), last))
        })
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(AddressRange::to_string).collect();
        f.write_str(&ranges.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn limited(
        subnet: &str,
        first: &str,
        last: &str,
        gateway: &str,
    ) -> Result<AddressRange, String> {
        let optional = |text: &str| (!text.is_empty()).then(|| address(text));
        let limits = RangeLimits {
            first: optional(first),
            last: optional(last),
            gateway: optional(gateway),
        };
        AddressRange::new(subnet.parse().unwrap(), limits).map_err(|error| error.to_string())
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "it is one table of cases")]
    fn range_is_what_hosts_of_the_subnet_can_have() {
        for (subnet, first, last, gateway, expected) in [
            (
                "10.1.2.0/24",
                "",
                "",
                "",
                "10.1.2.1 to 10.1.2.254, 10.1.2.1",
            ),
            ("10.1.2.0/30", "", "", "", "10.1.2.1 to 10.1.2.2, 10.1.2.1"),
            ("fd00::/126", "", "", "", "fd00::1 to fd00::3, fd00::1"),
            (
                "fd00::/64",
                "fd00::10",
                "fd00::20",
                "fd00::ff",
                "fd00::10 to fd00::20, fd00::ff",
            ),
            (
                "10.1.2.0/24",
                "10.1.2.9",
                "",
                "10.1.2.9",
                "10.1.2.9 to 10.1.2.254, 10.1.2.9",
            ),
            (
                "10.1.2.0/24",
                "10.1.2.0",
                "10.1.2.255",
                "",
                "10.1.2.1 to 10.1.2.254, 10.1.2.1",
            ),
            (
                "fd00::/120",
                "fd00::",
                "fd00::ff",
                "fd00::ff",
                "fd00::1 to fd00::ff, fd00::ff",
            ),
        ] {
            let range = limited(subnet, first, last, gateway).unwrap();
            assert_eq!(
                format!("{range}, {}", range.gateway()),
                expected,
                "{subnet}"
            );
        }
        for (subnet, first, last, gateway, why) in [
            (
                "10.1.2.0/31",
                "",
                "",
                "",
                "it has fewer than four addresses",
            ),
            ("fd00::/127", "", "", "", "it has fewer than four addresses"),
            (
                "10.1.2.0/24",
                "10.1.3.1",
                "",
                "",
                "its first address 10.1.3.1 is not in it",
            ),
            (
                "10.1.2.0/24",
                "",
                "fd00::1",
                "",
                "its last address fd00::1 is not in it",
            ),
            (
                "fd00::/64",
                "",
                "",
                "fd01::1",
                "its gateway fd01::1 is not in it",
            ),
            (
                "10.1.2.0/24",
                "",
                "",
                "10.1.2.255",
                "its gateway 10.1.2.255 is no address of a host",
            ),
            (
                "10.1.2.0/24",
                "10.1.2.9",
                "10.1.2.8",
                "",
                "no host can have an address from 10.1.2.9 to 10.1.2.8",
            ),
            (
                "10.1.2.0/24",
                "",
                "10.1.2.0",
                "",
                "no host can have an address from 10.1.2.1 to 10.1.2.0",
            ),
            (
                "::ffff:10.1.2.0/120",
                "",
                "",
                "",
                "it has addresses of IPv4 in the form of IPv6; write it as of IPv4",
            ),
            (
                "::/64",
                "",
                "",
                "",
                "it has addresses of IPv4 in the form of IPv6; write it as of IPv4",
            ),
        ] {
            let error = limited(subnet, first, last, gateway).unwrap_err();
            let range: Subnet = subnet.parse().unwrap();
            assert_eq!(error, format!("address range {range}: {why}"));
        }
    }

    #[test]
    fn set_has_ranges_of_one_family_without_common_addresses() {
        let range =
            |subnet: &str, first: &str, last: &str| limited(subnet, first, last, "").unwrap();
        let a = range("10.1.2.0/24", "10.1.2.10", "10.1.2.20");
        for (ranges, why) in [
            (vec![a], None),
            (vec![a, range("10.1.2.0/24", "10.1.2.21", "")], None),
            (vec![a, range("10.1.3.0/24", "", "")], None),
            (vec![], Some("there is none")),
            (
                vec![a, range("fd00::/64", "", "")],
                Some(
                    "it is of another family than 10.1.2.10 to 10.1.2.20; make it a set of its own",
                ),
            ),
            (
                vec![a, range("10.1.2.0/24", "10.1.2.20", "")],
                Some("it overlaps 10.1.2.10 to 10.1.2.20"),
            ),
            (
                vec![a, range("10.1.0.0/16", "", "")],
                Some("it overlaps 10.1.2.10 to 10.1.2.20"),
            ),
            (
                vec![range("10.1.3.0/24", "", ""), a, a],
                Some("it overlaps 10.1.2.10 to 10.1.2.20"),
            ),
        ] {
            let found = RangeSet::new(ranges).map_err(|error| error.to_string());
            match why {
                None => drop(found.unwrap()),
                Some(why) => assert!(found.unwrap_err().ends_with(&format!(": {why}"))),
            }
        }
    }

    #[test]
    fn candidates_begin_after_the_last_one_and_come_round_to_it() {
        let range = |subnet: &str| limited(subnet, "", "", "").unwrap();
        let set = RangeSet::new(vec![
            range("10.0.0.0/30"),
            range("10.0.1.0/30"),
            range("10.0.2.0/30"),
        ])
        .unwrap();
        let all = [
            "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "10.0.2.1", "10.0.2.2",
        ];
        for (last, begin) in [
            (None, 0),
            (Some("10.0.9.9"), 0),
            (Some("fd00::1"), 0),
            (Some("10.0.0.1"), 1),
            (Some("10.0.0.2"), 2),
            (Some("10.0.1.2"), 4),
            (Some("10.0.2.2"), 0),
        ] {
            let mut expected = all;
            expected.rotate_left(begin);
            let found: Vec<String> = set
                .candidates(last.map(address))
                .map(|one| one.to_string())
                .collect();
            assert_eq!(found, expected, "{last:?}");
        }
    }

    #[test]
    fn the_last_address_of_all_has_none_after_it() {
        let range = limited("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126", "", "", "").unwrap();
        let set = RangeSet::new(vec![range]).unwrap();
        assert_eq!(set.candidates(None).count(), 3);
        assert_eq!(set.candidates(Some(range.last)).next(), Some(range.first));
    }
}
