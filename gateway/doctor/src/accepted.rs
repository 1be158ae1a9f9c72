//! Packets of bridges that the packet filter accepts, by the text of its rules: they are walked as a packet walks them, from rule to rule and
//! from chain to chain, until one decides.
//!
//! A rule counts only if it is known to hold for all packets of a kind: one that accepts or drops those of one port, protocol or sender says
//! nothing about the others.

use std::collections::BTreeMap;

use switchyard_core::spec::Subnet;

/// The most lines of the packet filter that are looked at.
const RULES_MAX: usize = 100_000;
/// The most chains within each other that are followed.
const DEPTH_MAX: usize = 8;
/// The most rules that one packet is compared with, since a chain may be walked several times.
const STEPS_MAX: usize = 1_000_000;

/// The first chain of forwarded packets.
const FORWARD: &str = "FORWARD";
/// The chain of the plugin firewall, in which it accepts what plugins have connected: address by address.
const OF_PLUGINS: &str = "CNI-FORWARD";

/// The targets that are no chain to follow; others are no chain of which anything is known.
const TARGETS: [&str; 12] = [
    "ACCEPT", "DROP", "REJECT", "RETURN", OF_PLUGINS, "LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS",
    "NFQUEUE", "CT",
];

/// The matches that are understood. What else a rule asks for may hold for some packets alone.
const MATCHES: [&str; 3] = ["comment", "conntrack", "state"];

/// Origins and destinations of packets of bridges.
#[derive(Debug)]
pub(super) struct BridgeWays<'a> {
    pub(super) bridges: &'a [&'a str],
    /// Those of the bridges, of the filter's family, as far as they are known.
    pub(super) subnets: &'a [Subnet],
    /// The interfaces with a default route, as far as they are known.
    pub(super) uplinks: &'a [String],
}

/// Directions in which packets of a bridge are accepted although the policy drops packets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Accepted {
    /// Those that come from the bridge and leave by an uplink, whichever it is.
    pub(super) from: bool,
    /// Those that come by an uplink and go to the bridge, or answers at least.
    pub(super) to: bool,
    /// The uplinks with which that is not so, if there are others.
    pub(super) lacking: Vec<String>,
}

/// A rule of a chain.
#[derive(Debug)]
struct FilterRule<'a> {
    chain: &'a str,
    conditions: Vec<Condition<'a>>,
    /// False if it asks for more than is understood.
    is_plain: bool,
    target: Option<&'a str>,
    /// True if a packet does not come back from the target to this chain.
    is_goto: bool,
}

/// A value that a rule asks for.
#[derive(Debug)]
struct Condition<'a> {
    option: &'a str,
    value: &'a str,
    /// False if it asks for all but this value.
    is_meant: bool,
}

/// Packets of one kind.
#[derive(Debug, Clone, Copy)]
struct Packets<'a> {
    from: PacketEnd<'a>,
    to: PacketEnd<'a>,
    /// The state of their connection.
    state: &'a str,
}

/// One end of the way of packets.
#[derive(Debug, Clone, Copy)]
struct PacketEnd<'a> {
    /// Empty if it is not known: then it is none that a rule names.
    device: &'a str,
    /// Whose addresses it has, if that is known.
    subnet: Option<&'a Subnet>,
    is_bridge: bool,
}

/// For how many packets of a kind a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    All,
    /// For some, or that is not known.
    Some,
    None,
}

/// What a chain decides about packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChainVerdict {
    Accepted,
    Dropped,
    /// Nothing: they come back.
    Returned,
}

/// The chains of a filter, and how many rules may still be looked at.
struct FilterWalk<'a> {
    chains: &'a BTreeMap<&'a str, Vec<FilterRule<'a>>>,
    steps: usize,
}

// === impl Accepted ===

impl Accepted {
    /// Finds which packets of these bridges the rules accept: of one of them at least. `None` if the policy drops nothing. Pure.
    pub(super) fn of(rules: &str, ways: &BridgeWays<'_>) -> Option<Self> {
        if !drops_by_policy(rules) {
            return None;
        }
        let mut chains: BTreeMap<&str, Vec<FilterRule<'_>>> = BTreeMap::new();
        for rule in read(rules) {
            chains.entry(rule.chain).or_default().push(rule);
        }
        let of_bridges = ways.bridges.iter();
        let of_bridges = of_bridges.map(|bridge| Self::of_bridge(&chains, bridge, ways));
        let any = of_bridges.reduce(|one, other| Self {
            from: one.from || other.from,
            to: one.to || other.to,
            lacking: one.lacking,
        });
        Some(any.unwrap_or_default())
    }

