//! The units under the real systemd, and a pod from its start to its removal.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::node::{
    GuestFact, GuestNode, LIMIT, SOCKET, cgroup_file, property, run, scope, try_run,
};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "package_is_whole_and_its_units_start_at_each_boot",
        package_is_whole,
    ),
    (
        "units_start_and_notify_readiness",
        units_start_and_notify_readiness,
    ),
    ("reload_waits_for_the_verdict", reload_waits_for_the_verdict),
    ("doctor_judges_the_units", doctor_judges_the_units),
    (
        "socket_is_accessible_to_root_only",
        socket_is_accessible_to_root_only,
    ),
    (
        "systemd_cgroup_driver_is_selected",
        systemd_cgroup_driver_is_selected,
    ),
    ("pod_lifecycle_completes", pod_lifecycle_completes),
    (
        "system_extension_is_merged_and_wants_its_units",
        system_extension_is_merged,
    ),
];

/// Directory in which systemd looks for the extension.
const EXTENSION: &str = "/var/lib/extensions/switchyard";

/// Files of the extension beside those that the package has as well.
const OF_EXTENSION: [(&str, &str); 4] = [
    (
        "usr/lib/extension-release.d/extension-release.switchyard",
        include_str!("../../deploy/sysext/extension-release"),
    ),
    (
        "usr/lib/systemd/system/multi-user.target.d/10-switchyard.conf",
        include_str!("../../deploy/sysext/10-switchyard.conf"),
    ),
    (
        "usr/lib/tmpfiles.d/switchyard.conf",
        include_str!("../../deploy/sysext/tmpfiles.conf"),
    ),
    ("usr/share/switchyard/config.toml", "version = 1\n"),
];

/// Merges the extension into /usr, which is read-only until this is dropped.
struct MergedExtension;

impl MergedExtension {
    fn new() -> Self {
        let merged = Self;
        for (name, text) in OF_EXTENSION {
            let file = Path::new(EXTENSION).join(name);
            let dir = file.parent().expect("it is below a directory");
            fs::create_dir_all(dir).expect("root may");
            fs::write(file, text).expect("root may");
        }
        run(&["systemd-sysext", "merge"]);
        run(&["systemctl", "daemon-reload"]);
        merged
    }
}

impl Drop for MergedExtension {
    fn drop(&mut self) {
        try_run(&["systemd-sysext", "unmerge"]);
        try_run(&["systemctl", "daemon-reload"]);
        let _ = fs::remove_dir_all(EXTENSION);
    }
}

fn system_extension_is_merged(node: &GuestNode) {
    let configuration = "/etc/switchyard/config.toml";
    let before = fs::read_to_string(configuration).expect("the package has it");
    {
        let _merged = MergedExtension::new();
        for (name, text) in OF_EXTENSION {
            let merged = fs::read_to_string(Path::new("/").join(name));
            assert_eq!(merged.expect("it is merged"), text, "{name}");
        }
        let upheld = property("multi-user.target", "Upholds");
        for unit in ["switchyard.service", "switchyard-logkeeper.service"] {
            assert!(upheld.split(' ').any(|name| name == unit), "{upheld}");
        }
        // What an operator has written stays.
        run(&["systemd-tmpfiles", "--create", "switchyard.conf"]);
        let after = fs::read_to_string(configuration).expect("it stays");
        assert_eq!(after, before);
        node.wait_ready();
    }
    assert!(!Path::new("/usr/share/switchyard/config.toml").exists());
}

