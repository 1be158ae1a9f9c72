//! Processes, their users and variables, and their health checks.

use std::time::Duration;

use prost_types::Duration as WireDuration;

use super::*;
use crate::plan::HealthCommand;

#[test]
fn process_is_that_of_the_service() {
    let made = planned(swarm::ContainerSpec {
        command: strings(&["/bin/sh"]),
        args: strings(&["-c", "x"]),
        env: strings(&[
            "B",
            "SLOT={{.Task.Slot}}",
            "EMPTY=",
            "A=old",
            "C=old",
            "A=b=c",
            "B=set",
            "C",
            "PATH",
        ]),
        dir: "/srv/../data".into(),
        user: "app:staff".into(),
        groups: strings(&["audio", "7"]),
        hostname: "{{.Service.Name}}-{{.Task.Slot}}".into(),
        tty: true,
        open_stdin: true,
        init: Some(true),
        read_only: true,
        stop_signal: "SIGQUIT".into(),
        stop_grace_period: Some(WireDuration {
            seconds: 1,
            nanos: 500_000_000,
        }),
        oom_score_adj: 500,
        pids_limit: 100,
        ..container()
    });
    let env: Vec<(String, String)> = made
        .task
        .env
        .iter()
        .map(|variable| {
            (
                variable.name.clone(),
                String::from_utf8(variable.value.clone()).unwrap(),
            )
        })
        .collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    // The last entry of a name holds, and one without a value removes the image's variable.
    assert_eq!(
        env,
        [
            pair("SLOT", "3"),
            pair("EMPTY", ""),
            pair("A", "b=c"),
            pair("B", "set")
        ]
    );
    assert_eq!(made.task.unset_env, ["PATH", "C"]);
    assert_eq!(
        (made.task.command, made.task.args),
        (strings(&["/bin/sh"]), strings(&["-c", "x"]))
    );
    assert_eq!(made.task.cwd.unwrap().to_str(), Some("/data"));
    assert_eq!(made.task.user.user, Some(UserRef::Name("app:staff".into())));
    assert_eq!(made.task.user.named, strings(&["audio", "7"]));
    assert_eq!(made.sandbox.hostname, "web-3");
    assert_eq!(made.task.stop_signal.map(Signal::number), Some(3));
    assert_eq!(made.stop_grace, Duration::from_millis(1500));
    assert!(made.task.init && made.task.security.readonly_rootfs && made.task.stdio.tty);
    assert_eq!(made.task.stdio.stdin, Stdin::Open);
    assert_eq!(
        made.task.resources.pids_limit.map(|limit| limit.signed()),
        Some(100)
    );
}

#[test]
fn malformed_process_is_refused_by_field() {
    let refused = |change: fn(&mut swarm::ContainerSpec), text: &str| {
        let mut given = container();
        change(&mut given);
        invalid(given, &format!("container.{text}"));
    };
    refused(|c| c.image = "a b".into(), "image: \"a b\" names no image");
    refused(
        |c| c.dir = "srv".into(),
        "dir: \"srv\" is not an absolute path",
    );
    refused(
        |c| c.user = "a b".into(),
        "user: \"a b\" is not a user's name",
    );
    refused(
        |c| c.groups = strings(&["a:b"]),
        "groups[0]: \"a:b\" is not a group's name or number",
    );
    refused(
        |c| c.args = strings(&["x", "a\0"]),
        "args[1]: it contains a NUL byte",
    );
    refused(
        |c| c.stop_signal = "SIGNONE".into(),
        "stop_signal: \"SIGNONE\" is no signal",
    );
    refused(
        |c| c.hostname = "-x".into(),
        "hostname: \"-x\" is no host name",
    );
    refused(
        |c| {
            c.stop_grace_period = Some(WireDuration {
                seconds: -1,
                nanos: 0,
            })
        },
        "stop_grace_period: -1 s and 0 ns are no duration",
    );
    refused(
        |c| c.env = strings(&["A={{.Node.Foo}}"]),
        "env[0]: it cannot be expanded: template, byte 2: there is no such field: \"Foo\"",
    );
    refused(
        |c| c.env = strings(&["A=b", ""]),
        "env: \"\" is not a variable's name",
    );
    refused(
        |c| c.oom_score_adj = 1001,
        "oom_score_adj: 1001 is not between -1000 and 1000",
    );
    unsupported(
        swarm::ContainerSpec {
            isolation: 2,
            ..container()
        },
        "container.isolation: it is for Windows",
    );
}

#[test]
fn error_of_a_variable_does_not_show_its_value() {
    let error = refusal(&task(
        1,
        swarm::ContainerSpec {
            env: strings(&["A=hunter2\0"]),
            ..container()
        },
    ));
    assert_eq!(
        error.report(),
        "container.env[\"A\"]: it contains a NUL byte"
    );
}

#[test]
fn health_check_is_kept_as_asked_for() {
    let with = |test: &[&str]| swarm::ContainerSpec {
        healthcheck: Some(swarm::HealthConfig {
            test: strings(test),
            interval: Some(WireDuration {
                seconds: 5,
                nanos: 0,
            }),
            timeout: Some(WireDuration::default()),
            retries: 2,
            ..Default::default()
        }),
        ..container()
    };
    let health = planned(with(&["CMD", "curl", "x"])).health;
    assert_eq!(health.command, HealthCommand::Exec(strings(&["curl", "x"])));
    assert_eq!(
        (health.interval, health.timeout, health.retries),
        (Some(Duration::from_secs(5)), None, Some(2))
    );
    assert_eq!(
        planned(with(&["CMD-SHELL", "a | b"])).health.command,
        HealthCommand::Shell("a | b".into())
    );
    assert_eq!(planned(with(&["NONE"])).health.command, HealthCommand::None);
    assert_eq!(planned(with(&[])).health.command, HealthCommand::Image);
    for wrong in [
        &["CMD"][..],
        &["curl"],
        &["NONE", "x"],
        &["CMD-SHELL", "a", "b"],
    ] {
        let error = refusal(&task(1, with(wrong))).to_string();
        assert!(error.starts_with("container.healthcheck.test: "), "{error}");
    }
    // Docker's shortest time: without a pause, checks would follow each other as fast as the node can run them.
    let short = Some(WireDuration {
        seconds: 0,
        nanos: 999_999,
    });
    let hasty = swarm::HealthConfig {
        interval: short,
        ..Default::default()
    };
    let error = refusal(&task(
        1,
        swarm::ContainerSpec {
            healthcheck: Some(hasty),
            ..container()
        },
    ))
    .to_string();
    assert!(
        error.starts_with("container.healthcheck.interval: 999.999µs is less than 1ms"),
        "{error}"
    );
}
