//! `switchyard doctor` and `switchyard support-bundle` on a real node: healthy, without its daemon, and broken.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::daemon::binary;
use switchyard_tests::host::SuspendedProcess;
use switchyard_tests::image::busybox;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::registry_proxy::Access;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::stub_programs::runc_of_version;

/// Time for an examination of a node.
const LIMIT: Duration = Duration::from_secs(60);

/// A word that no bundle may contain.
const SECRET: &str = "planted-s3cr3t";

fn call(root: &PrivateRoot, words: &[&str]) -> Output {
    let began = Instant::now();
    let done = Command::new(binary())
        .args(words)
        .arg("--config")
        .arg(root.config())
        .output();
    assert!(began.elapsed() < LIMIT, "it took {:?}", began.elapsed());
    done.expect("the binary exists")
}

/// The findings on a node, as `CODE severity found`.
#[track_caller]
fn findings(root: &PrivateRoot) -> Vec<String> {
    let done = call(root, &["doctor", "--output", "json"]);
    let report: Value = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&done.stderr)));
    let found: Vec<String> = report["findings"]
        .as_array()
        .expect("it has a list")
        .iter()
        .map(|finding| {
            let word = |key: &str| finding[key].as_str().expect("it is a text").to_owned();
            format!("{} {} {}", word("code"), word("severity"), word("found"))
        })
        .collect();
    let is_bad = |finding: &String| !finding.contains(" note ");
    assert_eq!(
        done.status.code(),
        Some(i32::from(found.iter().any(is_bad))),
        "{found:#?}"
    );
    found
}

fn has(findings: &[String], start: &str, text: &str) -> bool {
    findings
        .iter()
        .any(|finding| finding.starts_with(start) && finding.contains(text))
}

#[test]
fn healthy_node_has_no_error() {
    let node = TestNode::start_configured(|root| runc_of_version(root, "1.1.5"));
    let found = findings(node.root());
    let errors: Vec<_> = found
        .iter()
        .filter(|finding| finding.contains(" error "))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    // The version that the daemon reports, and a fact of this machine: the root is on its disk.
    assert!(
        has(&found, "SY206 warning", "runc 1.1.5") && has(&found, "SY113 warning", "paths.run"),
        "{found:#?}"
    );
    let text = call(node.root(), &["doctor"]);
    let text = String::from_utf8(text.stdout).expect("it is text");
    assert!(
        text.contains("; the daemon answers\n") && text.contains("  cure    "),
        "{text}"
    );
}

#[test]
fn killed_daemon_and_its_sockets_are_found() {
    let node = TestNode::start_configured(|root| runc_of_version(root, "1.1.5"));
    node.daemon().kill9();
    let found = findings(node.root());
    assert!(has(&found, "SY801 error", "admin.sock"), "{found:#?}");
    assert!(has(&found, "SY803 note", "cri.sock"), "{found:#?}");
    // Found by the programs' own versions now.
    assert!(has(&found, "SY206 warning", "runc 1.1.5"), "{found:#?}");
    // The logkeeper keeps the listener for the next daemon.
    let status = Command::new(binary())
        .arg("status")
        .arg("--socket")
        .arg(node.root().run().join("admin.sock"))
        .output()
        .expect("the binary exists");
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(
        !status.status.success() && said.contains("no daemon runs"),
        "{said}"
    );
    node.daemon().restart();
    assert!(!has(&findings(node.root()), "SY801", ""));
}

#[test]
fn removed_sockets_of_a_running_daemon_are_found_and_a_restart_makes_them_again() {
    let node = TestNode::start();
    let run = node.root().run();
    let remove = |name: &str| fs::remove_file(run.join(name)).expect("it is there");
    remove("cri.sock");
    let found = findings(node.root());
    assert!(
        has(&found, "SY803 error", "cri.sock: the file is gone"),
        "{found:#?}"
    );
    assert!(!has(&found, "SY801", ""), "{found:#?}");
    remove("admin.sock");
    let found = findings(node.root());
    assert!(
        has(&found, "SY803 error", "admin.sock: the file is gone"),
        "{found:#?}"
    );
    assert!(!has(&found, "SY801", ""), "{found:#?}");
    node.daemon().restart();
    assert!(!has(&findings(node.root()), "SY803", ""));
}

