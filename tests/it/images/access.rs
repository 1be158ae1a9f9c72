//! Access to registries: passwords, tokens, mirrors.

use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::Access;
use tonic::Code;

use crate::images::{auth, which, with_file};

/// Pulls without credentials, with wrong ones, and with the right ones.
fn guarded(access: Access, name: &str) {
    let node = TestNode::shared();
    let registry = Registry::start_behind_proxy(access);
    registry.push("private/image:1", &with_file(name).build());
    let reference = registry.reference("private/image:1");
    for (what, credentials) in [
        ("nothing", None),
        ("a wrong password", auth("user", "wrong")),
    ] {
        let status = node
            .cri()
            .pull(&reference, credentials)
            .expect_err("it is private");
        assert_eq!(
            status.code(),
            Code::Unauthenticated,
            "with {what}: {status}"
        );
        assert!(
            !status.message().contains("wrong"),
            "the password is shown: {status}"
        );
    }
    assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
    node.cri()
        .pull(&reference, auth("user", "secret"))
        .expect("that is the password");
    assert_eq!(which(&node, &reference), name);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn basic_credentials_are_sent_on_challenge() {
    guarded(
        Access::Basic {
            user: "user".into(),
            password: "secret".into(),
        },
        "basic",
    );
}

#[test]
fn credentials_are_exchanged_for_a_bearer_token() {
    guarded(
        Access::Bearer {
            credentials: Some(("user".into(), "secret".into())),
        },
        "bearer",
    );
}

#[test]
fn anonymous_tokens_are_fetched() {
    let node = TestNode::shared();
    let registry = Registry::start_behind_proxy(Access::Bearer { credentials: None });
    registry.push("public/image:1", &with_file("anonymous").build());
    let reference = registry.reference("public/image:1");
    node.cri()
        .pull(&reference, None)
        .expect("everybody gets a token");
    assert_eq!(which(&node, &reference), "anonymous");
    assert!(registry.proxy().count("GET /token") >= 1);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn mirror_serves_when_the_registry_is_unreachable() {
    let node = TestNode::shared();
    let mirror = Registry::start_behind_proxy(Access::Open);
    mirror.push("library/mirrored:1", &with_file("mirrored").build());
    mirror.mirror(&node.root().certs(), "mirrored.example");
    let reference = "mirrored.example/library/mirrored:1";
    node.cri().pull(reference, None).expect("the mirror has it");
    let image = node
        .cri()
        .image(reference)
        .expect("it is asked for")
        .expect("it is there");
    assert_eq!(image.repo_tags, [reference]);
    assert_eq!(which(&node, reference), "mirrored");
    assert!(
        mirror.proxy().count("ns=mirrored.example") >= 1,
        "{:?}",
        mirror.proxy().requests()
    );
    node.cri()
        .remove_image(reference)
        .expect("it can be removed");
}

#[test]
fn unreachable_registry_is_unavailable() {
    let node = TestNode::shared();
    let registry = Registry::start();
    let reference = registry.reference("gone/image:1");
    drop(registry);
    let status = node
        .cri()
        .pull(&reference, None)
        .expect_err("nobody listens");
    assert!(
        status.message().starts_with("RegistryUnavailable"),
        "{status}"
    );
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let missing = node.registry().reference("no/such:image");
    let status = node
        .cri()
        .pull(&missing, None)
        .expect_err("it is not there");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert!(status.message().contains("no/such:image"), "{status}");
}
