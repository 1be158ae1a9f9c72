//! Image formats: tags, digests, indices, many layers, other platforms, invalid ones.

use switchyard_tests::cri::image_spec;
use switchyard_tests::image::{Family, Index, LayerBuilder, busybox};
use switchyard_tests::node::TestNode;
use tonic::Code;

use crate::images::{downloads, which, with_file};

#[test]
fn image_is_pulled_by_tag_and_by_digest() {
    let node = TestNode::shared();
    let image = with_file("digest").build();
    let digest = node.registry().push("kinds/digest:1", &image);
    let by_digest = node.registry().reference(&format!("kinds/digest@{digest}"));
    let id = node.cri().pull(&by_digest, None).expect("it can be pulled");
    assert_eq!(id, image.config.digest);
    let found = node
        .cri()
        .image(&by_digest)
        .expect("it is asked for")
        .expect("it is there");
    assert_eq!(
        (found.repo_tags.as_slice(), found.repo_digests.as_slice()),
        (&[][..], &[by_digest.clone()][..])
    );
    let by_tag = node.registry().reference("kinds/digest:1");
    assert_eq!(
        node.cri().pull(&by_tag, None).expect("it can be pulled"),
        id
    );
    let bare = id.strip_prefix("sha256:").expect("ids are digests");
    for reference in [by_tag.as_str(), &by_digest, &id, bare, &bare[..16]] {
        let found = node.cri().image(reference).expect("it is asked for");
        let found = found.unwrap_or_else(|| panic!("it is not found as {reference}"));
        assert_eq!(
            (found.id.as_str(), found.repo_tags.as_slice()),
            (id.as_str(), &[by_tag.clone()][..])
        );
        assert_eq!(found.repo_digests, [by_digest.as_str()]);
        assert!(found.size > 0);
    }
    assert_eq!(which(&node, &by_digest), "digest");
    node.cri().remove_image(&id).expect("it can be removed");
}

#[test]
fn index_selects_the_image_of_the_node_platform() {
    let node = TestNode::shared();
    for (name, family) in [("oci", Family::Oci), ("docker", Family::Docker)] {
        let other = with_file("other")
            .family(family)
            .architecture("s390x")
            .build();
        let own = with_file(name).family(family).build();
        let digest = node.registry().push_index(
            &format!("kinds/index-{name}:1"),
            &Index::new(family, vec![other.clone(), own.clone()]),
        );
        let reference = node.registry().reference(&format!("kinds/index-{name}:1"));
        assert_eq!(
            node.cri().pull(&reference, None).expect("it can be pulled"),
            own.config.digest
        );
        let found = node
            .cri()
            .image(&reference)
            .expect("it is asked for")
            .expect("it is there");
        assert_eq!(
            found.repo_digests,
            [node
                .registry()
                .reference(&format!("kinds/index-{name}@{digest}"))]
        );
        assert_eq!(
            downloads(node.registry(), &other.config.digest),
            0,
            "the other one was downloaded"
        );
        assert_eq!(which(&node, &reference), name);
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
    }
}

/// An index promises this node's platform for what says that it is for another one; of an image without an index the
/// configuration says nothing.
#[test]
fn platform_is_what_the_index_says_or_this_node_is() {
    let node = TestNode::shared();
    let own = busybox().build().platform;
    let mut promised = with_file("promised").architecture("s390x").build();
    promised.platform = own;
    node.registry()
        .push_index("kinds/promised:1", &Index::new(Family::Oci, vec![promised]));
    let unsaid = with_file("unsaid").architecture("").build();
    node.registry().push("kinds/unsaid:1", &unsaid);
    for name in ["promised", "unsaid"] {
        let reference = node.registry().reference(&format!("kinds/{name}:1"));
        node.cri().pull(&reference, None).expect("it can be pulled");
        assert_eq!(which(&node, &reference), name);
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
    }
}

#[test]
fn image_for_another_platform_is_rejected_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let before = images(&node);
    let other = with_file("other").architecture("s390x").build();
    node.registry().push("kinds/plain:1", &other);
    let status = node
        .cri()
        .pull(&node.registry().reference("kinds/plain:1"), None);
    let status = status.expect_err("it cannot run here");
    assert!(status.message().contains("s390x"), "{status}");
    node.registry()
        .push_index("kinds/other:1", &Index::new(Family::Oci, vec![other]));
    let status = node
        .cri()
        .pull(&node.registry().reference("kinds/other:1"), None);
    let status = status.expect_err("it cannot run here");
    let refused = matches!(
        status.code(),
        Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition
    );
    assert!(refused, "{status}");
    assert!(status.message().contains("linux/s390x"), "{status}");
    assert_eq!(images(&node), before);
    node.assert_clean();
}

