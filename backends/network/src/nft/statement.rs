//! The parts of a rule: conditions, and what happens to a packet that fulfils those before. Each as text and as expressions for the kernel.

use super::expression::{Expression, FIRST};
use super::family::NftFamily;
use super::sets::TableSet;

/// `NFT_META_PROTOCOL`, `..._IIFNAME`, `..._OIFNAME`, `..._L4PROTO`.
const META_PROTOCOL: u32 = 1;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
/// `NFT_CT_STATUS`, and `IPS_DST_NAT` in it: the destination of the connection was changed.
const CONNTRACK_STATUS: u32 = 2;
const STATUS_DNAT: u32 = 0x20;
/// `NFT_CT_STATE`, and in it what a packet has that belongs to no connection: `NF_CT_STATE_INVALID_BIT`, `NF_CT_STATE_UNTRACKED_BIT`.
const CONNTRACK_STATE: u32 = 0;
const STATE_UNKNOWN: u32 = 0x41;
/// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_DADDR`, `RTN_LOCAL`.
const FIB_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 2;
const LOCAL: u32 = 2;
/// `NFT_PAYLOAD_LL_HEADER`, `..._NETWORK_HEADER`, `..._TRANSPORT_HEADER`.
const LINK: u32 = 0;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// The number of ICMP for IPv6 in the header of IP, and the kinds of its messages by which machines of a link find each other.
const ICMP6: u8 = 58;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;
/// Address `::1`, which never leaves a node.
const LOOPBACK6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The sender of a packet of IPv6 that has no address yet.
const UNSPECIFIED6: [u8; 16] = [0; 16];
/// The first byte of the addresses of IPv4 that never leave a node.
const LOOPBACK4: u8 = 127;

/// Protocol of a frame: the number after the hardware addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtherType {
    Ip4,
    Arp,
    Ip6,
}

impl EtherType {
    fn text(self) -> &'static str {
        match self {
            Self::Ip4 => "ip",
            Self::Arp => "arp",
            Self::Ip6 => "ip6",
        }
    }

    fn compare(self, equal: bool) -> [Expression; 2] {
        let number: u16 = match self {
            Self::Ip4 => 0x0800,
            Self::Arp => 0x0806,
            Self::Ip6 => 0x86dd,
        };
        let load = Expression::Meta {
            key: META_PROTOCOL,
            to: FIRST,
        };
        [load, compare(equal, &number.to_be_bytes())]
    }
}

/// A device or an address of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// The device by which the packet came.
    Input,
    /// The device by which it leaves.
    Output,
    Source,
    Destination,
    /// The hardware address of the sender.
    SourceMac,
    /// The hardware address and the address that ARP is to learn.
    ArpMac,
    ArpAddress,
    /// The sender of a packet of IPv4, and of IPv6.
    Source4,
    Source6,
    /// The address whose hardware address a neighbour advertises, or asks for.
    Advertised6,
}

/// A part of a rule: a condition, or what happens to a packet that fulfils those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statement {
    /// A field is in a set.
    In(Field, TableSet),
    /// A field is not in a set.
    NotIn(Field, TableSet),
    /// Two fields together are in a set.
    PairIn(Field, Field, TableSet),
    /// Two fields together are not in a set.
    PairNotIn(Field, Field, TableSet),
    /// An address is in 127.0.0.0/8.
    Loopback4(Field),
    /// The destination is not in 127.0.0.0/8.
    NotLoopback4,
    /// The destination is not `::1`: the kernel lets no packet from there out.
    NotLoopback6,
    /// The destination is an address of the node.
    Local,
    /// It is not.
    NotLocal,
    /// The connection came by a published port.
    Published,
    /// It did not.
    NotPublished,
    /// The packet belongs to no connection that the kernel knows, so that its status is neither of both.
    Unknown,
    /// The frame carries this.
    Carries(EtherType),
    /// It does not.
    CarriesNot(EtherType),
    /// It carries such a message of ICMP for IPv6.
    Icmp6(u8),
    /// It carries no ICMP for IPv6.
    NotIcmp6,
    /// The sender of a packet of IPv6 is `::`, as before it has an address.
    Unspecified6,
    /// It is another one.
    NotUnspecified6,
    /// Accepts the packet in this chain: the chains behind it see it all the same.
    Accept,
    Drop,
    Masquerade,
    /// Changes the destination to what the map has for address, protocol and port.
    ToPortAt,
    /// Changes the destination to what the map has for protocol and port.
    ToPort,
}

