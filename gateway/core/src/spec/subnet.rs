//! Address ranges.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::error::{Error, Result};

/// An address range in CIDR notation, for example `10.1.0.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    first: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// The first address.
    #[must_use]
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The prefix length.
    #[must_use]
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The range of IPv4 that has this address and prefix length.
    #[must_use]
    pub fn of_v4(address: Ipv4Addr, prefix: u8) -> Self {
        let prefix = prefix.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        Self {
            first: IpAddr::V4((address.to_bits() & mask).into()),
            prefix,
        }
    }

    /// The range that has this address and prefix length.
    #[must_use]
    pub fn of(address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address, prefix),
            IpAddr::V6(address) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Self {
                    first: IpAddr::V6((address.to_bits() & mask).into()),
                    prefix,
                }
            }
        }
    }

    /// The last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        let prefix = u32::from(self.prefix);
        match self.first {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(prefix).unwrap_or(0);
                IpAddr::V4((first.to_bits() | rest).into())
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(prefix).unwrap_or(0);
                IpAddr::V6((first.to_bits() | rest).into())
            }
        }
    }

    /// Returns whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        // Addresses of IPv4 come before those of IPv6.
        (self.first..=self.last()).contains(&address)
    }

    /// Returns whether all addresses of another one are in it.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        self.contains(other.first) && self.contains(other.last())
    }

    /// Returns whether an address is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl FromStr for Subnet {
    type Err = Error;

    /// Accepts any address of the range, not only the first one.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(
                "subnet",
                format!("{text:?} is no range such as 10.1.0.0/24"),
            )
        };
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
        let address = address
            .parse::<IpAddr>()
            .map_err(|fault| wrong().with_source(fault))?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix > longest {
            return Err(wrong());
        }
        Ok(Self::of(address, prefix))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnet_round_trips_through_text() {
        for (text, expected) in [
            ("10.1.0.0/24", "10.1.0.0/24"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("fd00:1:2::5/64", "fd00:1:2::/64"),
            ("::1/0", "::/0"),
        ] {
            assert_eq!(
                text.parse::<Subnet>().unwrap().to_string(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn subnets_overlap_if_one_is_within_the_other() {
        let check = |a: &str, b: &str, overlap: bool, contains: bool| {
            let [a, b]: [Subnet; 2] = [a, b].map(|text| text.parse().unwrap());
            assert_eq!(
                (a.overlaps(&b), b.overlaps(&a), a.contains_all(&b)),
                (overlap, overlap, contains),
                "{a} {b}"
            );
        };
        check("10.0.0.0/8", "10.1.2.0/24", true, true);
        check("10.1.2.0/24", "10.0.0.0/8", true, false);
        check("10.1.2.0/24", "10.1.3.0/24", false, false);
        check("10.1.2.0/24", "10.1.2.0/24", true, true);
        check("0.0.0.0/0", "10.1.2.3/32", true, true);
        check("0.0.0.0/0", "fd00::/8", false, false);
        check("::/0", "fd00::/8", true, true);
        assert_eq!(
            "10.1.2.0/23".parse::<Subnet>().unwrap().last().to_string(),
            "10.1.3.255"
        );
    }

    #[test]
    fn malformed_subnet_is_rejected() {
        for text in [
            "",
            "10.1.0.0",
            "10.1.0.0/33",
            "10.1.0.0/+4",
            "10.1.0.0/",
            "fd00::/129",
            "10.1/16",
            "a/8",
        ] {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
    }
}
