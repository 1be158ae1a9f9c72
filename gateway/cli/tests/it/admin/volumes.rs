//! The named volumes of the node.

use std::path::PathBuf;
use std::sync::Arc;

use http::{Method, StatusCode};
use switchyard_core::id::Owner;
use switchyard_core::object::Task;
use switchyard_core::spec::{Mount, MountSource, TaskSpec};
use switchyard_operator_api::VolumeView;
use switchyard_operator_api::text::short;

use super::node::{TestNode, endless};
use super::{Pages, run};

/// A running task with a volume.
async fn volume_user(node: &TestNode, owner: Owner, volume: &str) -> Arc<Task> {
    let source = MountSource::Volume {
        name: volume.into(),
        sub_path: PathBuf::new(),
        copied: true,
    };
    let name = format!("user of {volume}");
    node.run(TaskSpec {
        mounts: vec![Mount::new("/data", source)],
        ..endless(owner, &name)
    })
    .await
}

/// The pages of a node on which Nomad has the volume `cache`, and Swarm has `data`, which no task has any more, and `used`
/// of this task.
async fn pages() -> (Pages, String) {
    let node = TestNode::new().await;
    volume_user(&node, Owner::Nomad, "cache").await;
    let gone = volume_user(&node, Owner::Swarm, "data").await;
    node.gateway
        .scope(Owner::Swarm)
        .tasks()
        .remove(&gone.id.to_string())
        .await
        .unwrap();
    let user = volume_user(&node, Owner::Swarm, "used")
        .await
        .id
        .to_string();
    (Pages::serve(node).await, user)
}

#[tokio::test]
async fn volumes_are_listed_and_removed_on_the_unix_socket_only() {
    let (pages, user) = pages().await;
    let (status, body) = pages.get("/v1/volumes?owner=swarm").await;
    let volume = |name: &str, tasks: &[&String]| VolumeView {
        owner: "swarm".into(),
        name: name.into(),
        created_at: None,
        tasks: tasks.iter().map(ToString::to_string).collect(),
    };
    let expected = vec![volume("data", &[]), volume("used", &[&user])];
    assert_eq!(
        (
            status,
            serde_json::from_str::<Vec<VolumeView>>(&body).unwrap()
        ),
        (StatusCode::OK, expected)
    );
    let (_, body) = pages.get("/v1/volumes").await;
    assert_eq!(
        serde_json::from_str::<Vec<VolumeView>>(&body)
            .unwrap()
            .len(),
        3
    );
    let words =
        "DELETE /v1/volumes/swarm/data HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(pages.say(words).await.starts_with("HTTP/1.1 404"));
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
    assert!(
        pages
            .get_tcp("/v1/volumes")
            .await
            .starts_with("HTTP/1.1 404")
    );
    let left = pages.node.gateway.volumes().list().await.unwrap();
    assert_eq!(
        left.iter()
            .map(|volume| volume.name.as_str())
            .collect::<Vec<_>>(),
        ["cache", "used"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_lists_and_removes_volumes() {
    let (pages, user) = pages().await;
    let socket = pages.socket();
    let output = run(&["volume", "ls", "--owner", "swarm", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let shown = short(&user);
    assert_eq!(
        text,
        format!("OWNER  NAME  AGE  TASKS\nswarm  data  -    -\nswarm  used  -    {shown}\n")
    );
    let output = run(&["volume", "rm", "data", "used", "data", "--socket", &socket]).await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(1), &b"removed data\n"[..])
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        text,
        format!("switchyard: volume \"used\" is used by task {user}\n")
    );
    let output = run(&[
        "volume", "rm", "--owner", "nomad", "data", "--socket", &socket,
    ])
    .await;
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("nomad has no volume \"data\"")
    );
    let output = run(&["volume", "rm", "../data", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(2));
}
