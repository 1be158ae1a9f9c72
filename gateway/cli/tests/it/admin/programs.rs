//! Tests of the pages about replaced programs, and of restarts on request.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use switchyard_operator::control::RestartError;
use switchyard_operator::status::Condition;
use switchyard_operator_api::{RestartReport, StatusReport, VERSION};

use super::node::{TestNode, TestProcess};
use super::{Pages, run};
use crate::support::RunningChild;

#[tokio::test(flavor = "multi_thread")]
async fn replaced_program_is_shown_with_what_to_do() {
    let node = TestNode::new().await;
    let program = node.dir.path().join("containerd");
    let newer = node.dir.path().join("containerd.new");
    for file in [&program, &newer] {
        // Copied by another process: a child that another test forks meanwhile would inherit a descriptor for writing, and
        // executing the file would fail with ETXTBSY.
        assert!(
            Command::new("cp")
                .arg("/bin/sleep")
                .arg(file)
                .status()
                .unwrap()
                .success()
        );
    }
    let running = RunningChild(Command::new(&program).arg("1000").spawn().unwrap());
    let pid = i32::try_from(running.0.id()).unwrap();
    let node = node.with_process(&Arc::new(TestProcess::new("containerd").with_pid(pid)));
    let pages = Pages::serve(node).await;
    let socket = pages.socket();
    let program = program.display().to_string();
    let expected = format!(
        "containerd (process {pid}) still runs a former {program}: `switchyard restart containerd`"
    );
    for (is_replaced, metric) in [
        (
            false,
            "switchyard_replaced_programs{part=\"containerd\"} 0\n",
        ),
        (
            true,
            "switchyard_replaced_programs{part=\"containerd\"} 1\n",
        ),
    ] {
        if is_replaced {
            fs::rename(&newer, &program).unwrap();
        }
        let output = run(&["status", "--socket", &socket]).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains(&expected), is_replaced, "{text}");
        let (_, metrics) = pages.get("/metrics").await;
        assert!(metrics.contains(metric), "{metrics}");
    }
    let network = pages.get_tcp("/statusz").await;
    assert!(
        !network.contains(&program) && !network.contains(&format!("process {pid}")),
        "{network}"
    );
    let report: StatusReport =
        serde_json::from_str(network.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((report.pid, report.programs), (None, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn former_configuration_is_shown_with_what_to_do() {
    let running = RunningChild(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = i32::try_from(running.0.id()).unwrap();
    let containerd = Arc::new(TestProcess::new("containerd").with_pid(pid));
    let node = TestNode::new().await.with_process(&containerd);
    let pages = Pages::serve(node).await;
    let socket = pages.socket();
    let expected = format!(
        "containerd (process {pid}) has read a former configuration: `switchyard restart containerd`"
    );
    for is_former in [false, true] {
        if is_former {
            containerd.set_former_configuration();
        }
        let output = run(&["status", "--socket", &socket]).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains(&expected), is_former, "{text}");
        let (_, metrics) = pages.get("/metrics").await;
        let number = i32::from(is_former);
        for line in [
            format!("switchyard_former_configurations{{part=\"containerd\"}} {number}\n"),
            "switchyard_program_versions{part=\"containerd\",version=\"1.7.2\"} 1\n".to_owned(),
            format!("switchyard_program_versions{{part=\"daemon\",version=\"{VERSION}\"}} 1\n"),
        ] {
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_waits_until_the_node_is_ready_or_the_time_is_up() {
    let containerd = Arc::new(TestProcess::new("containerd"));
    containerd.set(Condition::Down("is starting".into()));
    let pages = Pages::serve(TestNode::new().await.with_process(&containerd)).await;
    let socket = pages.socket();
    let wait = async |time: &str, output: &str| {
        let wait = format!("--wait=ready={time}");
        run(&["status", &wait, "--output", output, "--socket", &socket]).await
    };
    let late = wait("1s", "text").await;
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let shown = String::from_utf8(late.stdout).unwrap();
    assert!(shown.contains(" is not ready, process "), "{shown}");
    let why = String::from_utf8(late.stderr).unwrap();
    assert_eq!(
        why,
        "switchyard: the node was not ready within 1s: containerd: is starting\n"
    );

    let waiting = async {
        let ready = wait("60s", "json").await;
        assert!(ready.status.success(), "{ready:?}");
        let report: StatusReport = serde_json::from_slice(&ready.stdout).unwrap();
        assert!(report.ready);
    };
    let starting = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        containerd.set(super::up());
    };
    tokio::join!(waiting, starting);
}

#[tokio::test(flavor = "multi_thread")]
async fn part_is_restarted_on_the_unix_socket_only() {
    let containerd = TestProcess::new("containerd").with_restart(|| {
        Ok(RestartReport {
            part: "containerd".into(),
            before: Some(4711),
            after: 4712,
        })
    });
    let logkeeper = TestProcess::new("logkeeper").with_restart(|| {
        Err(RestartError::External {
            name: "logkeeper",
            pid: 4713,
        })
    });
    let node = TestNode::new()
        .await
        .with_process(&Arc::new(containerd))
        .with_process(&Arc::new(logkeeper));
    let pages = Pages::serve(node).await;
    let (status, body) = pages.ask(Method::POST, "/v1/restart/containerd").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let done: RestartReport = serde_json::from_str(&body).unwrap();
    assert_eq!((done.before, done.after), (Some(4711), 4712));
    assert_eq!(
        pages.get("/v1/restart/containerd").await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
    let (status, why) = pages.ask(Method::POST, "/v1/restart/daemon").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        why.contains("\"daemon\" cannot be restarted by itself"),
        "{why}"
    );
    let request =
        "POST /v1/restart/containerd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(pages.say(request).await.starts_with("HTTP/1.1 404 "));

    let socket = pages.socket();
    let output = run(&["restart", "containerd", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "containerd: process 4711 before, process 4712 now; containers continued\n"
    );
    let output = run(&["restart", "logkeeper", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(
        why.contains("process 4713, is managed neither by this daemon nor as a service"),
        "{why}"
    );
}
