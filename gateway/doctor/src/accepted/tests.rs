//! Tests of the walk of packets through rules.

use super::*;

const POLICY: &str = "-P FORWARD DROP\n";

fn accepted(rules: &str, uplinks: &[&str]) -> Accepted {
    let subnets: [Subnet; 1] = ["172.26.80.0/20".parse().unwrap()];
    let uplinks: Vec<String> = uplinks.iter().map(|name| (*name).to_owned()).collect();
    let ways = BridgeWays {
        bridges: &["sw0"],
        subnets: &subnets,
        uplinks: &uplinks,
    };
    Accepted::of(&format!("{POLICY}{rules}"), &ways).unwrap()
}

fn directions(rules: &str) -> (bool, bool) {
    let found = accepted(rules, &["eth0"]);
    (found.from, found.to)
}

#[test]
fn rule_for_some_packets_is_none_for_all() {
    let both = "-A FORWARD -i sw0 -j ACCEPT\n-A FORWARD -o sw0 -j ACCEPT\n";
    for (rule, expected) in [
        ("-i sw0 -p tcp -m tcp --dport 443 -j ACCEPT", (false, false)),
        ("-o sw0 -p udp -m udp --sport 53 -j ACCEPT", (false, false)),
        ("-i sw0 -d 192.0.2.0/24 -j ACCEPT", (false, false)),
        (
            "-i sw0 -m physdev --physdev-is-bridged -j ACCEPT",
            (false, false),
        ),
        (
            "-i sw0 -m set --match-set allowed dst -j ACCEPT",
            (false, false),
        ),
        ("-i sw0 -p icmp -j ACCEPT", (false, false)),
        (
            "-i sw0 -m conntrack ! --ctstate INVALID -j ACCEPT",
            (true, false),
        ),
        (
            "-i sw0 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT",
            (true, false),
        ),
        (
            "-o sw0 -m comment --comment \"not -p tcp alone\" -j ACCEPT",
            (false, true),
        ),
        (
            "-o sw0 -m comment --comment \"said \\\" -j DROP\" -j ACCEPT",
            (false, true),
        ),
    ] {
        assert_eq!(
            directions(&format!("-A FORWARD {rule}\n")),
            expected,
            "{rule}"
        );
        // Nor does one that drops some of them undo what accepts all.
        let drops = rule.replace("ACCEPT", "DROP");
        let (from, to) = directions(&format!("-A FORWARD {drops}\n{both}"));
        assert_eq!((from, to), (!expected.0, !expected.1), "{drops}");
    }
}

#[test]
fn connection_needs_an_accept_for_all_its_packets() {
    let state = |device: &str, states: &str| {
        format!("-A FORWARD {device} sw0 -m conntrack --ctstate {states} -j ACCEPT\n")
    };
    for (rules, expected) in [
        (state("-i", "NEW"), (false, false)),
        (state("-i", "ESTABLISHED"), (false, false)),
        (state("-i", "NEW,DNAT"), (false, false)),
        (state("-i", "NEW,RELATED,ESTABLISHED"), (true, false)),
        (
            state("-i", "NEW") + &state("-i", "ESTABLISHED"),
            (true, false),
        ),
        // Answers are enough of what goes to it.
        (state("-o", "NEW"), (false, false)),
        (state("-o", "RELATED,ESTABLISHED,DNAT"), (false, true)),
    ] {
        assert_eq!(directions(&rules), expected, "{rules}");
    }
}

