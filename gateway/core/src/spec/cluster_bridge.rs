//! Bridge networks that the cluster of an orchestrator defines.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{NetworkName, Subnet};
use crate::error::{Error, Result};

/// The ranges from which a cluster may take addresses: private ones, shared ones (RFC 6598), and those for
/// benchmarks (RFC 2544). The node would not reach other hosts any more whose addresses a bridge has.
const PRIVATE: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
];

/// The same of IPv6: unique local addresses (RFC 4193).
const PRIVATE_SIX: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);

/// The longest prefix: with 30 bits there is an address for the bridge, and one for a sandbox.
const PREFIX_MAX: u8 = 30;

/// The longest prefix of IPv6, with as many addresses.
const PREFIX_MAX_SIX: u8 = 126;

/// A bridge network that a cluster defines. Each node makes a bridge of its own for it, while sandboxes are
/// attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterBridge {
    /// Its id in the cluster.
    pub id: NetworkName,
    /// Its name for people, in messages.
    pub name: String,
    /// Its addresses; `None` leaves them to the node.
    pub addresses: Option<BridgeAddresses>,
    /// Its addresses of IPv6, if it has any.
    pub ipv6: Option<Ipv6BridgeAddresses>,
    /// True if it leads nowhere but to its sandboxes.
    pub is_internal: bool,
    /// True if packets to other networks get the address of the node.
    pub has_masquerade: bool,
    /// The MTU in bytes; `None` for the kernel's default.
    pub mtu: Option<u16>,
}

/// The addresses of a bridge network. They fit each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeAddresses {
    subnet: Subnet,
    range: Option<Subnet>,
    gateway: Ipv4Addr,
}

/// The addresses of IPv6 of a bridge network. They fit each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6BridgeAddresses {
    subnet: Subnet,
    gateway: Ipv6Addr,
}

// === impl Ipv6BridgeAddresses ===

impl Ipv6BridgeAddresses {
    /// The addresses of this subnet. Without a gateway, the bridge has the address after the first one.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `subnet` or `gateway`.
    pub fn new(subnet: Subnet, gateway: Option<IpAddr>) -> Result<Self> {
        let (first, prefix) = PRIVATE_SIX;
        let private = Subnet::of(first.into(), prefix);
        let IpAddr::V6(first) = subnet.first() else {
            return Err(Error::invalid("subnet", format!("{subnet} is not of IPv6")));
        };
        if !private.contains_all(&subnet) {
            let why = format!("{subnet} is not within the private range {private}");
            return Err(Error::invalid("subnet", why));
        }
        if subnet.prefix() > PREFIX_MAX_SIX {
            let why = format!(
                "{subnet} has no room for a bridge and tasks: /{PREFIX_MAX_SIX} is the smallest"
            );
            return Err(Error::invalid("subnet", why));
        }
        let gateway = match gateway {
            None => Ipv6Addr::from_bits(first.to_bits().saturating_add(1)),
            Some(IpAddr::V6(given)) if subnet.contains(given.into()) && given != first => given,
            Some(given) => {
                let why = format!("{given} is no address for a bridge with the subnet {subnet}");
                return Err(Error::invalid("gateway", why));
            }
        };
        Ok(Self { subnet, gateway })
    }

    /// All addresses.
    #[must_use]
    pub const fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// The address of the bridge.
    #[must_use]
    pub const fn gateway(&self) -> Ipv6Addr {
        self.gateway
    }
}

// === impl BridgeAddresses ===

impl BridgeAddresses {
    /// The addresses of this subnet. Sandboxes get addresses of `range` only, if there is one. Without a
    /// gateway, the bridge has the first address.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `subnet`, `range` or `gateway`.
    pub fn new(subnet: Subnet, range: Option<Subnet>, gateway: Option<IpAddr>) -> Result<Self> {
        let IpAddr::V4(first) = subnet.first() else {
            let why = format!("{subnet} is of IPv6, where one of IPv4 is wanted");
            return Err(Error::invalid("subnet", why));
        };
        let of_private = |(first, prefix): &(Ipv4Addr, u8)| Subnet::of_v4(*first, *prefix);
        if !PRIVATE
            .iter()
            .any(|range| of_private(range).contains_all(&subnet))
        {
            let ranges: Vec<String> = PRIVATE
                .iter()
                .map(|range| of_private(range).to_string())
                .collect();
            let why = format!(
                "{subnet} is not within the private ranges {}",
                ranges.join(", ")
            );
            return Err(Error::invalid("subnet", why));
        }
        if subnet.prefix() > PREFIX_MAX {
            let why = format!(
                "{subnet} has no room for a bridge and a task: /{PREFIX_MAX} is the smallest"
            );
            return Err(Error::invalid("subnet", why));
        }
        if let Some(range) = range
            && !(subnet.contains_all(&range) && pool(&subnet, &range).is_some())
        {
            let why = format!("{range} has no addresses for tasks within the subnet {subnet}");
            return Err(Error::invalid("range", why));
        }
        let gateway = match gateway {
            None => Ipv4Addr::from_bits(first.to_bits().saturating_add(1)),
            Some(IpAddr::V4(given))
                if subnet.contains(given.into()) && !is_edge(&subnet, given) =>
            {
                given
            }
            Some(given) => {
                let why = format!("{given} is no address for a bridge with the subnet {subnet}");
                return Err(Error::invalid("gateway", why));
            }
        };
        Ok(Self {
            subnet,
            range,
            gateway,
        })
    }

