//! Decisions about listed chains; and on this kernel, with the programs of both variants, in network namespaces of their own.

use super::*;
use crate::nft::BridgeName;
use crate::testing::{in_private_netns, run, subnet};

const DROP: &str = "-P FORWARD DROP";
const ACCEPT: &str = "-P FORWARD ACCEPT";
const WITHIN: &str = "-A FORWARD -i sw0 -o sw0 -m comment --comment switchyard -j ACCEPT";
const FROM: &str = "-A FORWARD -s 10.88.0.0/24 -i sw0 -m comment --comment switchyard -j ACCEPT";
const FROM_6: &str = "-A FORWARD -s fd00:88::/64 -i sw0 -m comment --comment switchyard -j ACCEPT";
const TO: &str = "-A FORWARD -o sw0 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment switchyard -j ACCEPT";
/// Those of another instance, and of another bridge of this one.
const OTHER_FROM: &str =
    "-A FORWARD -s 10.88.0.0/24 -i sw1 -m comment --comment switchyard_2 -j ACCEPT";
const SECOND_FROM: &str =
    "-A FORWARD -s 10.88.0.0/24 -i sw2 -m comment --comment switchyard -j ACCEPT";
/// Without the subnet, as another version may have added it.
const FORMER_FROM: &str = "-A FORWARD -i sw0 -m comment --comment switchyard -j ACCEPT";
const DOCKER: &str = "-A FORWARD -j DOCKER-USER";
/// An operator's, as the documentation once advised.
const BY_HAND: &str = "-A FORWARD -i sw0 -j ACCEPT";

/// Fact that a case shows, the listed chain, whether the bridge is needed, and how many rules are then added and removed.
type Case<'a> = (&'a str, &'a [&'a str], bool, (usize, usize));

/// Counts the rules that are added and removed.
fn counts(plan: &ChainPlan) -> (usize, usize) {
    (plan.add.len(), plan.remove.len())
}

fn bridge(name: &str) -> BridgeRules {
    BridgeRules {
        name: BridgeName::new(name).unwrap(),
        owner: String::new(),
        subnets: ["10.88.0.0/24", "fd00:88::/64"].map(subnet).to_vec(),
        is_gateway: true,
        masquerade: true,
        direct_routing: true,
    }
}

