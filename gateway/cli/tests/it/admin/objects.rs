//! Tests of images, of a single object, and of filters and watches on the command line.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use http::StatusCode;
use switchyard_core::backend::{Advisory, Trouble};
use switchyard_core::id::Owner;
use switchyard_fake::BUSYBOX;
use switchyard_operator::status::Part;
use switchyard_operator_api::text::short;
use switchyard_operator_api::{DevicesView, Disclosure, ImageView, InspectionView, Objects};

use super::devices::Held;
use super::node::{IMAGES, TestNode, broken, endless, pod};
use super::{Pages, down, run, up};
use crate::support::exe;

/// The names of tasks that are strange.
const NAMES: [&str; 2] = ["shop/web 1/a%2Fb", "../x"];

/// The pages of a node with a pod.
async fn with_pod() -> Pages {
    let node = TestNode::new().await;
    node.sandbox(pod()).await;
    Pages::serve(node).await
}

/// The pages of a node with tasks of strange names and a secret in the environment.
async fn with_secrets() -> Pages {
    let node = TestNode::new().await;
    for name in NAMES {
        let task = node.run(endless(Owner::Nomad, name)).await;
        let process = serde_json::json!({ "args": ["serve"], "env": ["TOKEN=hunter2"] });
        node.fake.set_runtime_spec(
            task.id,
            serde_json::json!({ "process": process }).to_string(),
        );
    }
    Pages::serve(node).await
}

