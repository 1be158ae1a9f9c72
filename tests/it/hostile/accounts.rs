//! `/etc/passwd` and `/etc/group` of an image, whose content its author controls.

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::{context, image_spec};
use switchyard_tests::image::{LayerBuilder, busybox};
use switchyard_tests::node::TestNode;
use tonic::Code;

use super::peak_memory;

/// Puts an image with this `/etc/group` on the node; its reference.
#[track_caller]
fn with_groups(node: &TestNode, name: &str, group: String) -> String {
    let image = busybox()
        .layer(
            LayerBuilder::default()
                .file("etc/group", group, 0o644)
                .build(),
        )
        .build();
    node.registry().push(&format!("hostile/{name}:1"), &image);
    let reference = node.registry().reference(&format!("hostile/{name}:1"));
    node.cri().pull(&reference, None).expect("it is an image");
    reference
}

/// Has a container be of the image, and run as `app`.
fn run_as_app(config: &mut cri::ContainerConfig, image: &str) {
    config.image = Some(image_spec(image));
    context(config).run_as_username = "app".to_owned();
}

#[test]
fn ten_mib_account_line_is_parsed_without_being_buffered() {
    let node = TestNode::start();
    // Five million members, the user among them.
    let line = format!("crowd:x:4242:{}app\n", "a,".repeat(5_242_000));
    let image = with_groups(&node, "crowd", line + "app:x:1000:\nlast:x:77:app\n");
    let pod = node.pod("crowd");
    let before = peak_memory(&node);
    let groups = pod.run_shell("id -G", |config| run_as_app(config, &image));
    let growth = peak_memory(&node).saturating_sub(before);
    let groups: Vec<&str> = groups.split_whitespace().collect();
    assert!(
        ["1000", "4242", "77"]
            .iter()
            .all(|group| groups.contains(group)),
        "{groups:?}"
    );
    assert!(growth < 64 << 20, "{growth} bytes more");
}

#[test]
fn sixteen_mib_group_file_is_rejected_with_size_limit_and_key() {
    let node = TestNode::start();
    let image = with_groups(&node, "large", "g:x:1:app\n".repeat((16 << 20) / 10));
    let pod = node.pod("large");
    let before = peak_memory(&node);
    let mut config = node.container("app", &["true"]);
    run_as_app(&mut config, &image);
    let status = pod
        .try_create(&config)
        .expect_err("it is larger than it may be");
    let growth = peak_memory(&node).saturating_sub(before);
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for part in [
        "/etc/group",
        "16777210 bytes",
        "10485760",
        "images.max_account_file_bytes",
    ] {
        assert!(status.message().contains(part), "{part}: {status}");
    }
    assert!(growth < 64 << 20, "{growth} bytes more");
    assert_eq!(
        pod.run_shell("id -un", |config| run_as_app(config, &node.image())),
        "app"
    );
}
