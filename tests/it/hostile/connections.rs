//! Hostile use of a gRPC socket before any call is served: the `:authority`, connections, streams.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use crate::cri::python_client::{PythonClient, RUNTIME};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const LIMIT: Duration = Duration::from_secs(20);

/// A frame's type and its payload; nothing when the server has closed the connection.
fn frame(stream: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; len.try_into().expect("a frame is small")];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], payload))
}

/// A connection with the settings that the server gives it.
fn connect(socket: &Path) -> Option<(UnixStream, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).expect("somebody listens");
    stream
        .set_read_timeout(Some(LIMIT))
        .expect("it is not zero");
    // A server that has closed the connection already may be noticed here.
    stream.write_all(PREFACE).ok()?;
    let (kind, settings) = frame(&mut stream)?;
    assert_eq!(kind, SETTINGS);
    Some((stream, settings))
}

/// The type of the first frame about a call with this `:authority`: HEADERS, or RST_STREAM.
fn answer(socket: &Path, authority: &str) -> u8 {
    let (mut stream, _) = connect(socket).expect("there is a place");
    let short = |text: &str| u8::try_from(text.len()).expect("it is short");
    let path = "/x/y";
    let content = "application/grpc";
    let mut block = vec![0x83, 0x86, 0x04, short(path)];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, short(authority)]);
    block.extend_from_slice(authority.as_bytes());
    // content-type is entry 31 of the static table.
    block.extend_from_slice(&[0x0f, 0x10, short(content)]);
    block.extend_from_slice(content.as_bytes());
    let len = u8::try_from(block.len()).expect("it is short");
    stream
        .write_all(&[&[0, 0, len, HEADERS, 5, 0, 0, 0, 1], &*block].concat())
        .expect("it is read");
    loop {
        let (kind, _) = frame(&mut stream).expect("a call is answered");
        // Of the connection as a whole: SETTINGS, PING, WINDOW_UPDATE.
        if !matches!(kind, SETTINGS | 6 | 8) {
            return kind;
        }
    }
}

#[test]
fn every_grpc_socket_accepts_a_socket_path_authority() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let launchers = node.root().run().join("launchers");
    let launchers = std::fs::read_dir(launchers).expect("an agent has started some");
    let mut sockets = vec![
        node.root().cri_socket(),
        node.root().run().join("nomad.sock"),
    ];
    sockets.extend(launchers.map(|entry| entry.expect("it can be read").path()));
    assert!(sockets.len() > 2, "{sockets:?}");
    for socket in sockets {
        let path = socket.to_str().expect("it is ASCII");
        for authority in ["localhost", path, &path.replace('/', "%2F")] {
            assert_eq!(
                answer(&socket, authority),
                HEADERS,
                "{path} named {authority}"
            );
        }
    }
    drop(agent);
}

#[test]
fn connection_hoarding_client_does_not_block_others() {
    let node = TestNode::start_with("[cri]\nmax_connections = 8\n", |_| {});
    let socket = node.root().cri_socket();
    let mut kept = Vec::new();
    // A connection of the start may not have ended yet.
    let filled = eventually(LIMIT, || {
        kept.extend(connect(&socket));
        kept.len() == 4
    });
    assert!(
        filled,
        "half of the places are for one process: {}",
        kept.len()
    );
    assert!(connect(&socket).is_none(), "the others are for others");
    let reason = "cri.max_connections allows 8 concurrent connections, and 4 of one process";
    assert!(node.has_logged(reason), "{}", node.daemon().tail());

    let mut other = PythonClient::start(&socket, None);
    let version =
        other.call::<cri::VersionResponse>(RUNTIME, "Version", &cri::VersionRequest::default());
    assert_eq!(
        version.expect("another process has a place").runtime_name,
        "switchyard"
    );
    drop(kept);
    assert!(
        eventually(LIMIT, || connect(&socket).is_some()),
        "places come back"
    );
}

#[test]
fn http2_stream_limit_is_advertised() {
    let node = TestNode::start_with("[cri]\nmax_streams = 3\n", |_| {});
    let advertised = |socket: &Path| {
        let (_, settings) = connect(socket).expect("there is a place");
        let mut found = None;
        for setting in settings.chunks_exact(6) {
            if u16::from_be_bytes([setting[0], setting[1]]) == MAX_CONCURRENT_STREAMS {
                found = Some(u32::from_be_bytes([
                    setting[2], setting[3], setting[4], setting[5],
                ]));
            }
        }
        found
    };
    assert_eq!(advertised(&node.root().cri_socket()), Some(3));
    assert_eq!(
        advertised(&node.root().run().join("nomad.sock")),
        Some(100_000)
    );
}