    /// All addresses.
    #[must_use]
    pub const fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// The range for sandboxes, if they do not get any address of the subnet.
    #[must_use]
    pub const fn range(&self) -> Option<&Subnet> {
        self.range.as_ref()
    }

    /// The first and the last address of that range that an interface can have.
    #[must_use]
    pub fn pool(&self) -> Option<[Ipv4Addr; 2]> {
        pool(&self.subnet, &self.range?)
    }

    /// The address of the bridge.
    #[must_use]
    pub const fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }
}

/// The addresses of a range without the first and the last one of the subnet; `None` if there are none.
fn pool(subnet: &Subnet, range: &Subnet) -> Option<[Ipv4Addr; 2]> {
    let (IpAddr::V4(first), IpAddr::V4(last)) = (range.first(), range.last()) else {
        return None;
    };
    let begin = if is_edge(subnet, first) {
        first.to_bits().checked_add(1)?
    } else {
        first.to_bits()
    };
    let end = if is_edge(subnet, last) {
        last.to_bits().checked_sub(1)?
    } else {
        last.to_bits()
    };
    (begin <= end).then(|| [begin, end].map(Ipv4Addr::from_bits))
}

/// Returns whether this is the first or the last address of a subnet, which no interface has.
fn is_edge(subnet: &Subnet, address: Ipv4Addr) -> bool {
    [subnet.first(), subnet.last()].contains(&address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(subnet: &str, range: &str, gateway: &str) -> Result<BridgeAddresses> {
        let range = (!range.is_empty()).then(|| range.parse().unwrap());
        let gateway = (!gateway.is_empty()).then(|| gateway.parse().unwrap());
        BridgeAddresses::new(subnet.parse().unwrap(), range, gateway)
    }

    #[test]
    fn bridge_has_the_first_address_unless_another_is_named() {
        let made = addresses("10.7.3.9/24", "10.7.3.128/25", "").unwrap();
        assert_eq!(
            (made.subnet().to_string(), made.gateway().to_string()),
            ("10.7.3.0/24".into(), "10.7.3.1".into())
        );
        let pool = |made: BridgeAddresses| made.pool().map(|ends| ends.map(|end| end.to_string()));
        assert_eq!(
            pool(made),
            Some(["10.7.3.128", "10.7.3.254"].map(str::to_owned))
        );
        let same = addresses("10.7.3.0/24", "10.7.3.0/24", "").unwrap();
        assert_eq!(
            pool(same),
            Some(["10.7.3.1", "10.7.3.254"].map(str::to_owned))
        );
        let other = addresses("172.16.0.0/12", "", "172.31.255.254").unwrap();
        assert_eq!(other.gateway().to_string(), "172.31.255.254");
        for subnet in [
            "10.0.0.0/8",
            "192.168.4.4/30",
            "100.127.0.0/16",
            "198.19.0.0/16",
        ] {
            addresses(subnet, "", "").unwrap();
        }
    }

    #[test]
    fn addresses_that_no_bridge_can_have_are_refused() {
        let check = |subnet: &str, range: &str, gateway: &str, field: &str| {
            let error = addresses(subnet, range, gateway).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        };
        for subnet in [
            "0.0.0.0/0",
            "10.0.0.0/7",
            "10.0.0.0/31",
            "10.0.0.0/32",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "8.8.8.0/24",
            "224.0.0.0/24",
            "172.0.0.0/8",
            "192.168.0.0/15",
            "255.255.255.0/24",
            "fd00::/64",
            "::/0",
        ] {
            check(subnet, "", "", "subnet: ");
        }
        for range in [
            "10.1.0.0/23",
            "10.2.0.0/24",
            "fd00::/80",
            "0.0.0.0/0",
            "10.1.0.0/32",
            "10.1.0.255/32",
        ] {
            check("10.1.0.0/24", range, "", "range: ");
        }
        for gateway in ["10.1.0.0", "10.1.0.255", "10.1.1.1", "fd00::1", "0.0.0.0"] {
            check("10.1.0.0/24", "", gateway, "gateway: ");
        }
    }

    #[test]
    fn addresses_of_ipv6_are_private_and_the_bridge_has_the_second_one_or_another() {
        for (subnet, gateway, expected) in [
            ("fd00:7::/64", "", Ok("fd00:7::1")),
            ("fd00:7::9/64", "fd00:7::9", Ok("fd00:7::9")),
            ("fc00::/7", "", Ok("fc00::1")),
            ("fd00:7::/126", "", Ok("fd00:7::1")),
            ("fd00:7::/127", "", Err("subnet: ")),
            ("2001:db8::/64", "", Err("subnet: ")),
            ("fe80::/64", "", Err("subnet: ")),
            ("ff00::/8", "", Err("subnet: ")),
            ("::/0", "", Err("subnet: ")),
            ("10.7.0.0/24", "", Err("subnet: ")),
            ("fd00:7::/64", "fd00:7::", Err("gateway: ")),
            ("fd00:7::/64", "fd00:8::1", Err("gateway: ")),
            ("fd00:7::/64", "10.7.0.1", Err("gateway: ")),
        ] {
            let gateway = (!gateway.is_empty()).then(|| gateway.parse().unwrap());
            let made = Ipv6BridgeAddresses::new(subnet.parse().unwrap(), gateway);
            match (made, expected) {
                (Ok(made), Ok(expected)) => assert_eq!(made.gateway().to_string(), expected),
                (Err(error), Err(field)) => {
                    assert!(error.to_string().starts_with(field), "{error}")
                }
                (made, expected) => panic!("{subnet} {gateway:?}: {made:?}, not {expected:?}"),
            }
        }
    }
}
