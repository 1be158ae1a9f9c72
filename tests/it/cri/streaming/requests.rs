//! Requests that are refused before a URL is issued.

use switchyard_streaming::Streams;
use switchyard_tests::node::TestNode;
use switchyard_tests::streams::{OUTPUTS, PIPES, TERMINAL, attach_request, exec_request, refused};
use tonic::Code;

#[test]
fn invalid_stream_combinations_are_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("senseless");
    let id = pod.start_shell("main", "exec sleep 1000");
    let none = Streams::default();
    let both = Streams {
        stderr: true,
        ..TERMINAL
    };
    for streams in [none, both] {
        let exec = refused(node.cri().exec_url(exec_request(&id, &["true"], streams)));
        let attach = refused(node.cri().attach_url(attach_request(&id, streams)));
        assert_eq!(
            (exec.code(), attach.code()),
            (Code::InvalidArgument, Code::InvalidArgument),
            "{streams:?}"
        );
    }
    let nothing = refused(node.cri().exec_url(exec_request(&id, &[], OUTPUTS)));
    assert_eq!(nothing.code(), Code::InvalidArgument, "{nothing}");
    for port in [0, -1, 65536] {
        let status = refused(node.cri().port_forward_url(pod.id(), &[port]));
        assert_eq!(status.code(), Code::InvalidArgument, "{port}: {status}");
    }
}

#[test]
fn missing_or_stopped_objects_have_no_streams() {
    let node = TestNode::shared();
    let codes = |container: &str, pod: &str| {
        [
            refused(
                node.cri()
                    .exec_url(exec_request(container, &["true"], PIPES)),
            )
            .code(),
            refused(node.cri().attach_url(attach_request(container, PIPES))).code(),
            refused(node.cri().port_forward_url(pod, &[80])).code(),
        ]
    };
    assert_eq!(codes("", ""), [Code::InvalidArgument; 3]);
    assert_eq!(codes("nobody", "nobody"), [Code::NotFound; 3]);
    let pod = node.pod("ended");
    let created = pod.create(&node.container("created", &["sleep", "1000"]));
    let ended = pod.start_shell("ended", "exit 0");
    let _ = node.cri().wait_exit(&ended);
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    for container in [&created, &ended] {
        assert_eq!(codes(container, pod.id()), [Code::FailedPrecondition; 3]);
    }
}

#[test]
fn stream_urls_are_absolute_on_loopback_and_unique() {
    let node = TestNode::shared();
    let pod = node.pod("urls");
    let id = pod.start_shell("main", "exec sleep 1000");
    let url = || {
        node.cri()
            .exec_url(exec_request(&id, &["true"], OUTPUTS))
            .expect("it is made")
    };
    let one = url();
    let other = url();
    assert!(
        one.starts_with("http://127.0.0.1:") && one.contains("/exec/"),
        "{one}"
    );
    assert_ne!(one, other);
    let attach = node
        .cri()
        .attach_url(attach_request(&id, OUTPUTS))
        .expect("it is made");
    assert!(attach.contains("/attach/"), "{attach}");
    let forward = node
        .cri()
        .port_forward_url(pod.id(), &[80])
        .expect("it is made");
    assert!(forward.contains("/portforward/"), "{forward}");
}
