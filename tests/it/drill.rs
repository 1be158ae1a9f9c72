//! The drill: its list and its rows, and the incidents that are made quickly and that an alert or the orchestrator reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::json;
use switchyard_tests::drill::incident::Place;
use switchyard_tests::drill::list::{INCIDENTS, find};
use switchyard_tests::drill::report::time_of_day;
use switchyard_tests::drill::row::{
    DoctorFinding, Row, alerts_since, doctor_line, findings, line_about, reported_line, shortened,
    status_line, waits,
};
use switchyard_tests::drill::{StandingIncident, make, measure, symptom, symptom_file, title};
use switchyard_tests::host::eventually;
use switchyard_tests::prometheus::shipped;

use crate::architecture::repository;

/// Limit for the orchestrator to report an incident that an alert has shown.
const LIMIT: Duration = Duration::from_secs(120);

/// Words that would reveal a cause to whoever reads a symptom.
const REVEALING: [&str; 18] = [
    "shim",
    "logkeeper",
    "containerd",
    "registry",
    "password",
    "credential",
    "cni",
    "plugin",
    "address",
    "freeze",
    "frozen",
    "signal",
    "oom",
    "memory limit",
    "descriptor",
    "socket",
    "scrape",
    "clock",
];

#[test]
fn each_incident_has_a_number_and_a_symptom() {
    let numbers: Vec<u8> = INCIDENTS.iter().map(|listed| listed.number).collect();
    assert_eq!(numbers, (1..=24).collect::<Vec<_>>());
    let dir = symptom_file(1);
    let dir = dir.parent().expect("a file is in a directory");
    let files = fs::read_dir(dir).expect("it is there").count();
    assert_eq!(files, INCIDENTS.len(), "a symptom has no incident");
    let mut titles = BTreeSet::new();
    for number in numbers {
        let text = symptom(number);
        assert!(text.starts_with("# ") && text.contains("\n\n"), "{number}");
        assert!(titles.insert(title(number)), "{number}: {}", title(number));
        let text = text.to_lowercase();
        let found: Vec<_> = REVEALING
            .iter()
            .filter(|word| text.contains(**word))
            .collect();
        assert!(found.is_empty(), "{number} has {found:?}");
    }
}

#[test]
fn incident_that_belongs_elsewhere_has_a_row_that_says_where() {
    let row = measure(&find(22).expect("it is on the list"));
    assert_eq!((row.number, row.symptom), (22, title(22)));
    assert!(row.made.contains("tests/vm --only clock"), "{}", row.made);
    assert!(find(25).is_none());
}

#[test]
fn cells_are_short_and_alike_in_each_run() {
    let id = "0123456789abcdef".repeat(4);
    let text = format!("task {id}\n  of /tmp/sw-89abcdef/run, not /tmp/sw-other");
    assert_eq!(
        shortened(&text, 100),
        "task 0123456789ab… of <root>/run, not /tmp/sw-other"
    );
    assert_eq!(shortened("à la carte", 5), "à la…");
    assert_eq!(shortened("deadbeef café", 100), "deadbeef café");
    let row = Row {
        number: 7,
        symptom: "a\tb".to_owned(),
        alerts: vec!["One (1m)".to_owned(), "Two (5m)".to_owned()],
        ..Row::default()
    };
    assert_eq!(row.tsv(), "7\ta b\t-\tOne (1m), Two (5m)\t-\t-\t-\t-");
    assert_eq!(row.tsv().split('\t').count(), Row::HEADINGS.len());
    assert_eq!(row.json()["alerts"], json!(["One (1m)", "Two (5m)"]));
    assert_eq!(time_of_day(86_400 + 3 * 3600 + 12 * 60 + 5), "03:12:05");
}

#[test]
fn alerts_have_the_time_that_they_wait_as_shipped() {
    let rules = fs::read_to_string(shipped().join("alerts.yaml")).expect("it is there");
    let waits = waits(&rules);
    assert_eq!(waits.len(), rules.matches("- alert: ").count());
    assert_eq!(waits["SwitchyardContainerdDown"], "1m");
    assert_eq!(
        waits["SwitchyardDeviceRefused"], "0m",
        "that of the next one"
    );
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let before: BTreeSet<String> = names(&["SwitchyardDown"]);
    let now: BTreeSet<String> = names(&["SwitchyardContainerdDown", "SwitchyardDown"]);
    assert_eq!(
        alerts_since(&before, &now, &waits),
        ["SwitchyardContainerdDown (1m)"]
    );
    assert_eq!(
        alerts_since(&before, &now, &BTreeMap::new()),
        ["SwitchyardContainerdDown"]
    );
}

