//! The named volumes of the node.

use http::{Method, StatusCode};
use switchyard_core::Error;
use switchyard_core::id::Owner;
use switchyard_operator_api::VolumeView;

use super::{Pages, run};

/// The volumes of the stub.
pub(super) fn all() -> Vec<VolumeView> {
    let volume = |owner: &str, name: &str, tasks: &[&str]| VolumeView {
        owner: owner.into(),
        name: name.into(),
        created_at: None,
        tasks: tasks.iter().map(|task| task.repeat(32)).collect(),
    };
    vec![volume("nomad", "cache", &["ab"]), volume("swarm", "data", &[]), volume("swarm", "used", &["cd"])]
}

/// Removes nothing that is used or not there.
pub(super) fn remove(owner: Owner, name: &str) -> switchyard_core::Result<()> {
    let known = all().into_iter().find(|volume| volume.owner == owner.as_str() && volume.name == name);
    match known {
        None => Err(Error::not_found(format!("{owner} has no volume {name:?}"))),
        Some(volume) if volume.tasks.is_empty() => Ok(()),
        Some(_) => Err(Error::failed_precondition(format!("volume {name:?} is used by task cd"))),
    }
}

#[tokio::test]
async fn volumes_are_listed_and_removed_on_the_unix_socket_only() {
    let pages = Pages::serve().await;
    let (status, body) = pages.get("/v1/volumes?owner=swarm").await;
    assert_eq!(
        (status, serde_json::from_str::<Vec<VolumeView>>(&body).unwrap()),
        (StatusCode::OK, all()[1..].to_vec())
    );
    for (path, expected) in [
        ("/v1/volumes/swarm/data", StatusCode::NO_CONTENT),
        ("/v1/volumes/swarm/used", StatusCode::CONFLICT),
        ("/v1/volumes/nomad/data", StatusCode::NOT_FOUND),
        ("/v1/volumes/nobody/data", StatusCode::BAD_REQUEST),
        ("/v1/volumes/swarm/..%2fdata", StatusCode::BAD_REQUEST),
        ("/v1/volumes/swarm/%00", StatusCode::BAD_REQUEST),
    ] {
        let (status, text) = pages.ask(Method::DELETE, path).await;
        assert_eq!(status, expected, "{path}: {text}");
    }
    assert!(pages.get_tcp("/v1/volumes").await.starts_with("HTTP/1.1 404"));
    let words = "DELETE /v1/volumes/swarm/data HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(pages.say(words).await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_lists_and_removes_volumes() {
    let pages = Pages::serve().await;
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["volume", "ls", "--owner", "swarm", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "OWNER  NAME  AGE  TASKS\nswarm  data  -    -\nswarm  used  -    cdcdcdcdcdcdc\n");
    let output = run(&["volume", "rm", "data", "used", "data", "--socket", &socket]).await;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"removed data\n"[..]));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "switchyard: volume \"used\" is used by task cd\n");
    let output = run(&["volume", "rm", "--owner", "nomad", "data", "--socket", &socket]).await;
    assert!(String::from_utf8(output.stderr).unwrap().contains("nomad has no volume \"data\""));
    let output = run(&["volume", "rm", "../data", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(2));
}
