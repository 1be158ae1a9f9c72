//! Images that an owner gives up.

use std::path::Path;

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::routing::{delete, get};
use http::{Method, Request, StatusCode};
use switchyard_config::ContainerMetrics;
use switchyard_contract::specs;
use switchyard_core::id::Owner;
use switchyard_fake::Method as BackendMethod;
use switchyard_operator::admin::Reach;
use switchyard_operator_api::text::short_reference;
use switchyard_operator_api::{ImageView, RemovedImageView};
use tokio::net::UnixListener;

use super::node::{IMAGES, TestNode, ask_as_root};
use super::{Pages, run};

/// A node on which Swarm holds both images, the second one together with Nomad, and Kubernetes none.
async fn node() -> TestNode {
    let node = TestNode::new().await;
    let [one, two] = IMAGES;
    for (owner, image) in [
        (Owner::Swarm, one),
        (Owner::Swarm, two),
        (Owner::Nomad, two),
    ] {
        node.pull(owner, image).await;
    }
    node
}

async fn pages() -> Pages {
    Pages::serve(node().await).await
}

async fn unused(pages: &Pages, owner: &str) -> Vec<String> {
    let (status, body) = pages.get(&format!("/v1/images/unused?owner={owner}")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let images: Vec<ImageView> = serde_json::from_str(&body).unwrap();
    images.into_iter().flat_map(|image| image.tags).collect()
}

async fn remove(pages: &Pages, owner: &str, name: &str) -> (StatusCode, String) {
    let path = format!("/v1/images?owner={owner}&name={name}");
    pages.ask(Method::DELETE, &path).await
}

#[tokio::test]
async fn owner_gives_up_what_it_holds_on_the_unix_socket_only() {
    let pages = pages().await;
    let [one, two] = IMAGES;
    assert_eq!(unused(&pages, "swarm").await, [one, two]);
    assert_eq!(unused(&pages, "nomad").await, [two]);
    assert_eq!(unused(&pages, "kubernetes").await, Vec::<String>::new());
    for (owner, name, expected) in [
        ("nobody", one, StatusCode::BAD_REQUEST),
        (
            "swarm",
            "docker.io/library/no-such:1",
            StatusCode::NOT_FOUND,
        ),
        ("kubernetes", one, StatusCode::CONFLICT),
        ("nomad", one, StatusCode::CONFLICT),
    ] {
        let (status, text) = remove(&pages, owner, name).await;
        assert_eq!(status, expected, "{owner} {name}: {text}");
    }
    let (status, _) = pages.ask(Method::DELETE, "/v1/images?owner=swarm").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let words = format!(
        "DELETE /v1/images?owner=swarm&name={one} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    assert!(pages.say(&words).await.starts_with("HTTP/1.1 404"));

    let gone = |body: &str| serde_json::from_str::<RemovedImageView>(body).unwrap();
    let (_, body) = remove(&pages, "swarm", one).await;
    assert!(gone(&body).is_gone(), "{body}");
    let (_, body) = remove(&pages, "swarm", two).await;
    assert_eq!(gone(&body).holders, ["nomad".to_owned()].into());
    assert_eq!(unused(&pages, "swarm").await, Vec::<String>::new());
    assert_eq!(unused(&pages, "nomad").await, [two]);
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_prunes_images_that_no_task_uses() {
    let pages = pages().await;
    let socket = pages.socket();
    let [one, two] = IMAGES;
    let scope = pages.node.gateway.scope(Owner::Swarm);
    let sandbox = pages
        .node
        .sandbox(specs::sandbox(Owner::Swarm, "web"))
        .await;
    let task = specs::task(Owner::Swarm, "web", one, &["serve"]);
    let task = pages.node.task(&sandbox, task).await;

    let output = run(&["images", "rm", one, "--socket", &socket]).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is used by tasks of swarm"), "{text}");
    // The age of images is not known here.
    let output = run(&["images", "prune", "--older", "24h", "--socket", &socket]).await;
    assert_eq!(output.stdout, b"0 B as downloaded were freed\n");
    let output = run(&["images", "prune", "--socket", &socket]).await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "given up two:2, which stays: held by nomad\n0 B as downloaded were freed\n"
    );
    scope.tasks().remove(&task.id.to_string()).await.unwrap();
    let output = run(&["images", "prune", "--owner", "swarm", "--socket", &socket]).await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "removed one:1\n1.0 MiB as downloaded were freed\n"
    );
    let output = run(&["images", "rm", "--owner", "nomad", two, "--socket", &socket]).await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("removed {two}\n")
    );
    // The owner of a list is not taken for that of a removal.
    let output = run(&["images", "--owner", "nomad", "prune", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(2));
}

/// The answer to the removal of an image, as its name says.
async fn told(Query(query): Query<Vec<(String, String)>>) -> (StatusCode, String) {
    let named = query.into_iter().find(|(key, _)| key == "name");
    let (_, name) = named.unwrap();
    let status = match name.as_str() {
        "used" => StatusCode::CONFLICT,
        "missing" => StatusCode::NOT_FOUND,
        "slow" => StatusCode::ACCEPTED,
        "broken" => StatusCode::GATEWAY_TIMEOUT,
        _ => {
            let removed = RemovedImageView {
                image: name,
                ..RemovedImageView::default()
            };
            return (StatusCode::OK, serde_json::to_string(&removed).unwrap());
        }
    };
    (status, format!("{name} is told\n"))
}

/// Serves these images as unused ones.
fn serve_unused(socket: &Path, names: &[&str]) {
    let image = |name: &&str| ImageView {
        id: (*name).to_owned(),
        size_bytes: 1 << 10,
        ..ImageView::default()
    };
    let unused: Vec<ImageView> = names.iter().map(image).collect();
    let unused = serde_json::to_string(&unused).unwrap();
    let router = Router::new()
        .route("/v1/images/unused", get(async move || unused))
        .route("/v1/images", delete(told));
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_goes_on_and_says_what_it_removed_whatever_becomes_of_one_image() {
    for (names, code, expected) in [
        (
            &["missing", "a", "used", "slow", "b"][..],
            0,
            "removed a\nremoved b\nkept used: used is told\nremoving slow takes longer, and continues\n2.0 KiB as downloaded were freed\n",
        ),
        (&["missing"], 0, "0 B as downloaded were freed\n"),
        (
            &["a", "broken", "b"],
            1,
            "removed a\n1.0 KiB as downloaded were freed\n",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("admin.sock");
        serve_unused(&socket, names);
        let socket = socket.display().to_string();
        let output = run(&["images", "prune", "--socket", &socket]).await;
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        assert_eq!(output.status.code(), Some(code), "{names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_a_tag_is_removed_by_the_name_that_is_shown() {
    let pages = pages().await;
    let socket = pages.socket();
    let (_, listed) = pages.get("/v1/images/unused?owner=swarm").await;
    let images: Vec<ImageView> = serde_json::from_str(&listed).unwrap();
    let [one, _] = IMAGES;
    let held = images.iter().find(|image| image.tags == [one]).unwrap();
    let shown = short_reference(&held.digests[0]);
    assert!(shown.len() < held.digests[0].len(), "{shown}");
    let output = run(&["images", "rm", &shown, "--socket", &socket]).await;
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("removed {shown}\n")
    );
    let output = run(&["images", "rm", &shown, "--socket", &socket]).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the node has no image"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn images_are_not_waited_for_longer_than_a_page_may_take() {
    let node = node().await;
    let router = node.pages(ContainerMetrics::Local).router(Reach::Local);
    let [one, two] = IMAGES;
    let ask = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path);
        ask_as_root(&router, request.body(Body::empty()).unwrap()).await
    };
    let path = |image: &str| format!("/v1/images?owner=swarm&name={image}");
    let listed = "/v1/images/unused?owner=swarm";

    let hold = node.fake.hold(BackendMethod::ListImages);
    let (status, text) = ask(Method::GET, listed).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{text}");
    drop(hold);
    let hold = node.fake.hold(BackendMethod::GetImage);
    let (status, text) = ask(Method::DELETE, &path(one)).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{text}");
    drop(hold);
    let hold = node.fake.hold(BackendMethod::RemoveImage);
    let (status, text) = ask(Method::DELETE, &path(two)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{text}");
    assert!(text.contains("the removal continues"), "{text}");
    drop(hold);
    // It continues, and the removal that never began does not.
    loop {
        let (_, text) = ask(Method::GET, listed).await;
        let unused: Vec<ImageView> = serde_json::from_str(&text).unwrap();
        match &unused[..] {
            [left] => {
                assert_eq!(left.tags, [one]);
                break;
            }
            unused => assert_eq!(unused.len(), 2),
        }
        tokio::task::yield_now().await;
    }
}
