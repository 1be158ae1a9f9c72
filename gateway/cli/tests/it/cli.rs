//! Tests of the command line: exit status, standard output and standard error.

use std::fs;

use switchyard_operator_api::VERSION;

use crate::support::switchyard;

#[track_caller]
fn check(args: &[&str], status: i32, stdout: &str, stderr: &str) {
    let output = switchyard(args);
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {out}{err}");
    assert!(out.contains(stdout), "{args:?} printed: {out}");
    assert!(err.contains(stderr), "{args:?} complained: {err}");
}

#[test]
fn wrong_usage_exits_with_2_and_a_suggestion() {
    check(&[], 2, "", "Usage: switchyard <COMMAND>");
    check(&["serv"], 2, "", "'serve'");
    check(&["serve", "--confg", "x"], 2, "", "--config");
    check(&["devices", "release"], 2, "", "<TOKEN>");
    check(
        &["devices", "release", "xyz"],
        2,
        "",
        "expected 32 lower-case hexadecimal digits",
    );
    check(&["inspect"], 2, "", "<ID|NAME>");
    check(
        &["ps", "--owner", "docker"],
        2,
        "",
        "[possible values: kubernetes, nomad, swarm, host]",
    );
    check(
        &["images", "--watch=0"],
        2,
        "",
        "a number of seconds from 0.1 to 3600",
    );
    check(&["status", "--wait", "60s"], 2, "", "write it as ready=60s");
    check(
        &["status", "--wait=ready=1s", "--watch"],
        2,
        "",
        "cannot be used with",
    );
    check(&["detach", "--pid-file", "/x"], 2, "", "--log");
    check(&["cri", "run", "image"], 2, "", "--name");
    check(
        &["doctor", "--output", "xml"],
        2,
        "",
        "[possible values: text, json]",
    );
    check(&["support-bundle", "here"], 2, "", "unexpected argument");
    check(&["cri", "exec", "abc"], 2, "", "COMMAND");
}

#[test]
fn help_and_version_exit_with_0() {
    check(&["--help"], 0, "serve", "");
    check(&["--version"], 0, &format!("switchyard {VERSION}"), "");
    let output = switchyard(&["version", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["version"], VERSION);
}

#[test]
fn manual_pages_exist_for_all_visible_commands() {
    check(&["man"], 0, ".TH switchyard 1", "");
    let dir = tempfile::tempdir().unwrap();
    check(&["man", "--dir", dir.path().to_str().unwrap()], 0, "", "");
    let pages: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|page| page.unwrap().file_name())
        .collect();
    for page in [
        "switchyard.1",
        "switchyard-serve.1",
        "switchyard-config-reload.1",
        "switchyard-cri-pods.1",
        "switchyard-doctor.1",
        "switchyard-support-bundle.1",
    ] {
        assert!(
            pages.iter().any(|name| name == page),
            "{page} is missing: {pages:?}"
        );
    }
    assert!(
        !pages.iter().any(|name| name == "switchyard-detach.1"),
        "a hidden command has a page: {pages:?}"
    );
    let serve = fs::read_to_string(dir.path().join("switchyard-serve.1")).unwrap();
    assert!(serve.contains("log.level"), "{serve}");
    check(
        &["man", "--dir", "/nowhere"],
        1,
        "",
        "cannot write the output: No such file",
    );
}

#[test]
fn completions_are_printed_for_each_shell() {
    check(&["completion", "bash"], 0, "complete -F _switchyard", "");
    check(&["completion", "zsh"], 0, "#compdef switchyard", "");
    check(&["completion", "fish"], 0, "complete -c switchyard", "");
    check(
        &["completion", "csh"],
        2,
        "",
        "[possible values: bash, zsh, fish]",
    );
}

#[test]
fn default_configuration_passes_its_own_check() {
    let output = switchyard(&["config", "default"]);
    assert!(output.status.success());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, output.stdout).unwrap();
    let name = file.to_str().unwrap();
    check(&["config", "check", name], 0, ": ok\n", "");
    check(&["config", "check", "--config", name], 0, ": ok\n", "");
    check(
        &["config", "check", name, "--config", name],
        2,
        "",
        "cannot be used with",
    );
    check(
        &["config", "dump", "--config", name, "--origin"],
        0,
        &format!("# {name}:"),
        "",
    );
}

#[test]
fn shared_device_group_without_quota_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let name = file.to_str().unwrap();
    let group = "version = 1\n[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\npaths = [\"/dev/a*\"]\n";
    let shared = format!("{group}resource = \"acme.com/tpu\"\n");
    fs::write(&file, &shared).unwrap();
    let warning = format!(
        "switchyard: warning: {name}:2: devices.groups: acme/tpu/default (as acme.com/tpu): offered to kubelets"
    );
    check(&["config", "check", name], 0, ": ok\n", &warning);
    let quota = format!("{shared}quota = {{ nomad = 1 }}\n");
    let kubelets_alone = format!("{shared}[nomad]\nenabled = false\n");
    for text in [group, &quota, &kubelets_alone] {
        fs::write(&file, text).unwrap();
        let output = switchyard(&["config", "check", name]);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{text}: {output:?}"
        );
    }
}

