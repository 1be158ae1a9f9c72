//! Decisions about listed chains; and on this kernel, with the programs of both variants, in network namespaces of their own.

use super::*;
use crate::testing::{in_private_netns, run};

const DROP: &str = "-P FORWARD DROP";
const ACCEPT: &str = "-P FORWARD ACCEPT";
const FROM: &str = "-A FORWARD -i sw0 -m comment --comment switchyard -j ACCEPT";
const TO: &str = "-A FORWARD -o sw0 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment switchyard -j ACCEPT";
/// Those of another instance, and of another bridge of this one.
const OTHER_FROM: &str = "-A FORWARD -i sw1 -m comment --comment switchyard_2 -j ACCEPT";
const SECOND_FROM: &str = "-A FORWARD -i sw2 -m comment --comment switchyard -j ACCEPT";
const DOCKER: &str = "-A FORWARD -j DOCKER-USER";
/// An operator's, as the documentation once advised.
const BY_HAND: &str = "-A FORWARD -i sw0 -j ACCEPT";

/// What a case shows, the listed chain, whether the bridge is needed, and how many rules are then added and removed.
type Case<'a> = (&'a str, &'a [&'a str], bool, (usize, usize));

/// How many rules are added and removed.
fn counts(plan: &ChainPlan) -> (usize, usize) {
    (plan.add.len(), plan.remove.len())
}

#[test]
fn chain_gets_what_it_lacks_and_loses_what_it_does_not_need() {
    let quoted = FROM.replace("switchyard", "\"switchyard\"");
    let ordered = TO.replace("RELATED,ESTABLISHED,DNAT", "DNAT,RELATED,ESTABLISHED");
    let of_others = FROM.replace("switchyard", "\"switchyard by me\"");
    let edited = FROM.replace("-j ACCEPT", "-j DROP");
    let cases: &[Case] = &[
        ("only others accept", &[ACCEPT, DOCKER], true, (0, 0)),
        ("all is dropped", &[DROP], true, (2, 0)),
        ("behind docker's", &[DROP, DOCKER], true, (2, 0)),
        ("it is right", &[DROP, DOCKER, FROM, TO], true, (0, 0)),
        (
            "as another version lists it",
            &[DROP, quoted.as_str(), ordered.as_str()],
            true,
            (0, 0),
        ),
        ("a kill came between both", &[DROP, FROM], true, (1, 0)),
        (
            "others came behind",
            &[DROP, FROM, TO, DOCKER],
            true,
            (2, 2),
        ),
        (
            "one is behind others",
            &[DROP, FROM, DOCKER, TO],
            true,
            (1, 1),
        ),
        (
            "a kill came before the removal",
            &[DROP, FROM, TO, DOCKER, FROM, TO],
            true,
            (0, 2),
        ),
        (
            "two processes added them",
            &[DROP, FROM, TO, FROM, TO],
            true,
            (0, 2),
        ),
        (
            "another instance's come behind",
            &[DROP, FROM, TO, OTHER_FROM],
            true,
            (0, 0),
        ),
        (
            "the policy is another one now",
            &[ACCEPT, FROM, DOCKER, TO],
            true,
            (0, 2),
        ),
        (
            "the bridge is not needed",
            &[DROP, FROM, TO, OTHER_FROM],
            false,
            (0, 2),
        ),
        (
            "others have edited it",
            &[DROP, edited.as_str(), TO],
            true,
            (1, 1),
        ),
        ("the operator's rules stay", &[DROP, BY_HAND], true, (2, 0)),
        (
            "a comment of others",
            &[DROP, of_others.as_str()],
            false,
            (0, 0),
        ),
        ("no chain", &[], true, (0, 0)),
    ];
    let bridges = [bridge("sw0")];
    for (name, listed, is_wanted, expected) in cases {
        let bridges = if *is_wanted { &bridges[..] } else { &[] };
        let plan = plan(&listed.join("\n"), Some("switchyard"), bridges);
        assert_eq!(counts(&plan), *expected, "{name}: {plan:?}");
    }
}

#[test]
fn what_is_planned_is_what_the_chain_needs() {
    let all = [DROP, DOCKER, FROM, TO, BY_HAND, OTHER_FROM].join("\n");
    assert_eq!(
        counts(&plan(&all, None, &[])),
        (0, 3),
        "for whichever bridge"
    );
    let of_gone = [DROP, SECOND_FROM, FROM, TO].join("\n");
    let one = [bridge("sw0")];
    let gone = plan(&of_gone, Some("switchyard"), &one);
    assert_eq!(counts(&gone), (0, 1), "of a bridge that is gone");
    let two = [bridge("sw0"), bridge("sw2")];
    let second = plan(&of_gone, Some("switchyard"), &two);
    assert_eq!(counts(&second), (1, 0), "of a second bridge");
    let listed = [DROP, FROM, TO, DOCKER];
    let plan = plan(&listed.join("\n"), Some("switchyard"), &one);
    let rules = |all: &[Vec<String>]| -> Vec<String> {
        all.iter()
            .map(|words| format!("-A FORWARD {}", words.join(" ")))
            .collect()
    };
    assert_eq!(rules(&plan.add), [FROM, TO]);
    assert_eq!(rules(&plan.remove), [FROM, TO]);
}

