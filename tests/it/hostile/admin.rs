//! The admin address, which every process on the node can reach.

use std::io::Write;
use std::net::TcpStream;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use switchyard_tests::http;
use switchyard_tests::node::TestNode;

/// Number of connections that a stranger holds.
const HELD: usize = 10_000;

#[test]
fn ten_thousand_idle_connections_do_not_block_admin_pages() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit can be asked for");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it may be raised to its hard limit");
    let node = TestNode::start();
    let files = || {
        let files =
            std::fs::read_dir(format!("/proc/{}/fd", node.daemon().pid())).expect("it runs");
        files.count()
    };
    let before = files();
    let mut held = Vec::new();
    for number in 0..HELD {
        let mut stream = TcpStream::connect(node.daemon().admin()).expect("it accepts");
        let words = [
            "",
            "GET /metrics HT",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ][number % 3];
        // It may be closed already for a later one.
        drop(stream.write_all(words.as_bytes()));
        held.push(stream);
        if number % 1000 == 0 {
            assert_eq!(node.daemon().get_from_admin_address("/livez").0, 200);
        }
    }
    for path in ["/livez", "/readyz", "/metrics", "/statusz"] {
        assert_eq!(node.daemon().get_from_admin_address(path).0, 200, "{path}");
        assert_eq!(node.daemon().get(path).0, 200, "{path}");
    }
    let after = files();
    assert!(
        after <= before + 600,
        "{before} files were open, and {after} are"
    );
    assert_eq!(
        node.pod("unharmed").run_shell("echo works", |_| {}),
        "works"
    );
}

#[test]
fn admin_tcp_address_discloses_no_name_path_or_pid() {
    let node = TestNode::start();
    let pod = node.pod("secret-pod");
    let run = node.root().run().display().to_string();
    for path in [
        "/",
        "/readyz?verbose",
        "/statusz",
        "/metrics",
        "/readyz/containerd?verbose",
    ] {
        let (status, text) = node.daemon().get_from_admin_address(path);
        assert_eq!(status, 200, "{path}: {text}");
        for secret in [
            run.as_str(),
            "secret-pod",
            pod.id(),
            &format!("process {}", node.daemon().pid()),
        ] {
            assert!(
                !text.contains(secret),
                "{path} shows strangers {secret}: {text}"
            );
        }
    }
    for path in [
        "/v1/objects",
        "/v1/devices",
        "/v1/debug",
        "/v1/events",
        "/v1/history",
        "/v1/images/leases",
    ] {
        assert_eq!(node.daemon().get_from_admin_address(path).0, 404, "{path}");
    }
    let lease = format!("/v1/devices/leases/{}", "0".repeat(32));
    let ended = http::request(node.daemon().admin(), "DELETE", &lease, &[], &[]);
    assert_eq!(ended.expect("it answers").status, 404);
    let rebound = http::request(
        node.daemon().admin(),
        "GET",
        "/statusz",
        &[("Host", "evil.example")],
        &[],
    );
    assert_eq!(rebound.expect("it answers").status, 400, "two hosts");
}
