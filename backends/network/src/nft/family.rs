//! The two families of addresses and that of frames on ports of bridges, each with a table of its own; the name of these tables; and what elements consist of: names of bridges and
//! subnets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::NftError;

/// The beginning of the name of each table of ours.
const TABLE: &str = "switchyard";
/// Length of the longest name of an instance.
const MAX_INSTANCE: usize = 32;
/// Length of the longest name of a device.
const MAX_NAME: usize = 15;

/// A family of tables: one for each family of addresses, and one for ports of bridges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NftFamily {
    /// IPv4: tables of the family `ip`.
    Ip4,
    /// IPv6: tables of the family `ip6`.
    Ip6,
    /// Frames that come by a port of a bridge, whatever they are: tables of the family `bridge`.
    Bridge,
}

impl NftFamily {
    /// Both of addresses.
    pub const ALL: [Self; 2] = [Self::Ip4, Self::Ip6];
    /// All that have a table.
    pub const TABLES: [Self; 3] = [Self::Ip4, Self::Ip6, Self::Bridge];

    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ip4,
            IpAddr::V6(_) => Self::Ip6,
        }
    }

    /// Returns its name in the rules' language.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip4 => "ip",
            Self::Ip6 => "ip6",
            Self::Bridge => "bridge",
        }
    }

    /// Returns its number in messages: `NFPROTO_IPV4`, `NFPROTO_IPV6`, `NFPROTO_BRIDGE`.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ip4 => 2,
            Self::Ip6 => 10,
            Self::Bridge => 7,
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::TABLES
            .into_iter()
            .find(|family| family.number() == number)
    }

    /// Returns the length of an address in bytes; 0 for that of bridges, which has those of both.
    pub(super) fn address_length(self) -> u8 {
        match self {
            Self::Ip4 => 4,
            Self::Ip6 => 16,
            Self::Bridge => 0,
        }
    }

    /// Returns an address of the family from its bytes.
    pub(super) fn address(self, bytes: &[u8]) -> Option<IpAddr> {
        Some(match self {
            Self::Ip4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
            Self::Ip6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
            Self::Bridge => return None,
        })
    }
}

/// Returns the bytes of an address, in network byte order.
pub(super) fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A protocol whose ports are published. All have the port of the destination at the same place of their header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP. Only the address that the client asked is translated: associations with several addresses do not survive it.
    Sctp,
}

impl Transport {
    /// All.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns its name in the rules' language.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Returns its number in the header of IP.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }
}

/// The name of the tables of one instance of the daemon. Instances that share a network namespace each have tables of their own: none may
/// restore those of another one to its own elements.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(String);

