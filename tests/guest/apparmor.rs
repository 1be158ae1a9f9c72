//! AppArmor: the profile that containers get by default, and profiles of the host.

use std::io::Write;
use std::process::{Command, Stdio};

use switchyard_proto::cri::v1::security_profile::ProfileType;
use switchyard_proto::cri::v1::{ContainerConfig, SecurityProfile};
use switchyard_tests::cri::context;

use crate::node::{GuestFact, GuestNode};

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "containers_are_confined_by_the_default_profile",
        the_default_confines,
    ),
    (
        "unloaded_default_profile_is_loaded_again",
        unloaded_default_is_loaded_again,
    ),
    (
        "container_does_not_start_without_its_default_profile",
        no_start_without_the_default_profile,
    ),
    (
        "localhost_apparmor_profile_is_applied",
        a_profile_of_the_host,
    ),
    (
        "unloaded_profile_is_rejected_by_name",
        a_profile_that_is_not_loaded,
    ),
];

/// The name of a profile of the host.
const PROFILE: &str = "profile guest-denies flags=(attach_disconnected,mediate_deleted) {\n\
    file, signal, capability, network, umount,\n  deny /denied/** w,\n}\n";

fn profile(kind: ProfileType, name: &str) -> Option<SecurityProfile> {
    Some(SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: name.to_owned(),
    })
}

/// Sets a profile in the field that clients used before the structured one existed.
fn set_old(config: &mut ContainerConfig, name: &str) {
    name.clone_into(&mut context(config).apparmor_profile);
}

fn the_default_confines(node: &GuestNode) {
    let pod = node.pod("apparmor");
    // Without the profile these privileges would suffice: so it is the profile that denies.
    let script = "cat /proc/self/attr/current; mkdir -p /m; mount -t tmpfs none /m 2>&1; echo $?; exec sleep 1000";
    for (name, asked) in [
        ("unset", None),
        ("default", profile(ProfileType::RuntimeDefault, "")),
    ] {
        let id = pod.start_shell_with(name, script, |config| {
            let context = context(config);
            context.apparmor = asked;
            context
                .capabilities
                .get_or_insert_default()
                .add_capabilities = vec!["SYS_ADMIN".into()];
        });
        let lines = pod.wait_log_lines(name, |lines| lines.len() >= 3);
        assert_eq!(lines[0], "switchyard-default (enforce)", "{name}");
        assert!(
            lines[1].contains("denied") && lines[2] != "0",
            "{name}: {lines:?}"
        );
        assert_eq!(
            node.cri.sh(&id, "cat /proc/self/attr/current"),
            "switchyard-default (enforce)"
        );
        // Signals between the processes of a container, and from the runtime, are allowed.
        assert_eq!(
            node.cri
                .sh(&id, "sleep 100 & kill -TERM $!; wait $!; echo $?"),
            "143"
        );
        node.cri.stop(&id, 0).expect("it can be stopped");
        assert_eq!(node.wait_exit(&id).exit_code, 137);
    }
    let _ = pod.start_shell_with("free", script, |config| {
        let context = context(config);
        context.apparmor = profile(ProfileType::Unconfined, "");
        context
            .capabilities
            .get_or_insert_default()
            .add_capabilities = vec!["SYS_ADMIN".into()];
    });
    let lines = pod.wait_log_lines("free", |lines| lines.len() >= 2);
    assert_eq!(lines[..2], ["unconfined", "0"]);
}

/// Checks that our profile is loaded again after a reload of all profiles of the node, which drops it.
fn unloaded_default_is_loaded_again(node: &GuestNode) {
    load("profile switchyard-default { }", "--remove");
    let pod = node.pod("reloaded");
    let _ = pod.start_shell("main", "cat /proc/self/attr/current");
    let lines = pod.wait_log_lines("main", |lines| !lines.is_empty());
    assert_eq!(lines[0], "switchyard-default (enforce)");
}

/// Hides the program that loads profiles until this is dropped.
struct WithoutParser;