#[test]
fn first_rule_that_decides_counts_in_whichever_chain_it_is() {
    let both = "-A FORWARD -i sw0 -j ACCEPT\n-A FORWARD -o sw0 -j ACCEPT\n";
    let chain = "-N one\n-A one -i sw0 -j ACCEPT\n-A one -o sw0 -j ACCEPT\n";
    let deep = |length: usize| {
        let jumps = (0..length).map(|at| format!("-A c{at} -j c{}\n", at + 1));
        let jumps: String = jumps.collect();
        format!("-A FORWARD -j c0\n{jumps}-A c{length} -j ACCEPT\n")
    };
    for (rules, expected) in [
        (format!("-A FORWARD -i sw0 -j DROP\n{both}"), (false, true)),
        (
            format!("-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n{both}"),
            (false, false),
        ),
        (format!("{both}-A FORWARD -j DROP\n"), (true, true)),
        (
            format!("-A FORWARD -j LOG --log-prefix \"x -j DROP\"\n{both}"),
            (true, true),
        ),
        (format!("-A FORWARD -j one\n{chain}"), (true, true)),
        (format!("-A FORWARD -i sw0 -j one\n{chain}"), (true, false)),
        (format!("-A FORWARD -p tcp -j one\n{chain}"), (false, false)),
        (
            format!("-A FORWARD -j one\n-A one -i sw0 -j RETURN\n{chain}{both}"),
            (true, true),
        ),
        (
            format!("-A FORWARD -j one\n-A one -i sw0 -j RETURN\n{chain}"),
            (false, true),
        ),
        (
            format!("-A FORWARD -j one\n-A one -o sw0 -j DROP\n{chain}{both}"),
            (true, false),
        ),
        // What is behind a chain that is gone to is not reached.
        (
            "-A FORWARD -g one\n-A FORWARD -j ACCEPT\n-N one\n".to_owned(),
            (false, false),
        ),
        (
            "-A FORWARD -j a\n-A a -g b\n-A a -j ACCEPT\n-A b -i sw0 -j ACCEPT\n".to_owned(),
            (true, false),
        ),
        (deep(3), (true, true)),
        (deep(DEPTH_MAX + 1), (false, false)),
        // The kernel has no such chains.
        (
            format!("-A FORWARD -j a\n-A a -j a\n-A a -j a\n{both}"),
            (true, true),
        ),
    ] {
        assert_eq!(directions(&rules), expected, "{rules}");
    }
}

#[test]
fn all_uplinks_have_to_be_accepted_and_the_others_are_named() {
    let by = |uplink: &str| {
        format!(
            "-A FORWARD -i sw0 -o {uplink} -j ACCEPT\n-A FORWARD -i {uplink} -o sw0 -j ACCEPT\n"
        )
    };
    let uplinks = &["eth0", "wlan0", "eth0"][..];
    for (rules, uplinks, expected, lacking) in [
        (by("eth0"), &uplinks[..1], (true, true), &[] as &[&str]),
        (by("eth0"), uplinks, (false, false), &["wlan0"]),
        (by("wlan0"), uplinks, (false, false), &["eth0"]),
        (
            format!("{}{}", by("eth0"), by("wlan0")),
            uplinks,
            (true, true),
            &[],
        ),
        (by("eth+"), uplinks, (false, false), &["wlan0"]),
        (
            format!("{}-A FORWARD -o sw0 -j ACCEPT\n", by("eth0")),
            uplinks,
            (false, true),
            &["wlan0"],
        ),
        // None of them.
        (by("ppp0"), uplinks, (false, false), &[]),
        (
            "-A FORWARD -i sw0 -j ACCEPT\n".to_owned(),
            uplinks,
            (true, false),
            &[],
        ),
    ] {
        let found = accepted(&rules, uplinks);
        assert_eq!((found.from, found.to), expected, "{rules}");
        assert_eq!(found.lacking, lacking, "{rules}");
    }
}

#[test]
fn chains_to_follow_are_the_targets_that_are_no_verdicts() {
    let rules = "-N one\n-A FORWARD -j DOCKER-USER\n-A FORWARD -i eth0 -g two\n-A FORWARD -j ACCEPT\n\
                 -A FORWARD -j CNI-FORWARD\n-A FORWARD -m comment --comment \"-j three\" -j LOG\n-A FORWARD -i x\n\
                 -A FORWARD -m mark --mark 0x1 -j four\n-A FORWARD -p tcp -g five\n";
    assert_eq!(jumps(rules).collect::<Vec<_>>(), ["DOCKER-USER", "two"]);
}