impl TableName {
    /// Returns `switchyard_` and the name of an instance, which has 1 to 32 lower-case letters, digits and `_`.
    ///
    /// # Errors
    /// [`NftError::TableName`].
    pub fn of_instance(instance: &str) -> Result<Self, NftError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if (1..=MAX_INSTANCE).contains(&instance.len()) && instance.bytes().all(allowed) {
            Ok(Self(format!("{TABLE}_{instance}")))
        } else {
            Err(NftError::TableName {
                instance: instance.to_owned(),
            })
        }
    }

    /// Returns the name of a table, if it is one of an instance.
    pub(crate) fn of_table(name: &str) -> Option<Self> {
        match name.strip_prefix(TABLE)? {
            "" => Some(Self::default()),
            rest => Self::of_instance(rest.strip_prefix('_')?).ok(),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TableName {
    /// The name for the only instance: `switchyard`.
    fn default() -> Self {
        Self(TABLE.to_owned())
    }
}

/// The name of one of our bridges.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BridgeName(String);

impl BridgeName {
    /// Checks a name. A `*` at the end would mean other devices too in the text of a rule, and a `"` would end the name there; no other
    /// character but letters, digits, `-`, `_` and `.` is accepted either.
    ///
    /// # Errors
    /// [`NftError::BridgeName`].
    pub fn new(name: &str) -> Result<Self, NftError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let valid = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(allowed)
            && name != "."
            && name != "..";
        if valid {
            Ok(Self(name.to_owned()))
        } else {
            Err(NftError::BridgeName {
                name: name.to_owned(),
            })
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name with zeroes up to the length of a key's part.
    pub(super) fn padded(&self) -> [u8; MAX_NAME + 1] {
        let mut bytes = [0; MAX_NAME + 1];
        for (to, from) in bytes.iter_mut().zip(self.0.bytes()) {
            *to = from;
        }
        bytes
    }

    pub(super) fn from_padded(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let name = Self::new(std::str::from_utf8(bytes.get(..end)?).ok()?).ok()?;
        (name.padded() == bytes).then_some(name)
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// The addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NftSubnet {
    address: IpAddr,
    prefix: u8,
}

impl NftSubnet {
    /// Makes the subnet that an address is in; bits of the address beyond the prefix are dropped.
    ///
    /// # Errors
    /// [`NftError::SubnetPrefix`] if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NftError> {
        let bits = bits(NftFamily::of(&address));
        let Some(host_bits) = bits.checked_sub(u32::from(prefix)) else {
            return Err(NftError::SubnetPrefix { address, prefix });
        };
        let first = value(&address) & !low_bits(host_bits);
        let address = from_value(NftFamily::of(&address), first).unwrap_or(address);
        Ok(Self { address, prefix })
    }

    /// Returns its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of its prefix, in bits.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns the family of its addresses.
    #[must_use]
    pub fn family(&self) -> NftFamily {
        NftFamily::of(&self.address)
    }

    /// Returns whether an address is in both: then one of them is a part of the other one.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let prefix = self.prefix.min(other.prefix);
        let begin = |subnet: &Self| Self::new(subnet.address, prefix).ok();
        self.family() == other.family() && begin(self) == begin(other)
    }

    /// Returns whether it has an address.
    #[must_use]
    pub fn has(&self, address: &IpAddr) -> bool {
        Self::new(*address, self.prefix).is_ok_and(|around| around == *self)
    }

    /// Returns whether it is a part of another one, and not all of it.
    #[must_use]
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.overlaps(other) && other.prefix < self.prefix
    }

    /// Returns the first address behind it, or `None` if it has the last one of the family.
    pub(super) fn behind(&self) -> Option<IpAddr> {
        let family = self.family();
        let host_bits = bits(family) - u32::from(self.prefix);
        let last = value(&self.address) | low_bits(host_bits);
        from_value(family, last.checked_add(1)?)
    }

    /// Makes the subnet of all addresses from `first` up to the one before `behind`, or to the last one of the family. Returns `None` if
    /// they are not one subnet.
    pub(super) fn between(first: IpAddr, behind: Option<IpAddr>) -> Option<Self> {
        let bits = bits(NftFamily::of(&first));
        let last = match behind {
            Some(behind) => value(&behind).checked_sub(1)?,
            None => low_bits(bits),
        };
        let host = value(&first) ^ last;
        let is_subnet = host & host.wrapping_add(1) == 0 && value(&first) & host == 0;
        let prefix = u8::try_from(bits.checked_sub(host.count_ones())?).ok()?;
        is_subnet.then_some(Self {
            address: first,
            prefix,
        })
    }
}

impl fmt::Display for NftSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        // The rules' language shows a single address without its prefix.
        if u32::from(self.prefix) == bits(self.family()) {
            return Ok(());
        }
        write!(f, "/{}", self.prefix)
    }
}

fn bits(family: NftFamily) -> u32 {
    u32::from(family.address_length()) * 8
}

/// A number whose lowest bits are set.
fn low_bits(count: u32) -> u128 {
    1_u128.checked_shl(count).map_or(u128::MAX, |bit| bit - 1)
}

