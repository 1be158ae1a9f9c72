//! Clients between two daemons.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn client_that_connects_between_two_daemons_is_answered_by_the_second() {
    let node = ServedDaemon::new();
    let daemon = node.serve(&Fake::with_busybox());
    node.ready().await;
    node.listeners_are_stored().await;
    daemon.stop().await.unwrap();
    let early = tokio::net::UnixStream::connect(node.path("run/admin.sock"))
        .await
        .unwrap();
    let daemon = node.serve(&Fake::with_busybox());
    node.ready().await;
    let answered = async {
        let mut early = early;
        let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        early.write_all(request).await.unwrap();
        let mut answer = String::new();
        early.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = soon("the early client to be answered", answered).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    daemon.stop().await.unwrap();
}