fn package_is_whole(_: &GuestNode) {
    assert_eq!(run(&["dpkg", "--audit"]), "");
    // The guest leaves the documentation of all packages out.
    let excluded = ["/usr/share/doc/", "/usr/share/man/"];
    let output = Command::new("dpkg")
        .args(["--verify", "switchyard"])
        .output()
        .expect("it can be run");
    let differs = String::from_utf8_lossy(&output.stdout);
    let differs: Vec<_> = differs
        .lines()
        .filter(|line| !excluded.iter().any(|dir| line.contains(dir)))
        .collect();
    assert_eq!(differs, Vec::<&str>::new());
    for unit in ["switchyard", "switchyard-logkeeper"] {
        assert_eq!(
            run(&["systemctl", "is-enabled", unit]).trim(),
            "enabled",
            "{unit}"
        );
        assert_eq!(property(unit, "ActiveState"), "active", "{unit}");
    }
    let files = run(&["dpkg", "--listfiles", "switchyard"]);
    assert!(
        files.lines().any(|file| file == "/etc/switchyard/config.d"),
        "{files}"
    );
    for name in ["switchyard", "switchyard-device"] {
        let link = Path::new("/usr/lib/switchyard/nomad-plugins").join(name);
        assert!(link.exists(), "{} leads to no program", link.display());
    }
    assert_versions_agree();
}

/// Checks that dpkg, the program and the metrics of the daemon name the same version.
#[track_caller]
fn assert_versions_agree() {
    let reported = run(&["switchyard", "version", "--output", "json"]);
    let reported: Value = serde_json::from_str(&reported).expect("it is JSON");
    let version = reported["version"].as_str().expect("it has a version");
    let package = run(&[
        "dpkg-query",
        "--show",
        "--showformat=${Version}",
        "switchyard",
    ]);
    // dpkg sorts 1.0.0-rc.1 before 1.0.0 only with a tilde; the last number is that of the packaging.
    assert_eq!(package, format!("{}-1", version.replace('-', "~")));
    let metrics =
        switchyard_tests::http::get_unix(Path::new("/run/switchyard/admin.sock"), "/metrics");
    let metrics = metrics.expect("they are served").text();
    let named = metrics.lines().any(|line| {
        line.starts_with("switchyard_build_info{")
            && line.contains(&format!("version=\"{version}\""))
    });
    assert!(named, "{version}: {metrics}");
}

fn units_start_and_notify_readiness(_: &GuestNode) {
    for unit in ["switchyard", "switchyard-logkeeper"] {
        // With Type=notify a unit is active once the daemon has reported readiness.
        assert_eq!(property(unit, "Type"), "notify");
        assert_eq!(property(unit, "ActiveState"), "active", "{unit}");
        assert_eq!(property(unit, "NRestarts"), "0", "{unit}");
        assert_eq!(property(unit, "UnitFileState"), "enabled", "{unit}");
    }
    assert!(switchyard_tests::host::eventually(LIMIT, || property(
        "switchyard",
        "StatusText"
    ) == "Serving"));
    // The logkeeper runs in its own unit: one that the daemon starts would be a second one.
    let keepers = run(&[
        "sh",
        "-c",
        "grep -lz '^logkeeper$' /proc/[0-9]*/cmdline 2>/dev/null || true",
    ]);
    assert_eq!(keepers.lines().count(), 1, "{keepers}");
    let warnings = run(&[
        "systemd-analyze",
        "verify",
        "--man=no",
        "switchyard.service",
        "switchyard-logkeeper.service",
    ]);
    assert_eq!(warnings, "");
}

