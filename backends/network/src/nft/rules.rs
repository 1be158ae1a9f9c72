//! The rules of a table as data: each is a list of statements, of which both the text and the expressions for the kernel are made.
//!
//! None depends on how many containers, ports or bridges there are, and none matches traffic that has nothing to do with our bridges,
//! our subnets or our ports. A chain of ours accepts nothing that another program drops: an accept ends only the chain that has it.

use super::expression::{Expression, FIRST};
use super::family::{NftFamily, TableName};
use super::sets::TableSet;

/// `NFT_META_IIFNAME`, `..._OIFNAME`, `..._L4PROTO`.
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
/// `NFT_CT_STATUS`, and `IPS_DST_NAT` in it: the destination of the connection was changed.
const CONNTRACK_STATUS: u32 = 2;
const STATUS_DNAT: u32 = 0x20;
/// `NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_DADDR`, `RTN_LOCAL`.
const FIB_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 2;
const LOCAL: u32 = 2;
/// `NFT_PAYLOAD_NETWORK_HEADER`, `..._TRANSPORT_HEADER`.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// `NF_INET_PRE_ROUTING` and so on.
const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
/// Where `::1` differs from the address of all zeroes.
const LOOPBACK6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The first byte of the addresses of IPv4 that never leave a node.
const LOOPBACK4: u8 = 127;

/// A chain that the kernel calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BaseChain {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// Number and name of the hook.
    pub(super) hook: (u32, &'static str),
    /// Priority, and how `nft` shows it.
    pub(super) priority: (i32, &'static str),
}

/// The chains, in the order in which they are made. Destinations are changed before others do it, at -100: of two that translate the same
/// port the first one decides.
pub(super) static CHAINS: [BaseChain; 5] = [
    BaseChain {
        name: "raw_prerouting",
        kind: "filter",
        hook: (PREROUTING, "prerouting"),
        priority: (-300, "raw"),
    },
    BaseChain {
        name: "nat_prerouting",
        kind: "nat",
        hook: (PREROUTING, "prerouting"),
        priority: (-105, "dstnat - 5"),
    },
    BaseChain {
        name: "nat_output",
        kind: "nat",
        hook: (OUTPUT, "output"),
        priority: (-105, "-105"),
    },
    BaseChain {
        name: "nat_postrouting",
        kind: "nat",
        hook: (POSTROUTING, "postrouting"),
        priority: (100, "srcnat"),
    },
    BaseChain {
        name: "filter_forward",
        kind: "filter",
        hook: (FORWARD, "forward"),
        priority: (0, "filter"),
    },
];

/// A device or an address of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// The device by which the packet came.
    Input,
    /// The device by which it leaves.
    Output,
    Source,
    Destination,
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
    Drop,
    Masquerade,
    /// Changes the destination to what the map has for address, protocol and port.
    ToPortAt,
    /// Changes the destination to what the map has for protocol and port.
    ToPort,
}

/// Returns the rules of a chain.
pub(super) fn rules(chain: &BaseChain, family: NftFamily) -> Vec<Vec<Statement>> {
    use Field::{Destination, Input, Output, Source};
    use Statement::{
        Drop, In, Local, Loopback4, Masquerade, NotIn, NotLocal, NotLoopback4, NotLoopback6,
        NotPublished, PairIn, PairNotIn, Published, ToPort, ToPortAt,
    };
    use TableSet::{Allowed, Apart, Bridges, Closed, Hairpins, Masqueraded, Same};

    let is_4 = family == NftFamily::Ip4;
    let all = match chain.name {
        // Bridges have route_localnet, so that published ports answer on 127.0.0.1. What uses it from a container is dropped.
        "raw_prerouting" => vec![
            vec![In(Input, Bridges), Loopback4(Source), Drop],
            vec![In(Input, Bridges), Loopback4(Destination), Drop],
            vec![
                NotIn(Input, Bridges),
                In(Destination, Closed),
                NotLocal,
                Drop,
            ],
        ],
        // What comes from another machine for 127.0.0.0/8 would be led to the container before the kernel drops it as a martian packet.
        // The node's own connections come through nat_output.
        "nat_prerouting" => vec![
            vec![NotLoopback4, NotLoopback6, Local, ToPortAt],
            vec![NotLoopback4, NotLoopback6, Local, ToPort],
        ],
        "nat_output" => vec![
            vec![NotLoopback6, Local, ToPortAt],
            vec![NotLoopback6, Local, ToPort],
        ],
        // Answers must come back through the node: for a container that asks itself or a neighbour by a published port, and for
        // 127.0.0.1, which means the container itself there. Which of the first two rules matches depends on net.bridge.
        "nat_postrouting" => vec![
            vec![PairIn(Source, Destination, Hairpins), Published, Masquerade],
            vec![PairIn(Input, Output, Same), Published, Masquerade],
            vec![In(Output, Bridges), Loopback4(Source), Masquerade],
            vec![NotIn(Output, Bridges), In(Source, Masqueraded), Masquerade],
        ],
        _ => vec![vec![
            In(Input, Apart),
            In(Output, Apart),
            PairNotIn(Input, Output, Allowed),
            NotPublished,
            Drop,
        ]],
    };
    let mut rules = Vec::new();
    for rule in all {
        let is_other = |part: &Statement| !is_4 && matches!(part, Loopback4(_));
        if rule.iter().any(is_other) {
            continue;
        }
        let others = if is_4 { NotLoopback6 } else { NotLoopback4 };
        let of_family = |part: &Statement| *part != others;
        rules.push(rule.into_iter().filter(of_family).collect());
    }
    rules
}

