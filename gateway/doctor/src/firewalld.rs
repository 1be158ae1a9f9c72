//! Checks whether firewalld rejects what containers on a bridge of the gateway begin: it is asked by the bus, as its own client is written
//! in Python and takes half a second for each question.

use switchyard_core::spec::Subnet;

use super::accepted::is_device;
use super::codes::runtime::NATIVE_DROPPED;
use super::facts::Facts;
use super::finding::Finding;

/// The client of firewalld, which is there if firewalld is.
const CLIENT: &str = "firewall-cmd";

/// The arguments of a call, which does not start firewalld; the interface of the bus and the method follow.
const CALL: [&str; 4] = [
    "--auto-start=no",
    "call",
    "org.fedoraproject.FirewallD1",
    "/org/fedoraproject/FirewallD1",
];

const OF_ALL: &str = "org.fedoraproject.FirewallD1";
const OF_ZONES: &str = "org.fedoraproject.FirewallD1.zone";
const OF_POLICIES: &str = "org.fedoraproject.FirewallD1.policy";

/// The zones and policies in force.
#[derive(Debug)]
pub(super) struct Firewalld {
    default_zone: String,
    zones: Vec<Group>,
    policies: Vec<Group>,
}

/// A zone or a policy, with lists by their names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Group {
    name: String,
    lists: Vec<(String, Vec<String>)>,
}

// === impl Firewalld ===

impl Firewalld {
    /// Asks the firewalld that runs; `None` if there is none, or one without these calls, as before 0.9.
    pub(super) fn of(facts: &Facts) -> Option<Self> {
        facts.program(CLIENT)?;
        let default_zone = ask(facts, OF_ALL, &["getDefaultZone"])?;
        let zones = ask(facts, OF_ZONES, &["getActiveZones"])?;
        let policies = ask(facts, OF_POLICIES, &["getActivePolicies"])?;
        Some(Self {
            default_zone: words(&default_zone).nth(1)?.to_owned(),
            zones: groups(&zones)?,
            policies: groups(&policies)?,
        })
    }

    /// Finds whether it rejects what comes from a bridge with these subnets and goes beyond the node.
    pub(super) fn check(&self, facts: &Facts, bridge: &str, subnets: &[Subnet]) -> Option<Finding> {
        let rejected: Vec<(&str, &Subnet)> = subnets
            .iter()
            .map(|subnet| (self.zone_of(bridge, subnet), subnet))
            .filter(|(zone, _)| self.rejects(facts, bridge, zone))
            .collect();
        let (zone, _) = rejected.first()?;
        let found = format!("firewalld: the zone {zone} rejects what comes from {bridge}");
        let sources = rejected
            .iter()
            .map(|(_, subnet)| format!(" --add-source={subnet}"));
        let sources: String = sources.collect();
        // A reload would drop new connections meanwhile, and before 2.0 the published ports of plugins for good.
        let trust = format!("--zone=trusted{sources}");
        let command = format!("firewall-cmd --permanent {trust} && firewall-cmd {trust}");
        Some(Finding::new(&NATIVE_DROPPED, found).command(command))
    }

    /// The zone of what comes from there: that of its addresses, else that of the interface. Pure.
    fn zone_of(&self, bridge: &str, subnet: &Subnet) -> &str {
        let has_source = |source: &String| {
            let range = source.parse::<Subnet>();
            range.is_ok_and(|range| range.contains_all(subnet))
        };
        let by_source = self
            .zones
            .iter()
            .find(|zone| zone.list("sources").iter().any(has_source));
        let by_interface = || {
            let is_in = |entry: &String| is_device(entry, bridge);
            let has = |zone: &&Group| zone.list("interfaces").iter().any(is_in);
            self.zones.iter().find(has)
        };
        let zone = by_source.or_else(by_interface);
        zone.map_or(self.default_zone.as_str(), |zone| zone.name.as_str())
    }

