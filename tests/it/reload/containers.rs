//! Keys that containers, commands in them and streams to them depend on.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use switchyard_proto::cri::v1::VersionRequest;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::streams::{PIPES, StreamProtocol, StreamSession, Transport, certificate};
use tonic::Code;

use super::{apply, reload};

/// Time for something to show.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn pods_created_after_a_reload_have_the_new_sysctls_and_seccomp_profile() {
    let node = TestNode::start();
    let script =
        "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; grep Seccomp: /proc/self/status";
    let seen = |pod: &TestPod<'_>| pod.run_shell(script, |_| {}).replace(['\n', '\t'], " ");
    let before = node.pod("before");
    assert_eq!(seen(&before), "0 Seccomp: 0");
    apply(
        &node,
        "[cri]\nunprivileged_ports = false\nunset_seccomp = \"runtime-default\"\n",
        &["cri.unprivileged_ports", "cri.unset_seccomp"],
    );
    assert_eq!(seen(&node.pod("after")), "1024 Seccomp: 2");
    assert_eq!(
        seen(&before),
        "0 Seccomp: 2",
        "the sysctl is that of the pod, the profile of the container"
    );
}

#[test]
fn clients_get_the_configured_name_of_the_runtime() {
    let node = TestNode::start();
    let name = || {
        let answer = node
            .cri()
            .runtime(async |mut client| client.version(VersionRequest::default()).await);
        answer.expect("it answers").runtime_name
    };
    assert_eq!(name(), "switchyard");
    for runtime in ["containerd", "cri-o", "x1", "switchyard"] {
        let text = format!("[cri]\nruntime_name = \"{runtime}\"\n");
        apply(&node, &text, &["cri.runtime_name"]);
        assert_eq!(name(), runtime);
    }
}

#[test]
fn the_drain_time_of_exec_is_reloaded() {
    let node = TestNode::start_with("[cri]\nexec_drain_seconds = 0\n", |_| {});
    let pod = node.pod("drain");
    let id = pod.start_shell("main", "exec sleep 1000");
    apply(
        &node,
        "[cri]\nexec_drain_seconds = 1\n",
        &["cri.exec_drain_seconds"],
    );
    // With the former value the call would wait for the output of the background process.
    let done = node
        .cri()
        .exec(&id, &["sh", "-c", "sleep 600 & echo left"], 0);
    match done {
        Ok(answer) => assert_eq!(answer.stdout, b"left\n"),
        Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
    }
}

#[test]
fn concurrent_commands_are_limited_by_the_new_value() {
    let node = TestNode::start();
    let pod = node.pod("commands");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut open = StreamSession::exec(node.cri(), &id, &["cat"], PIPES);
    open.send("runs\n");
    open.wait_stdout("runs\n");
    apply(
        &node,
        "[exec]\nmax_per_container = 1\n",
        &["exec.max_per_container"],
    );
    let status = node
        .cri()
        .exec(&id, &["true"], 5)
        .expect_err("one command runs");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    open.end_input();
    assert_eq!(open.wait_exit_code(), 0);
    assert!(
        eventually(SOON, || node.cri().exec(&id, &["true"], 5).is_ok()),
        "none runs now"
    );
}

#[test]
fn a_runtime_is_added_without_a_restart() {
    let node = TestNode::start();
    let refused = node
        .cri()
        .run_pod_with(&node.pod_config("early"), "second")
        .expect_err("there is none yet");
    assert!(refused.message().contains("second"), "{refused}");
    let second =
        "[containerd.runtimes.second]\ntype = \"io.containerd.runc.v2\"\nbinary = \"runc\"\n";
    apply(&node, second, &["containerd.runtimes.second"]);
    let config = node.pod_config("later");
    let id = node
        .cri()
        .run_pod_with(&config, "second")
        .expect("the handler is configured");
    let pod = TestPod::adopt(&node, id, config);
    assert_eq!(pod.status().runtime_handler, "second");
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
    let report = reload(&node, &second.replace("\"runc\"", "\"crun\""));
    let [change] = &**report["pending"].as_array().expect("it is a list") else {
        panic!("{report:#}")
    };
    assert_eq!(change["key"], "containerd.runtimes.second");
    assert_eq!(pod.run_shell("echo still", |_| {}), "still");
}

#[test]
fn a_renewed_certificate_is_used_by_new_streams() {
    let mut files = None;
    let mut section = String::new();
    let node = TestNode::start_configured(|root| {
        let tls = certificate(root.path());
        section = format!(
            "[cri.streaming]\ntls_certificate = {:?}\ntls_key = {:?}\n",
            tls.certificates.display().to_string(),
            tls.key.display().to_string()
        );
        files = Some(tls);
        section.clone()
    });
    let files = files.expect("they were made");
    let pod = node.pod("renewed");
    let id = pod.start_shell("main", "exec sleep 1000");
    let exits_with_seven = || {
        let trusted_certificate = Some(files.certificates.clone());
        let way = Transport {
            protocol: StreamProtocol::WebSocket,
            trusted_certificate,
        };
        StreamSession::exec_over(&way, node.cri(), &id, &["sh", "-c", "exit 7"], PIPES)
            .wait_exit_code()
            == 7
    };
    assert!(exits_with_seven());
    // The client trusts the file's content: the new certificate is the one that must be presented.
    drop(certificate(node.root().path()));
    apply(&node, &section, &[]);
    assert!(exits_with_seven());
    // A key that does not fit is refused, and the former certificate stays.
    fs::write(&files.key, "no key").expect("it can be written");
    let refused = node.call(&["config", "reload"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains(&files.key.display().to_string()),
        "{text}"
    );
    assert!(exits_with_seven());
}

#[test]
fn the_log_level_is_reloaded_and_a_temporary_one_falls_back() {
    let node = TestNode::start();
    let debug_lines = || {
        let log = fs::read_to_string(node.root().daemon_log()).expect("it is written");
        log.lines().filter(|line| line.contains("DEBUG")).count()
    };
    let before = debug_lines();
    apply(&node, "[log]\nlevel = \"debug\"\n", &["log.level"]);
    assert!(eventually(SOON, || {
        drop(node.pod("debugged"));
        debug_lines() > before
    }));
    apply(&node, "", &["log.level"]);
    let level = || -> Value {
        serde_json::from_str(&node.output(&["log", "level", "-o", "json"])).expect("it is JSON")
    };
    assert_eq!(level()["level"], "info");
    node.output(&["log", "level", "debug", "--for", "2s"]);
    assert_eq!(
        (&level()["level"], &level()["configured"]),
        (&"debug".into(), &"info".into())
    );
    assert!(
        eventually(SOON, || level()["level"] == "info"),
        "{}",
        level()
    );
    node.output(&["log", "level", "trace", "--for", "1h"]);
    assert!(node.output(&["log", "level"]).starts_with("trace until "));
    node.output(&["log", "level", "--reset"]);
    assert_eq!(node.output(&["log", "level"]), "info\n");
    let wrong = node.call(&["log", "level", "a=b=c"]);
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("a=b=c"));
}

#[test]
fn a_container_keeps_the_profile_it_was_created_with() {
    let node = TestNode::start();
    let pod = node.pod("kept");
    let id = pod.create(&node.container("kept", &["grep", "Seccomp:", "/proc/self/status"]));
    apply(
        &node,
        "[cri]\nunset_seccomp = \"runtime-default\"\n",
        &["cri.unset_seccomp"],
    );
    node.cri().start(&id).expect("it starts");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 0);
    let log = pod.wait_log("kept", |lines| !lines.is_empty());
    assert!(log[0].ends_with("Seccomp:\t0"), "{log:?}");
}