#[test]
fn key_of_an_older_version_passes_the_check_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("old.toml");
    fs::write(&file, "version = 1\n[recovery]\nsettle_seconds = 60\n").unwrap();
    let name = file.to_str().unwrap();
    let warning = format!(
        "switchyard: warning: {name}:3: recovery.settle_seconds: has no effect since version"
    );
    check(&["config", "check", name], 0, ": ok\n", &warning);
}

#[test]
fn invalid_configuration_fails_check_and_daemon_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, "version = 1\n[admin]\nlissten = \"127.0.0.1:0\"\n").unwrap();
    let name = file.to_str().unwrap();
    let complaint = format!(
        "switchyard: {name}:3: unknown key \"lissten\" in [admin]: did you mean \"listen\"?\n"
    );
    check(&["config", "check", name], 78, "", &complaint);
    check(&["config", "check", "--config", name], 78, "", &complaint);
    check(&["config", "dump", "--config", name], 78, "", &complaint);
    check(&["serve", "--config", name], 78, "", &complaint);
    check(
        &["serve", "--config", "/nowhere.toml"],
        78,
        "",
        "cannot read configuration /nowhere.toml: No such file",
    );
    check(
        &["config", "dump", "--set", "log.level"],
        78,
        "",
        "--set section.key=value",
    );
}

#[test]
fn unknown_key_fails_the_check_but_not_that_of_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, "version = 1\n[exec]\nmax_per_containr = 3\n").unwrap();
    let name = file.to_str().unwrap();
    let complaint = format!(
        "{name}:3: unknown key \"max_per_containr\" in [exec]: did you mean \"max_per_container\"?"
    );
    let error = format!("switchyard: {complaint}\n");
    check(&["config", "check", name], 78, "", &error);
    let warning = format!("switchyard: warning: {complaint} (ignored)\n");
    check(&["config", "check", "--start", name], 0, ": ok\n", &warning);
    check(
        &["config", "dump", "--config", name],
        0,
        "max_per_container = 1024\n",
        &warning,
    );
    fs::write(&file, "version = 1\n[admin]\nlissten = \"x\"\n").unwrap();
    check(&["config", "check", "--start", name], 78, "", "lissten");
}

#[test]
fn migrate_prints_the_new_file_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-fleet.toml");
    let old =
        "# Ours.\nversion = 1\n[recovery]\nsettle_seconds = 60 # long\nwait_seconds = 3 # s\n";
    fs::write(&file, old).unwrap();
    let name = file.to_str().unwrap();
    let output = switchyard(&["config", "migrate", name]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "# Ours.\nversion = 1\n[recovery]\nwait_seconds = 3 # s\n"
    );
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "switchyard: {name}:4: recovery.settle_seconds is deleted, because it has no effect\n"
        )
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), old);
    fs::write(&file, "version = 2\n").unwrap();
    check(
        &["config", "migrate", name],
        78,
        "",
        "version 2 is not read",
    );
}

#[test]
fn daemon_refuses_to_start_with_all_that_it_cannot_use_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let text = "version = 1\n[nomad]\nsocket_group = \"no-such-group\"\n\
                [cri.streaming]\ntls_certificate = \"/none/cert.pem\"\ntls_key = \"/none/key.pem\"\n";
    fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap();
    // A file is valid on any machine; the node decides whether a daemon starts with it.
    check(&["config", "check", name], 0, ": ok\n", "");
    for part in [
        "switchyard: nomad.socket_group: group \"no-such-group\" does not exist",
        "/none/cert.pem",
    ] {
        check(&["serve", "--config", name], 78, "", part);
    }
}

#[test]
fn check_of_a_unit_is_of_nothing_else_and_needs_one() {
    check(
        &["config", "check", "--unit=no-such-unit.service"],
        1,
        "",
        "no-such-unit.service is no unit that systemd has loaded",
    );
    check(
        &["config", "check", "--unit", "/etc/x.toml"],
        2,
        "",
        "cannot be used with",
    );
}

#[test]
fn missing_daemon_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    check(
        &["status", "--socket", socket],
        1,
        "",
        "is the daemon running",
    );
    check(
        &["status", "--wait", "ready=1s", "--socket", socket],
        1,
        "",
        "the node was not ready within 1s: cannot connect to",
    );
    check(&["ps", "--socket", socket], 1, "", "is the daemon running");
    check(
        &["devices", "--socket", socket],
        1,
        "",
        "is the daemon running",
    );
    check(
        &["images", "--watch", "--socket", socket],
        1,
        "",
        "is the daemon running",
    );
    check(
        &["inspect", "a", "b", "--socket", socket],
        1,
        "",
        "is the daemon running",
    );
    check(
        &["cri", "--socket", socket, "version"],
        1,
        "",
        "is the runtime running",
    );
}