#[test]
fn documented_incidents_are_those_of_the_list_with_alerts_that_wait_as_shipped() {
    let page = repository().join("docs/monitoring.md");
    let page = fs::read_to_string(page).expect("it is there");
    let (_, section) = page
        .split_once("\n## Incidents\n")
        .expect("it has the section");
    let rules = fs::read_to_string(shipped().join("alerts.yaml")).expect("it is there");
    let waits = waits(&rules);
    let mut numbers = Vec::new();
    for row in section.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, alerts, _] = cells[..] else {
            panic!("{row}")
        };
        // The headings have none.
        numbers.extend(number.parse::<u8>().ok());
        for (at, _) in alerts.match_indices("Switchyard") {
            let (alert, rest) = alerts[at..].split_once(" (").expect(row);
            let wait = waits.get(alert).expect(row);
            assert!(rest.starts_with(&format!("{wait})")), "{wait}: {row}");
        }
    }
    let listed: Vec<u8> = INCIDENTS.iter().map(|listed| listed.number).collect();
    assert_eq!(numbers, listed);
}

#[test]
fn what_commands_say_is_a_line() {
    let status = "switchyard 1.4.0 is not ready, process 7 since 2026-11-01T00:00:00Z (3m)\n\n\
                  PART     STATE                DETAIL\n\
                  swarm    ok\n\
                  runtime  failed               ContainerdUnavailable: it does not answer\n";
    assert_eq!(
        status_line(status),
        "not ready; runtime failed ContainerdUnavailable: it does not answer"
    );
    assert_eq!(
        status_line("switchyard: no daemon runs\n"),
        "switchyard: no daemon runs"
    );
    let status = "switchyard 1 is ready, process 7\n\nPART  STATE\ncri   ok\n\n\
        TROUBLE       COUNT  OBJECTS\nunended_task  1      app: process 812\n";
    assert_eq!(
        status_line(status),
        "ready; unended_task 1 app: process 812"
    );
    let report = json!({ "findings": [
        { "code": "SY206", "severity": "warning", "found": "runc 1.1.5" },
        { "code": "SY803", "severity": "note", "found": "cri.sock" },
        { "code": "SY802", "severity": "error", "found": "runtime is down" },
        { "code": "SY111", "severity": "error", "found": "4 % are free" },
    ] });
    let now = findings(&report);
    assert_eq!(now.len(), 3, "{now:?}");
    let before = [DoctorFinding {
        code: "SY206".to_owned(),
        found: "runc 1.1.4".to_owned(),
    }];
    assert_eq!(doctor_line(&before, &now), "SY802: runtime is down (+1)");
    assert_eq!(doctor_line(&now, &now), "");
    assert_eq!(
        line_about("a web-1\nb web-1\nc web-2\n", "web-1"),
        "b web-1"
    );
    assert_eq!(line_about("a\n", "web-1"), "");
    let lines = [
        "pod: Pulling image",
        "pod: failed: rpc error: code = Unknown",
        "pod: Pulling",
    ];
    let lines = lines.map(str::to_owned);
    assert_eq!(reported_line(&lines), lines[1]);
    assert_eq!(reported_line(&lines[2..]), lines[2]);
    assert_eq!(reported_line(&[]), "");
}

/// Makes an incident, and waits until it shows.
#[track_caller]
fn shown(number: u8) -> StandingIncident {
    let Some(Place::Here(setup)) = find(number).map(|listed| listed.place) else {
        panic!("{number} cannot be made here")
    };
    let standing = make(&setup);
    let node = standing.node();
    assert!(
        standing.wait_sign(),
        "{number} does not show: {:?}, {:#?}\n{}",
        node.prometheus().query("ALERTS"),
        node.report().lines(),
        node.test_node().daemon().tail()
    );
    standing
}

/// Makes an incident that shows, of which the orchestrator reports this text.
#[track_caller]
fn shown_and_reported(number: u8, text: &str) {
    let standing = shown(number);
    let report = standing.node().report();
    let is_reported = || report.lines().iter().any(|line| line.contains(text));
    // An alert may come before the first call has failed.
    assert!(eventually(LIMIT, is_reported), "{:#?}", report.lines());
}

#[test]
fn containerd_that_hangs_is_made_and_alerted() {
    shown_and_reported(7, "checkout-");
}

#[test]
fn device_that_a_job_holds_is_made_and_alerted() {
    shown_and_reported(15, "vision/infer-1: Error: failed to create container");
}

#[test]
fn runtime_that_begins_no_command_is_made_and_alerted() {
    shown_and_reported(4, "Readiness probe errored");
}

#[test]
fn slow_registry_is_made_and_alerted() {
    shown_and_reported(1, "shop/cart-1: Pulling image");
}

#[test]
fn slow_way_of_scrapes_is_made_and_alerted() {
    let standing = shown(23);
    let ready = standing.node().test_node().daemon().get("/readyz").0;
    assert_eq!(ready, 200, "the node is well");
}

#[test]
fn network_without_a_free_address_is_made_and_alerted() {
    shown_and_reported(14, "no IP addresses available");
}

#[test]
fn old_password_is_made_and_alerted() {
    shown_and_reported(2, "refused the credentials");
}