const PARSER: &str = "/usr/sbin/apparmor_parser";
const HIDDEN_PARSER: &str = "/usr/sbin/apparmor_parser.aside";

impl WithoutParser {
    fn new() -> Self {
        std::fs::rename(PARSER, HIDDEN_PARSER).expect("it is installed");
        Self
    }
}

impl Drop for WithoutParser {
    fn drop(&mut self) {
        std::fs::rename(HIDDEN_PARSER, PARSER).expect("it was put aside");
    }
}

fn no_start_without_the_default_profile(node: &GuestNode) {
    load("profile switchyard-default { }", "--remove");
    let pod = node.pod("unloaded");
    let without = WithoutParser::new();
    let mut config = node.container("main", "cat /proc/self/attr/current");
    context(&mut config).apparmor = profile(ProfileType::RuntimeDefault, "");
    let status = node
        .cri
        .create(&pod.id, &config, &pod.config)
        .expect_err("it cannot be loaded");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    assert!(
        status.message().contains("default AppArmor profile"),
        "{status}"
    );
    let _ = pod.start_shell("unset", "cat /proc/self/attr/current");
    assert_eq!(
        pod.wait_log_lines("unset", |lines| !lines.is_empty())[0],
        "unconfined"
    );
    drop(without);
    let id = node
        .cri
        .create(&pod.id, &config, &pod.config)
        .expect("it can be loaded again");
    node.cri.start(&id).expect("it can be started");
    assert_eq!(
        pod.wait_log_lines("main", |lines| !lines.is_empty())[0],
        "switchyard-default (enforce)"
    );
}

fn a_profile_of_the_host(node: &GuestNode) {
    load(PROFILE, "--replace");
    let script = "mkdir /denied /free; echo x > /free/file; echo $?; echo x > /denied/file; echo $?; cat /proc/self/attr/current";
    for (name, handler, old) in [
        ("main", "", false),
        ("old", "", true),
        ("crun", "crun", false),
    ] {
        let pod = node.pod_of("localhost", handler);
        let _ = pod.start_shell_with(name, script, |config| match old {
            false => context(config).apparmor = profile(ProfileType::Localhost, "guest-denies"),
            true => set_old(config, "localhost/guest-denies"),
        });
        let lines = pod.wait_log_lines(name, |lines| {
            lines.iter().any(|line| line.contains("enforce"))
        });
        let codes: Vec<_> = lines
            .iter()
            .filter(|line| !line.contains("denied"))
            .collect();
        assert_eq!(
            codes.first().map(|line| line.as_str()),
            Some("0"),
            "{name}: {lines:?}"
        );
        assert_eq!(
            codes.get(1).map(|line| line.as_str()),
            Some("1"),
            "{name}: {lines:?}"
        );
        assert!(
            lines.iter().any(|line| line == "guest-denies (enforce)"),
            "{name}: {lines:?}"
        );
    }
    // If both fields are set the newer one counts.
    let pod = node.pod("both");
    let _ = pod.start_shell_with("main", "cat /proc/self/attr/current", |config| {
        set_old(config, "localhost/guest-denies");
        context(config).apparmor = profile(ProfileType::Unconfined, "");
    });
    pod.wait_log_lines("main", |lines| lines == ["unconfined"]);
}

fn a_profile_that_is_not_loaded(node: &GuestNode) {
    let pod = node.pod("not-loaded");
    for old in [false, true] {
        let mut config = node.container("main", "true");
        match old {
            false => {
                context(&mut config).apparmor = profile(ProfileType::Localhost, "no-such-profile")
            }
            true => set_old(&mut config, "localhost/no-such-profile"),
        }
        let status = node
            .cri
            .create(&pod.id, &config, &pod.config)
            .expect_err("it is not loaded");
        assert!(
            status.message().contains("no-such-profile") && status.message().contains("not loaded"),
            "{status}"
        );
    }
}

fn load(text: &str, how: &str) {
    let mut child = Command::new("apparmor_parser")
        .arg(how)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it is there");
    let mut input = child.stdin.take().expect("it was asked for");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    assert!(child.wait().expect("it ends").success());
}
