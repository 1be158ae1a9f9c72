//! The table of what is slow: it names what there is, all of it, and its shards are alike.

use std::collections::BTreeSet;
use std::process::Command;

use switchyard_tests::shards::{
    ALLOWANCE, EVERY_RUN, Extent, KILL_LISTS, KNOWN_FAILURES, LEFT_OUT, Plan, ROOT_PARTS, RootPart,
    RootTests, SHARDS, SLOW, Shard, Suite, WHOLE_SUITE, What, file_of_test,
};
use switchyard_tests::versions::OtherVersion;

/// By how much a shard may exceed the mean.
const MARGIN: f32 = 1.2;

/// The output of a program, line by line.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The names of all integration tests.
fn tests() -> BTreeSet<String> {
    let program = std::env::current_exe().expect("a running test has a file");
    let listed = lines(Command::new(program).arg("--list"));
    listed
        .iter()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect()
}

/// The cases of the guest.
fn of_the_guest() -> BTreeSet<(String, String)> {
    let listed = lines(Command::new(env!("CARGO_BIN_EXE_guest")).arg("list"));
    let pairs = listed
        .iter()
        .map(|line| line.split_once(' ').expect("a line is a module and a name"));
    pairs
        .map(|(module, name)| (module.to_owned(), name.to_owned()))
        .collect()
}

fn all() -> impl Iterator<Item = What> {
    SLOW.iter()
        .map(|slow| slow.what)
        .chain(EVERY_RUN.iter().copied())
}

/// The test of `tests/it` that this runs, if it is one.
const fn integration_test(what: What) -> Option<&'static str> {
    match what {
        What::Test(name) | What::Smoke(name) => Some(name),
        What::Fact(..)
        | What::PowerCut
        | What::Selinux
        | What::Root(..)
        | What::Documentation
        | What::Version(_) => None,
    }
}

#[test]
fn each_test_that_the_tables_name_exists() {
    let tests = tests();
    let named = all().filter_map(integration_test);
    let missing: Vec<_> = named
        .chain(KILL_LISTS.iter().map(|(test, _)| *test))
        .filter(|name| !tests.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "tests/src/shards/table.rs names what is no test: {missing:?}"
    );
    let modules = ROOT_PARTS.iter().copied().flatten();
    let empty: Vec<_> = modules
        .filter(|module| {
            !tests
                .iter()
                .any(|test| test.starts_with(&format!("{module}::")))
        })
        .collect();
    assert!(empty.is_empty(), "no test is in {empty:?}");
}

#[test]
fn everything_that_only_the_guest_or_another_suite_shows_is_in_a_shard_or_in_every_run() {
    let missing: Vec<_> = of_the_guest()
        .into_iter()
        .filter(|(module, name)| {
            !all().any(|what| match what {
                What::Fact(listed_in, listed) => {
                    (listed_in, listed) == (module.as_str(), name.as_str())
                }
                What::Smoke(listed) => module == "smoke" && listed == name,
                What::Version(version) => version.fact() == Some(name.as_str()),
                What::Test(_)
                | What::PowerCut
                | What::Selinux
                | What::Root(..)
                | What::Documentation => false,
            })
        })
        .collect();
    assert!(
        missing.is_empty(),
        "tests/src/shards/table.rs has no shard for {missing:#?}"
    );
    let facts = all()
        .filter(|what| match what {
            What::Fact(..) | What::Smoke(_) => true,
            What::Version(version) => version.fact().is_some(),
            What::Test(_)
            | What::PowerCut
            | What::Selinux
            | What::Root(..)
            | What::Documentation => false,
        })
        .count();
    assert_eq!(
        facts,
        of_the_guest().len(),
        "the table has facts that the guest does not know"
    );
    let versions = OtherVersion::ALL.map(What::Version);
    for what in [What::PowerCut, What::Selinux, What::Documentation]
        .into_iter()
        .chain(versions)
    {
        assert!(all().any(|listed| listed == what), "no shard has: {what}");
    }
    for suite in [Suite::Trixie, Suite::Sid] {
        for part in [RootPart::First, RootPart::Second] {
            assert!(
                all().any(|listed| listed == What::Root(suite, part)),
                "no shard has {part:?} of {suite:?}"
            );
        }
    }
}

#[test]
fn tests_with_other_versions_are_run_with_them_alone() {
    let tests = tests();
    let is_of_versions = |test: &str| OtherVersion::of_test(test).is_some();
    for begin in ["upgrades::former::", "upgrades::newer::"] {
        let mut of_version = tests.iter().filter(|test| test.starts_with(begin));
        assert!(of_version.clone().count() > 0, "no test is in {begin}");
        assert!(of_version.all(|test| is_of_versions(test)), "{begin}");
    }
    let rows = all().filter_map(integration_test);
    let twice: Vec<_> = rows.filter(|name| is_of_versions(name)).collect();
    assert!(
        twice.is_empty(),
        "other versions have these already: {twice:?}"
    );
    let parts = [RootPart::First, RootPart::Second];
    assert!(
        tests
            .iter()
            .filter(|test| is_of_versions(test))
            .all(|test| !parts.iter().any(|part| part.has(test)))
    );
}