/// The rules of a chain, and its policy.
fn chain(program: &str) -> Vec<String> {
    let listed = run(program, "iptables", &["-S", CHAIN]);
    listed.lines().map(str::to_owned).collect()
}

fn bridge(name: &str) -> BridgeName {
    BridgeName::new(name).unwrap()
}

/// What was changed for a bridge, each of an instance of its own.
fn changes(name: &str, families: &[NftFamily]) -> Vec<(&'static str, usize, usize)> {
    let table = match name {
        "sw0" => TableName::default(),
        other => TableName::of_instance(other).unwrap(),
    };
    let changes = accept_forwarded(&table, &[bridge(name)], families);
    let numbers = |change: Result<FilterChange, IptablesError>| {
        let change = change.unwrap();
        (change.program, change.added, change.removed)
    };
    changes.into_iter().map(numbers).collect()
}

fn edit(program: &str, rule: &str) {
    let words: Vec<&str> = rule.split(' ').collect();
    run(program, "iptables", &words);
}

/// The life of the rules in one filter.
fn comes_and_goes(filter: &PacketFilter) {
    let program = filter.programs[0];
    let families = [filter.family];
    edit(program, DROP);
    edit(program, "-A FORWARD -i eth9 -j DROP");
    assert_eq!(changes("sw0", &families), [(program, 2, 0)]);
    let right = [DROP, "-A FORWARD -i eth9 -j DROP", FROM, TO];
    assert_eq!(chain(program), right);
    assert!(changes("sw0", &families).is_empty());
    // Those of another instance of the daemon, which leaves these alone.
    assert_eq!(changes("sw1", &families), [(program, 2, 0)]);
    assert!(changes("sw0", &families).is_empty());
    assert_eq!(changes("sw1", &[]), [(program, 0, 2)]);
    assert_eq!(chain(program), right);
    // Another program adds a rule behind them, and a kill leaves copies.
    edit(program, "-A FORWARD -o eth9 -j DROP");
    edit(program, FROM);
    assert_eq!(changes("sw0", &families), [(program, 1, 2)]);
    let moved = [DROP, right[1], "-A FORWARD -o eth9 -j DROP", FROM, TO];
    assert_eq!(chain(program), moved);
    // What nobody needs any more is found, whoever has left it.
    edit(program, ACCEPT);
    assert_eq!(changes("sw0", &families), [(program, 0, 2)]);
    assert_eq!(chain(program), [ACCEPT, moved[1], moved[2]]);
    edit(program, DROP);
    assert_eq!(changes("sw0", &families), [(program, 2, 0)]);
    let removed: Vec<_> = remove_accepts().into_iter().map(Result::unwrap).collect();
    assert_eq!(removed.len(), 1);
    assert_eq!((removed[0].added, removed[0].removed), (0, 2));
    assert_eq!(chain(program), [DROP, moved[1], moved[2]]);
    assert!(remove_accepts().is_empty());
}

#[test]
fn rules_come_and_go_in_each_variant_and_family() {
    for filter in &FILTERS {
        in_private_netns(|| comes_and_goes(filter));
    }
}

#[test]
fn filter_that_the_kernel_does_not_have_is_not_made() {
    in_private_netns(|| {
        assert!(changes("sw0", &NftFamily::ALL).is_empty());
        assert!(remove_accepts().is_empty());
        assert_eq!(run("nft", "nftables", &["list", "ruleset"]), "");
        for list in ["ip_tables_names", "ip6_tables_names"] {
            let tables = fs::read_to_string(Path::new("/proc/thread-self/net").join(list));
            // A kernel without the module has no list.
            assert_eq!(tables.unwrap_or_default(), "", "{list}");
        }
    });
}

#[test]
fn both_variants_at_once_get_their_rules() {
    in_private_netns(|| {
        for program in ["iptables-nft", "iptables-legacy"] {
            edit(program, DROP);
        }
        let expected = [("iptables-nft", 2, 0), ("iptables-legacy", 2, 0)];
        assert_eq!(changes("sw0", &NftFamily::ALL), expected);
        assert!(changes("sw0", &NftFamily::ALL).is_empty());
    });
}

#[test]
fn program_that_fails_or_is_missing_is_told() {
    in_private_netns(|| {
        assert!(matches!(call("no-such-program", &[]), Ok(None)));
        assert!(matches!(
            called("no-such-program", &[]),
            Err(IptablesError::Run { .. })
        ));
        let error =
            called("iptables-nft", &["-D", CHAIN, "-i", "sw0", "-j", "ACCEPT"]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("\"iptables-nft -D FORWARD -i sw0 -j ACCEPT\" failed: "),
            "{text}"
        );
    });
}