/// Returns a rule as `nft list` shows it.
pub(super) fn rule_text(rule: &[Statement], family: NftFamily) -> String {
    let parts: Vec<_> = rule.iter().map(|part| part.text(family)).collect();
    parts.join(" ")
}

/// Returns a rule as the kernel has it.
pub(super) fn rule_expressions(rule: &[Statement], family: NftFamily) -> Vec<Expression> {
    rule.iter()
        .flat_map(|part| part.expressions(family))
        .collect()
}

/// Returns the whole table of a family and instance as `nft --terse list table` shows it: without elements.
#[must_use]
pub fn text(family: NftFamily, table: &TableName) -> String {
    let mut parts: Vec<String> = TableSet::ALL.iter().map(|set| set.text(family)).collect();
    for chain in &CHAINS {
        let mut part = format!(
            "\tchain {} {{\n\t\ttype {} hook {} priority {}; policy accept;\n",
            chain.name, chain.kind, chain.hook.1, chain.priority.1
        );
        for rule in rules(chain, family) {
            part.push_str(&format!("\t\t{}\n", rule_text(&rule, family)));
        }
        part.push_str("\t}\n");
        parts.push(part);
    }
    format!(
        "table {} {} {{\n{}}}\n",
        family.name(),
        table.as_str(),
        parts.join("\n")
    )
}

impl Field {
    fn text(self, family: NftFamily) -> String {
        match self {
            Self::Input => "iifname".to_owned(),
            Self::Output => "oifname".to_owned(),
            Self::Source => format!("{} saddr", family.name()),
            Self::Destination => format!("{} daddr", family.name()),
        }
    }

    /// Returns how many registers of four bytes its value takes.
    fn registers(self, family: NftFamily) -> u32 {
        match self {
            Self::Input | Self::Output => 4,
            Self::Source | Self::Destination => u32::from(family.address_length()) / 4,
        }
    }

    /// Loads it into a register; of an address only the first `length` bytes, if that is given.
    fn load(self, family: NftFamily, to: u32, length: Option<u32>) -> Expression {
        let address = |offset4: u32, offset6: u32| Expression::Payload {
            base: NETWORK,
            offset: match family {
                NftFamily::Ip4 => offset4,
                NftFamily::Ip6 => offset6,
            },
            length: length.unwrap_or(u32::from(family.address_length())),
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
        }
    }
}

impl Statement {
    fn text(self, family: NftFamily) -> String {
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
            Self::Drop => "drop".to_owned(),
            Self::Masquerade => "masquerade".to_owned(),
            Self::ToPortAt => {
                format!("{to} {destination} . {port} @{}", TableSet::PortsAt.name())
            }
            Self::ToPort => format!("{to} {port} @{}", TableSet::Ports.name()),
        }
    }

    fn expressions(self, family: NftFamily) -> Vec<Expression> {
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
            Self::Published => published(false),
            Self::NotPublished => published(true),
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

/// Whether the bit of a changed destination is zero, or is not.
fn published(is_zero: bool) -> Vec<Expression> {
    vec![
        Expression::Conntrack {
            key: CONNTRACK_STATUS,
            to: FIRST,
        },
        Expression::Mask {
            register: FIRST,
            mask: STATUS_DNAT.to_ne_bytes().to_vec(),
        },
        compare(is_zero, &0_u32.to_ne_bytes()),
    ]
}

/// Loads protocol and port of the destination from this register on, looks the key up that then begins at the first register, and changes
/// the destination to what is found: an address with its port behind it.
fn to_port(set: TableSet, protocol: u32, family: NftFamily) -> [Expression; 4] {
    [
        Expression::Meta {
            key: META_L4PROTO,
            to: protocol,
        },
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