#[test]
fn tests_and_facts_that_the_table_of_upgrades_names_exist() {
    let fleet = include_str!("../../docs/fleet.md");
    let (_, section) = fleet
        .split_once("\n### What is tested\n")
        .expect("the document has the section");
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .take_while(|line| line.starts_with('|'));
    let names: Vec<&str> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .collect();
    assert!(!names.is_empty(), "the table names no test");
    let tests = tests();
    let facts = of_the_guest();
    let is_test = |name: &str| {
        let below = format!("upgrades::{name}");
        let mut rests = tests.iter().filter_map(|test| test.strip_prefix(&below));
        rests.any(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_fact = |name: &str| facts.iter().any(|(_, fact)| fact == name);
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !is_test(name) && !is_fact(name))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/fleet.md names what is no test: {missing:?}"
    );
}

#[test]
fn known_failures_are_few_and_tests_that_other_suites_run() {
    let tests = tests();
    assert!(
        KNOWN_FAILURES.len() <= 10,
        "{} tests are known to fail: mend some",
        KNOWN_FAILURES.len()
    );
    let parts = [RootPart::First, RootPart::Second];
    for known in KNOWN_FAILURES {
        assert!(tests.contains(known.test), "{} is no test", known.test);
        let is_in_whole = known.suite == WHOLE_SUITE && RootTests::Whole.has(known.test);
        assert!(
            is_in_whole || parts.iter().any(|part| part.has(known.test)),
            "{} is not run there",
            known.test
        );
        assert!(
            !known.output.is_empty(),
            "{}: what does it print?",
            known.test
        );
    }
    let twice = tests
        .iter()
        .filter(|test| RootPart::First.has(test) && RootPart::Second.has(test));
    assert_eq!(twice.count(), 0, "both parts have a test");
}

#[test]
fn whole_of_the_tests_runs_in_a_root_but_for_modules_that_are_left_out_with_a_reason() {
    let tests = tests();
    for (module, reason) in LEFT_OUT {
        let below = format!("{module}::");
        assert!(
            tests.iter().any(|test| test.starts_with(&below)),
            "no test is in {module}"
        );
        assert!(!reason.is_empty(), "why does {module} not run there?");
    }
    let module = |test: &str| test.split("::").next().unwrap_or_default().to_owned();
    let all: BTreeSet<String> = tests.iter().map(|test| module(test)).collect();
    let run = tests.iter().filter(|test| RootTests::Whole.has(test));
    let run: BTreeSet<String> = run.map(|test| module(test)).collect();
    let not_run: Vec<&str> = all.difference(&run).map(String::as_str).collect();
    let listed = LEFT_OUT.iter().map(|(module, _)| *module);
    let mut listed: Vec<&str> = listed.filter(|module| !module.contains("::")).collect();
    listed.sort_unstable();
    assert_eq!(not_run, listed);
    let parts = [RootPart::First, RootPart::Second];
    let in_a_part = tests
        .iter()
        .filter(|test| parts.iter().any(|part| part.has(test)));
    for test in in_a_part {
        assert!(RootTests::Whole.has(test), "{test} is in a part alone");
    }
    for (test, runs) in [
        ("architecture::files::a_test", false),
        ("shards::a_test", false),
        ("nomad::go_host::a_test", false),
        ("nomad::go_hosts::a_test", true),
        ("nomad::a_test", true),
        ("architectures::a_test", true),
        ("a_new_module::a_test", true),
        ("a_new_module::architecture::a_test", true),
    ] {
        assert_eq!(RootTests::Whole.has(test), runs, "{test}");
    }
}

