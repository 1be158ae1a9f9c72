//! Tests of the pages about replaced programs, and of restarts on request.

use http::{Method, StatusCode};
use switchyard_operator_api::RestartReport;

use super::{Pages, run};

#[tokio::test(flavor = "multi_thread")]
async fn replaced_program_is_shown_with_what_to_do() {
    let pages = Pages::serve().await;
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["status", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let told = "containerd (process 4711) goes on with a former /usr/bin/containerd: `switchyard restart containerd`";
    assert!(text.contains(told), "{text}");
    let (_, metrics) = pages.get("/metrics").await;
    assert!(metrics.contains("switchyard_replaced_programs{part=\"containerd\"} 1\n"), "{metrics}");
    let network = pages.get_tcp("/statusz").await;
    assert!(!network.contains("4711") && !network.contains("/usr/bin"), "{network}");
}

#[tokio::test(flavor = "multi_thread")]
async fn part_is_restarted_on_the_unix_socket_only() {
    let pages = Pages::serve().await;
    let (status, body) = pages.ask(Method::POST, "/v1/restart/containerd").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let done: RestartReport = serde_json::from_str(&body).unwrap();
    assert_eq!((done.before, done.after), (Some(4711), 4712));
    assert_eq!(pages.get("/v1/restart/containerd").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let (status, why) = pages.ask(Method::POST, "/v1/restart/daemon").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(why.contains("\"daemon\" cannot be restarted by itself"), "{why}");
    let request = "POST /v1/restart/containerd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(pages.say(request).await.starts_with("HTTP/1.1 404 "));

    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["restart", "containerd", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "containerd: process 4711 before, process 4712 now; containers went on\n");
    let output = run(&["restart", "logkeeper", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("process 4713, is managed neither by this daemon nor as a service"), "{why}");
}