impl Field {
    fn text(self, family: NftFamily) -> String {
        match self {
            Self::Input => "iifname".to_owned(),
            Self::Output => "oifname".to_owned(),
            Self::Source => format!("{} saddr", family.name()),
            Self::Destination => format!("{} daddr", family.name()),
            Self::SourceMac => "ether saddr".to_owned(),
            Self::ArpMac => "arp saddr ether".to_owned(),
            Self::ArpAddress => "arp saddr ip".to_owned(),
            Self::Source4 => "ip saddr".to_owned(),
            Self::Source6 => "ip6 saddr".to_owned(),
            // Versions of nft after 1.0.6 have a name for it: icmpv6 taddr.
            Self::Advertised6 => "@th,64,128".to_owned(),
        }
    }

    /// Returns how many registers of four bytes its value takes.
    fn registers(self, family: NftFamily) -> u32 {
        match self {
            Self::Input | Self::Output => 4,
            Self::Source | Self::Destination => u32::from(family.address_length()) / 4,
            Self::ArpAddress | Self::Source4 => 1,
            Self::SourceMac | Self::ArpMac => 2,
            Self::Source6 | Self::Advertised6 => 4,
        }
    }

    /// Loads it into a register; of an address only the first `length` bytes, if that is given.
    fn load(self, family: NftFamily, to: u32, length: Option<u32>) -> Expression {
        let address = |offset4: u32, offset6: u32| Expression::Payload {
            base: NETWORK,
            offset: if family == NftFamily::Ip4 {
                offset4
            } else {
                offset6
            },
            length: length.unwrap_or(u32::from(family.address_length())),
            to,
        };
        let part = |base: u32, offset: u32, length: u32| Expression::Payload {
            base,
            offset,
            length,
            to,
        };
        match self {
            Self::Input => Expression::Meta {
                key: META_IIFNAME,
                to,
            },
            Self::Output => Expression::Meta {
                key: META_OIFNAME,
                to,
            },
            Self::Source => address(12, 8),
            Self::Destination => address(16, 24),
            Self::SourceMac => part(LINK, 6, 6),
            Self::ArpMac => part(NETWORK, 8, 6),
            Self::ArpAddress => part(NETWORK, 14, 4),
            Self::Source4 => part(NETWORK, 12, 4),
            Self::Source6 => part(NETWORK, 8, 16),
            Self::Advertised6 => part(TRANSPORT, 8, 16),
        }
    }
}

impl Statement {
    pub(super) fn text(self, family: NftFamily) -> String {
        let field = |field: Field| field.text(family);
        let destination = field(Field::Destination);
        let to = format!("dnat {} to", family.name());
        let port = "meta l4proto . th dport map";
        match self {
            Self::In(is, set) => format!("{} @{}", field(is), set.name()),
            Self::NotIn(is, set) => format!("{} != @{}", field(is), set.name()),
            Self::PairIn(a, b, set) => format!("{} . {} @{}", field(a), field(b), set.name()),
            Self::PairNotIn(a, b, set) => {
                format!("{} . {} != @{}", field(a), field(b), set.name())
            }
            Self::Loopback4(is) => format!("{} 127.0.0.0/8", field(is)),
            Self::NotLoopback4 => format!("{destination} != 127.0.0.0/8"),
            Self::NotLoopback6 => format!("{destination} != ::1"),
            Self::Local => "fib daddr type local".to_owned(),
            Self::NotLocal => "fib daddr type != local".to_owned(),
            Self::Published => "ct status dnat".to_owned(),
            Self::NotPublished => "ct status ! dnat".to_owned(),
            Self::Unknown => "ct state invalid,untracked".to_owned(),
            // Each is followed by a field that only such a frame has.
            Self::Carries(_) => String::new(),
            Self::CarriesNot(what) => format!("meta protocol != {}", what.text()),
            Self::Icmp6(kind) => format!("icmpv6 type {}", icmp6_name(kind)),
            Self::NotIcmp6 => "meta l4proto != ipv6-icmp".to_owned(),
            Self::Unspecified6 => format!("{} ::", field(Field::Source6)),
            Self::NotUnspecified6 => format!("{} != ::", field(Field::Source6)),
            Self::Accept => "accept".to_owned(),
            Self::Drop => "drop".to_owned(),
            Self::Masquerade => "masquerade".to_owned(),
            Self::ToPortAt => {
                format!("{to} {destination} . {port} @{}", TableSet::PortsAt.name())
            }
            Self::ToPort => format!("{to} {port} @{}", TableSet::Ports.name()),
        }
    }

