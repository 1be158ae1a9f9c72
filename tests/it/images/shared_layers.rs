//! Layers that several pulls need at the same time: downloaded and unpacked once, for the pulls that still
//! need them, and each pull proves its own right to them.

use std::time::Duration;

use switchyard_proto::cri::v1::PullImageRequest;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Image, Layer, LayerBuilder, busybox, random_layer};
use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::{Access, RegistryFault};
use tonic::{Code, Request};

use crate::images::{auth, downloads, which};

/// Time limit of anything that is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// The layer that the images of a test have in common.
fn common(seed: u64) -> Layer {
    random_layer(200_000, seed)
}

/// An image with that layer, and its own layer on top.
fn with_common(seed: u64, name: &str) -> Image {
    let own = LayerBuilder::default()
        .file("which", format!("{name}\n"), 0o644)
        .build();
    busybox().layer(common(seed)).layer(own).build()
}

/// Returns whether a pull has requested its layers: it requests its configuration at that time. More than one request is a
/// retry.
fn has_begun(registry: &Registry, image: &Image) -> bool {
    downloads(registry, &image.config.digest) > 0
}

/// Waits for what pulls do while the registry holds a request. If they do not, it releases the request, so that they end.
///
/// # Panics
/// When they do not do it in time; the message has all requests.
#[track_caller]
fn expect_while_held(registry: &Registry, what: &str, condition: impl FnMut() -> bool) {
    if !eventually(LIMIT, condition) {
        let requests = registry.proxy().requests();
        registry.proxy().release();
        panic!("{what} in {LIMIT:?}; the requests: {requests:#?}");
    }
}

#[test]
fn concurrent_pulls_fetch_a_shared_layer_once() {
    let node = TestNode::start();
    let images = ["one", "two", "three"].map(|name| {
        let path = format!("shared/{name}:1");
        let image = with_common(41, name);
        node.registry().push(&path, &image);
        (name, node.registry().reference(&path), image)
    });
    let layer = &images[0].2.layers[1].digest;
    node.registry()
        .proxy()
        .add_fault(layer, RegistryFault::Hold);
    std::thread::scope(|scope| {
        let pulls: Vec<_> = images
            .iter()
            .map(|(_, name, _)| scope.spawn(|| node.cri().pull(name, None)))
            .collect();
        // Their own layers come beside it.
        let own = |image: &Image| downloads(node.registry(), &image.layers[2].digest) > 0;
        expect_while_held(
            node.registry(),
            "not all requested their own layers",
            || {
                images
                    .iter()
                    .all(|(_, _, image)| has_begun(node.registry(), image) && own(image))
            },
        );
        node.registry().proxy().release();
        for pull in pulls {
            pull.join()
                .expect("a call does not panic")
                .expect("it can be pulled");
        }
    });
    assert_eq!(
        downloads(node.registry(), layer),
        1,
        "{:#?}",
        node.registry().proxy().requests()
    );
    for (name, reference, _) in &images {
        assert_eq!(which(&node, reference), *name);
        node.cri()
            .remove_image(reference)
            .expect("it can be removed");
    }
}

#[test]
fn shared_layer_download_survives_cancellation_of_one_pull() {
    let node = TestNode::start();
    let [first, second] = ["first", "second"].map(|name| with_common(42, name));
    node.registry().push("given-up/first:1", &first);
    node.registry().push("given-up/second:1", &second);
    let [given_up, wanted] =
        ["given-up/first:1", "given-up/second:1"].map(|name| node.registry().reference(name));
    let layer = &first.layers[1].digest;
    node.registry()
        .proxy()
        .add_fault(layer, RegistryFault::Hold);
    std::thread::scope(|scope| {
        let hasty = scope.spawn(|| {
            let image = Some(image_spec(&given_up));
            let mut request = Request::new(PullImageRequest {
                image,
                ..Default::default()
            });
            request.set_timeout(Duration::from_secs(3));
            node.cri()
                .images(async |mut client| client.pull_image(request).await)
        });
        expect_while_held(node.registry(), "the layer was not requested", || {
            downloads(node.registry(), layer) == 1
        });
        let patient = scope.spawn(|| node.cri().pull(&wanted, None));
        expect_while_held(node.registry(), "the second pull did not begin", || {
            has_begun(node.registry(), &second)
        });
        let status = hasty
            .join()
            .expect("a call does not panic")
            .expect_err("its layer was held");
        assert!(
            matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
            "{status}"
        );
        node.registry().proxy().release();
        patient
            .join()
            .expect("a call does not panic")
            .expect("it continues");
    });
    assert_eq!(
        downloads(node.registry(), layer),
        1,
        "{:#?}",
        node.registry().proxy().requests()
    );
    assert_eq!(node.cri().image(&given_up).expect("it is asked for"), None);
    assert_eq!(which(&node, &wanted), "second");
    // The first pull's lease is released with the last pull that builds on it.
    let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
    assert!(clean, "{:?}", node.leak_scan().findings);
}

#[test]
fn denied_layer_fetch_does_not_fail_other_pulls() {
    let node = TestNode::shared();
    let other = Registry::start_behind_proxy(Access::Open);
    let [refused, welcome] = ["refused", "welcome"].map(|name| with_common(43, name));
    other.push("shared/refused:1", &refused);
    node.registry().push("shared/welcome:1", &welcome);
    let [refused_name, welcome_name] = [
        other.reference("shared/refused:1"),
        node.registry().reference("shared/welcome:1"),
    ];
    let layer = &refused.layers[1].digest;
    other.proxy().add_fault(layer, RegistryFault::HoldThen(403));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| node.cri().pull(&refused_name, None));
        expect_while_held(&other, "the layer was not requested", || {
            downloads(&other, layer) == 1
        });
        let second = scope.spawn(|| node.cri().pull(&welcome_name, None));
        expect_while_held(&other, "the second pull did not begin", || {
            has_begun(node.registry(), &welcome)
        });
        other.proxy().release();
        let status = first
            .join()
            .expect("a call does not panic")
            .expect_err("it is refused");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        second
            .join()
            .expect("a call does not panic")
            .expect("its own registry has it");
    });
    assert_eq!(downloads(node.registry(), layer), 1);
    assert_eq!(which(&node, &welcome_name), "welcome");
    node.cri()
        .remove_image(&welcome_name)
        .expect("it can be removed");
}

#[test]
fn shared_layer_download_grants_no_image_access() {
    let node = TestNode::shared();
    let private = Registry::start_behind_proxy(Access::Basic {
        user: "user".into(),
        password: "secret".into(),
    });
    let image = with_common(44, "private");
    private.push("private/shared:1", &image);
    let reference = private.reference("private/shared:1");
    let layer = &image.layers[1].digest;
    private.proxy().add_fault(layer, RegistryFault::Hold);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| node.cri().pull(&reference, auth("user", "secret")));
        expect_while_held(&private, "the layer was not requested", || {
            downloads(&private, layer) == 1
        });
        let status = node
            .cri()
            .pull(&reference, auth("user", "wrong"))
            .expect_err("that is not the password");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        private.proxy().release();
        owner
            .join()
            .expect("a call does not panic")
            .expect("that is the password");
    });
    assert_eq!(which(&node, &reference), "private");
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}