/// Lists what these bridges need in the filter of IPv4.
fn wanted(bridges: &[&str]) -> Vec<String> {
    let bridges = bridges.iter().map(|name| bridge(name));
    bridges
        .flat_map(|bridge| accepts("switchyard", &bridge, NftFamily::Ip4))
        .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn chain_gets_what_it_lacks_and_loses_what_it_does_not_need() {
    let quoted = FROM.replace("switchyard", "\"switchyard\"");
    let ordered = TO.replace("RELATED,ESTABLISHED,DNAT", "DNAT,RELATED,ESTABLISHED");
    let of_others = FROM.replace("switchyard", "\"switchyard by me\"");
    let edited = FROM.replace("-j ACCEPT", "-j DROP");
    let cases: &[Case] = &[
        ("only others accept", &[ACCEPT, DOCKER], true, (0, 0)),
        ("all is dropped", &[DROP], true, (3, 0)),
        ("behind docker's", &[DROP, DOCKER], true, (3, 0)),
        (
            "it is right",
            &[DROP, DOCKER, WITHIN, FROM, TO],
            true,
            (0, 0),
        ),
        (
            "as another version lists it",
            &[DROP, WITHIN, quoted.as_str(), ordered.as_str()],
            true,
            (0, 0),
        ),
        ("one is missing", &[DROP, WITHIN, FROM], true, (1, 0)),
        (
            "others came behind",
            &[DROP, WITHIN, FROM, TO, DOCKER],
            true,
            (3, 3),
        ),
        (
            "one is behind others",
            &[DROP, WITHIN, FROM, DOCKER, TO],
            true,
            (2, 2),
        ),
        (
            "they are before others and behind",
            &[DROP, WITHIN, FROM, TO, DOCKER, WITHIN, FROM, TO],
            true,
            (0, 3),
        ),
        (
            "two processes added them",
            &[DROP, WITHIN, FROM, TO, WITHIN, FROM, TO],
            true,
            (0, 3),
        ),
        (
            "another instance's come behind",
            &[DROP, WITHIN, FROM, TO, OTHER_FROM],
            true,
            (0, 0),
        ),
        (
            "the policy is another one now",
            &[ACCEPT, WITHIN, FROM, DOCKER, TO],
            true,
            (0, 3),
        ),
        (
            "the bridge is not needed",
            &[DROP, WITHIN, FROM, TO, OTHER_FROM],
            false,
            (0, 3),
        ),
        (
            "others have edited it",
            &[DROP, WITHIN, edited.as_str(), TO],
            true,
            (1, 1),
        ),
        (
            "they are those of another version",
            &[DROP, FORMER_FROM, TO],
            true,
            (2, 1),
        ),
        ("the operator's rules stay", &[DROP, BY_HAND], true, (3, 0)),
        (
            "a comment of others",
            &[DROP, of_others.as_str()],
            false,
            (0, 0),
        ),
        ("no chain", &[], true, (0, 0)),
    ];
    for (name, listed, is_wanted, expected) in cases {
        let wanted = wanted(if *is_wanted { &["sw0"][..] } else { &[] });
        let plan = plan(&listed.join("\n"), Some("switchyard"), &wanted);
        assert_eq!(counts(&plan), *expected, "{name}: {plan:?}");
    }
}

#[test]
fn what_is_planned_is_what_the_chain_needs() {
    let all = [DROP, DOCKER, WITHIN, FROM, TO, BY_HAND, OTHER_FROM].join("\n");
    assert_eq!(
        counts(&plan(&all, None, &[])),
        (0, 4),
        "for whichever bridge"
    );
    let of_gone = [DROP, SECOND_FROM, WITHIN, FROM, TO].join("\n");
    let one = wanted(&["sw0"]);
    let gone = plan(&of_gone, Some("switchyard"), &one);
    assert_eq!(counts(&gone), (0, 1), "of a bridge that is gone");
    let second = plan(&of_gone, Some("switchyard"), &wanted(&["sw0", "sw2"]));
    assert_eq!(counts(&second), (2, 0), "of a second bridge");
    let quoted = FROM.replace("switchyard", "\"switchyard\"");
    let listed = [DROP, WITHIN, quoted.as_str(), TO, DOCKER].join("\n");
    let plan = plan(&listed, Some("switchyard"), &one);
    let added = [WITHIN, FROM, TO].join("\n");
    let removed = [WITHIN, quoted.as_str(), TO].join("\n");
    let removed = removed.replace("-A FORWARD", "-D FORWARD");
    assert_eq!(
        plan.to_string(),
        format!("*filter\n{added}\n{removed}\nCOMMIT\n")
    );
}

#[test]
fn bridge_has_rules_for_its_subnets_of_the_family_and_for_what_it_is() {
    let [four, six] = NftFamily::ALL;
    for (subnets, is_gateway, family, expected) in [
        (
            &["10.88.0.0/24", "fd00:88::/64"][..],
            true,
            four,
            &[WITHIN, FROM, TO][..],
        ),
        (
            &["10.88.0.0/24", "fd00:88::/64"],
            true,
            six,
            &[WITHIN, FROM_6, TO],
        ),
        (&["10.88.0.0/24"], true, six, &[]),
        (&["10.88.0.0/24", "fd00:88::/64"], false, four, &[WITHIN]),
        (&["10.88.0.0/24"], false, six, &[]),
        (
            &["10.88.0.0/24", "10.89.0.1/32"],
            true,
            four,
            &[
                WITHIN,
                FROM,
                "-A FORWARD -s 10.89.0.1/32 -i sw0 -m comment --comment switchyard -j ACCEPT",
                TO,
            ],
        ),
    ] {
        let bridge = BridgeRules {
            subnets: subnets.iter().map(|text| subnet(text)).collect(),
            is_gateway,
            ..bridge("sw0")
        };
        let rules = accepts("switchyard", &bridge, family).into_iter();
        let rules: Vec<String> = rules.map(|rule| format!("-A FORWARD {rule}")).collect();
        assert_eq!(rules, expected, "{subnets:?} {is_gateway} {family:?}");
    }
}

/// The rules of a chain, and its policy.
fn chain(program: &str) -> Vec<String> {
    let listed = run(program, "iptables", &["-w", "20", "-S", CHAIN]);
    listed.lines().map(str::to_owned).collect()
}

/// Returns what was changed for bridges, each of an instance of its own.
fn changes(instance: &str, bridges: &[BridgeRules]) -> Vec<(&'static str, usize, usize)> {
    let table = match instance {
        "sw0" => TableName::default(),
        other => TableName::of_instance(other).unwrap(),
    };
    let numbers = |change: Result<FilterChange, IptablesError>| {
        let change = change.unwrap();
        (change.program, change.added, change.removed)
    };
    let changes = accept_forwarded(&table, bridges).into_iter();
    changes.map(numbers).collect()
}

fn edit(program: &str, rule: &str) {
    let mut words = vec!["-w", "20"];
    words.extend(rule.split(' '));
    run(program, "iptables", &words);
}

/// The life of the rules in one filter.
fn comes_and_goes(filter: &PacketFilter) {
    let program = filter.programs[0];
    let from = match filter.family {
        NftFamily::Ip4 | NftFamily::Bridge => FROM,
        NftFamily::Ip6 => FROM_6,
    };
    let [first, second] = ["sw0", "sw1"].map(|name| [bridge(name)]);
    edit(program, DROP);
    edit(program, "-A FORWARD -i eth9 -j DROP");
    assert_eq!(changes("sw0", &first), [(program, 3, 0)]);
    let right = [DROP, "-A FORWARD -i eth9 -j DROP", WITHIN, from, TO];
    assert_eq!(chain(program), right);
    assert!(changes("sw0", &first).is_empty());
    // Those of another instance of the daemon, which leaves these alone.
    assert_eq!(changes("sw1", &second), [(program, 3, 0)]);
    assert!(changes("sw0", &first).is_empty());
    assert_eq!(changes("sw1", &[]), [(program, 0, 3)]);
    assert_eq!(chain(program), right);
    // Another program adds a rule behind them, and there is a copy.
    edit(program, "-A FORWARD -o eth9 -j DROP");
    edit(program, from);
    assert_eq!(changes("sw0", &first), [(program, 2, 3)]);
    let others = [right[1], "-A FORWARD -o eth9 -j DROP"];
    let moved = [DROP, others[0], others[1], from, WITHIN, TO];
    assert_eq!(chain(program), moved);
    // What nobody needs any more is found, whoever has left it.
    edit(program, ACCEPT);
    assert_eq!(changes("sw0", &first), [(program, 0, 3)]);
    assert_eq!(chain(program), [ACCEPT, others[0], others[1]]);
    edit(program, DROP);
    assert_eq!(changes("sw0", &first), [(program, 3, 0)]);
    let removed: Vec<_> = remove_accepts().into_iter().map(Result::unwrap).collect();
    assert_eq!(removed.len(), 1);
    assert_eq!((removed[0].added, removed[0].removed), (0, 3));
    assert_eq!(chain(program), [DROP, others[0], others[1]]);
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
        assert!(changes("sw0", &[bridge("sw0")]).is_empty());
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
        let bridges = [bridge("sw0")];
        let expected = [("iptables-nft", 3, 0), ("iptables-legacy", 3, 0)];
        assert_eq!(changes("sw0", &bridges), expected);
        assert!(changes("sw0", &bridges).is_empty());
    });
}