fn value(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the address with this number, or `None` if it is beyond the family's last one.
fn from_value(family: NftFamily, value: u128) -> Option<IpAddr> {
    Some(match family {
        NftFamily::Ip4 => Ipv4Addr::from_bits(u32::try_from(value).ok()?).into(),
        NftFamily::Ip6 => Ipv6Addr::from_bits(value).into(),
        NftFamily::Bridge => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::subnet;

    #[test]
    fn instance_is_a_part_of_a_name() {
        let longest = "x".repeat(32);
        for instance in ["a", "second", "node_2", longest.as_str()] {
            let name = TableName::of_instance(instance).unwrap();
            assert_eq!(name.as_str(), format!("switchyard_{instance}"));
        }
        let too_long = "x".repeat(33);
        for instance in ["", "A", "a b", "a-b", "a;", "a\0", "é", too_long.as_str()] {
            assert!(TableName::of_instance(instance).is_err(), "{instance:?}");
        }
        assert_eq!(TableName::default().as_str(), "switchyard");
    }

    #[test]
    fn only_names_of_instances_are_read_as_such() {
        for name in ["switchyard", "switchyard_second", "switchyard_node_2"] {
            let read = TableName::of_table(name).unwrap();
            assert_eq!(read.as_str(), name);
        }
        for name in [
            "",
            "switchyar",
            "switchyard_",
            "switchyardx",
            "switchyard2",
            "switchyard_A",
            "switchyard_a b",
            "Switchyard",
            "my_switchyard",
            "kube-proxy",
        ] {
            assert_eq!(TableName::of_table(name), None, "{name}");
        }
    }

    #[test]
    fn bridge_name_is_one_device_and_nothing_else() {
        for name in ["sw0", "switchyard0", "a", "br-1_x.200", "fifteen-bytes-x"] {
            let name = BridgeName::new(name).unwrap();
            assert_eq!(
                BridgeName::from_padded(&name.padded()).as_ref(),
                Some(&name)
            );
        }
        for name in [
            "",
            ".",
            "..",
            "sixteen-bytes-xx",
            "sw*",
            "a b",
            "a/b",
            "a\"b",
            "a\0b",
            "brücke",
            "a\n",
            "{a}",
            "@a",
        ] {
            assert!(BridgeName::new(name).is_err(), "{name:?}");
        }
        let mut padded = BridgeName::new("sw0").unwrap().padded();
        padded[9] = b'x';
        assert_eq!(BridgeName::from_padded(&padded), None);
        assert_eq!(BridgeName::from_padded(&[b'a'; 16]), None);
    }

    #[test]
    fn subnet_ends_before_the_next_one() {
        for (text, prefix, shown, behind) in [
            ("10.88.3.4", 16, "10.88.0.0/16", Some("10.89.0.0")),
            ("10.88.3.4", 32, "10.88.3.4", Some("10.88.3.5")),
            ("255.0.0.0", 8, "255.0.0.0/8", None),
            ("1.2.3.4", 0, "0.0.0.0/0", None),
            ("fd00:88::7", 64, "fd00:88::/64", Some("fd00:88:0:1::")),
            ("ffff::", 16, "ffff::/16", None),
            ("::1", 0, "::/0", None),
        ] {
            let subnet = NftSubnet::new(text.parse().unwrap(), prefix).unwrap();
            assert_eq!(subnet.to_string(), shown);
            let behind = behind.map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(subnet.behind(), behind, "{shown}");
        }
        let too_long = [("10.0.0.1", 33), ("10.0.0.1", 255), ("::1", 129)];
        for (address, prefix) in too_long {
            assert!(NftSubnet::new(address.parse().unwrap(), prefix).is_err());
        }
    }

    #[test]
    fn subnets_with_an_address_in_common_overlap() {
        for (one, other, expected) in [
            ("10.1.0.0/16", "10.1.7.0/24", true),
            ("10.1.0.0/16", "10.2.0.0/16", false),
            ("10.0.0.0/15", "10.1.0.0/16", true),
            ("0.0.0.0/0", "10.1.0.0/16", true),
            ("0.0.0.0/0", "fd00::/64", false),
            ("fd00::/64", "fd00::1/128", true),
            ("fd00::/64", "fd00:0:0:1::/64", false),
        ] {
            let [one, other] = [one, other].map(subnet);
            assert_eq!(one.overlaps(&other), expected, "{one} {other}");
            assert_eq!(other.overlaps(&one), expected, "{other} {one}");
        }
    }

    #[test]
    fn addresses_that_are_no_subnet_are_none() {
        let between = |first: &str, behind: Option<&str>| {
            NftSubnet::between(
                first.parse().unwrap(),
                behind.map(|behind| behind.parse().unwrap()),
            )
        };
        for (first, behind) in [
            ("10.0.0.1", Some("10.0.0.3")),
            ("10.0.0.0", Some("10.0.0.3")),
            ("10.0.0.0", Some("10.0.0.0")),
            ("10.0.0.5", Some("10.0.0.0")),
            ("10.0.0.0", Some("0.0.0.0")),
            ("10.0.0.0", None),
            ("fd00::1", None),
        ] {
            assert_eq!(between(first, behind), None, "{first} {behind:?}");
        }
    }

    proptest! {
        #[test]
        fn subnet_is_read_from_its_ends(address in any::<IpAddr>(), prefix in 0_u8..=128) {
            if let Ok(subnet) = NftSubnet::new(address, prefix) {
                prop_assert_eq!(NftSubnet::between(subnet.address(), subnet.behind()), Some(subnet));
            }
        }
    }
}
