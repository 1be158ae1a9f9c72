//! The sets and maps of a table: their names, and of what parts their keys and data consist.

use std::fmt;

use super::family::NftFamily;

/// A part of a key, or of what a map leads to. Each takes a multiple of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPart {
    /// An address of the table's family.
    Address,
    /// The number of a [`super::Transport`].
    Protocol,
    /// A port.
    Port,
    /// The name of a device.
    Device,
    /// A hardware address.
    Mac,
    /// An address of IPv4 in a table of any family.
    Address4,
    /// An address of IPv6 in a table of any family.
    Address6,
}

impl KeyPart {
    /// Returns the number of its type, which `nft` knows; the kernel only keeps it.
    fn type_number(self, family: NftFamily) -> u32 {
        match (self, family) {
            (Self::Address, NftFamily::Ip4) | (Self::Address4, _) => 7,
            (Self::Address, NftFamily::Ip6) | (Self::Address6, _) => 8,
            // No set of the table of bridges has it.
            (Self::Address, NftFamily::Bridge) => 0,
            (Self::Mac, _) => 9,
            (Self::Protocol, _) => 12,
            (Self::Port, _) => 13,
            (Self::Device, _) => 41,
        }
    }

    fn type_name(self, family: NftFamily) -> &'static str {
        match (self, family) {
            (Self::Address, NftFamily::Ip4) | (Self::Address4, _) => "ipv4_addr",
            (Self::Address, NftFamily::Ip6) | (Self::Address6, _) => "ipv6_addr",
            (Self::Address, NftFamily::Bridge) => "",
            (Self::Mac, _) => "ether_addr",
            (Self::Protocol, _) => "inet_proto",
            (Self::Port, _) => "inet_service",
            (Self::Device, _) => "ifname",
        }
    }

    fn length(self, family: NftFamily) -> u32 {
        match self {
            Self::Address => family.address_length().into(),
            Self::Protocol | Self::Port | Self::Address4 => 4,
            // Six bytes, and two of padding.
            Self::Mac => 8,
            Self::Device | Self::Address6 => 16,
        }
    }
}

/// Returns the number of the type that these parts make together.
pub(super) fn type_number(parts: &[KeyPart], family: NftFamily) -> u32 {
    let number = |number: u32, part: &KeyPart| (number << 6) | part.type_number(family);
    parts.iter().fold(0, number)
}

/// Returns the length of these parts together, in bytes.
pub(super) fn length(parts: &[KeyPart], family: NftFamily) -> u32 {
    parts.iter().map(|part| part.length(family)).sum()
}

fn type_name(parts: &[KeyPart], family: NftFamily) -> String {
    let names: Vec<_> = parts.iter().map(|part| part.type_name(family)).collect();
    names.join(" . ")
}

/// A set or map of a table. All are hash tables but the two of subnets, which are few: one more container or port is one more element,
/// and no packet takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableSet {
    /// Ports that are published on one address of the node.
    PortsAt,
    /// Ports that are published on all addresses of the node.
    Ports,
    /// Containers with published ports, whose connections to themselves through such a port need the node's address.
    Hairpins,
    /// Subnets whose connections leave with the address of the node.
    Masqueraded,
    /// Subnets that cannot be reached from outside but by published ports.
    Closed,
    /// Our bridges.
    Bridges,
    /// Our bridges, each as a pair with itself: connections to a neighbour through a published port need the node's address.
    Same,
    /// Our bridges that do not reach each other, unless the pair is allowed.
    Apart,
    /// Pairs of bridges of which the first one reaches the second one; each reaches itself only if it is listed with itself.
    Allowed,
    /// Ports of bridges whose containers send only with the addresses that they were given.
    Pinned,
    /// The hardware addresses of these ports.
    PinnedMacs,
    /// Their addresses of IPv4.
    PinnedAddresses,
    /// Their addresses of IPv6.
    PinnedAddresses6,
}

