//! Address ranges.

use std::fmt;
use std::net::IpAddr;
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
}

impl FromStr for Subnet {
    type Err = Error;

    /// Accepts any address of the range, not only the first one.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("subnet", format!("{text:?} is no range such as 10.1.0.0/24"));
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
        let first = match address.parse::<IpAddr>().map_err(|fault| wrong().with_source(fault))? {
            IpAddr::V4(address) if prefix <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) if prefix <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
            IpAddr::V4(_) | IpAddr::V6(_) => return Err(wrong()),
        };
        Ok(Self { first, prefix })
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
            assert_eq!(text.parse::<Subnet>().unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn malformed_subnet_is_rejected() {
        for text in
            ["", "10.1.0.0", "10.1.0.0/33", "10.1.0.0/+4", "10.1.0.0/", "fd00::/129", "10.1/16", "a/8"]
        {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
    }
}