#[tokio::test]
async fn object_names_are_served_on_the_unix_socket_only() {
    let pages = with_pod().await;
    let (status, body) = pages.get("/v1/objects").await;
    assert_eq!(status, StatusCode::OK);
    let objects: Objects = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (
            objects.sandboxes[0].name.as_str(),
            &*objects.sandboxes[0].names["pod"]
        ),
        ("web_shop_u1_0", "web")
    );
    assert!(
        pages
            .get_tcp("/v1/objects")
            .await
            .starts_with("HTTP/1.1 404")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_status_and_objects() {
    let pages = with_pod().await;
    pages.node.reporter.set([Part::needed("cri", up())]);
    let runc = Advisory {
        program: "runc".into(),
        version: "1.1.0".into(),
        ids: vec!["CVE-2024-21626".into()],
    };
    pages.node.change_status(|status| {
        status.network = broken();
        status.advisories = vec![runc];
        status.troubles = BTreeMap::from([(Trouble::SilentShim, vec!["gone".to_owned()])]);
    });
    pages.node.use_network().await;
    let socket = pages.socket();
    let output = run(&["status", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(" is ready, process ")
            && text.contains("network   failed (the node stays ready)  Broken: gone"),
        "{text}"
    );
    assert!(
        text.contains("runc     1.1.0    CVE-2024-21626\n"),
        "{text}"
    );
    assert!(text.contains("silent_shim  1      gone\n"), "{text}");
    let limits = text
        .lines()
        .find(|line| line.starts_with("limits in use: "));
    assert!(
        limits.is_some_and(|line| line.contains("open_files") && line.contains(" % (")),
        "{text}"
    );
    assert!(
        text.contains("apparmor         it is off\n") && !text.contains("openat2"),
        "{text}"
    );
    let output = run(&["ps", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let sandboxes = pages
        .node
        .gateway
        .scope(Owner::Kubernetes)
        .sandboxes()
        .list()
        .unwrap();
    let id = short(&sandboxes[0].id.to_string());
    assert!(
        text.contains(&format!("{id}  kubernetes  shop/web  ready  ")),
        "{text}"
    );
    let output = run(&["ps", "--socket", &socket, "--output", "json"]).await;
    let objects: Objects = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(objects, pages.node.node().objects());

    pages.node.reporter.set([Part::needed("cri", down())]);
    let output = run(&["status", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_the_inside_of_the_daemon_and_why_images_stay() {
    let pages = with_pod().await;
    let socket = pages.socket();
    let output = run(&["debug", "--socket", &socket, "--output", "json"]).await;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    let inside = &report["inside"];
    assert_eq!(inside["pid"], std::process::id(), "{report:#}");
    assert_eq!(inside["tasks"]["tracked"]["operations"], 0, "{report:#}");
    assert!(
        inside["memory"]["Rss"].as_u64() > Some(0) && report.get("outside").is_none(),
        "{report:#}"
    );
    assert!(pages.get_tcp("/v1/debug").await.starts_with("HTTP/1.1 404"));

    let output = run(&["status", "--verbose", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("FACT") && text.contains("\nbackend"),
        "{text}"
    );
    let output = run(&["images", "--why", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("WHY IT STAYS") && text.contains("busybox:latest"),
        "{text}"
    );
}

#[tokio::test]
async fn object_is_inspected_by_any_name_and_its_secrets_only_if_asked_for() {
    let pages = with_secrets().await;
    let query =
        |name: &str| url::form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>();
    for name in NAMES {
        let (status, body) = pages
            .get(&format!("/v1/inspect?name={}", query(name)))
            .await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let view: InspectionView = serde_json::from_str(&body).unwrap();
        assert_eq!(
            view,
            pages
                .node
                .node()
                .inspect(name, Disclosure::Names)
                .await
                .unwrap()
        );
        assert_eq!(
            (view.kind.as_str(), view.display_name.as_str()),
            ("task", name)
        );
        assert_eq!(
            view.environment,
            BTreeMap::from([("TOKEN".to_owned(), None)])
        );
        assert!(!body.contains("hunter2"));
        let (_, body) = pages
            .get(&format!("/v1/inspect?name={}&env=true", query(name)))
            .await;
        let view: InspectionView = serde_json::from_str(&body).unwrap();
        assert_eq!(
            view.environment,
            BTreeMap::from([("TOKEN".to_owned(), Some("hunter2".to_owned()))])
        );
    }
    assert_eq!(
        pages.get("/v1/inspect?name=other").await.0,
        StatusCode::NOT_FOUND
    );
    for wrong in ["", "?env=true", "?name=a&env=1", "?name=a&who=b"] {
        let (status, why) = pages.get(&format!("/v1/inspect{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {why}");
    }
    assert!(
        pages
            .get_tcp("/v1/inspect?name=../x")
            .await
            .starts_with("HTTP/1.1 404")
    );
    assert!(
        pages
            .get_tcp("/v1/images")
            .await
            .starts_with("HTTP/1.1 404")
    );
}

#[tokio::test]
async fn lists_are_filtered_by_owner() {
    let node = TestNode::new().await;
    Held::on(&node).await;
    for (owner, image) in [Owner::Kubernetes, Owner::Nomad].into_iter().zip(IMAGES) {
        node.pull(owner, image).await;
    }
    let pages = Pages::serve(node).await;
    let (_, body) = pages.get("/v1/images?owner=nomad").await;
    let images = serde_json::from_str::<Vec<ImageView>>(&body).unwrap();
    // The task of Nomad uses the first one, which the host has pulled.
    assert_eq!(
        images
            .iter()
            .map(|image| image.tags.as_slice())
            .collect::<Vec<_>>(),
        [[BUSYBOX], [IMAGES[1]]]
    );
    assert_eq!(
        images[1].holders,
        BTreeMap::from([("nomad".to_owned(), "open".to_owned())])
    );
    let (_, body) = pages.get("/v1/objects?owner=swarm").await;
    assert_eq!(
        serde_json::from_str::<Objects>(&body).unwrap(),
        Objects::default()
    );
    let (_, body) = pages.get("/v1/objects?owner=kubernetes").await;
    let objects = serde_json::from_str::<Objects>(&body).unwrap();
    assert_eq!((objects.sandboxes.len(), objects.tasks.len()), (1, 0));
    let (_, body) = pages.get("/v1/objects?owner=nomad").await;
    let objects = serde_json::from_str::<Objects>(&body).unwrap();
    assert_eq!((objects.sandboxes.len(), objects.tasks.len()), (1, 1));
    let (_, body) = pages.get("/v1/devices?owner=kubernetes").await;
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (
            devices.slots.len(),
            devices.ports.len(),
            devices.compute.reserved.len()
        ),
        (0, 1, 0)
    );
    assert_eq!(
        (devices.groups[0].held.len(), devices.refusals.len()),
        (0, 1)
    );
    let (_, body) = pages.get("/v1/devices?owner=nomad").await;
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (
            devices.slots.len(),
            devices.ports.len(),
            devices.compute.exclusive.len()
        ),
        (2, 0, 1)
    );
    for page in ["objects", "images", "devices"] {
        for wrong in ["owner=root", "owners=nomad", "owner=nomad&owner=host"] {
            let (status, why) = pages.get(&format!("/v1/{page}?{wrong}")).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{page} {wrong}: {why}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_shows_what_was_found_and_fails_for_what_was_not() {
    let pages = with_secrets().await;
    pages.node.sandbox(pod()).await;
    for (owner, image) in [Owner::Kubernetes, Owner::Nomad].into_iter().zip(IMAGES) {
        pages.node.pull(owner, image).await;
    }
    let socket = pages.socket();
    let output = run(&[
        "inspect", NAMES[0], "none", NAMES[1], "-o", "json", "--socket", &socket,
    ])
    .await;
    assert_eq!(output.status.code(), Some(1));
    let found: Vec<InspectionView> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        found
            .iter()
            .map(|view| view.display_name.as_str())
            .collect::<Vec<_>>(),
        NAMES
    );
    let why = "switchyard: nothing has the name \"none\", or an id that begins so: `switchyard ps` lists sandboxes and tasks\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), why);
    let output = run(&["inspect", NAMES[1], "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("environment  TOKEN\n"),
        "{text}"
    );
    let output = run(&["inspect", NAMES[1], "--env", "--socket", &socket]).await;
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("environment  TOKEN=hunter2\n")
    );
    let output = run(&["images", "--owner", "nomad", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("two:2") && !text.contains("one:1"), "{text}");
    let output = run(&["ps", "--state", "exited", "--socket", &socket]).await;
    assert!(
        !String::from_utf8(output.stdout)
            .unwrap()
            .contains("shop/web")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_one_document_a_line_and_ends_with_its_reader() {
    let pages = with_pod().await;
    pages.node.pull(Owner::Kubernetes, IMAGES[0]).await;
    let socket = pages.socket();
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
            assert_eq!(
                serde_json::from_str::<Objects>(&line)
                    .unwrap()
                    .sandboxes
                    .len(),
                1
            );
        }
        watched(&["images"], 8)
    });
    let lines = lines.await.unwrap();
    assert_eq!(
        (lines[3].as_str(), &lines[4..7], &lines[0..3]),
        ("", &lines[0..3], &lines[4..7])
    );
    assert!(
        lines[0].starts_with("IMAGE ") && lines[2].starts_with("one:1 "),
        "{lines:?}"
    );
}
