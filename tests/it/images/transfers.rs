//! Downloads: shared, cancelled, interrupted, corrupt.

use std::time::Duration;

use switchyard_proto::cri::v1::PullImageRequest;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use switchyard_tests::registry_proxy::RegistryFault;
use tonic::{Code, Request};

use crate::images::{downloads, unique};

/// Time until a transfer is given up or cleaned up.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn concurrent_pulls_of_one_image_download_once() {
    let node = TestNode::start();
    let image = unique(1, 3, 200_000);
    node.registry().push("transfers/many:1", &image);
    let reference = node.registry().reference("transfers/many:1");
    node.registry().proxy().clear_requests();
    // The layer is held until all have requested it.
    node.registry()
        .proxy()
        .add_fault(&image.layers[1].digest, RegistryFault::Hold);
    let ids: Vec<_> = std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| node.cri().pull(&reference, None)))
            .collect();
        let in_flight = "switchyard_rpc_in_flight{protocol=\"cri\"} 8";
        let layer = &image.layers[1].digest;
        let all = || node.daemon().get("/metrics").1.contains(in_flight);
        assert!(eventually(LIMIT, || downloads(node.registry(), layer) == 1 && all()));
        node.registry().proxy().release();
        pulls
            .into_iter()
            .map(|pull| pull.join().expect("a call does not panic"))
            .collect()
    });
    assert!(
        ids.iter()
            .all(|id| id.as_ref().is_ok_and(|id| *id == image.config.digest)),
        "{ids:?}"
    );
    for blob in image.layers[1..].iter().chain([&image.config]) {
        let count = downloads(node.registry(), &blob.digest);
        assert_eq!(
            count,
            1,
            "{}: {:#?}",
            blob.digest,
            node.registry().proxy().requests()
        );
    }
    // Busybox itself was here before.
    assert_eq!(downloads(node.registry(), &image.layers[0].digest), 0);
}

#[test]
fn pull_is_cancelled_with_its_only_client_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let image = unique(2, 1, 200_000);
    node.registry().push("transfers/cancelled:1", &image);
    let reference = node.registry().reference("transfers/cancelled:1");
    for _ in 0..10 {
        node.registry()
            .proxy()
            .add_fault(&image.layers[1].digest, RegistryFault::Hold);
    }
    let mut request = Request::new(PullImageRequest {
        image: Some(image_spec(&reference)),
        ..Default::default()
    });
    request.set_timeout(Duration::from_millis(500));
    let status = node
        .cri()
        .images(async |mut client| client.pull_image(request).await);
    let status = status.expect_err("its layer never comes");
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status}"
    );
    let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
    assert!(clean, "{:?}", node.leak_scan().findings);
    assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
    node.registry().proxy().release();
}

#[test]
fn pull_continues_for_remaining_clients() {
    let node = TestNode::shared();
    let image = unique(3, 1, 200_000);
    node.registry().push("transfers/stayed:1", &image);
    let reference = node.registry().reference("transfers/stayed:1");
    node.registry()
        .proxy()
        .add_fault(&image.layers[1].digest, RegistryFault::Hold);
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| node.cri().pull(&reference, None));
        assert!(eventually(LIMIT, || downloads(
            node.registry(),
            &image.layers[1].digest
        ) == 1));
        let mut request = Request::new(PullImageRequest {
            image: Some(image_spec(&reference)),
            ..Default::default()
        });
        request.set_timeout(Duration::from_millis(200));
        let hasty = node
            .cri()
            .images(async |mut client| client.pull_image(request).await);
        node.registry().proxy().release();
        patient
            .join()
            .expect("a call does not panic")
            .expect("it continues");
        let status = hasty.expect_err("its layer was held");
        assert!(
            matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
            "{status}"
        );
    });
    assert_eq!(downloads(node.registry(), &image.layers[1].digest), 1);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn corrupt_layer_is_rejected_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let image = unique(4, 1, 200_000);
    node.registry().push("transfers/corrupt:1", &image);
    let reference = node.registry().reference("transfers/corrupt:1");
    for _ in 0..20 {
        node.registry().proxy().add_fault(
            &format!("/blobs/{}", image.layers[1].digest),
            RegistryFault::Corrupt,
        );
    }
    let status = node
        .cri()
        .pull(&reference, None)
        .expect_err("it is corrupt");
    let message = status.message();
    assert!(
        message.contains(&image.layers[1].digest) && message.contains("digest"),
        "{status}"
    );
    assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
    let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
    assert!(clean, "{:?}", node.leak_scan().findings);
}

