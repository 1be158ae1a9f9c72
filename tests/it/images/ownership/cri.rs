//! Pinned images and holders of images, as CRI clients see them.

use switchyard_proto::cri::v1::ImageStatusRequest;
use switchyard_tests::cri::image_spec;
use switchyard_tests::node::TestNode;

use crate::images::{auth, with_file};

#[test]
fn configured_images_are_pinned() {
    let reference = "pinned.example/library/kept:1";
    let node = TestNode::start_with(&format!("[images]\npinned = [{reference:?}]\n"), |_| {});
    node.registry()
        .push("library/kept:1", &with_file("kept").build());
    node.registry()
        .mirror(&node.root().certs(), "pinned.example");
    node.cri().pull(reference, None).expect("the mirror has it");
    let pinned = |reference: &str| {
        node.cri()
            .image(reference)
            .expect("it is asked for")
            .expect("it is there")
            .pinned
    };
    assert!(pinned(reference));
    let listed = node.cri().list_images().expect("they can be listed");
    assert!(
        listed
            .iter()
            .any(|image| image.repo_tags == [reference] && image.pinned),
        "{listed:#?}"
    );
    assert!(
        listed.iter().any(|image| !image.pinned),
        "others are not: {listed:#?}"
    );
    // A request that names the pinned image may still remove it.
    node.cri()
        .remove_image(reference)
        .expect("it can be removed");
    assert_eq!(node.cri().image(reference).expect("it is asked for"), None);
}

#[test]
fn verbose_image_status_has_configuration_and_holders() {
    let node = TestNode::shared();
    let image = with_file("verbose").user("app").label("a", "b").build();
    node.registry().push("holders/verbose:1", &image);
    let reference = node.registry().reference("holders/verbose:1");
    node.cri()
        .pull(&reference, auth("somebody", "anything"))
        .expect("everybody may");
    let request = ImageStatusRequest {
        image: Some(image_spec(&reference)),
        verbose: true,
    };
    let answer = node
        .cri()
        .images(async |mut client| client.image_status(request).await);
    let info = answer.expect("it is asked for").info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    assert_eq!(info["imageSpec"]["config"]["User"], "app");
    assert_eq!(info["imageSpec"]["config"]["Labels"]["a"], "b");
    // Credentials were shown, whether the registry wanted them or not.
    assert_eq!(
        info["holders"],
        serde_json::json!({ "kubernetes": "private" })
    );
    node.cri().pull(&reference, None).expect("everybody may");
    node.cri()
        .pull(&reference, auth("somebody", "anything"))
        .expect("everybody may");
    let request = ImageStatusRequest {
        image: Some(image_spec(&reference)),
        verbose: true,
    };
    let answer = node
        .cri()
        .images(async |mut client| client.image_status(request).await);
    let info: serde_json::Value =
        serde_json::from_str(&answer.expect("it is asked for").info["info"]).expect("it is JSON");
    assert_eq!(
        info["holders"],
        serde_json::json!({ "kubernetes": "open" }),
        "it was had without them"
    );
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}
