//! The same over WebSocket, as newer clients ask for it, and over HTTPS.

use switchyard_tests::node::TestNode;
use switchyard_tests::streams::{
    ForwardSession, OUTPUTS, PIPES, StreamProtocol, StreamSession, TERMINAL, Transport, certificate,
};

use super::forward::{PORT, connect_and_ask, serve};

/// Without TLS.
const WEBSOCKET: Transport = Transport {
    protocol: StreamProtocol::WebSocket,
    trusted_certificate: None,
};

#[test]
fn websocket_exec_passes_stdin_eof_and_exit_code() {
    let node = TestNode::shared();
    let pod = node.pod("websocket");
    let id = pod.start_shell("main", "exec sleep 1000");
    let script = "cat; echo after the end; echo wrong >&2; exit 42";
    let mut session =
        StreamSession::exec_over(&WEBSOCKET, node.cri(), &id, &["sh", "-c", script], PIPES);
    session.send("said\n");
    session.wait_stdout("said\n");
    session.end_input();
    assert_eq!(session.wait_exit_code(), 42);
    assert_eq!(session.received.stdout, b"said\nafter the end\n");
    assert_eq!(session.received.stderr, b"wrong\n");
    let mut session = StreamSession::exec_over(&WEBSOCKET, node.cri(), &id, &["true"], OUTPUTS);
    assert_eq!(session.wait_exit_code(), 0);
}

#[test]
fn websocket_exec_tty_follows_client_resizes() {
    let node = TestNode::shared();
    let pod = node.pod("terminal");
    let id = pod.start_shell("main", "exec sleep 1000");
    let script = "while ! read -t 1 word; do stty size; done; echo \"read $word\"";
    let mut session =
        StreamSession::exec_over(&WEBSOCKET, node.cri(), &id, &["sh", "-c", script], TERMINAL);
    session.resize(132, 43);
    session.wait_stdout("43 132\r\n");
    session.send("word\n");
    session.wait_stdout("read word\r\n");
    assert_eq!(session.wait_exit_code(), 0);
}

#[test]
fn websocket_attach_disconnect_closes_stdin_once() {
    let node = TestNode::shared();
    let pod = node.pod("attached");
    let id = pod.start_shell_with(
        "main",
        "while read line; do echo \"heard $line\"; done; echo bye; exit 3",
        |config| {
            (config.stdin, config.stdin_once) = (true, true);
        },
    );
    let mut client = StreamSession::attach_over(&WEBSOCKET, node.cri(), &id, PIPES);
    client.send("it\n");
    client.wait_stdout("heard it\n");
    client.end_input();
    assert_eq!(client.wait_exit_code(), 0);
    assert_eq!(client.received.stdout, b"heard it\nbye\n");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
}

#[test]
fn port_forward_works_with_spdy_tunnelled_over_websocket() {
    let node = TestNode::shared();
    let pod = node.pod("tunnel");
    let _server = serve(&pod, PORT);
    let mut forward = ForwardSession::open_over(&WEBSOCKET, node.cri(), pod.id());
    let question = "0123456789".repeat(100_000);
    let (data, error) = connect_and_ask(&mut forward, PORT, &question);
    assert_eq!(
        (data.bytes.len(), &error.bytes[..]),
        (question.len() + "done\n".len(), &b""[..])
    );
    assert!(data.bytes.starts_with(question.as_bytes()));
}

#[test]
fn https_streams_use_the_configured_certificate() {
    let mut trusted = None;
    let node = TestNode::start_configured(|root| {
        let tls = certificate(root.path());
        let chain = tls.certificates.display();
        let key = tls.key.display();
        let section =
            format!("[cri.streaming]\ntls_certificate = \"{chain}\"\ntls_key = \"{key}\"\n");
        trusted = Some(tls.certificates);
        section
    });
    let pod = node.pod("https");
    let id = pod.start_shell("main", "exec sleep 1000");
    for carrier in [StreamProtocol::Spdy, StreamProtocol::WebSocket] {
        let way = Transport {
            protocol: carrier,
            trusted_certificate: trusted.clone(),
        };
        let mut session =
            StreamSession::exec_over(&way, node.cri(), &id, &["sh", "-c", "cat; exit 7"], PIPES);
        session.send("secret\n");
        session.end_input();
        assert_eq!(
            (session.wait_exit_code(), &session.received.stdout[..]),
            (7, &b"secret\n"[..]),
            "{carrier:?}"
        );
    }
}
