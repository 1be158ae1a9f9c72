//! Tests of the checks, on a node that is replaced: a healthy one, of which each test changes one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use switchyard_config as config;
use switchyard_config::{Config, ConfigError, DefaultsError, FoundDefaults, Loaded, Sources};
use switchyard_operator_api::VERSION;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::{
    ConfigView, DevicesView, Objects, PartView, StatusReport, SwarmView, TroubleView,
    UnreadableView,
};

use super::codes::{all, chapters};
use super::{
    CommandError, CommandOutput, DiskSpace, DoctorReport, DoctorRequest, FileFacts, FileKind,
    Finding, NodeView, Severity, run,
};

mod daemon;
mod disks;
mod firewalld;
mod ipv6;
mod native;
mod network_defaults;
mod node;
mod node_devices;
mod orchestrators;
mod runtime;
mod sockets;
mod swarm;
mod test_node;

use test_node::TestNode;

/// The pid of the daemon.
const DAEMON: u32 = 100;

fn status() -> StatusReport {
    let part = |name: &str, detail: &str| PartView {
        name: name.into(),
        up: true,
        needed: true,
        detail: detail.into(),
    };
    StatusReport {
        version: VERSION.into(),
        revision: String::new(),
        pid: Some(DAEMON),
        started_at: String::new(),
        ready: true,
        parts: vec![
            part(
                "logkeeper",
                &format!("logkeeper {VERSION} protocol 2, process 7"),
            ),
            part("runtime", "2.2.1"),
        ],
        sandboxes: Vec::new(),
        tasks: Vec::new(),
        images: None,
        advisories: Vec::new(),
        nomad_launchers: Some(2),
        troubles: Vec::new(),
        limits: Vec::new(),
        features: Vec::new(),
        facts: BTreeMap::new(),
        config: Some(ConfigView::default()),
        programs: vec![ProgramView {
            part: "daemon".into(),
            pid: 100,
            path: "/usr/bin/switchyard".into(),
            replaced: false,
            version: Some(VERSION.into()),
            configuration_current: None,
        }],
    }
}

/// The report on a healthy node that is changed.
fn look(change: impl FnOnce(&mut TestNode)) -> DoctorReport {
    let mut node = TestNode::healthy();
    change(&mut node);
    run(Arc::new(node), DoctorRequest::default())
}

/// Checks the codes and severities that a change has, as in `SY101 error`.
#[track_caller]
fn check(change: impl FnOnce(&mut TestNode), expected: &[&str]) -> Vec<Finding> {
    let report = look(change);
    let mut found: Vec<String> = report
        .findings
        .iter()
        .map(|finding| format!("{} {}", finding.code, finding.severity.as_str()))
        .collect();
    found.sort();
    assert_eq!(found, expected, "{:#?}", report.findings);
    let is_bad = |finding: &Finding| finding.severity > Severity::Note;
    assert_eq!(report.healthy, !report.findings.iter().any(is_bad));
    report.findings
}

#[test]
fn nothing_is_found_on_a_healthy_node() {
    check(|_| {}, &[]);
    assert!(look(|_| {}).daemon);
}

#[test]
fn codes_are_unique_sorted_and_tested() {
    let codes: Vec<&str> = all().iter().map(|code| code.code).collect();
    let mut sorted = codes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(codes, sorted);
    let tests = [
        include_str!("tests/daemon.rs"),
        include_str!("tests/disks.rs"),
        include_str!("tests/firewalld.rs"),
        include_str!("tests/ipv6.rs"),
        include_str!("tests/native.rs"),
        include_str!("tests/network_defaults.rs"),
        include_str!("tests/node.rs"),
        include_str!("tests/node_devices.rs"),
        include_str!("tests/orchestrators.rs"),
        include_str!("tests/runtime.rs"),
        include_str!("tests/sockets.rs"),
        include_str!("tests/swarm.rs"),
    ];
    let untested: Vec<_> = codes
        .iter()
        .filter(|code| {
            !tests
                .iter()
                .any(|text| text.contains(&format!("\"{code} ")))
        })
        .collect();
    assert!(untested.is_empty(), "{untested:?}");
}

#[test]
fn every_code_is_in_the_chapter_of_its_family() {
    let text = chapters();
    let found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    assert_eq!(
        found,
        all().iter().map(|code| code.code).collect::<Vec<_>>()
    );
}

#[test]
fn processes_of_containers_count_for_nothing() {
    check(
        |node| {
            for (pid, command) in [
                (
                    301,
                    "kubelet --container-runtime-endpoint=/evil.sock --fail-swap-on=true",
                ),
                (302, "nomad agent -config /evil"),
                (303, "switchyard serve --config /dev/zero"),
                (304, "containerd --config /evil"),
            ] {
                node.process(pid, command);
                node.contained.extend(i32::try_from(pid));
            }
            node.file("/evil/agent.hcl", "client { enabled = true }");
            // The kubelet and the agent of the node are known by their files alone.
            node.remove("/proc/200");
            node.remove("/proc/201");
        },
        &[],
    );
}

#[test]
fn secrets_of_the_node_are_in_no_finding() {
    let secret = "planted-s3cr3t";
    let report = look(|node| {
        node.config(&format!("[cri]\nsocket_grup = \"password={secret}\""));
        node.file(
            "/etc/nomad.d/vault.hcl",
            &format!("vault {{\n  token = \"{secret}\"\n}}\n"),
        );
        node.process(200, &format!("/usr/bin/kubelet --token={secret}"));
        node.file(
            &format!("/proc/{DAEMON}/environ"),
            &format!("AWS_SECRET_ACCESS_KEY={secret}\0PATH=/usr/bin\0"),
        );
        node.file(
            "/etc/cni/net.d/00-broken.conflist",
            &format!("{{\"token\": \"{secret}\""),
        );
        let mut status = status();
        status.parts[1].up = false;
        status.parts[1].detail = format!("GET https://user:{secret}@registry/v2: refused");
        node.status = Some(status);
    });
    let text = serde_json::to_string(&report).unwrap();
    assert!(
        report.findings.len() > 2 && !text.contains(secret),
        "{text}"
    );
}
