//! The rules of a table as data: each is a list of statements, of which both the text and the expressions for the kernel are made.
//!
//! None depends on how many containers, ports or bridges there are, and none matches traffic that has nothing to do with our bridges,
//! our subnets or our ports. A chain of ours accepts nothing that another program drops: an accept ends only the chain that has it.

use super::expression::Expression;
use super::family::{NftFamily, TableName};
use super::sets::TableSet;
use super::statement::{
    EtherType, Field, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, REDIRECT,
    ROUTER_ADVERTISEMENT, Statement,
};

/// `NF_INET_PRE_ROUTING` and so on.
const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;

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

/// The chains of tables of addresses. Destinations are changed before others do it, at -100: of two that translate the same
/// port the first one decides.
static CHAINS: [BaseChain; 5] = [
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

/// The chain of ports. It comes before br_netfilter shows packets of bridges to rules of addresses.
static PORT_CHAINS: [BaseChain; 1] = [BaseChain {
    name: "port_prerouting",
    kind: "filter",
    hook: (PREROUTING, "prerouting"),
    priority: (-300, "dstnat"),
}];

/// The chains of the table of a family, in the order in which they are made.
pub(super) fn chains(family: NftFamily) -> &'static [BaseChain] {
    match family {
        NftFamily::Ip4 | NftFamily::Ip6 => &CHAINS,
        NftFamily::Bridge => &PORT_CHAINS,
    }
}

/// Returns the rules of the chain of ports: a container sends with its own addresses, whatever it is that it sends, and does not advertise
/// those of others. Nothing else than IP and ARP may come by such a port: it could carry a packet that no rule reads. Before it has an address
/// of IPv6 a container sends with `::`: it joins groups, and asks whether anybody has what will be its own address; the same question about
/// another one would keep a neighbour from it.
///
/// The chain sees the frames of all bridges of the node: the first rule leaves those of other ports alone, so that each costs one lookup.
fn port_rules() -> Vec<Vec<Statement>> {
    use EtherType::{Arp, Ip4, Ip6};
    use Field::{Advertised6, ArpAddress, ArpMac, Input, Source4, Source6, SourceMac};
    use Statement::{
        Accept, Carries, CarriesNot, Drop, Icmp6, NotIcmp6, NotIn, NotUnspecified6, PairNotIn,
        Unspecified6,
    };
    use TableSet::{Pinned, PinnedAddresses, PinnedAddresses6, PinnedMacs};

    let other = |field, set| PairNotIn(Input, field, set);
    let conditions = [
        vec![other(SourceMac, PinnedMacs)],
        vec![Carries(Ip4), other(Source4, PinnedAddresses)],
        vec![Carries(Arp), other(ArpMac, PinnedMacs)],
        vec![Carries(Arp), other(ArpAddress, PinnedAddresses)],
        vec![
            Carries(Ip6),
            NotUnspecified6,
            other(Source6, PinnedAddresses6),
        ],
        vec![Carries(Ip6), Unspecified6, NotIcmp6],
        vec![
            Carries(Ip6),
            Unspecified6,
            Icmp6(NEIGHBOUR_SOLICITATION),
            other(Advertised6, PinnedAddresses6),
        ],
        vec![
            Icmp6(NEIGHBOUR_ADVERTISEMENT),
            other(Advertised6, PinnedAddresses6),
        ],
        vec![Icmp6(ROUTER_ADVERTISEMENT)],
        vec![Icmp6(REDIRECT)],
        vec![CarriesNot(Ip4), CarriesNot(Arp), CarriesNot(Ip6)],
    ];
    let mut rules = vec![vec![NotIn(Input, Pinned), Accept]];
    rules.extend(conditions.into_iter().map(|mut rule| {
        rule.push(Drop);
        rule
    }));
    rules
}

/// Returns the rules of a chain.
pub(super) fn rules(chain: &BaseChain, family: NftFamily) -> Vec<Vec<Statement>> {
    use Field::{Destination, Input, Output, Source};
    use Statement::{
        Drop, In, Local, Loopback4, Masquerade, NotIn, NotLocal, NotLoopback4, NotLoopback6,
        NotPublished, PairIn, PairNotIn, Published, ToPort, ToPortAt, Unknown,
    };
    use TableSet::{Allowed, Apart, Bridges, Closed, Hairpins, Masqueraded, Same};

    if family == NftFamily::Bridge {
        return port_rules();
    }
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
        // What belongs to no connection has no status, so that the first condition is not fulfilled for it.
        _ => [NotPublished, Unknown]
            .map(|condition| {
                vec![
                    In(Input, Apart),
                    In(Output, Apart),
                    PairNotIn(Input, Output, Allowed),
                    condition,
                    Drop,
                ]
            })
            .to_vec(),
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
    let parts = rule.iter().map(|part| part.text(family));
    // What follows from the next part is not shown.
    let shown: Vec<_> = parts.filter(|text| !text.is_empty()).collect();
    shown.join(" ")
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
    let mut parts: Vec<String> = TableSet::of(family).map(|set| set.text(family)).collect();
    for chain in chains(family) {
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
