//! Sockets that outlive the process that handed them over.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use switchyard_logkeeper::protocol::FaultKind;
use switchyard_logkeeper::{Error, Lifeline};
use tokio::time::{Instant, sleep};

use crate::support::{PATIENCE, Site};

/// A client's socket and the server's; the server's reports when the last descriptor of the client's is
/// closed.
fn pair() -> (UnixStream, UnixStream) {
    let (client, server) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    (client, server)
}

fn is_open(mut server: &UnixStream) -> bool {
    match server.read(&mut [0]) {
        Ok(read) => read > 0,
        // The client's socket was closed with unread data in it.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            true
        }
    }
}

#[tokio::test]
async fn held_socket_survives_its_owner_and_connection() {
    let site = Site::new();
    let keeper = site.start().await;
    let (client, server) = pair();
    let mut lifeline = Lifeline::connect(&site.config.socket).await.unwrap();
    lifeline.hold(client.as_fd(), false).await.unwrap();
    drop(client);
    // The answer proves that the keeper has processed everything before.
    site.client.stats().await.unwrap();
    assert!(is_open(&server));
    drop(lifeline);
    sleep(Duration::from_millis(50)).await;
    site.client.stats().await.unwrap();
    assert!(is_open(&server));
    keeper.stop().await;
    assert!(!is_open(&server));
}

#[tokio::test]
async fn held_call_socket_is_closed_after_its_answer() {
    let site = Site::new();
    let keeper = site.start().await;
    for one_call in [true, false] {
        let (client, mut server) = pair();
        let mut lifeline = Lifeline::connect(&site.config.socket).await.unwrap();
        lifeline.hold(client.as_fd(), one_call).await.unwrap();
        // What is sent while the owner lives is for the owner.
        server.write_all(b"first").unwrap();
        (&client).read_exact(&mut [0; 5]).unwrap();
        drop((client, lifeline));
        sleep(Duration::from_millis(1200)).await;
        assert!(is_open(&server), "it may still work on the next call");
        server.write_all(b"answer").unwrap();
        let closed = async {
            while is_open(&server) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(3), closed)
                .await
                .is_ok(),
            one_call
        );
    }
    keeper.stop().await;
}

#[tokio::test]
async fn released_socket_is_closed_at_once() {
    let site = Site::new();
    let keeper = site.start().await;
    let (client, server) = pair();
    let mut lifeline = Lifeline::connect(&site.config.socket).await.unwrap();
    lifeline.hold(client.as_fd(), false).await.unwrap();
    drop(client);
    lifeline.release().await.unwrap();
    assert!(!is_open(&server));
    // The lifeline is still usable.
    let (client, server) = pair();
    lifeline.hold(client.as_fd(), false).await.unwrap();
    drop(client);
    assert!(is_open(&server));
    keeper.stop().await;
    tokio::time::timeout(PATIENCE, lifeline.broken())
        .await
        .unwrap();
}

#[tokio::test]
async fn held_sockets_are_limited_and_those_of_daemons_that_are_gone_give_way() {
    let site = Site::new();
    let keeper = site.start().await;
    let mut servers = Vec::new();
    let mut former = Lifeline::connect(&site.config.socket).await.unwrap();
    let refused = loop {
        let (client, server) = pair();
        if let Err(error) = former.hold(client.as_fd(), false).await {
            break error;
        }
        servers.push(server);
    };
    assert!(
        matches!(refused, Error::Refused { ref fault, .. } if fault.kind == FaultKind::Busy),
        "{refused}"
    );
    let mut lifeline = Lifeline::connect(&site.config.socket).await.unwrap();
    let (client, server) = pair();
    assert!(
        lifeline.hold(client.as_fd(), false).await.is_err(),
        "the other daemon runs"
    );
    drop(former);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = lifeline.hold(client.as_fd(), false).await {
        assert!(Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(5)).await;
    }
    drop(client);
    let open = servers.iter().filter(|server| is_open(server)).count();
    assert_eq!(
        (open, is_open(&servers[0])),
        (servers.len() - 1, false),
        "the oldest has given way, and no other"
    );
    assert!(is_open(&server));
    drop(servers);
    for _ in 0..3 {
        let (client, _server) = pair();
        lifeline.hold(client.as_fd(), false).await.unwrap();
    }
    keeper.stop().await;
}