#[test]
fn broken_node_is_described() {
    let node = TestNode::start();
    let root = node.root();
    let broken = root.cni_conf().join("00-broken.conflist");
    fs::write(
        &broken,
        "{\"name\":\"x\",\"cniVersion\":\"1.0.0\",\"plugins\":[{\"type\":\"no-such-plugin\"}]}",
    )
    .expect("the root can be written");
    let socket = root.run().join("stale.sock");
    drop(UnixListener::bind(&socket).expect("the root can be written"));
    let config = fs::read_to_string(root.config()).expect("it is there");
    let section = format!(
        "\n[nomad]\nsocket = {:?}\nsocket_group = \"no-such-group\"\n",
        socket.display().to_string()
    );
    fs::write(root.config(), config + &section).expect("the root can be written");
    let found = findings(root);
    assert!(has(&found, "SY303 error", "no-such-plugin"), "{found:#?}");
    assert!(has(&found, "SY803 error", "stale.sock"), "{found:#?}");
    assert!(has(&found, "SY811 error", "no-such-group"), "{found:#?}");
    fs::write(root.config(), "version = 1\n[cri]\nsocket_grup = \"x\"\n")
        .expect("the root can be written");
    let found = findings(root);
    assert!(has(&found, "SY804 error", "config.toml:3"), "{found:#?}");
    fs::remove_file(broken).expect("it is there");
}

#[test]
fn daemon_is_seen_from_inside_and_if_it_does_not_answer_from_outside() {
    let node = TestNode::start();
    let debug = |expected: i32| -> Value {
        let words = ["debug", "--no-stacks", "--output", "json"];
        let done = call(node.root(), &words);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(expected), "{said}");
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let report = debug(0);
    let inside = &report["inside"];
    assert_eq!(inside["pid"], node.daemon().pid(), "{report:#}");
    assert!(
        inside["memory"]["Rss"].as_u64() > Some(1 << 20),
        "{report:#}"
    );
    assert!(inside["tasks"]["alive"].as_u64() > Some(0), "{report:#}");
    assert!(report.get("outside").is_none(), "{report:#}");

    let stopped = SuspendedProcess::new(node.daemon().pid());
    let report = debug(1);
    assert!(
        report.get("inside").is_none() && report["no_answer"].is_string(),
        "{report:#}"
    );
    let outside = &report["outside"];
    assert_eq!(outside["pid"], node.daemon().pid(), "{report:#}");
    let threads = outside["threads"].as_array().expect("it has a list");
    assert!(
        threads.len() > 1 && threads.iter().all(|thread| thread["state"] == "T"),
        "{report:#}"
    );
    drop(stopped);
}