fn reload_waits_for_the_verdict(_: &GuestNode) {
    let drop_in = Path::new("/etc/switchyard/config.d/90-reload.toml");
    let reload = |text: &str| {
        fs::write(drop_in, text).expect("root may");
        Command::new("systemctl")
            .args(["reload", "switchyard"])
            .output()
            .expect("it can be run")
    };
    let daemon = property("switchyard", "MainPID");
    let in_force = || run(&["switchyard", "config", "dump", "--running"]);
    assert!(
        reload("version = 1\n[exec]\nmax_per_container = 77\n")
            .status
            .success()
    );
    assert!(in_force().contains("max_per_container = 77\n"));
    assert!(
        !reload("version = 1\n[exec]\nmax_per_container = 0\n")
            .status
            .success(),
        "it is refused"
    );
    assert!(
        in_force().contains("max_per_container = 77\n"),
        "the former stays"
    );
    assert_eq!(property("switchyard", "ActiveState"), "active");
    let log = run(&[
        "journalctl",
        "--boot",
        "--output",
        "cat",
        "--unit",
        "switchyard",
        // The journal has the priority of each line.
        "--priority",
        "err",
    ]);
    assert!(
        log.contains("90-reload.toml:3: exec.max_per_container"),
        "{log}"
    );
    // SIGHUP does the same without a verdict; the logkeeper ignores it.
    fs::write(drop_in, "version = 1\n[exec]\nmax_per_container = 78\n").expect("root may");
    run(&[
        "systemctl",
        "kill",
        "--signal=HUP",
        "--kill-whom=main",
        "switchyard",
    ]);
    assert!(switchyard_tests::host::eventually(LIMIT, || in_force()
        .contains("max_per_container = 78\n")));
    fs::remove_file(drop_in).expect("root may");
    run(&["systemctl", "reload", "switchyard"]);
    assert!(!in_force().contains("max_per_container = 78\n"));
    run(&[
        "systemctl",
        "kill",
        "--signal=HUP",
        "--kill-whom=main",
        "switchyard-logkeeper",
    ]);
    for unit in ["switchyard", "switchyard-logkeeper"] {
        // It is reloading for a moment.
        assert!(
            switchyard_tests::host::eventually(LIMIT, || property(unit, "ActiveState") == "active"),
            "{unit}"
        );
        assert_eq!(property(unit, "NRestarts"), "0", "{unit}");
    }
    assert_eq!(property("switchyard", "MainPID"), daemon);
}

/// Codes and severities of what `switchyard doctor` finds, each with what it saw.
pub(crate) fn doctor_finds() -> Vec<(String, String)> {
    let output = Command::new("/usr/bin/switchyard")
        .args(["doctor", "--output", "json"])
        .output();
    let output = output.expect("it can be run");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let findings = report["findings"]
        .as_array()
        .unwrap_or_else(|| panic!("it has findings: {report}"));
    let word =
        |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    let found: Vec<(String, String)> = findings
        .iter()
        .map(|finding| {
            let kind = format!("{} {}", word(finding, "code"), word(finding, "severity"));
            (kind, word(finding, "found"))
        })
        .collect();
    let is_bad = found.iter().any(|(kind, _)| !kind.ends_with(" note"));
    assert_eq!(output.status.code(), Some(i32::from(is_bad)), "{found:?}");
    found
}

/// Errors that `switchyard doctor` finds, each with what it saw.
pub(crate) fn doctor_errors() -> Vec<(String, String)> {
    let mut found = doctor_finds();
    found.retain(|(kind, _)| kind.ends_with(" error"));
    found
}

fn doctor_judges_the_units(_: &GuestNode) {
    let of_units = || {
        let units = ["SY117", "SY118", "SY119"];
        let found = doctor_finds().into_iter();
        found
            .filter(|(kind, _)| units.iter().any(|code| kind.starts_with(code)))
            .collect::<Vec<_>>()
    };
    let errors = doctor_errors();
    assert!(
        errors.is_empty(),
        "a node as the package makes it has no error: {errors:?}"
    );
    assert_eq!(of_units(), []);

    let drop_in = Path::new("/run/systemd/system/switchyard.service.d/50-doctor.conf");
    fs::create_dir_all(drop_in.parent().expect("it has one")).expect("root may");
    let settings =
        "[Unit]\nStartLimitIntervalSec=10\n[Service]\nKillMode=control-group\nDelegate=no\n";
    fs::write(drop_in, settings).expect("root may");
    run(&["systemctl", "daemon-reload"]);
    run(&["systemctl", "disable", "switchyard-logkeeper"]);
    let found = of_units();
    fs::remove_file(drop_in).expect("root may");
    run(&["systemctl", "daemon-reload"]);
    run(&["systemctl", "enable", "switchyard-logkeeper"]);
    let said = |code: &str, words: &str| {
        found
            .iter()
            .any(|(kind, seen)| kind == code && seen.contains(words))
    };
    assert!(
        said("SY117 warning", "switchyard-logkeeper.service is disabled"),
        "{found:?}"
    );
    assert!(
        said("SY118 error", "KillMode=control-group, not process"),
        "{found:?}"
    );
    assert!(said("SY118 error", "Delegate=no, not yes"), "{found:?}");
    assert!(
        said(
            "SY119 warning",
            "switchyard.service: StartLimitIntervalSec is 10s"
        ),
        "{found:?}"
    );
    assert_eq!(of_units(), []);
}

