//! containerd exits and comes back as another version that lacks some features; only its reported version
//! shows it.

use std::cell::RefCell;

use switchyard_proto::cri::v1::ImageFsInfoRequest;
use switchyard_tests::containerd_proxy::ContainerdProxy;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::root::PrivateRoot;
use tonic::Code;

use super::{FAST_CALL_LIMIT, LIMIT, assert_not_ready, assert_recovers, refused, retry};

/// The configuration for an external containerd, behind a proxy, with the gateway's own network.
fn external(root: &PrivateRoot, answer_timeout_seconds: u32) -> String {
    format!(
        "[containerd]\nmode = \"external\"\naddress = {:?}\nanswer_timeout_seconds = {answer_timeout_seconds}\n",
        root.run().join("front.sock")
    )
}

/// A node whose containerd is behind a proxy. Both outlive the node, whose last leak scan queries containerd.
pub(super) fn node_behind_proxy(
    behind: &RefCell<Option<(ExternalContainerd, ContainerdProxy)>>,
) -> TestNode {
    node_behind_proxy_within(behind, 1)
}

/// The same, with a containerd that may take so many seconds to answer.
fn node_behind_proxy_within(
    behind: &RefCell<Option<(ExternalContainerd, ContainerdProxy)>>,
    answer_timeout_seconds: u32,
) -> TestNode {
    TestNode::start_configured(|root| {
        let socket = root.run().join("containerd/containerd.sock");
        let upstream = ExternalContainerd::start(root, &socket);
        *behind.borrow_mut() = Some((
            upstream,
            ContainerdProxy::start(&root.run().join("front.sock"), &socket),
        ));
        external(root, answer_timeout_seconds)
    })
}

#[test]
fn containerd_with_hung_database_is_unavailable_although_it_answers_version() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let hang = |hangs| {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .set_hanging(hangs)
    };
    let pod = node.pod("database");
    let id = pod.start_shell("main", "exec sleep 1000");
    hang(true);
    assert_not_ready(
        &node,
        "RuntimeReady",
        "ContainerdUnavailable",
        "read its database",
    );
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    let status = refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("early")),
        &[Code::Unavailable],
    );
    assert!(status.message().contains("read its database"), "{status}");
    assert_eq!(
        cri.containers()
            .expect("they are answered from the table")
            .len(),
        1
    );
    hang(false);
    assert_recovers(&node);
    assert_eq!(
        retry("ExecSync", || node.cri().exec(&id, &["true"], 5)).exit_code,
        0
    );
    assert_eq!(node.pod("later").run_shell("echo works", |_| {}), "works");
}

#[test]
fn containerd_that_is_late_for_its_check_is_busy_while_it_answers_others() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy_within(&behind, 3);
    let silence = |parts: &[&str]| {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .set_silent(parts);
    };
    silence(&["Version/Version"]);
    let has_waited = || node.daemon().tail().contains("it is busy");
    assert!(
        eventually(LIMIT, || {
            assert_eq!(node.pod("busy").run_shell("echo works", |_| {}), "works");
            has_waited()
        }),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(
        node.daemon().get("/readyz").0,
        200,
        "{}",
        node.daemon().tail()
    );
    // Nobody else asks containerd anything now.
    assert_not_ready(
        &node,
        "RuntimeReady",
        "ContainerdUnavailable",
        "did not answer within 3s",
    );
    silence(&[]);
    assert_recovers(&node);
    assert_eq!(node.pod("later").run_shell("echo works", |_| {}), "works");
}

#[test]
fn containerd_version_change_is_detected_and_its_features_are_used() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let change = |change: &dyn Fn(&mut ExternalContainerd, &ContainerdProxy)| {
        let mut behind = behind.borrow_mut();
        let (upstream, front) = behind.as_mut().expect("it was started with the node");
        change(upstream, front);
    };
    let pod = node.pod("version");
    let id = pod.start_shell("main", "exec sleep 1000");

    change(&|upstream, _| upstream.kill());
    assert_not_ready(&node, "RuntimeReady", "ContainerdUnavailable", "front.sock");
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("early")),
        &[Code::Unavailable],
    );
    assert_eq!(
        cri.containers()
            .expect("they are answered from the table")
            .len(),
        1
    );

    change(&|upstream, front| {
        front.set_version(Some("v9.8.7"));
        front.set_missing(&["services.introspection.v1", "services.leases.v1"]);
        upstream.restart();
    });
    assert_recovers(&node);
    assert_new_version_is_used(&node, &pod, &id);
    // A request that needs a missing service fails with that reason, and nothing else is affected.
    let info = cri.images(async |mut client| client.image_fs_info(ImageFsInfoRequest {}).await);
    let status = refused("ImageFsInfo", info, &[Code::Unimplemented]);
    assert!(
        status
            .message()
            .contains("this containerd does not have it"),
        "{status}"
    );
    let reference = node.registry().reference("library/busybox:latest");
    refused(
        "PullImage",
        cri.pull(&reference, None),
        &[Code::Unimplemented],
    );

    change(&|_, front| {
        front.set_version(None);
        front.set_missing(&[]);
    });
    assert!(
        eventually(LIMIT, || !node
            .daemon()
            .get("/readyz?verbose")
            .1
            .contains("v9.8.7")),
        "{}",
        node.daemon().get("/readyz?verbose").1
    );
    cri.images(async |mut client| client.image_fs_info(ImageFsInfoRequest {}).await)
        .expect("it is there again");
    node.cri().pull(&reference, None).expect("it can be pulled");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").exit_code,
        137
    );
}

fn assert_new_version_is_used(node: &TestNode, pod: &TestPod<'_>, id: &str) {
    let shown = || {
        node.daemon()
            .get("/readyz?verbose")
            .1
            .contains("[+]runtime ok: containerd v9.8.7")
    };
    assert!(
        eventually(LIMIT, shown),
        "{}",
        node.daemon().get("/readyz?verbose").1
    );
    assert!(
        node.has_logged("v9.8.7"),
        "the log does not tell of the new version: {}",
        node.daemon().tail()
    );
    assert_eq!(
        retry("ExecSync", || node.cri().exec(id, &["true"], 5)).exit_code,
        0
    );
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
    assert_eq!(node.pod("later").run_shell("echo works", |_| {}), "works");
}