    /// Returns whether a zone rejects: neither its target, nor forwarding within it to another of its interfaces, nor a policy is known to accept
    /// anything. A policy for what comes from it counts whatever its target is.
    fn rejects(&self, facts: &Facts, bridge: &str, zone: &str) -> bool {
        if self.policies.iter().any(|policy| policy.is_about(zone)) {
            return false;
        }
        let settings = ask(facts, OF_ZONES, &["getZoneSettings2", "s", zone]);
        let Some(settings) = settings else {
            return false;
        };
        let mut interfaces = self
            .zones
            .iter()
            .filter(|other| other.name == zone)
            .flat_map(|other| other.list("interfaces"));
        let forwards = settings.contains("\"forward\" b true")
            && interfaces.any(|entry| !is_device(entry, bridge));
        !forwards && !settings.contains("\"target\" s \"ACCEPT\"")
    }
}

// === impl Group ===

impl Group {
    fn list(&self, name: &str) -> &[String] {
        let found = self.lists.iter().find(|(known, _)| known == name);
        found
            .map(|(_, values)| values.as_slice())
            .unwrap_or_default()
    }

    /// Returns whether this is a policy for what comes from a zone and goes beyond the node. One for all zones has to be one to all, too: that of
    /// dockerd leads to its own bridges alone. Pure.
    fn is_about(&self, zone: &str) -> bool {
        let has = |list: &str, name: &str| self.list(list).iter().any(|known| known == name);
        let mut to = self.list("egress_zones").iter();
        (has("ingress_zones", zone) && to.any(|name| name != "HOST"))
            || (has("ingress_zones", "ANY") && has("egress_zones", "ANY"))
    }
}

/// The answer to a call, as `busctl` prints it; `None` if nobody gives one.
fn ask(facts: &Facts, interface: &str, call: &[&str]) -> Option<String> {
    facts.output("busctl", &[&CALL[..], &[interface], call].concat())
}

/// The words of an answer, without quotes: names, addresses and numbers, which have neither blanks nor quotes. Pure.
fn words(answer: &str) -> impl Iterator<Item = &str> {
    answer.split_whitespace().map(|word| word.trim_matches('"'))
}

/// The groups of an answer with lists by two names; `None` if it is none. Pure.
fn groups(answer: &str) -> Option<Vec<Group>> {
    let mut words = words(answer);
    if words.next()? != "a{sa{sas}}" {
        return None;
    }
    let mut groups = Vec::new();
    for _ in 0..words.next()?.parse::<usize>().ok()? {
        let mut group = Group {
            name: words.next()?.to_owned(),
            ..Group::default()
        };
        for _ in 0..words.next()?.parse::<usize>().ok()? {
            let name = words.next()?.to_owned();
            let mut values = Vec::new();
            for _ in 0..words.next()?.parse::<usize>().ok()? {
                values.push(words.next()?.to_owned());
            }
            group.lists.push((name, values));
        }
        groups.push(group);
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, lists: &[(&str, &[&str])]) -> Group {
        let owned = |(name, values): &(&str, &[&str])| {
            let values = values.iter().map(|value| (*value).to_owned());
            ((*name).to_owned(), values.collect())
        };
        Group {
            name: name.to_owned(),
            lists: lists.iter().map(owned).collect(),
        }
    }

    #[test]
    fn answers_of_the_bus_are_read() {
        for (answer, expected) in [
            ("a{sa{sas}} 0\n", Some(vec![])),
            (
                "a{sa{sas}} 2 \"public\" 1 \"interfaces\" 2 \"eth0\" \"eth1\" \"trusted\" 2 \"interfaces\" 0 \"sources\" 1 \"172.26.80.0/20\"\n",
                Some(vec![
                    group("public", &[("interfaces", &["eth0", "eth1"])]),
                    group(
                        "trusted",
                        &[("interfaces", &[]), ("sources", &["172.26.80.0/20"])],
                    ),
                ]),
            ),
            ("", None),
            ("s \"public\"\n", None),
            ("a{sa{sas}} 1\n", None),
            ("a{sa{sas}} -1\n", None),
            (
                "a{sa{sas}} 1 \"public\" 1 \"interfaces\" 18446744073709551615 \"eth0\"\n",
                None,
            ),
        ] {
            assert_eq!(groups(answer), expected, "{answer}");
        }
    }
}