    fn of_bridge<'a>(
        chains: &'a BTreeMap<&'a str, Vec<FilterRule<'a>>>,
        bridge: &'a str,
        ways: &'a BridgeWays<'_>,
    ) -> Self {
        let mut uplinks: Vec<&str> = ways.uplinks.iter().map(String::as_str).collect();
        uplinks.sort_unstable();
        uplinks.dedup();
        if uplinks.is_empty() {
            uplinks.push("");
        }
        let known = ways.subnets.iter().map(Some);
        let mut subnets: Vec<Option<&Subnet>> = known.collect();
        if subnets.is_empty() {
            subnets.push(None);
        }
        let mut all = Self {
            from: true,
            to: true,
            lacking: Vec::new(),
        };
        for uplink in &uplinks {
            let elsewhere = PacketEnd {
                device: uplink,
                subnet: None,
                is_bridge: false,
            };
            let accepts = |comes: bool, state: &str| {
                subnets.iter().all(|subnet| {
                    let own = PacketEnd {
                        device: bridge,
                        subnet: *subnet,
                        is_bridge: true,
                    };
                    let (from, to) = if comes {
                        (own, elsewhere)
                    } else {
                        (elsewhere, own)
                    };
                    is_accepted(chains, Packets { from, to, state })
                })
            };
            // The first packet of a connection alone is of no use.
            let from = accepts(true, "NEW") && accepts(true, "ESTABLISHED");
            let to = accepts(false, "ESTABLISHED");
            all.from &= from;
            all.to &= to;
            if !(from && to) {
                all.lacking.push((*uplink).to_owned());
            }
        }
        if all.lacking.len() == uplinks.len() {
            all.lacking.clear();
        }
        all
    }
}

/// Returns whether the policy of FORWARD drops what no rule decides about. Pure.
pub(super) fn drops_by_policy(rules: &str) -> bool {
    rules.lines().any(|line| line == "-P FORWARD DROP")
}

/// The targets of rules that may be chains of the filter, some more than once: of those alone that packets are followed to. Pure.
pub(super) fn jumps(rules: &str) -> impl Iterator<Item = &str> {
    let followed = read(rules).filter(|rule| rule.is_plain);
    let targets = followed.filter_map(|rule| rule.target);
    targets.filter(|target| !TARGETS.contains(target))
}

fn read(rules: &str) -> impl Iterator<Item = FilterRule<'_>> {
    rules.lines().take(RULES_MAX).filter_map(FilterRule::read)
}

/// Returns whether the rules accept packets, all of a kind. Pure.
fn is_accepted<'a>(
    chains: &'a BTreeMap<&'a str, Vec<FilterRule<'a>>>,
    packets: Packets<'_>,
) -> bool {
    let mut walk = FilterWalk {
        chains,
        steps: STEPS_MAX,
    };
    walk.chain(FORWARD, &packets, 0) == ChainVerdict::Accepted
}

// === impl FilterWalk ===

impl FilterWalk<'_> {
    fn chain(&mut self, name: &str, packets: &Packets<'_>, depth: usize) -> ChainVerdict {
        let chains = self.chains;
        let Some(rules) = chains.get(name).filter(|_| depth <= DEPTH_MAX) else {
            return ChainVerdict::Returned;
        };
        for rule in rules {
            let Some(steps) = self.steps.checked_sub(1) else {
                return ChainVerdict::Returned;
            };
            self.steps = steps;
            let target = rule.target.filter(|_| rule.holds(packets) == Holds::All);
            let verdict = match target {
                None => continue,
                Some("ACCEPT" | OF_PLUGINS) => ChainVerdict::Accepted,
                Some("DROP" | "REJECT") => ChainVerdict::Dropped,
                Some("RETURN") => return ChainVerdict::Returned,
                Some(target) => self.chain(target, packets, depth + 1),
            };
            if verdict != ChainVerdict::Returned || rule.is_goto {
                return verdict;
            }
        }
        ChainVerdict::Returned
    }
}

