//! The same over WebSocket, as newer clients ask for it, and over HTTPS.

use switchyard_tests::node::Node;
use switchyard_tests::streams::{Carrier, Forward, OUTPUTS, PIPES, Session, TERMINAL, Way, certificate};

use super::forward::{PORT, connect_and_ask, serve};

/// Without TLS.
const WEBSOCKET: Way = Way { carrier: Carrier::WebSocket, trusted: None };

#[test]
fn a_command_over_websocket_hears_the_end_of_its_input_and_tells_its_exit_code() {
    let node = Node::shared();
    let pod = node.pod("websocket");
    let id = pod.shell("main", "exec sleep 1000");
    let script = "cat; echo after the end; echo wrong >&2; exit 42";
    let mut session = Session::exec_by(&WEBSOCKET, node.cri(), &id, &["sh", "-c", script], PIPES);
    session.say("said\n");
    session.hear("said\n");
    session.end_input();
    assert_eq!(session.code(), 42);
    assert_eq!(session.heard.stdout, b"said\nafter the end\n");
    assert_eq!(session.heard.stderr, b"wrong\n");
    let mut session = Session::exec_by(&WEBSOCKET, node.cri(), &id, &["true"], OUTPUTS);
    assert_eq!(session.code(), 0);
}

#[test]
fn a_terminal_over_websocket_has_the_size_that_the_client_tells() {
    let node = Node::shared();
    let pod = node.pod("terminal");
    let id = pod.shell("main", "exec sleep 1000");
    let script = "while ! read -t 1 word; do stty size; done; echo \"read $word\"";
    let mut session = Session::exec_by(&WEBSOCKET, node.cri(), &id, &["sh", "-c", script], TERMINAL);
    session.resize(132, 43);
    session.hear("43 132\r\n");
    session.say("word\n");
    session.hear("read word\r\n");
    assert_eq!(session.code(), 0);
}

#[test]
fn a_client_is_attached_over_websocket_and_its_end_is_that_of_an_input_that_is_once() {
    let node = Node::shared();
    let pod = node.pod("attached");
    let id = pod.shell_with(
        "main",
        "while read line; do echo \"heard $line\"; done; echo bye; exit 3",
        |config| {
            (config.stdin, config.stdin_once) = (true, true);
        },
    );
    let mut client = Session::attach_by(&WEBSOCKET, node.cri(), &id, PIPES);
    client.say("it\n");
    client.hear("heard it\n");
    client.end_input();
    assert_eq!(client.code(), 0);
    assert_eq!(client.heard.stdout, b"heard it\nbye\n");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
}

#[test]
fn a_port_of_a_pod_is_reached_through_spdy_in_the_messages_of_a_websocket() {
    let node = Node::shared();
    let pod = node.pod("tunnel");
    let _server = serve(&pod, PORT);
    let mut forward = Forward::open_by(&WEBSOCKET, node.cri(), pod.id());
    let question = "0123456789".repeat(100_000);
    let (data, error) = connect_and_ask(&mut forward, PORT, &question);
    assert_eq!((data.bytes.len(), &error.bytes[..]), (question.len() + "done\n".len(), &b""[..]));
    assert!(data.bytes.starts_with(question.as_bytes()));
}

#[test]
fn what_is_said_over_https_is_said_with_the_certificate_of_the_configuration() {
    let mut trusted = None;
    let node = Node::start_configured(|root| {
        let tls = certificate(root.path());
        let chain = tls.certificates.display();
        let key = tls.key.display();
        let section = format!("[cri.streaming]\ntls_certificate = \"{chain}\"\ntls_key = \"{key}\"\n");
        trusted = Some(tls.certificates);
        section
    });
    let pod = node.pod("https");
    let id = pod.shell("main", "exec sleep 1000");
    for carrier in [Carrier::Spdy, Carrier::WebSocket] {
        let way = Way { carrier, trusted: trusted.clone() };
        let mut session = Session::exec_by(&way, node.cri(), &id, &["sh", "-c", "cat; exit 7"], PIPES);
        session.say("secret\n");
        session.end_input();
        assert_eq!((session.code(), &session.heard.stdout[..]), (7, &b"secret\n"[..]), "{carrier:?}");
    }
}
