//! Registries that are slow, lie, send too little or too much, or redirect: the error of the pull, and that
//! it leaves nothing behind.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::cri::v1::AuthConfig;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Blob, Family, Image, Index, busybox, random_layer};
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::{Access, RegistryFault, RegistryProxy};
use tonic::{Code, Status};

use super::{LIMIT, refused};

/// Time for a pull that fails after all its retries.
const SOON: Duration = Duration::from_secs(60);
/// The number of faults that outlasts all retries.
const MORE_THAN_RETRIES: usize = 40;

fn conf() -> &'static str {
    "[registry]\nidle_timeout_seconds = 1\n"
}

fn unique(seed: u64) -> Image {
    busybox().layer(random_layer(300_000, seed)).build()
}

/// Content that containerd stores for images: content, snapshots, leases, downloads.
fn stored_content(node: &TestNode) -> HashSet<String> {
    let socket = node.root().containerd_socket().expect("containerd runs");
    let kinds: [&[&str]; 5] = [
        &["content", "ls", "-q"],
        &["snapshots", "ls"],
        &["leases", "ls", "-q"],
        &["content", "active"],
        &["images", "ls", "-q"],
    ];
    kinds
        .iter()
        .flat_map(|words| ctr(&socket, NAMESPACE, words))
        .collect()
}

/// A pull that must fail, and must leave nothing behind.
#[track_caller]
fn assert_pull_fails(node: &TestNode, reference: &str, codes: &[Code], message: &str) -> Status {
    let before = stored_content(node);
    let status = failed_pull(node, reference, codes, message);
    assert_nothing_new(node, &before);
    status
}

/// A pull that must fail.
#[track_caller]
fn failed_pull(node: &TestNode, reference: &str, codes: &[Code], message: &str) -> Status {
    let status = refused(
        message,
        node.cri().with_timeout(SOON).pull(reference, None),
        codes,
    );
    assert!(
        status.message().contains(message),
        "{message:?} is not reported: {status}"
    );
    assert_eq!(node.cri().image(reference).expect("it is asked for"), None);
    status
}