/// The ids of all images.
fn images(node: &TestNode) -> Vec<String> {
    node.cri()
        .list_images()
        .expect("images can be listed")
        .into_iter()
        .map(|image| image.id)
        .collect()
}

#[test]
fn inconsistent_image_is_rejected_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let before = images(&node);
    let mut layer = LayerBuilder::default()
        .file("file", "content", 0o644)
        .build();
    layer.diff_id = format!("sha256:{}", "1".repeat(64));
    node.registry()
        .push("kinds/diff:1", &busybox().layer(layer).build());
    let mut garbage = LayerBuilder::default().file("file", "other", 0o644).build();
    garbage.bytes = b"this is neither gzip nor tar".to_vec();
    node.registry()
        .push("kinds/garbage:1", &busybox().layer(garbage).build());
    let escape = LayerBuilder::default()
        .symlink("out", "/../../../../../../../../tmp")
        .file("out/escaped-from-an-image", "x", 0o644)
        .build();
    for name in ["kinds/diff:1", "kinds/garbage:1"] {
        let status = node
            .cri()
            .pull(&node.registry().reference(name), None)
            .expect_err("it is broken");
        assert!(!status.message().is_empty(), "{status}");
        assert_eq!(
            node.cri()
                .image(&node.registry().reference(name))
                .expect("it is asked for"),
            None
        );
    }
    assert_eq!(images(&node), before);
    node.assert_clean();
    node.registry()
        .push("kinds/escape:1", &busybox().layer(escape).build());
    // Whether it is refused or kept inside is the unpacker's to say.
    let _ = node
        .cri()
        .pull(&node.registry().reference("kinds/escape:1"), None);
    assert!(!std::path::Path::new("/tmp/escaped-from-an-image").exists());
}

#[test]
fn sixty_layers_are_stacked_into_one_root() {
    let node = TestNode::shared();
    let mut image = busybox();
    for number in 0..60 {
        let layer = LayerBuilder::default().file("last", format!("{number}\n"), 0o644);
        image = image.layer(layer.file(&format!("file{number}"), "", 0o644).build());
    }
    node.registry().push("kinds/layers:60", &image.build());
    let reference = node.registry().reference("kinds/layers:60");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("layers");
    let seen = pod.run_shell("cat /last; ls / | grep -c ^file", |config| {
        config.image = Some(image_spec(&reference))
    });
    assert_eq!(seen, "59\n60");
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn upper_layers_whiteout_and_replace_lower_files() {
    let node = TestNode::shared();
    let first = LayerBuilder::default()
        .dir("data", 0o755)
        .file("data/hidden", "x", 0o644)
        .file("data/replaced", "first\n", 0o644)
        .dir("data/opaque", 0o755)
        .file("data/opaque/below", "x", 0o644);
    let second = LayerBuilder::default()
        .whiteout("data/hidden")
        .file("data/replaced", "second\n", 0o600)
        .dir("data/opaque", 0o755)
        .file("data/opaque/.wh..wh..opq", "", 0o644)
        .file("data/opaque/above", "x", 0o644);
    let image = busybox()
        .layer(first.build())
        .layer(second.build_uncompressed());
    node.registry().push("kinds/whiteouts:1", &image.build());
    let reference = node.registry().reference("kinds/whiteouts:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("whiteouts");
    let script = "cd /data; cat replaced; find . -type f | sort";
    let seen = pod.run_shell(script, |config| config.image = Some(image_spec(&reference)));
    assert_eq!(seen, "second\n./opaque/above\n./replaced");
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn layer_without_directory_entries_keeps_lower_directories() {
    let node = TestNode::shared();
    let first = LayerBuilder::default()
        .dir("closed", 0o700)
        .dir("closed/inner", 0o750);
    let second = LayerBuilder::default().file("closed/inner/file", "", 0o644);
    let third = LayerBuilder::default()
        .dir("open", 0o755)
        .file("open/file", "", 0o644);
    let image = busybox()
        .layer(first.build())
        .layer(second.build())
        .layer(third.build());
    node.registry().push("kinds/directories:1", &image.build());
    let reference = node.registry().reference("kinds/directories:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("directories");
    let script = "stat -c '%n %a' /closed /closed/inner /closed/inner/file /open";
    let seen = pod.run_shell(script, |config| config.image = Some(image_spec(&reference)));
    assert_eq!(
        seen,
        "/closed 700\n/closed/inner 750\n/closed/inner/file 644\n/open 755"
    );
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}