#[test]
fn interrupted_download_is_resumed() {
    let node = TestNode::shared();
    let image = unique(5, 1, 3_000_000);
    node.registry().push("transfers/cut:1", &image);
    let reference = node.registry().reference("transfers/cut:1");
    let layer = &image.layers[1].digest;
    for bytes in [1_000_000, 500_000] {
        node.registry()
            .proxy()
            .add_fault(&format!("/blobs/{layer}"), RegistryFault::CutAfter(bytes));
    }
    let id = node
        .cri()
        .pull(&reference, None)
        .expect("it is tried again");
    assert_eq!(id, image.config.digest);
    assert_eq!(downloads(node.registry(), layer), 3);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn download_that_the_end_of_the_daemon_cuts_off_is_continued_by_the_next_one() {
    let node = TestNode::start();
    let image = unique(7, 1, 6_000_000);
    node.registry().push("transfers/restart:1", &image);
    let reference = node.registry().reference("transfers/restart:1");
    let layer = &image.layers[1].digest;
    node.registry().proxy().add_fault(
        &format!("/blobs/{layer}"),
        RegistryFault::StallAfter(4_000_000),
    );
    let containerd = node
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let active = || ctr(&containerd, NAMESPACE, &["content", "active"]);
    // A reference, a size such as `3.99MB`, an age.
    let has_begun = || {
        let ours = |line: &String| line.contains("layer-") && line.contains("MB");
        active().iter().any(ours)
    };
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| node.cri().pull(&reference, None));
        assert!(eventually(LIMIT, has_begun), "{:?}", active());
        node.daemon().kill9();
        // Its answer is that of a connection that broke.
        drop(pull.join().expect("a call does not panic"));
    });
    let kept = |what: &str| {
        let findings = node.leak_scan().findings;
        findings.iter().any(|finding| finding.starts_with(what))
    };
    assert!(kept("ingest layer-"));
    node.daemon().restart();
    assert!(kept("ingest layer-"), "{:?}", node.leak_scan().findings);
    node.registry().proxy().release();
    node.registry().proxy().clear_faults();
    node.registry().proxy().clear_requests();
    let id = node
        .cri()
        .pull(&reference, None)
        .expect("nothing is in its way");
    assert_eq!(id, image.config.digest);
    let heads = node.registry().proxy().request_heads();
    let is_continued = |head: &String| {
        head.contains(&format!("/blobs/{layer}"))
            && head.to_ascii_lowercase().contains("range: bytes=")
    };
    assert!(heads.iter().any(is_continued), "{heads:#?}");
    assert!(
        eventually(LIMIT, || !kept("lease ")),
        "it ends with the pull"
    );
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn transient_registry_errors_are_retried() {
    let node = TestNode::shared();
    let image = unique(6, 1, 1000);
    node.registry().push("transfers/stumble:1", &image);
    let reference = node.registry().reference("transfers/stumble:1");
    node.registry()
        .proxy()
        .add_fault("/manifests/1", RegistryFault::Status(503));
    node.registry()
        .proxy()
        .add_fault(&image.layers[1].digest, RegistryFault::Status(502));
    node.cri()
        .pull(&reference, None)
        .expect("it is tried again");
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}
