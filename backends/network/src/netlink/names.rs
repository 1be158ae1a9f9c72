//! Names and addresses in requests, which are checked before the kernel sees them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::error::NetlinkError;
use super::message::Attributes;
use super::uapi::{AF_INET, AF_INET6, IFLA_IFNAME};

/// The most bytes of a device's name: `IFNAMSIZ` with its NUL.
const NAME_MAX: usize = 15;

/// The name of a network device.
///
/// Stricter than the kernel: ASCII alone, since names are shown; no `%`, of which the kernel makes a number when it creates a device; and
/// neither `all` nor `default`, which stand for all devices among the kernel's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkName(String);

/// A network device of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkRef {
    /// The one with this index: the same device for as long as it exists.
    Index(u32),
    /// The one that has this name when the kernel reads the request.
    Name(LinkName),
}

/// The hardware address of one device: neither a group's nor all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

/// An address and how many of its first bits name its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpPrefix {
    address: IpAddr,
    length: u8,
}

// === impl LinkName ===

impl LinkName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NetlinkError::LinkName`].
    pub fn new(name: &str) -> Result<Self, NetlinkError> {
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
        let is_name = (1..=NAME_MAX).contains(&name.len())
            && name.bytes().all(is_allowed)
            && !matches!(name, "." | ".." | "all" | "default");
        if is_name {
            Ok(Self(name.to_owned()))
        } else {
            Err(NetlinkError::LinkName {
                name: name.chars().take(64).collect(),
            })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl LinkRef ===

impl LinkRef {
    /// The index in the fixed part of a request; 0 if the name is among its attributes.
    pub(crate) const fn index(&self) -> u32 {
        match self {
            Self::Index(index) => *index,
            Self::Name(_) => 0,
        }
    }

    /// Adds the name, unless there is an index: beside one it would be a new name.
    pub(crate) fn put(&self, all: &mut Attributes) {
        if let Self::Name(name) = self {
            all.text(IFLA_IFNAME, name.as_str());
        }
    }
}

impl fmt::Display for LinkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "network device {index}"),
            Self::Name(name) => write!(f, "network device {name}"),
        }
    }
}

impl From<LinkName> for LinkRef {
    fn from(name: LinkName) -> Self {
        Self::Name(name)
    }
}

// === impl Mac ===

impl Mac {
    /// Checks an address.
    ///
    /// # Errors
    /// [`NetlinkError::Value`] for one of a group or of no device.
    pub fn new(bytes: [u8; 6]) -> Result<Self, NetlinkError> {
        let reason = if bytes[0] & 1 == 1 {
            "it is the hardware address of a group, and a device needs one of its own"
        } else if bytes == [0; 6] {
            "no device has the hardware address 0"
        } else {
            return Ok(Self(bytes));
        };
        Err(NetlinkError::Value {
            value: Self(bytes).to_string(),
            reason,
        })
    }

    /// The locally administered address of the device that has this IPv4 address: 02:42, and the address. A device that gets the
    /// address later has the same one, so that what neighbours remember of it stays right.
    #[must_use]
    pub const fn of(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self([0x02, 0x42, a, b, c, d])
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for Mac {
    type Err = NetlinkError;

    /// Reads six numbers of two hexadecimal digits, between colons.
    fn from_str(text: &str) -> Result<Self, NetlinkError> {
        let malformed = || NetlinkError::Value {
            value: format!("{:?}", text.chars().take(64).collect::<String>()),
            reason: "a hardware address has six numbers of two hexadecimal digits, with colons between them",
        };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(malformed)?;
            let is_number = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16)
                .ok()
                .filter(|_| is_number)
                .ok_or_else(malformed)?;
        }
        if parts.next().is_some() {
            return Err(malformed());
        }
        Self::new(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl IpPrefix ===

impl IpPrefix {
    /// All addresses of IPv4.
    pub const ALL_IPV4: Self = Self {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        length: 0,
    };

    /// All addresses of IPv6.
    pub const ALL_IPV6: Self = Self {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        length: 0,
    };

    /// Checks a length. The address may have bits of a host: an interface has an address and the length of its network.
    ///
    /// # Errors
    /// [`NetlinkError::Value`].
    pub fn new(address: IpAddr, length: u8) -> Result<Self, NetlinkError> {
        if length <= bits(address) {
            return Ok(Self { address, length });
        }
        Err(NetlinkError::Value {
            value: format!("{address}/{length}"),
            reason: "a prefix has at most 32 bits of IPv4, or 128 bits of IPv6",
        })
    }

    /// One address alone.
    #[must_use]
    pub const fn host(address: IpAddr) -> Self {
        Self {
            address,
            length: bits(address),
        }
    }

    /// The address, as it was given.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Returns how many of its first bits name its network.
    #[must_use]
    pub const fn length(self) -> u8 {
        self.length
    }

    /// The first address of its network: the kernel refuses a route to another one.
    #[must_use]
    pub fn network(self) -> Self {
        let length = u32::from(self.length);
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Self { address, ..self }
    }

    /// The last address of an IPv4 network, by which all of it are reached; a network of one or two addresses has none.
    #[must_use]
    pub fn broadcast(self) -> Option<Ipv4Addr> {
        let IpAddr::V4(address) = self.address else {
            return None;
        };
        (self.length <= 30)
            .then(|| Ipv4Addr::from_bits(address.to_bits() | (u32::MAX >> self.length)))
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The family of an address in the fixed part of a request.
pub(crate) const fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// Checks that the other addresses of a request are of the family of the first one: the kernel would take the first bytes of an address
/// of IPv6 for one of IPv4.
///
/// # Errors
/// [`NetlinkError::Value`].
pub(crate) fn check_family<const N: usize>(
    first: IpAddr,
    others: [Option<IpAddr>; N],
) -> Result<(), NetlinkError> {
    let other = others
        .into_iter()
        .flatten()
        .find(|other| other.is_ipv4() != first.is_ipv4());
    other.map_or(Ok(()), |other| {
        Err(NetlinkError::Value {
            value: format!("{other} with {first}"),
            reason: "they are addresses of different families",
        })
    })
}

/// An address as requests have it.
pub(crate) fn put_address(all: &mut Attributes, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => all.bytes(kind, &address.octets()),
        IpAddr::V6(address) => all.bytes(kind, &address.octets()),
    }
}

/// An address as the kernel sends it: 4 or 16 bytes.
pub(crate) fn read_address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_mean_something_else_to_the_kernel_or_a_path_are_refused() {
        for (name, is_name) in [
            ("eth0", true),
            ("sw-0123456789ab", true),
            ("eth0.100", true),
            ("lo", true),
            ("", false),
            ("sixteen-letters-", false),
            (".", false),
            ("..", false),
            ("all", false),
            ("default", false),
            ("a/b", false),
            ("eth0:1", false),
            ("veth%d", false),
            ("two words", false),
            ("new\nline", false),
            ("nul\0", false),
            ("brücke", false),
        ] {
            assert_eq!(LinkName::new(name).is_ok(), is_name, "{name:?}");
        }
    }

    #[test]
    fn hardware_address_is_that_of_one_device() {
        for (text, is_one) in [
            ("02:42:0a:00:00:02", true),
            ("FE:ff:ff:ff:ff:ff", true),
            ("01:00:5e:00:00:01", false),
            ("ff:ff:ff:ff:ff:ff", false),
            ("00:00:00:00:00:00", false),
            ("02:42:0a:00:00", false),
            ("02:42:0a:00:00:02:03", false),
            ("2:42:0a:00:00:02", false),
            ("02:42:0a:00:00:+2", false),
            ("02-42-0a-00-00-02", false),
            ("", false),
        ] {
            let read = text.parse::<Mac>();
            assert_eq!(read.is_ok(), is_one, "{text:?}");
            if let Ok(mac) = read {
                assert_eq!(mac.to_string(), text.to_ascii_lowercase());
            }
        }
        let mac = Mac::of(Ipv4Addr::new(10, 88, 0, 2));
        assert_eq!(mac.to_string(), "02:42:0a:58:00:02");
        assert!(Mac::new(mac.bytes()).is_ok());
    }

    #[test]
    fn prefix_is_not_longer_than_its_address() {
        for (address, length, is_one) in [
            ("10.0.0.1", 0, true),
            ("10.0.0.1", 32, true),
            ("10.0.0.1", 33, false),
            ("10.0.0.1", 128, false),
            ("fd00::1", 64, true),
            ("fd00::1", 128, true),
            ("fd00::1", 129, false),
            ("fd00::1", 255, false),
        ] {
            let prefix = IpPrefix::new(address.parse().unwrap(), length);
            assert_eq!(prefix.is_ok(), is_one, "{address}/{length}");
        }
    }

    #[test]
    fn network_and_broadcast_are_the_ends_of_a_prefix() {
        for (prefix, network, broadcast) in [
            (("10.88.3.7", 16), "10.88.0.0/16", Some("10.88.255.255")),
            (("10.88.3.7", 24), "10.88.3.0/24", Some("10.88.3.255")),
            (("10.88.3.7", 30), "10.88.3.4/30", Some("10.88.3.7")),
            (("10.88.3.7", 31), "10.88.3.6/31", None),
            (("10.88.3.7", 32), "10.88.3.7/32", None),
            (("10.88.3.7", 0), "0.0.0.0/0", Some("255.255.255.255")),
            (("fd00:5::7", 64), "fd00:5::/64", None),
            (("fd00:5::7", 0), "::/0", None),
            (("fd00:5::7", 128), "fd00:5::7/128", None),
        ] {
            let prefix = IpPrefix::new(prefix.0.parse().unwrap(), prefix.1).unwrap();
            assert_eq!(prefix.network().to_string(), network);
            let expected: Option<Ipv4Addr> = broadcast.map(|text| text.parse().unwrap());
            assert_eq!(prefix.broadcast(), expected, "{prefix}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_checked_without_a_panic(name in ".{0,20}") {
            if let Ok(checked) = LinkName::new(&name) {
                prop_assert!(checked.as_str().len() <= NAME_MAX && !checked.as_str().contains('/'));
            }
        }
    }
}
