//! Forwarded ports of pods.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use switchyard_proto::cri::v1::NamespaceMode;
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::{cgroups, eventually, processes};
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::streams::{ForwardSession, StreamData};

/// Time for something to be gone.
const LIMIT: Duration = Duration::from_secs(30);
/// Port of the pod's server.
pub(super) const PORT: u16 = 8080;

/// A server that gives each client back what it says, and then says that it is done.
pub(super) fn serve(pod: &TestPod<'_>, port: u16) -> String {
    let answer = "cat; echo done";
    let id = pod.start_shell(
        "server",
        &format!(
            "printf '#!/bin/sh\\n{answer}\\n' > /answer; chmod +x /answer; exec nc -ll -p {port} -e /answer"
        ),
    );
    assert!(eventually(LIMIT, || processes_of(&id)
        .iter()
        .any(|command| command.contains("nc -ll"))));
    id
}

fn processes_of(container: &str) -> Vec<String> {
    cgroups::members(container)
        .into_iter()
        .filter_map(processes::find)
        .map(|process| process.command)
        .collect()
}

fn ended(data: &StreamData, _error: &StreamData) -> bool {
    data.ended
}

/// Connects until the server listens.
#[track_caller]
pub(super) fn connect_and_ask(
    forward: &mut ForwardSession,
    port: u16,
    question: &str,
) -> (StreamData, StreamData) {
    let mut last = Default::default();
    let answered = eventually(LIMIT, || {
        let connection = forward.connect(port);
        forward.send(connection, question, true);
        last = forward.receive_until(connection, ended);
        last.1.bytes.is_empty()
    });
    assert!(answered, "{last:?}");
    last
}

#[test]
fn port_forward_reaches_pod_loopback_over_many_connections() {
    let node = TestNode::shared();
    let pod = node.pod("forward");
    let _server = serve(&pod, PORT);
    let mut forward = ForwardSession::open(node.cri(), pod.id());
    let (data, error) = connect_and_ask(&mut forward, PORT, "question\n");
    // The client's end was the server's, and the answer to that still came.
    assert_eq!(
        (&data.bytes[..], &error.bytes[..]),
        (&b"question\ndone\n"[..], &b""[..])
    );
    let large = "0123456789".repeat(300_000);
    let connections = [0; 4].map(|_| forward.connect(PORT));
    for connection in connections {
        forward.send(connection, format!("{connection:?}\n"), false);
    }
    for connection in connections.into_iter().rev() {
        let expected = format!("{connection:?}\n");
        forward.receive_until(connection, |data, _| data.bytes == expected.as_bytes());
        forward.send(connection, "", true);
        let (data, _) = forward.receive_until(connection, ended);
        assert_eq!(
            String::from_utf8_lossy(&data.bytes),
            format!("{expected}done\n")
        );
    }
    let (data, _) = connect_and_ask(&mut forward, PORT, &large[..1 << 16]);
    assert_eq!(data.bytes.len(), (1 << 16) + "done\n".len());
}

#[test]
fn port_forward_reaches_host_network_pod() {
    let node = TestNode::shared();
    let pod = node.pod_with("host", |config| {
        namespaces(config).set_network(NamespaceMode::Node)
    });
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = free.local_addr().expect("it is bound").port();
    drop(free);
    let _server = serve(&pod, port);
    let mut forward = ForwardSession::open(node.cri(), pod.id());
    let (data, _) = connect_and_ask(&mut forward, port, "question\n");
    assert_eq!(data.bytes, b"question\ndone\n");
}

#[test]
fn port_forward_to_closed_port_fails_only_that_stream() {
    let node = TestNode::shared();
    let pod = node.pod("nobody");
    let _server = serve(&pod, PORT);
    let mut forward = ForwardSession::open(node.cri(), pod.id());
    let (_, error) = {
        let connection = forward.connect(9);
        forward.receive_until(connection, |_, error| error.ended)
    };
    let message = String::from_utf8_lossy(&error.bytes).into_owned();
    assert!(
        message.contains("port 9") && message.contains("refused"),
        "{message}"
    );
    let (data, _) = connect_and_ask(&mut forward, PORT, "question\n");
    assert_eq!(data.bytes, b"question\ndone\n");
}

#[test]
fn port_forward_disconnect_leaves_no_connection_or_thread() {
    let node = TestNode::shared();
    let pod = node.pod("vanishes");
    let server = serve(&pod, PORT);
    let served = || {
        processes_of(&server)
            .iter()
            .filter(|command| command.contains("/answer"))
            .count()
    };
    let mut forward = ForwardSession::open(node.cri(), pod.id());
    connect_and_ask(&mut forward, PORT, "");
    assert!(eventually(LIMIT, || served() == 0 || served() == 1));
    for _ in 0..5 {
        let connection = forward.connect(PORT);
        forward.send(connection, "said\n", false);
        forward.receive_until(connection, |data, _| data.bytes == b"said\n");
    }
    assert!(served() >= 5, "{:?}", processes_of(&server));
    drop(forward);
    let mut left = 0;
    let gone = eventually(LIMIT, || {
        left = processes_of(&server)
            .iter()
            .filter(|command| command.contains("cat"))
            .count();
        left == 0
    });
    assert!(
        gone,
        "{left} connections are left: {:?}",
        processes_of(&server)
    );
}