/// The content of a bundle, file by file.
pub(crate) fn unpacked(root: &PrivateRoot, archive: &std::path::Path) -> Vec<(String, String)> {
    let dir = root.path().join("unpacked");
    fs::create_dir_all(&dir).expect("the root can be written");
    let tar = switchyard_tests::prereq::require("tar", "tar");
    let done = Command::new(tar)
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(&dir)
        .status();
    assert!(done.is_ok_and(|status| status.success()));
    let mut found = Vec::new();
    for below in ["", "logs"] {
        let dir = dir.join("switchyard-support").join(below);
        for entry in fs::read_dir(&dir).expect("it was unpacked").flatten() {
            if entry.path().is_file() {
                let text = fs::read(entry.path()).expect("it was unpacked");
                let name = format!("{below}/{}", entry.file_name().to_string_lossy());
                found.push((name, String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    found
}

#[test]
fn bundle_has_all_parts_and_no_secret() {
    let node = TestNode::start_configured(|root| {
        let token = root.path().join("metrics.token");
        fs::write(&token, format!("{SECRET}-token-token")).expect("the root can be written");
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("it is there");
        format!(
            "[admin]\nmetrics_listen = \"127.0.0.1:0\"\nmetrics_bearer_token_file = {:?}\n[log]\nlevel = \"debug\"\n\
             [[devices.groups]]\nvendor = \"a\"\ntype = \"t\"\npaths = [\"/dev/null\"]\nenvironment = {{ LICENCE = {SECRET:?} }}\n",
            token.display().to_string()
        )
    });
    let _pod = use_secrets(&node);

    let archive = node.root().path().join("bundle.tar.gz");
    let path = archive.to_str().expect("the path is ASCII");
    let done = call(node.root(), &["support-bundle", "--output-file", path]);
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert_eq!(
        fs::metadata(&archive)
            .expect("it was made")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    let parts = unpacked(node.root(), &archive);
    for (name, text) in &parts {
        assert!(!text.contains(SECRET), "{name} has the secret: {text}");
    }
    let part = |name: &str| {
        let found = parts.iter().find(|(known, _)| known == name);
        found.map_or_else(
            || panic!("{name} is missing: {parts:#?}"),
            |(_, text)| text.as_str(),
        )
    };
    assert!(
        !part("/MANIFEST").contains("missing"),
        "{}",
        part("/MANIFEST")
    );
    assert!(
        part("/objects.json").contains("bundled")
            && part("/metrics.txt").contains("switchyard_build_info")
    );
    assert!(part("/config-in-force.toml").contains("LICENCE = \"[redacted]\""));
    assert!(
        part("logs/switchyard.log").contains("bundled") || !part("logs/switchyard.log").is_empty()
    );
    assert!(
        part("/events.jsonl").contains("\"sandbox_"),
        "{}",
        part("/events.jsonl")
    );
    assert!(
        part("/debug.json").contains("\"Rss\"")
            && part("/status.json").contains("\"facts\"")
            && part("/processes.json").contains("\"daemon\"")
            && part("/history.jsonl").contains("daemon_started"),
        "{}",
        part("/processes.json")
    );
    assert!(!part("logs/warnings.log").is_empty() && !part("logs/audit.log").is_empty());
    assert_bundle_has_the_files_of_the_daemon(&node);
    // It overwrites nothing.
    assert_eq!(
        call(node.root(), &["support-bundle", "--output-file", path])
            .status
            .code(),
        Some(1)
    );

    assert_bundle_needs_no_daemon(&node);
}

/// A daemon that has ended has no part in the bundle, and the others are there.
fn assert_bundle_needs_no_daemon(node: &TestNode) {
    node.daemon().kill9();
    let second = node.root().path().join("second.tar.gz");
    let path = second.to_str().expect("the path is ASCII");
    let done = call(node.root(), &["support-bundle", "--output-file", path]);
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        text.contains("missing: status.json") && !text.contains("missing: doctor.json"),
        "{text}"
    );
    node.daemon().restart();
}

/// Without a file, the command reads the one that the running daemon was started with.
fn assert_bundle_has_the_files_of_the_daemon(node: &TestNode) {
    let unnamed = node.root().path().join("unnamed.tar.gz");
    let mut command = Command::new(binary());
    command
        .args(["support-bundle", "--output-file"])
        .arg(&unnamed);
    command.env(
        "SWITCHYARD_ADMIN_SOCKET",
        node.root().run().join("admin.sock"),
    );
    let done = command.output().expect("it can be run");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let files = unpacked(node.root(), &unnamed)
        .into_iter()
        .find(|(name, _)| name == "/config-files.toml");
    let (_, text) = files.expect("it has the files");
    assert!(
        text.contains(&node.root().state().display().to_string()),
        "{text}"
    );
}

/// Pulls with the right and a wrong password, and starts a container with a secret in its environment. Returns its pod.
fn use_secrets(node: &TestNode) -> TestPod<'_> {
    let credentials = Access::Basic {
        user: "user".into(),
        password: SECRET.into(),
    };
    let registry = switchyard_tests::registry::Registry::start_behind_proxy(credentials);
    registry.push("private/busybox:latest", &busybox().build());
    let auth = cri::AuthConfig {
        username: "user".into(),
        password: SECRET.into(),
        ..Default::default()
    };
    let reference = registry.reference("private/busybox:latest");
    node.cri()
        .pull(&reference, Some(auth))
        .expect("the password is right");
    let wrong = cri::AuthConfig {
        username: "user".into(),
        password: format!("{SECRET}x"),
        ..Default::default()
    };
    node.cri()
        .pull(&registry.reference("private/other:latest"), Some(wrong))
        .expect_err("it is wrong");
    let pod = node.pod("bundled");
    let mut config = node.container("main", &["sh", "-c", "exec sleep 1000"]);
    config.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: SECRET.into(),
    });
    let _container = pod.start(&config);
    pod
}
