//! Packets of bridges that the packet filter accepts, by the text of its rules.

use switchyard_core::spec::Subnet;

/// The most lines of the packet filter that are looked at.
const RULES_MAX: usize = 100_000;

/// The matches that are understood. What else a rule asks for may hold for some packets alone.
const MATCHES: [&str; 3] = ["comment", "conntrack", "state"];
/// The options that are understood, with those of these matches.
const OPTIONS: [&str; 10] = [
    "-A",
    "-i",
    "-o",
    "-s",
    "-d",
    "-m",
    "--comment",
    "--ctstate",
    "--state",
    "-j",
];

/// Origins and destinations of packets of bridges.
#[derive(Debug)]
pub(super) struct BridgeWays<'a> {
    pub(super) bridges: &'a [&'a str],
    /// Those of the bridges, of the filter's family, as far as they are known.
    pub(super) subnets: &'a [Subnet],
    /// The interfaces with a default route, as far as they are known.
    pub(super) uplinks: &'a [String],
}

/// Directions in which packets of bridges are accepted although the policy drops packets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Accepted {
    /// Those that come from a bridge.
    pub(super) from: bool,
    /// Those that go to one, or answers at least.
    pub(super) to: bool,
}

/// A rule, as its words.
struct FilterRule<'a>(Vec<&'a str>);

// === impl Accepted ===

impl Accepted {
    /// Finds which packets of these bridges the rules accept; `None` if the policy drops nothing. Pure.
    pub(super) fn of(rules: &str, ways: &BridgeWays<'_>) -> Option<Self> {
        rules.lines().find(|line| *line == "-P FORWARD DROP")?;
        let rules = rules.lines().take(RULES_MAX);
        let rules: Vec<FilterRule<'_>> = rules.map(FilterRule::read).collect();
        let subnets = ways.subnets.iter();
        let of_subnets = subnets.map(|subnet| Self::of_subnet(&rules, ways, Some(subnet)));
        let each = of_subnets.reduce(|one, other| Self {
            from: one.from && other.from,
            to: one.to && other.to,
        });
        Some(each.unwrap_or_else(|| Self::of_subnet(&rules, ways, None)))
    }

    fn of_subnet(rules: &[FilterRule<'_>], ways: &BridgeWays<'_>, subnet: Option<&Subnet>) -> Self {
        let mut all = Self::default();
        for rule in rules {
            let Self { from, to } = Self::by_rule(rule, ways, subnet);
            all.from |= from;
            all.to |= to;
        }
        all
    }

    fn by_rule(rule: &FilterRule<'_>, ways: &BridgeWays<'_>, subnet: Option<&Subnet>) -> Self {
        if rule.0 == ["-A", "FORWARD", "-j", "ACCEPT"] || rule.0.ends_with(&["-j", "CNI-FORWARD"]) {
            return Self {
                from: true,
                to: true,
            };
        }
        if !rule.0.ends_with(&["-j", "ACCEPT"]) {
            return Self::default();
        }
        let is_bridge = |name: &str| ways.bridges.iter().any(|bridge| is_device(name, bridge));
        let is_uplink = |name: &str| ways.uplinks.iter().any(|uplink| is_device(name, uplink));
        let is_subnet = |text: &str| {
            let net = text.parse::<Subnet>();
            subnet.is_some_and(|subnet| net.is_ok_and(|net| net.contains_all(subnet)))
        };
        let comes = rule.has("-i", is_bridge) || rule.has("--physdev-in", is_bridge);
        let goes = rule.has("-o", is_bridge);
        // As most firewalls have it: answers by any device to any address, or all that an uplink or a subnet receives or sends.
        let is_plain = rule.is_plain();
        let has_state = |state: &str| {
            let is_state = |states: &str| states.split(',').any(|one| one == state);
            rule.has("--ctstate", is_state) || rule.has("--state", is_state)
        };
        let is_answer = has_state("ESTABLISHED");
        let is_any_state = !rule.names("--ctstate") && !rule.names("--state");
        let is_received = is_plain
            && (is_answer || is_any_state && (rule.names("-d") || rule.names("-i")))
            && !rule.names("-s")
            && !rule.names("-o")
            && rule.allows("-i", is_uplink)
            && rule.allows("-d", is_subnet);
        let is_sent = is_plain
            && (is_any_state || has_state("NEW"))
            && (rule.names("-s") || rule.names("-o"))
            && !rule.names("-d")
            && !rule.names("-i")
            && rule.allows("-o", is_uplink)
            && rule.allows("-s", is_subnet);
        Self {
            // With both it is for neighbours on the bridge.
            from: comes && !goes || is_sent,
            to: goes && !comes || is_received,
        }
    }
}

// === impl FilterRule ===

impl<'a> FilterRule<'a> {
    fn read(line: &'a str) -> Self {
        Self(line.split_whitespace().collect())
    }

    /// The values of an option, each with whether the rule asks for it; behind `!` it asks for all but this one.
    fn values(&self, option: &str) -> impl Iterator<Item = (&'a str, bool)> {
        let words = self.0.iter().enumerate();
        let places = words.filter(move |(_, word)| **word == option);
        places.filter_map(move |(at, _)| {
            let is_meant = at == 0 || self.0[at - 1] != "!";
            self.0.get(at + 1).map(|value| (*value, is_meant))
        })
    }

    fn names(&self, option: &str) -> bool {
        self.0.contains(&option)
    }

    /// Returns whether the rule asks for a value of this kind.
    fn has(&self, option: &str, is_value: impl Fn(&str) -> bool) -> bool {
        self.values(option)
            .any(|(value, is_meant)| is_meant && is_value(value))
    }

    /// Returns whether the rule leaves the option out, or asks for a value of this kind.
    fn allows(&self, option: &str, is_value: impl Fn(&str) -> bool) -> bool {
        !self.names(option) || self.has(option, is_value)
    }

    /// Returns whether all that the rule asks for is understood. A rule whose comment has a word that begins with `-` counts as one that is not.
    fn is_plain(&self) -> bool {
        let mut options = self.0.iter().filter(|word| word.starts_with('-'));
        options.all(|word| OPTIONS.contains(word))
            && self.values("-m").all(|(name, _)| MATCHES.contains(&name))
    }
}

/// Returns whether a device has the name that a rule, or a zone of firewalld, asks for: one with `+` at its end is the beginning of a name. Pure.
pub(super) fn is_device(name: &str, device: &str) -> bool {
    match name.strip_suffix('+') {
        Some(beginning) => device.starts_with(beginning),
        None => name == device,
    }
}
