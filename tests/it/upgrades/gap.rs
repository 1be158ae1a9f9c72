//! The time between two daemons, as clients see it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use switchyard_logkeeper::StoreClient;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

/// Time for the daemon to hand its listeners over, and for a client to be answered.
const LIMIT: Duration = Duration::from_secs(30);

/// The names of the stored listeners whose daemon runs.
fn claimed(node: &TestNode) -> Vec<String> {
    let socket = node.root().run().join("logkeeper/logkeeper.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let Ok(Some(mut store)) = StoreClient::connect(&socket).await else {
            return Vec::new();
        };
        let entries = store.list().await.unwrap_or_default().into_iter();
        entries
            .filter(|entry| entry.claimed)
            .map(|entry| entry.name)
            .collect()
    })
}

/// Connects to the admin socket and sends a request; the answer is read later.
fn ask(node: &TestNode) -> UnixStream {
    let mut client = UnixStream::connect(node.root().run().join("admin.sock"))
        .expect("a client is not refused while no daemon runs");
    client
        .set_read_timeout(Some(LIMIT))
        .expect("the limit is not zero");
    client
        .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("the request fits into the socket");
    client
}

#[test]
fn clients_wait_between_two_daemons_however_the_first_ends() {
    let node = TestNode::start();
    for killed in [true, false, true] {
        assert!(
            eventually(LIMIT, || claimed(&node).contains(&"admin".to_owned())),
            "{}",
            node.daemon().tail()
        );
        if killed {
            node.daemon().kill9();
        } else {
            node.daemon().terminate();
        }
        let mut clients = [ask(&node), ask(&node)];
        node.daemon().spawn();
        node.daemon().wait_ready();
        for client in &mut clients {
            let mut answer = String::new();
            client
                .read_to_string(&mut answer)
                .expect("the next daemon answers");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
    assert_eq!(node.pod("after").run_shell("echo works", |_| {}), "works");
}

#[test]
fn daemon_puts_its_listeners_into_the_next_logkeeper() {
    let node = TestNode::start();
    let is_stored = || eventually(LIMIT, || claimed(&node).contains(&"cri".to_owned()));
    assert!(is_stored(), "{}", node.daemon().tail());
    node.kill_managed("logkeeper");
    assert!(is_stored(), "{}", node.daemon().tail());
    node.daemon().kill9();
    let waiting = ask(&node);
    node.daemon().restart();
    drop(waiting);
}
