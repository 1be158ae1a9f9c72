//! The pages for the node's part in a swarm, with an actor that reaches no manager.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;
use switchyard_core::id::Owner;
use switchyard_core::operation::Operations;
use switchyard_core::reload::Reloadable;
use switchyard_daemon::reports::swarm::SwarmHandle;
use switchyard_operator_api::SwarmView;
use switchyard_socket::channel;
use switchyard_swarm::test_util::MakeIdle;
use switchyard_swarm::{NodeParts, SwarmNode, WaitingServices};

use super::node::TestNode;
use super::{Pages, run};
use crate::support::soon;

const TOKEN: &str =
    "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";
const SECRET: &str = "0123456789abcdefghijklmno";

/// Pages of a node that may take part in a swarm, and is in none.
async fn pages() -> Pages {
    let node = TestNode::new().await;
    let (swarm, actor) = SwarmNode::new(NodeParts {
        dir: node.dir.path().join("swarm"),
        join_by_file: None,
        scope: node.gateway.scope(Owner::Swarm),
        operations: Operations::default(),
        // The node never becomes a member here.
        maker: Arc::new(MakeIdle),
        image_retention: Reloadable::default(),
        waiting: WaitingServices::default(),
    });
    tokio::spawn(actor.run());
    Pages::serve(node.with_swarm(Arc::new(SwarmHandle::new(swarm)))).await
}

async fn post(pages: &Pages, body: impl Into<Bytes>) -> (StatusCode, String) {
    let socket = pages.node.dir.path().join("admin.sock");
    let answer = soon(
        "an answer",
        channel::post_json(&socket, "/v1/swarm/join", body.into()),
    )
    .await;
    let (status, body) = answer.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn view(pages: &Pages) -> SwarmView {
    let (status, body) = pages.get("/v1/swarm").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn membership_is_served_on_the_unix_socket_only() {
    let outside = Pages::serve(TestNode::new().await).await;
    for (method, path) in [
        (Method::GET, "/v1/swarm"),
        (Method::DELETE, "/v1/swarm"),
        (Method::POST, "/v1/swarm/join"),
    ] {
        let (status, body) = outside.ask(method, path).await;
        let why = "this node takes part in no swarm: swarm.enabled is false in its configuration\n";
        assert_eq!(
            (status, body.as_str()),
            (StatusCode::CONFLICT, why),
            "{path}"
        );
    }
    let pages = pages().await;
    assert_eq!(view(&pages).await.state, "not_joined");
    assert!(pages.get_tcp("/v1/swarm").await.starts_with("HTTP/1.1 404"));
    let (status, body) = pages.ask(Method::DELETE, "/v1/swarm").await;
    assert_eq!(
        (status, body.as_str()),
        (StatusCode::CONFLICT, "this node is in no swarm\n")
    );
    assert!(
        pages
            .get("/metrics")
            .await
            .1
            .contains("\nswitchyard_swarm_member 0\n")
    );
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_never_shown() {
    let pages = pages().await;
    let (status, body) = post(&pages, vec![b' '; (16 << 10) + 1]).await;
    assert!(
        status == StatusCode::PAYLOAD_TOO_LARGE && body.contains("16384 bytes"),
        "{body}"
    );
    let deep = "[".repeat(16 << 10);
    for wrong in [
        deep,
        format!("{{\"token\": {SECRET}}}"),
        String::new(),
        format!("\"{TOKEN}\""),
    ] {
        let (status, body) = post(&pages, wrong).await;
        assert!(
            status == StatusCode::BAD_REQUEST && !body.contains(SECRET),
            "{body}"
        );
    }
    let wrong = json!({ "token": format!("{TOKEN}x"), "managers": ["m"] }).to_string();
    let (status, body) = post(&pages, wrong).await;
    assert!(
        status == StatusCode::BAD_REQUEST && body.contains("join token is not valid"),
        "{body}"
    );
    assert!(!body.contains(SECRET), "{body}");
    assert_eq!(view(&pages).await.state, "not_joined");
}

#[tokio::test(flavor = "multi_thread")]
async fn join_in_progress_is_told_and_can_be_given_up() {
    let pages = pages().await;
    let socket = pages.socket();
    let token = pages.node.dir.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let token = token.display().to_string();
    let joining = {
        let (token, socket) = (token.clone(), socket.clone());
        tokio::spawn(async move {
            run(&[
                "swarm",
                "join",
                "--token-file",
                &token,
                "127.0.0.1:1",
                "--socket",
                &socket,
            ])
            .await
        })
    };
    let begun = async {
        while view(&pages).await.state != "joining" {
            assert!(!joining.is_finished(), "{:?}", view(&pages).await);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    soon("the join", begun).await;
    let second = run(&[
        "swarm",
        "join",
        "--token-file",
        &token,
        "127.0.0.1:1",
        "--socket",
        &socket,
    ])
    .await;
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(
        second.status.code() == Some(1) && text.contains("joining a swarm already"),
        "{text}"
    );
    let left = run(&["swarm", "leave", "--socket", &socket]).await;
    assert_eq!(
        String::from_utf8(left.stdout).unwrap(),
        "this node has left the swarm\n"
    );
    let joined = soon("its end", joining).await.unwrap();
    let text = String::from_utf8(joined.stderr).unwrap();
    assert!(
        joined.status.code() == Some(1) && text.contains("was given up"),
        "{text}"
    );
    assert!(
        text.contains("every user can read the join token") && !text.contains(SECRET),
        "{text}"
    );
    let status = run(&["swarm", "status", "--socket", &socket]).await;
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(
        status.status.success() && text.contains("before       has left a swarm\n"),
        "{text}"
    );
}