#[test]
fn program_that_fails_or_is_missing_is_told() {
    in_private_netns(|| {
        assert!(matches!(call("no-such-program", &[], ""), Ok(None)));
        assert!(matches!(
            called("no-such-program", &[], ""),
            Err(IptablesError::Run { .. })
        ));
        let error = called(
            "iptables-nft",
            &["-D", CHAIN, "-i", "sw0", "-j", "ACCEPT"],
            "",
        )
        .unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("\"iptables-nft -D FORWARD -i sw0 -j ACCEPT\" failed: "),
            "{text}"
        );
    });
}

#[test]
fn filter_that_others_have_filled_is_unreadable_and_one_that_they_have_locked_is_not() {
    for (code, is_unreadable) in [
        (Some(1), true),
        (Some(2), true),
        (Some(3), true),
        (Some(4), false),
        (None, false),
    ] {
        let failed = IptablesError::Failed {
            command: "iptables -S".to_owned(),
            code,
            text: "no".to_owned(),
        };
        let found = failed.of_list();
        let found = matches!(found, IptablesError::Unreadable { .. });
        assert_eq!(found, is_unreadable, "{code:?}");
    }
}

#[test]
fn filter_is_changed_by_one_run_or_not_at_all() {
    for filter in &FILTERS {
        in_private_netns(|| {
            let program = filter.programs[0];
            edit(program, DROP);
            let plan = ChainPlan {
                add: vec!["-i sw0 -j ACCEPT".to_owned()],
                remove: vec!["-i sw1 -j ACCEPT".to_owned()],
            };
            let restore = format!("{program}-restore");
            let done = called(
                &restore,
                &["--noflush", "-w", LOCK_SECONDS],
                &plan.to_string(),
            );
            assert!(
                matches!(done, Err(IptablesError::Failed { .. })),
                "{done:?}"
            );
            assert_eq!(chain(program), [DROP]);
        });
    }
}