// === impl Holds ===

impl Holds {
    const fn of(is_so: bool) -> Self {
        if is_so { Self::All } else { Self::None }
    }

    const fn negated(self) -> Self {
        match self {
            Self::All => Self::None,
            Self::Some => Self::Some,
            Self::None => Self::All,
        }
    }
}

// === impl FilterRule ===

impl<'a> FilterRule<'a> {
    /// Parses a line; `None` if it is no rule.
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "-A")?;
        let mut rule = Self {
            chain: words.next()?,
            conditions: Vec::new(),
            is_plain: true,
            target: None,
            is_goto: false,
        };
        let mut is_meant = true;
        while let Some(word) = words.next() {
            match word {
                "!" => {
                    is_meant = false;
                    continue;
                }
                "-i" | "-o" | "-s" | "-d" | "--ctstate" | "--state" => {
                    rule.conditions.push(Condition {
                        option: word,
                        value: words.next()?,
                        is_meant,
                    });
                }
                "-m" => rule.is_plain &= MATCHES.contains(&words.next()?),
                "--comment" => skip_text(&mut words),
                // What follows are options of the target.
                "-j" | "-g" => {
                    rule.target = words.next();
                    rule.is_goto = word == "-g";
                    break;
                }
                _ => rule.is_plain = false,
            }
            is_meant = true;
        }
        Some(rule)
    }

    fn holds(&self, packets: &Packets<'_>) -> Holds {
        let mut all = if self.is_plain {
            Holds::All
        } else {
            Holds::Some
        };
        for condition in &self.conditions {
            let holds = self.condition_holds(condition, packets);
            let holds = if condition.is_meant {
                holds
            } else {
                holds.negated()
            };
            match holds {
                Holds::All => {}
                Holds::Some => all = Holds::Some,
                Holds::None => return Holds::None,
            }
        }
        all
    }

    fn condition_holds(&self, condition: &Condition<'_>, packets: &Packets<'_>) -> Holds {
        let Condition { option, value, .. } = *condition;
        match option {
            "-i" => Holds::of(is_device(value, packets.from.device)),
            "-o" => Holds::of(is_device(value, packets.to.device)),
            "-s" => self.address_holds(value, &packets.from, "-i"),
            "-d" => self.address_holds(value, &packets.to, "-o"),
            // A state of the connection.
            _ => Holds::of(value.split(',').any(|state| state == packets.state)),
        }
    }

    /// For how many packets it holds that this end of them has one of these addresses. Of a bridge whose subnets are not known, a rule that names
    /// it, too, has the right ones.
    fn address_holds(&self, range: &str, end: &PacketEnd<'_>, device: &str) -> Holds {
        let Some(subnet) = end.subnet else {
            let is_named = |one: &Condition<'_>| {
                one.option == device && one.is_meant && is_device(one.value, end.device)
            };
            let is_own = end.is_bridge && self.conditions.iter().any(is_named);
            return if is_own { Holds::All } else { Holds::Some };
        };
        match range.parse::<Subnet>() {
            Ok(range) if range.contains_all(subnet) => Holds::All,
            Ok(range) if !range.overlaps(subnet) => Holds::None,
            Ok(_) | Err(_) => Holds::Some,
        }
    }
}

/// Takes a text, which is in quotes if it has blanks.
fn skip_text<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let is_end = |word: &str| word.ends_with('"') && !word.ends_with("\\\"");
    let Some(rest) = words.next().and_then(|first| first.strip_prefix('"')) else {
        return;
    };
    if !is_end(rest) {
        // Up to and with the last word of it.
        let _last = words.find(|word| is_end(word));
    }
}

/// Returns whether a device has the name that a rule, or a zone of firewalld, asks for: one with `+` at its end is the beginning of a name. Pure.
pub(super) fn is_device(name: &str, device: &str) -> bool {
    match name.strip_suffix('+') {
        Some(beginning) => device.starts_with(beginning),
        None => name == device,
    }
}

#[cfg(test)]
mod tests;