    pub(super) fn expressions(self, family: NftFamily) -> Vec<Expression> {
        match self {
            Self::In(field, set) => vec![field.load(family, FIRST, None), lookup(set, false)],
            Self::NotIn(field, set) => vec![field.load(family, FIRST, None), lookup(set, true)],
            Self::PairIn(a, b, set) => pair(a, b, family, lookup(set, false)),
            Self::PairNotIn(a, b, set) => pair(a, b, family, lookup(set, true)),
            Self::Loopback4(field) => vec![
                field.load(family, FIRST, Some(1)),
                compare(true, &[LOOPBACK4]),
            ],
            Self::NotLoopback4 => vec![
                Field::Destination.load(family, FIRST, Some(1)),
                compare(false, &[LOOPBACK4]),
            ],
            Self::NotLoopback6 => vec![
                Field::Destination.load(family, FIRST, None),
                compare(false, &LOOPBACK6),
            ],
            Self::Local => vec![destination_type(), compare(true, &LOCAL.to_ne_bytes())],
            Self::NotLocal => vec![destination_type(), compare(false, &LOCAL.to_ne_bytes())],
            Self::Published => conntrack(CONNTRACK_STATUS, STATUS_DNAT, false),
            Self::NotPublished => conntrack(CONNTRACK_STATUS, STATUS_DNAT, true),
            Self::Unknown => conntrack(CONNTRACK_STATE, STATE_UNKNOWN, false),
            Self::Carries(what) => what.compare(true).to_vec(),
            Self::CarriesNot(what) => what.compare(false).to_vec(),
            Self::Icmp6(kind) => {
                let first_byte = Expression::Payload {
                    base: TRANSPORT,
                    offset: 0,
                    length: 1,
                    to: FIRST,
                };
                vec![
                    protocol_to(FIRST),
                    compare(true, &[ICMP6]),
                    first_byte,
                    compare(true, &[kind]),
                ]
            }
            Self::NotIcmp6 => vec![protocol_to(FIRST), compare(false, &[ICMP6])],
            Self::Unspecified6 => vec![
                Field::Source6.load(family, FIRST, None),
                compare(true, &UNSPECIFIED6),
            ],
            Self::NotUnspecified6 => vec![
                Field::Source6.load(family, FIRST, None),
                compare(false, &UNSPECIFIED6),
            ],
            Self::Accept => vec![Expression::Accept],
            Self::Drop => vec![Expression::Drop],
            Self::Masquerade => vec![Expression::Masquerade],
            Self::ToPortAt => {
                let load = Field::Destination.load(family, FIRST, None);
                let behind = FIRST + Field::Destination.registers(family);
                let mut all = vec![load];
                all.extend(to_port(TableSet::PortsAt, behind, family));
                all
            }
            Self::ToPort => to_port(TableSet::Ports, FIRST, family).to_vec(),
        }
    }
}

/// Loads the protocol that is in the packet of IP.
fn protocol_to(to: u32) -> Expression {
    Expression::Meta {
        key: META_L4PROTO,
        to,
    }
}

/// The name that `nft` has for a kind of message.
fn icmp6_name(kind: u8) -> &'static str {
    match kind {
        ROUTER_ADVERTISEMENT => "nd-router-advert",
        NEIGHBOUR_SOLICITATION => "nd-neighbor-solicit",
        NEIGHBOUR_ADVERTISEMENT => "nd-neighbor-advert",
        _ => "nd-redirect",
    }
}

fn lookup(set: TableSet, inverted: bool) -> Expression {
    Expression::Lookup {
        set: set.name().to_owned(),
        from: FIRST,
        to: None,
        inverted,
    }
}

fn pair(a: Field, b: Field, family: NftFamily, lookup: Expression) -> Vec<Expression> {
    let behind = FIRST + a.registers(family);
    vec![
        a.load(family, FIRST, None),
        b.load(family, behind, None),
        lookup,
    ]
}

fn compare(equal: bool, value: &[u8]) -> Expression {
    Expression::Compare {
        from: FIRST,
        equal,
        value: value.to_vec(),
    }
}

fn destination_type() -> Expression {
    Expression::Fib {
        result: FIB_TYPE,
        flags: FIB_DESTINATION,
        to: FIRST,
    }
}

/// Matches if these bits of what conntrack knows are all zero, or if they are not.
fn conntrack(key: u32, bits: u32, is_zero: bool) -> Vec<Expression> {
    vec![
        Expression::Conntrack { key, to: FIRST },
        Expression::Mask {
            register: FIRST,
            mask: bits.to_ne_bytes().to_vec(),
        },
        compare(is_zero, &0_u32.to_ne_bytes()),
    ]
}

/// Loads protocol and port of the destination from this register on, looks the key up that then begins at the first register, and changes
/// the destination to what is found: an address with its port behind it.
fn to_port(set: TableSet, protocol: u32, family: NftFamily) -> [Expression; 4] {
    [
        protocol_to(protocol),
        Expression::Payload {
            base: TRANSPORT,
            offset: 2,
            length: 2,
            to: protocol + 1,
        },
        Expression::Lookup {
            set: set.name().to_owned(),
            from: FIRST,
            to: Some(FIRST),
            inverted: false,
        },
        Expression::TranslateDestination {
            family: family.number(),
            address: FIRST,
            port: FIRST + Field::Destination.registers(family),
        },
    ]
}