impl TableSet {
    /// All, in the order in which they are made: first those of tables of addresses, then those of tables of bridges.
    pub const ALL: [Self; 13] = [
        Self::PortsAt,
        Self::Ports,
        Self::Hairpins,
        Self::Masqueraded,
        Self::Closed,
        Self::Bridges,
        Self::Same,
        Self::Apart,
        Self::Allowed,
        Self::Pinned,
        Self::PinnedMacs,
        Self::PinnedAddresses,
        Self::PinnedAddresses6,
    ];

    /// Returns whether the table of a family has it.
    #[must_use]
    pub fn is_of(self, family: NftFamily) -> bool {
        let of_ports = matches!(
            self,
            Self::Pinned | Self::PinnedMacs | Self::PinnedAddresses | Self::PinnedAddresses6
        );
        of_ports == (family == NftFamily::Bridge)
    }

    /// Returns those that the table of a family has, in the order in which they are made.
    pub fn of(family: NftFamily) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |set| set.is_of(family))
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PortsAt => "ports_at",
            Self::Ports => "ports",
            Self::Hairpins => "hairpins",
            Self::Masqueraded => "masqueraded",
            Self::Closed => "closed",
            Self::Bridges => "bridges",
            Self::Same => "same",
            Self::Apart => "apart",
            Self::Allowed => "allowed",
            Self::Pinned => "pinned",
            Self::PinnedMacs => "pinned_macs",
            Self::PinnedAddresses => "pinned_addresses",
            Self::PinnedAddresses6 => "pinned_addresses6",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Returns the parts of a key.
    pub(super) fn key(self) -> &'static [KeyPart] {
        match self {
            Self::PortsAt => &[KeyPart::Address, KeyPart::Protocol, KeyPart::Port],
            Self::Ports => &[KeyPart::Protocol, KeyPart::Port],
            Self::Hairpins => &[KeyPart::Address, KeyPart::Address],
            Self::Masqueraded | Self::Closed => &[KeyPart::Address],
            Self::Bridges | Self::Apart | Self::Pinned => &[KeyPart::Device],
            Self::Same | Self::Allowed => &[KeyPart::Device, KeyPart::Device],
            Self::PinnedMacs => &[KeyPart::Device, KeyPart::Mac],
            Self::PinnedAddresses => &[KeyPart::Device, KeyPart::Address4],
            Self::PinnedAddresses6 => &[KeyPart::Device, KeyPart::Address6],
        }
    }

    /// Returns the parts of what a key leads to; a set has none.
    pub(super) fn data(self) -> &'static [KeyPart] {
        match self {
            Self::PortsAt | Self::Ports => &[KeyPart::Address, KeyPart::Port],
            Self::Hairpins
            | Self::Masqueraded
            | Self::Closed
            | Self::Bridges
            | Self::Same
            | Self::Apart
            | Self::Allowed
            | Self::Pinned
            | Self::PinnedMacs
            | Self::PinnedAddresses
            | Self::PinnedAddresses6 => &[],
        }
    }

    /// Returns whether an element is all addresses from one to another.
    pub(super) fn has_intervals(self) -> bool {
        matches!(self, Self::Masqueraded | Self::Closed)
    }

    /// Returns the word that `nft` has for it.
    pub(super) fn word(self) -> &'static str {
        if self.data().is_empty() { "set" } else { "map" }
    }

    /// Returns its declaration as `nft --terse list` shows it.
    pub(super) fn text(self, family: NftFamily) -> String {
        let mut kind = type_name(self.key(), family);
        if !self.data().is_empty() {
            kind = format!("{kind} : {}", type_name(self.data(), family));
        }
        let flags = if self.has_intervals() {
            "\t\tflags interval\n"
        } else {
            ""
        };
        format!("\t{self} {{\n\t\ttype {kind}\n{flags}\t}}\n")
    }
}

impl fmt::Display for TableSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word(), self.name())
    }
}