#[test]
fn nothing_is_listed_twice() {
    let mut seen = BTreeSet::new();
    let names = all()
        .map(|what| what.to_string())
        .chain(KILL_LISTS.iter().map(|(test, _)| (*test).to_owned()));
    let twice: Vec<_> = names.filter(|name| !seen.insert(name.clone())).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn no_shard_exceeds_the_mean_by_a_fifth() {
    let lengths: Vec<f32> = Shard::all()
        .map(|shard| {
            SLOW.iter()
                .filter(|slow| slow.shard == shard.number())
                .map(|slow| slow.lengthens())
                .sum()
        })
        .collect();
    let all: f32 = SLOW.iter().map(|slow| slow.lengthens()).sum();
    assert!(
        (lengths.iter().sum::<f32>() - all).abs() < 0.1,
        "a row has a shard that there is not"
    );
    let mean = all / f32::from(SHARDS);
    let longest = lengths.iter().copied().fold(0.0, f32::max);
    assert!(
        longest <= mean * MARGIN,
        "the mean is {mean} s: {lengths:?}"
    );
}

#[test]
fn shards_together_do_everything_once() {
    let plans: Vec<_> = Shard::all()
        .map(|shard| {
            Plan::new(&Extent::Shard {
                shard,
                changed: Vec::new(),
            })
        })
        .collect();
    for slow in SLOW {
        let doing = plans
            .iter()
            .filter(|plan| !plan.left_out.contains(&slow.what))
            .count();
        assert_eq!(doing, 1, "{}", slow.what);
    }
    let points = (0..100).flat_map(|index| Shard::all().filter(move |shard| shard.takes(index)));
    assert_eq!(points.count(), 100);
}

#[test]
fn everything_is_what_all_shards_and_every_run_do() {
    let all_of_it = Plan::new(&Extent::All);
    assert!(all_of_it.skipped.is_empty() && all_of_it.left_out.is_empty());
    assert!(all_of_it.power_cut && all_of_it.selinux);
    let of_versions = all_of_it
        .versions
        .iter()
        .filter_map(|version| version.fact());
    assert_eq!(
        all_of_it.facts.len() + all_of_it.smoke.len() + of_versions.count(),
        of_the_guest().len()
    );
    assert_eq!(all_of_it.tests_in_part().count(), 0);
    // The root of one suite has all of the tests, in which its parts are.
    let first = (Suite::Trixie, RootTests::Part(RootPart::First));
    let second = (Suite::Trixie, RootTests::Part(RootPart::Second));
    assert_eq!(all_of_it.roots.len(), 3);
    for root in [first, second, (Suite::Sid, RootTests::Whole)] {
        assert!(all_of_it.roots.contains(&root), "{root:?}");
    }
    for shard in Shard::all() {
        let plan = Plan::new(&Extent::Shard {
            shard,
            changed: Vec::new(),
        });
        let in_whole = plan
            .roots
            .iter()
            .filter(|(_, tests)| *tests == RootTests::Whole);
        assert_eq!(in_whole.count(), 0, "{shard}");
    }
}

#[test]
fn what_was_changed_lately_is_done_in_every_shard() {
    let changed: Vec<String> = [
        "README.md",
        "tests/guest/pressure.rs",
        "tests/it/kills/images.rs",
        "tests/it/swarm/scale.rs",
    ]
    .map(str::to_owned)
    .into();
    for shard in Shard::all() {
        let plan = Plan::new(&Extent::Shard {
            shard,
            changed: changed.clone(),
        });
        assert!(
            plan.facts
                .contains(&"pressure_is_reported_for_containers_pods_and_metrics"),
            "{shard}"
        );
        assert!(
            !plan
                .skipped
                .iter()
                .any(|name| name.starts_with("swarm::scale::")),
            "{shard}"
        );
        assert_eq!(plan.whole, BTreeSet::from(["tests/it/kills/images.rs"]));
        let in_part: Vec<_> = plan.tests_in_part().collect();
        assert_eq!(
            in_part.len(),
            KILL_LISTS
                .iter()
                .filter(|(_, file)| !plan.whole.contains(file))
                .count()
        );
        assert!(plan.postponed.is_empty(), "{shard}: {:?}", plan.postponed);
    }
}

#[test]
fn what_was_changed_lately_lengthens_a_shard_by_no_more_than_the_allowance() {
    let mut changed: Vec<String> = SLOW.iter().filter_map(|slow| slow.what.file()).collect();
    changed.sort();
    changed.dedup();
    for shard in Shard::all() {
        let plan = Plan::new(&Extent::Shard {
            shard,
            changed: changed.clone(),
        });
        let added = SLOW
            .iter()
            .filter(|slow| !slow.is_in(shard) && !plan.left_out.contains(&slow.what));
        let seconds: f32 = added.map(|slow| slow.lengthens()).sum();
        assert!(
            seconds > 0.0 && seconds <= ALLOWANCE,
            "{shard}: {seconds} s"
        );
        assert!(!plan.postponed.is_empty(), "{shard}");
        let own = SLOW.iter().filter(|slow| slow.is_in(shard));
        for slow in own {
            assert!(!plan.left_out.contains(&slow.what), "{}", slow.what);
        }
    }
}

#[test]
fn sources_of_what_is_listed_exist() {
    let root = super::architecture::repository();
    let files = all()
        .filter_map(What::file)
        .chain(KILL_LISTS.iter().map(|(_, file)| (*file).to_owned()));
    let missing: Vec<_> = files.filter(|file| !root.join(file).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(
        file_of_test("swarm::logs::a_test"),
        "tests/it/swarm/logs.rs"
    );
}

#[test]
fn shard_of_a_commit_is_its_hash_modulo_eight() {
    let shard = |hash: &str| Shard::of_commit(hash).map(Shard::number);
    assert_eq!(shard("a1816aabd1b6e94c2f0e3c4b5a697887f6e5d4c3"), Some(3));
    assert_eq!(shard("000000000000000000000000000000000000000f"), Some(7));
    assert_eq!(shard("no hash"), None);
    assert_eq!(shard(""), None);
}