/// Checks that no more is stored than `before`.
#[track_caller]
fn assert_nothing_new(node: &TestNode, before: &HashSet<String>) {
    assert!(
        eventually(LIMIT, || node.leak_scan().findings.is_empty()),
        "{:#?}",
        node.leak_scan().findings
    );
    let new = || {
        stored_content(node)
            .difference(before)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert!(
        eventually(LIMIT, || new().is_empty()),
        "left behind: {:#?}",
        new()
    );
}

fn plan(node: &TestNode, part: &str, fault: &RegistryFault, times: usize) {
    for _ in 0..times {
        node.registry().proxy().add_fault(part, fault.clone());
    }
}

fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> RegistryFault {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    RegistryFault::Answer(status, headers, body.to_vec())
}

#[test]
fn unresponsive_registry_fails_the_pull_and_leaves_nothing_behind() {
    let node = TestNode::start_with(conf(), |_| {});
    let gate = node.registry().proxy();
    let mut pulls = Vec::new();
    for (name, fault, message) in [
        (
            "silent",
            RegistryFault::StallAfter(1000),
            "nothing was received for 1000 ms",
        ),
        ("cut", RegistryFault::CutAfter(2000), "sha256:"),
        ("failing", RegistryFault::Status(503), "503"),
    ] {
        let image = unique(name.len() as u64 * 101);
        node.registry()
            .push(&format!("registries/{name}:1"), &image);
        plan(&node, &image.layers[1].digest, &fault, MORE_THAN_RETRIES);
        pulls.push((
            node.registry().reference(&format!("registries/{name}:1")),
            message,
        ));
    }
    let before = stored_content(&node);
    // At once: the pauses between retries are eight seconds for each.
    thread::scope(|scope| {
        for (reference, message) in &pulls {
            let node = &node;
            scope.spawn(|| {
                failed_pull(
                    node,
                    reference,
                    &[Code::Unavailable, Code::Unknown],
                    message,
                )
            });
        }
    });
    assert_nothing_new(&node, &before);
    gate.release();
    gate.clear_faults();
    for (reference, _) in &pulls {
        node.cri().pull(reference, None).expect("it is well again");
    }
}

#[test]
fn registry_retry_after_is_honoured() {
    let node = TestNode::start_with(conf(), |_| {});
    let image = unique(4711);
    node.registry().push("registries/later:1", &image);
    let reference = node.registry().reference("registries/later:1");
    let later = answer(
        429,
        &[("Retry-After", "1"), ("Content-Type", "application/json")],
        b"{\"errors\":[]}",
    );
    plan(&node, "/manifests/1", &later, 1);
    plan(&node, &image.layers[1].digest, &later, 1);
    node.cri()
        .pull(&reference, None)
        .expect("it is asked later");
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
    // If the registry answers 429 to every retry, the pull fails with an error that names the registry.
    plan(
        &node,
        "/manifests/1",
        &answer(429, &[("Retry-After", "0")], b""),
        MORE_THAN_RETRIES,
    );
    let status = assert_pull_fails(
        &node,
        &reference,
        &[Code::Unavailable, Code::ResourceExhausted],
        "later",
    );
    assert!(
        status
            .message()
            .contains(&node.registry().address().to_string()),
        "{status}"
    );
}

/// An image whose manifest describes its layer as changed by `lie`.
fn image_with_false_layer(image: &Image, lie: impl FnOnce(&mut Value)) -> Blob {
    let mut manifest: Value = serde_json::from_slice(&image.manifest.bytes).expect("it is JSON");
    lie(&mut manifest["layers"][1]);
    Blob::new(
        &image.manifest.media_type,
        manifest.to_string().into_bytes(),
    )
}

#[test]
fn wrong_registry_content_is_rejected_and_leaves_nothing_behind() {
    let node = TestNode::start_with(conf(), |_| {});
    for (name, bytes) in [("short", -7_i64), ("long", 7)] {
        let image = unique(bytes.unsigned_abs() + if bytes < 0 { 900 } else { 901 });
        node.registry()
            .push(&format!("registries/{name}:1"), &image);
        let manifest = image_with_false_layer(&image, |layer| {
            let size = layer["size"].as_i64().expect("it is a number");
            layer["size"] = json!(size + bytes);
        });
        let served = answer(
            200,
            &[("Content-Type", &manifest.media_type)],
            &manifest.bytes,
        );
        plan(&node, "/manifests/1", &served, MORE_THAN_RETRIES);
        let reference = node.registry().reference(&format!("registries/{name}:1"));
        assert_pull_fails(
            &node,
            &reference,
            &[Code::Unknown, Code::FailedPrecondition, Code::Unavailable],
            "bytes instead of",
        );
        node.registry().proxy().clear_faults();
    }
    // A manifest whose digest is not the one that was requested.
    let image = unique(910);
    let other = unique(911);
    let digest = node.registry().push("registries/digest:1", &image);
    let served = answer(
        200,
        &[("Content-Type", &other.manifest.media_type)],
        &other.manifest.bytes,
    );
    plan(
        &node,
        &format!("/manifests/{digest}"),
        &served,
        MORE_THAN_RETRIES,
    );
    let reference = node
        .registry()
        .reference(&format!("registries/digest@{digest}"));
    assert_pull_fails(
        &node,
        &reference,
        &[Code::Unknown, Code::FailedPrecondition],
        &digest,
    );
    node.registry().proxy().clear_faults();
    node.cri().pull(&reference, None).expect("it is honest now");
}

#[test]
fn huge_malformed_or_foreign_manifests_are_rejected_and_leave_nothing_behind() {
    let node = TestNode::start_with(conf(), |_| {});
    let image = unique(920);
    node.registry().push("registries/manifest:1", &image);
    let reference = node.registry().reference("registries/manifest:1");
    let kind = image.manifest.media_type.clone();
    let codes = &[
        Code::Unknown,
        Code::InvalidArgument,
        Code::FailedPrecondition,
        Code::ResourceExhausted,
    ];
    for (body, message) in [
        (vec![b' '; 9 << 20], "more than the limit"),
        (b"<html>a login page</html>".to_vec(), "registries/manifest"),
    ] {
        plan(
            &node,
            "/manifests/1",
            &answer(200, &[("Content-Type", &kind)], &body),
            MORE_THAN_RETRIES,
        );
        assert_pull_fails(&node, &reference, codes, message);
        node.registry().proxy().clear_faults();
    }
    let others = ["s390x", "riscv64"].map(|name| busybox().architecture(name).build());
    node.registry().push_index(
        "registries/others:1",
        &Index::new(Family::Oci, others.to_vec()),
    );
    let reference = node.registry().reference("registries/others:1");
    let codes = &[
        Code::NotFound,
        Code::InvalidArgument,
        Code::FailedPrecondition,
    ];
    let status = assert_pull_fails(&node, &reference, codes, "linux/s390x");
    assert!(status.message().contains("linux/riscv64"), "{status}");
}

#[test]
fn registry_redirect_is_followed_without_credentials() {
    let node = TestNode::start_with(conf(), |_| {});
    let access = Access::Basic {
        user: "user".to_owned(),
        password: "secret".to_owned(),
    };
    let registry = Registry::start_behind_proxy(access);
    let image = unique(930);
    registry.push("registries/elsewhere:1", &image);
    // The host that the layers are redirected to; it records the requests that it gets.
    let elsewhere = RegistryProxy::start(registry.upstream(), Access::Open);
    let layer = &image.layers[1].digest;
    let path = format!("/v2/registries/elsewhere/blobs/{layer}");
    let location = format!("http://{}{path}", elsewhere.address());
    registry
        .proxy()
        .add_fault(&path, answer(307, &[("Location", &location)], b""));
    let reference = registry.reference("registries/elsewhere:1");
    let auth = AuthConfig {
        username: "user".into(),
        password: "secret".into(),
        ..Default::default()
    };
    node.cri()
        .pull(&reference, Some(auth))
        .expect("it is followed");
    assert_eq!(elsewhere.count(layer), 1, "{:?}", elsewhere.requests());
    for head in elsewhere.request_heads() {
        assert!(
            !head.to_ascii_lowercase().contains("authorization"),
            "the password is sent elsewhere: {head}"
        );
    }
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
    // A redirect loop is given up.
    let public = unique(931);
    node.registry().push("registries/circle:1", &public);
    let reference = node.registry().reference("registries/circle:1");
    let round = format!("/v2/registries/circle/blobs/{}", public.layers[1].digest);
    plan(
        &node,
        &round,
        &answer(307, &[("Location", &round)], b""),
        MORE_THAN_RETRIES,
    );
    assert_pull_fails(
        &node,
        &reference,
        &[Code::Unknown, Code::Unavailable],
        "redirect",
    );
}