fn socket_is_accessible_to_root_only(node: &GuestNode) {
    let meta = fs::metadata(SOCKET).expect("the socket is there");
    assert_eq!((meta.mode() & 0o777, meta.uid(), meta.gid()), (0o660, 0, 0));
    let refused = as_nobody();
    assert!(!refused.status.success(), "{refused:?}");
    // If the mode of the socket is changed by hand, the peer's credentials are still checked.
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o666)).expect("root may");
    let refused = as_nobody();
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o660)).expect("root may");
    assert!(!refused.status.success(), "{refused:?}");
    let log = run(&[
        "journalctl",
        "--boot",
        "--output",
        "cat",
        "--unit",
        "switchyard",
        "SWITCHYARD_TARGET=switchyard_socket::listener",
    ]);
    assert!(
        log.contains("refused a connection of a peer that may not use this socket"),
        "{log}"
    );
    node.wait_ready();
}

fn as_nobody() -> Output {
    let mut command = Command::new("/usr/bin/switchyard");
    command
        .args(["cri", "--timeout", "10", "pods"])
        .uid(65534)
        .gid(65534);
    command.output().expect("it can be run")
}

fn systemd_cgroup_driver_is_selected(node: &GuestNode) {
    assert!(
        Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        "the guest has cgroup v2"
    );
    let request = cri::RuntimeConfigRequest {};
    let answer = node
        .cri
        .runtime(async |mut client| client.runtime_config(request).await);
    let linux = answer.expect("it is reported").linux.expect("it is Linux");
    assert_eq!(linux.cgroup_driver(), cri::CgroupDriver::Systemd);
    // A parent that is not a slice is refused with that reason.
    let mut config = node.pod_config("no-slice");
    config.linux.get_or_insert_default().cgroup_parent = "/kubepods/pod1".to_owned();
    let pod = node.cri.run_pod(&config);
    let status = match pod {
        Err(status) => status,
        Ok(pod) => {
            let container = node.container("main", "true");
            let refused = node.cri.create(&pod, &container, &config);
            node.cri.remove_pod(&pod).expect("it can be removed");
            refused.expect_err("there is no such slice")
        }
    };
    assert!(
        status.code() == Code::InvalidArgument && status.message().contains("slice"),
        "{status}"
    );
}

fn pod_lifecycle_completes(node: &GuestNode) {
    let client = &node.cri;
    let pod = node.pod("whole");
    assert_eq!(
        client.pod_status(&pod.id).expect("it has one").state(),
        cri::PodSandboxState::SandboxReady
    );
    let id = pod.start_shell("main", "echo out; exec sleep 1000");
    assert_eq!(
        client.status(&id).expect("it has one").state(),
        cri::ContainerState::ContainerRunning
    );
    assert_eq!(
        client.sh(&id, "ip -4 -o addr show eth0 | grep -c 10.88.0."),
        "1"
    );
    pod.wait_log_lines("main", |lines| lines == ["out"]);
    let stats = client.stats(&id).expect("it has some");
    let reported = stats
        .memory
        .and_then(|memory| memory.usage_bytes)
        .map_or(0, |bytes| bytes.value);
    assert!(reported > 0, "its memory is reported");
    assert!(!cgroup_file(&id, "cgroup.procs").is_empty());
    let unit = format!("switchyard-{id}.scope");
    assert_eq!(property(&unit, "ActiveState"), "active");
    assert_eq!(property(&unit, "Slice"), crate::node::SLICE);
    client.stop(&id, 0).expect("it can be stopped");
    assert_eq!(node.wait_exit(&id).exit_code, 137);
    client.remove(&id).expect("it can be removed");
    assert!(!scope(&id).exists());
    assert_eq!(
        property(&unit, "LoadState"),
        "not-found",
        "systemd still knows of it"
    );
}
