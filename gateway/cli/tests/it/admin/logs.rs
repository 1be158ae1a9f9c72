//! The page with the location of a task's log.

use http::StatusCode;
use switchyard_core::id::Owner;
use switchyard_core::spec::{Output, Stdio, TaskSpec};
use switchyard_logkeeper::reader::LogLocation;
use switchyard_operator::owners::{OwnerFunctions, Owners};
use switchyard_operator_api::{LogView, TaskLogView};

use super::Pages;
use super::node::{LOGKEEPER, TestNode, endless, labelled};

#[tokio::test]
async fn place_of_a_log_is_told_on_the_unix_socket_alone() {
    let owners = Owners::new(|_| OwnerFunctions {
        log: |_, task| {
            let name = task.meta.labels["task"].clone();
            Ok(LogLocation::Plain {
                root: "/a".into(),
                dir: "alloc/logs".into(),
                name,
            })
        },
        ..OwnerFunctions::default()
    });
    let pages = Pages::serve(TestNode::new().await.with_owners(owners)).await;
    let spec = endless(Owner::Nomad, "shop/web (3a7c)");
    let meta = labelled(spec.meta.clone(), "task", "web");
    let task = pages.node.run(TaskSpec { meta, ..spec }).await;
    let (status, body) = pages.get("/v1/tasks/log?name=shop%2Fweb+(3a7c)").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: TaskLogView = serde_json::from_str(&body).unwrap();
    let expected = TaskLogView {
        id: task.id.to_string(),
        owner: "nomad".into(),
        display_name: "shop/web (3a7c)".into(),
        state: "running".into(),
        is_complete: false,
        log: LogView::Plain {
            root: "/a".into(),
            dir: "alloc/logs".into(),
            name: "web".into(),
        },
    };
    assert_eq!(view, expected);
    pages.node.fake.exit(task.id, 0).unwrap();
    pages
        .node
        .gateway
        .scope(Owner::Nomad)
        .tasks()
        .wait(&expected.id)
        .await
        .unwrap();
    let (_, body) = pages.get("/v1/tasks/log?name=shop%2Fweb+(3a7c)").await;
    let view: TaskLogView = serde_json::from_str(&body).unwrap();
    assert_eq!(
        view,
        TaskLogView {
            state: "exited".into(),
            is_complete: true,
            ..expected
        }
    );
    let (status, body) = pages.get("/v1/tasks/log?name=other").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(
        body.starts_with("nothing has the name \"other\", or an id that begins so"),
        "{body}"
    );
    assert!(
        pages
            .get_tcp("/v1/tasks/log?name=shop%2Fweb+(3a7c)")
            .await
            .starts_with("HTTP/1.1 404")
    );
}

#[tokio::test]
async fn place_of_a_log_is_told_although_the_logkeeper_is_away() {
    let pages = Pages::serve(TestNode::new().await).await;
    let path = pages.node.dir.path().join("0.log");
    let stdio = Stdio {
        output: Output::Log(path.clone()),
        ..Stdio::default()
    };
    let task = pages
        .node
        .run(TaskSpec {
            stdio,
            ..endless(Owner::Swarm, "web")
        })
        .await;
    pages.node.fake.exit(task.id, 0).unwrap();
    pages
        .node
        .gateway
        .scope(Owner::Swarm)
        .tasks()
        .wait(&task.id.to_string())
        .await
        .unwrap();
    // Its client waits for one that is started again, for longer than a page waits.
    std::fs::remove_file(pages.node.dir.path().join(LOGKEEPER)).unwrap();
    let (status, body) = pages.get(&format!("/v1/tasks/log?name={}", task.id)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: TaskLogView = serde_json::from_str(&body).unwrap();
    assert!(
        !view.is_complete && matches!(&view.log, LogView::Cri { .. }),
        "{view:?}"
    );
}
