//! Damage in containerd's store by a power cut, a bad sector or an operator: it costs the image that it
//! belongs to, and the next pull replaces it.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::Image;
use switchyard_tests::leak_scan::{NAMESPACE, ctr, stored};
use switchyard_tests::node::TestNode;
use tonic::Code;

use crate::images::{which, with_file};

/// Time for containerd to drop removed content.
const LIMIT: Duration = Duration::from_secs(20);

fn open(file: &Path) -> File {
    File::options()
        .write(true)
        .open(file)
        .expect("it is stored")
}

fn empty(file: &Path) {
    open(file).set_len(0).expect("it can be truncated");
}

fn cut(file: &Path) {
    open(file).set_len(100).expect("it can be truncated");
}

fn fill_with_zeros(file: &Path) {
    let length = fs::metadata(file).expect("it is stored").len();
    let file = open(file);
    file.set_len(0)
        .and_then(|()| file.set_len(length))
        .expect("it can be truncated");
}

fn remove(file: &Path) {
    fs::remove_file(file).expect("it is stored");
}

/// Pushes and pulls an image of one file on busybox; its reference.
fn pulled(node: &TestNode, name: &str) -> (String, Image) {
    let image = with_file(name).build();
    let path = format!("damage/{name}:1");
    node.registry().push(&path, &image);
    let reference = node.registry().reference(&path);
    node.cri().pull(&reference, None).expect("it can be pulled");
    (reference, image)
}

/// The error of creating a container from an image.
#[track_caller]
fn refusal(node: &TestNode, reference: &str) -> tonic::Status {
    let pod = node.pod("refused");
    let mut config = node.container("main", &["true"]);
    config.image = Some(image_spec(reference));
    pod.try_create(&config).expect_err("its image is damaged")
}

/// Removes the snapshots that were not stored before.
fn remove_snapshots_since(node: &TestNode, before: &[String]) {
    let socket = node.root().containerd_socket().expect("containerd runs");
    let left = || {
        let all = stored(&socket, NAMESPACE).into_iter();
        let new = all.filter(|item| item.starts_with("snapshot ") && !before.contains(item));
        new.map(|item| item["snapshot ".len()..].to_owned())
            .collect::<Vec<_>>()
    };
    // That of a lower one is refused until the upper one is removed.
    let removed = eventually(LIMIT, || {
        for name in left() {
            let _ = ctr(&socket, NAMESPACE, &["snapshots", "rm", &name]);
        }
        left().is_empty()
    });
    assert!(removed, "{:?}", left());
}

/// Damages a file of the content store.
type Damage = fn(&Path);

#[test]
fn damaged_document_costs_one_image_and_is_replaced_by_the_next_pull() {
    let node = TestNode::start();
    let (other, _) = pulled(&node, "other");
    let (reference, image) = pulled(&node, "damaged");
    let [manifest, config] = [&image.manifest.digest, &image.config.digest];
    let damages: [(fn(&Path), _); 4] = [
        (empty, manifest),
        (cut, config),
        (fill_with_zeros, config),
        (remove, manifest),
    ];
    for (damage, digest) in damages {
        damage(&node.root().blob(digest));
        // Until then the daemon knows the content.
        node.daemon().restart();
        let listed = node.cri().list_images().expect("the others can be listed");
        assert!(
            listed
                .iter()
                .any(|image| image.repo_tags == [other.clone()]),
            "{listed:#?}"
        );
        assert!(
            !listed
                .iter()
                .any(|image| image.repo_tags == [reference.clone()]),
            "{listed:#?}"
        );
        assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
        assert_eq!(which(&node, &other), "other");
        let refused = refusal(&node, &reference);
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert!(refused.message().contains("damaged"), "{refused}");
        node.cri()
            .pull(&reference, None)
            .expect("what is damaged is replaced");
        assert_eq!(which(&node, &reference), "damaged");
    }
    empty(&node.root().blob(&image.manifest.digest));
    node.daemon().restart();
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed by its name");
    node.cri()
        .remove_image(&other)
        .expect("the others can be removed");
    let socket = node.root().containerd_socket().expect("containerd runs");
    let gone = eventually(LIMIT, || {
        let [images, content] =
            ["images", "content"].map(|what| ctr(&socket, NAMESPACE, &[what, "ls"]));
        // Labels of layers that other images have too name this one for ever.
        !images.iter().any(|line| line.contains("damage/"))
            && !content
                .iter()
                .any(|line| line.starts_with(&image.layers[1].digest))
    });
    assert!(gone, "{:?}", ctr(&socket, NAMESPACE, &["content", "ls"]));
}

#[test]
fn damaged_layer_without_snapshot_is_told_and_replaced_by_the_next_pull() {
    let node = TestNode::start();
    let socket = node.root().containerd_socket().expect("containerd runs");
    let damages: [(&str, Damage); 4] = [
        ("empty", empty),
        ("cut", cut),
        ("zeros", fill_with_zeros),
        ("removed", remove),
    ];
    for (name, damage) in damages {
        let before = stored(&socket, NAMESPACE);
        let (reference, image) = pulled(&node, name);
        remove_snapshots_since(&node, &before);
        damage(&node.root().blob(&image.layers[1].digest));
        // In two cases nobody notices the damage before the pull.
        if name == "cut" || name == "removed" {
            for _ in 0..2 {
                let refused = refusal(&node, &reference);
                assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
                assert!(
                    refused.message().contains("pull the image again"),
                    "{refused}"
                );
            }
            // A kubelet that pulls only what is absent pulls it then, and one that frees space sees it.
            assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
            let listed = node.cri().list_images().expect("they can be listed");
            assert!(
                listed
                    .iter()
                    .any(|image| image.repo_tags == [reference.clone()]),
                "{listed:#?}"
            );
        }
        node.cri()
            .pull(&reference, None)
            .expect("what is damaged is replaced");
        assert!(
            node.cri()
                .image(&reference)
                .expect("it is asked for")
                .is_some()
        );
        assert_eq!(which(&node, &reference), name);
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
    }
}

#[test]
fn missing_snapshots_are_unpacked_anew_by_creates_and_pulls() {
    let node = TestNode::start();
    let socket = node.root().containerd_socket().expect("containerd runs");
    let before = stored(&socket, NAMESPACE);
    let (reference, _) = pulled(&node, "packed");
    remove_snapshots_since(&node, &before);
    assert_eq!(which(&node, &reference), "packed");
    remove_snapshots_since(&node, &before);
    node.cri().pull(&reference, None).expect("it can be pulled");
    assert_eq!(which(&node, &reference), "packed");
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}
