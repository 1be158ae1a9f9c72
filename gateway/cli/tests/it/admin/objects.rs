//! Tests of images, of a single object, and of filters and watches on the command line.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use http::StatusCode;
use switchyard_core::Error;
use switchyard_operator_api::{DevicesView, Disclosure, ImageView, InspectionView, Objects};

use super::{Pages, down, part, run, up};
use crate::support::exe;

/// The names of the only object.
const NAMES: [&str; 2] = ["shop/web 1/a%2Fb", "../x"];

/// The only object of the status source, under several strange names.
pub(super) fn inspect(name: &str, disclosure: Disclosure) -> switchyard_core::Result<InspectionView> {
    if !NAMES.contains(&name) {
        return Err(Error::not_found(format!("nothing has the name {name:?}")));
    }
    let value = (disclosure == Disclosure::Secrets).then(|| "hunter2".to_owned());
    Ok(InspectionView {
        kind: "task".into(),
        display_name: name.into(),
        environment: BTreeMap::from([("TOKEN".to_owned(), value)]),
        ..InspectionView::default()
    })
}

/// The images of the status source.
pub(super) fn images() -> Vec<ImageView> {
    let held = |tag: &str, owner: &str| ImageView {
        tags: vec![tag.to_owned()],
        holders: BTreeMap::from([(owner.to_owned(), "open".to_owned())]),
        ..ImageView::default()
    };
    vec![held("docker.io/library/one:1", "kubernetes"), held("docker.io/library/two:2", "nomad")]
}

#[tokio::test]
async fn object_names_are_served_on_the_unix_socket_only() {
    let pages = Pages::serve().await;
    let (status, body) = pages.get("/v1/objects").await;
    assert_eq!(status, StatusCode::OK);
    let objects: Objects = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (objects.sandboxes[0].name.as_str(), &*objects.sandboxes[0].names["pod"]),
        ("web_shop_u1_0", "web")
    );
    assert!(pages.get_tcp("/v1/objects").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_status_and_objects() {
    let pages = Pages::serve().await;
    pages.set(vec![part("cri", true, up()), part("network", false, down())]);
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["status", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(" is ready, process ") && text.contains("network  failed (not needed)  gone"),
        "{text}"
    );
    assert!(text.contains("runc     1.1.0    CVE-2024-21626\n"), "{text}");
    let output = run(&["ps", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ababababababa  kubernetes  shop/web  ready  "), "{text}");
    let output = run(&["ps", "--socket", &socket, "--output", "json"]).await;
    assert!(serde_json::from_slice::<Objects>(&output.stdout).is_ok());

    pages.set(vec![part("cri", true, down())]);
    let output = run(&["status", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test]
async fn object_is_inspected_by_any_name_and_its_secrets_only_if_asked_for() {
    let pages = Pages::serve().await;
    let query = |name: &str| url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>();
    for name in NAMES {
        let (status, body) = pages.get(&format!("/v1/inspect?name={}", query(name))).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let view: InspectionView = serde_json::from_str(&body).unwrap();
        assert_eq!(view, inspect(name, Disclosure::Names).unwrap());
        assert!(!body.contains("hunter2"));
        let (_, body) = pages.get(&format!("/v1/inspect?name={}&env=true", query(name))).await;
        assert!(body.contains("hunter2"), "{body}");
    }
    assert_eq!(pages.get("/v1/inspect?name=other").await.0, StatusCode::NOT_FOUND);
    for wrong in ["", "?env=true", "?name=a&env=1", "?name=a&who=b"] {
        let (status, why) = pages.get(&format!("/v1/inspect{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {why}");
    }
    assert!(pages.get_tcp("/v1/inspect?name=../x").await.starts_with("HTTP/1.1 404"));
    assert!(pages.get_tcp("/v1/images").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn lists_are_filtered_by_owner() {
    let pages = Pages::serve().await;
    let (_, body) = pages.get("/v1/images?owner=nomad").await;
    assert_eq!(serde_json::from_str::<Vec<ImageView>>(&body).unwrap(), images()[1..]);
    let (_, body) = pages.get("/v1/objects?owner=nomad").await;
    assert_eq!(serde_json::from_str::<Objects>(&body).unwrap(), Objects::default());
    let (_, body) = pages.get("/v1/objects?owner=kubernetes").await;
    assert_eq!(serde_json::from_str::<Objects>(&body).unwrap().sandboxes.len(), 1);
    let (_, body) = pages.get("/v1/devices?owner=kubernetes").await;
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!((devices.slots.len(), devices.ports.len(), devices.compute.reserved.len()), (0, 1, 0));
    assert_eq!((devices.groups[0].held.len(), devices.refusals.len()), (0, 1));
    let (_, body) = pages.get("/v1/devices?owner=nomad").await;
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!((devices.slots.len(), devices.ports.len(), devices.compute.exclusive.len()), (2, 0, 1));
    for page in ["objects", "images", "devices"] {
        for wrong in ["owner=root", "owners=nomad", "owner=nomad&owner=host"] {
            let (status, why) = pages.get(&format!("/v1/{page}?{wrong}")).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{page} {wrong}: {why}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_shows_what_was_found_and_fails_for_what_was_not() {
    let pages = Pages::serve().await;
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["inspect", NAMES[0], "none", NAMES[1], "-o", "json", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(1));
    let found: Vec<InspectionView> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found.iter().map(|view| view.display_name.as_str()).collect::<Vec<_>>(), NAMES);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "switchyard: nothing has the name \"none\"\n");
    let output = run(&["inspect", NAMES[1], "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("environment  TOKEN\n"), "{text}");
    let output = run(&["inspect", NAMES[1], "--env", "--socket", &socket]).await;
    assert!(String::from_utf8(output.stdout).unwrap().contains("environment  TOKEN=hunter2\n"));
    let output = run(&["images", "--owner", "nomad", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("two:2") && !text.contains("one:1"), "{text}");
    let output = run(&["ps", "--state", "exited", "--socket", &socket]).await;
    assert!(!String::from_utf8(output.stdout).unwrap().contains("shop/web"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_one_document_a_line_and_ends_with_its_reader() {
    let pages = Pages::serve().await;
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let watched = move |words: &'static [&'static str], lines: usize| {
        let mut watch = Command::new(exe())
            .args(words)
            .args(["--watch=0.1", "--socket", &socket])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(watch.stdout.take().unwrap());
        let read: Vec<String> = output.lines().take(lines).map(Result::unwrap).collect();
        // The pipe is closed now, which ends the watch without an error.
        assert!(watch.wait().unwrap().success());
        read
    };
    let lines = tokio::task::spawn_blocking(move || {
        for line in watched(&["ps", "--output", "json"], 3) {
            assert_eq!(serde_json::from_str::<Objects>(&line).unwrap().sandboxes.len(), 1);
        }
        watched(&["images"], 8)
    });
    let lines = lines.await.unwrap();
    assert_eq!((lines[3].as_str(), &lines[4..7], &lines[0..3]), ("", &lines[0..3], &lines[4..7]));
    assert!(lines[0].starts_with("IMAGE ") && lines[1].starts_with("one:1 "), "{lines:?}");
}
