//! A snapshotter that provides layers by itself, as stargz, SOCI, nydus and overlaybd do.

use std::cell::RefCell;

use serde_json::{Value, json};
use switchyard_tests::cri::image_spec;
use switchyard_tests::external_containerd::ExternalContainerd;
use switchyard_tests::image::{Blob, Image, LayerBuilder, busybox};
use switchyard_tests::node::TestNode;
use switchyard_tests::remote_snapshotter::RemoteSnapshotter;

use crate::images::downloads;

/// The annotation of a layer that is for the snapshotter.
const TOC: (&str, &str) = ("containerd.io/snapshot/stargz/toc.digest", "sha256:0123");

/// A node whose containerd has a remote snapshotter. Both outlive the node, whose last leak scan queries containerd.
fn remote_node(behind: &RefCell<Option<(ExternalContainerd, RemoteSnapshotter)>>) -> TestNode {
    TestNode::start_configured(|root| {
        let snapshotter = RemoteSnapshotter::start(&root.path().join("remote"));
        let socket = root.run().join("containerd/containerd.sock");
        let plugin = snapshotter.plugin("remote");
        let containerd = ExternalContainerd::start_with(root, &socket, &plugin);
        *behind.borrow_mut() = Some((containerd, snapshotter));
        format!(
            "[containerd]\nmode = \"external\"\naddress = {socket:?}\nsnapshotter = \"remote\"\n"
        )
    })
}

/// Media type of layers that nobody but a snapshotter can use, as those of nydus.
const OTHER_LAYER: &str = "application/vnd.oci.image.layer.nydus.blob.v1";

/// Busybox, which the node has, and three layers that no other image has, of which the second has annotations. Those that are
/// provided cannot be unpacked.
fn image(name: &str, provided: &[usize]) -> Image {
    let layer = |number| {
        let file = format!("file{number}");
        let content = format!("{name}{number}\n");
        LayerBuilder::default().file(&file, content, 0o644).build()
    };
    let mut image = (1..=3)
        .fold(busybox(), |image, number| image.layer(layer(number)))
        .build();
    let mut manifest: Value = serde_json::from_slice(&image.manifest.bytes).expect("it is JSON");
    manifest["layers"][2]["annotations"] = json!({
        TOC.0: TOC.1, "containerd.io/snapshot/uidmapping": "0:100000:65536", "title": "second",
    });
    for number in provided {
        manifest["layers"][*number]["mediaType"] = json!(OTHER_LAYER);
    }
    image.manifest = Blob::new(
        &image.manifest.media_type,
        manifest.to_string().into_bytes(),
    );
    image
}

#[test]
fn layers_that_a_remote_snapshotter_provides_are_not_downloaded() {
    let behind = RefCell::new(None);
    let node = remote_node(&behind);
    let behind = behind.borrow();
    let (_, snapshotter) = behind.as_ref().expect("it was started with the node");
    // The layers that are provided, and those that nobody may download.
    let cases: [(&str, &[usize], &[usize]); 5] = [
        ("all", &[1, 2, 3], &[1, 2, 3]),
        ("none", &[], &[]),
        ("lowest", &[1], &[1]),
        ("two", &[1, 2], &[1, 2]),
        // Whether it provides this one can be asked when the one below is unpacked.
        ("highest", &[3], &[]),
    ];
    for (name, provided, skipped) in cases {
        let image = image(name, provided);
        let manifest = node.registry().push(&format!("remote/{name}:1"), &image);
        for number in provided {
            let layer = &image.layers[*number];
            snapshotter.provide(&layer.digest, &layer.bytes);
        }
        let reference = node.registry().reference(&format!("remote/{name}:1"));
        node.cri()
            .pull(&reference, None)
            .unwrap_or_else(|status| panic!("{name}: {status}\n{}", node.daemon().tail()));
        for (number, layer) in image.layers.iter().enumerate().skip(1) {
            let context = format!("{name}, layer {number}");
            let requests = downloads(node.registry(), &layer.digest);
            if skipped.contains(&number) {
                assert_eq!(requests, 0, "{context}");
            } else if !provided.contains(&number) {
                assert_eq!(requests, 1, "{context}");
            }
            let prepared = snapshotter.prepared(&layer.digest);
            assert_eq!(prepared.len(), 1, "{context}: {prepared:?}");
            let label = |key: &str| prepared[0].get(key).map(String::as_str);
            let cri = |key: &str| label(&format!("containerd.io/snapshot/cri.{key}"));
            let above: Vec<_> = image.layers[number..]
                .iter()
                .map(|layer| layer.digest.as_str())
                .collect();
            assert_eq!(cri("image-ref"), Some(reference.as_str()), "{context}");
            assert_eq!(cri("manifest-digest"), Some(manifest.as_str()), "{context}");
            assert_eq!(
                cri("image-layers"),
                Some(above.join(",").as_str()),
                "{context}"
            );
            let annotation = (number == 2).then_some(TOC.1);
            assert_eq!(label(TOC.0), annotation, "{context}");
            assert_eq!(
                label("containerd.io/snapshot/uidmapping"),
                None,
                "{context}"
            );
        }
        let pod = node.pod(name);
        let output = pod.run_shell("cat /file1 /file2 /file3", |config| {
            config.image = Some(image_spec(&reference));
        });
        let expected: Vec<_> = (1..=3).map(|number| format!("{name}{number}")).collect();
        assert_eq!(output, expected.join("\n"), "{name}");
    }
}

#[test]
fn managed_containerd_has_the_proxy_plugins_of_the_configuration() {
    let behind = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        let snapshotter = RemoteSnapshotter::start(&root.path().join("remote"));
        let plugin = snapshotter.plugin("remote");
        *behind.borrow_mut() = Some(snapshotter);
        let plugin = plugin.replace("[proxy_plugins.", "[containerd.proxy_plugins.");
        format!("[containerd]\nsnapshotter = \"remote\"\n{plugin}")
    });
    let behind = behind.borrow();
    let snapshotter = behind.as_ref().expect("it was started with the node");
    let image = image("managed", &[1]);
    node.registry().push("remote/managed:1", &image);
    let layer = &image.layers[1];
    snapshotter.provide(&layer.digest, &layer.bytes);
    let reference = node.registry().reference("remote/managed:1");
    node.cri()
        .pull(&reference, None)
        .unwrap_or_else(|status| panic!("{status}\n{}", node.daemon().tail()));
    assert_eq!(downloads(node.registry(), &layer.digest), 0);
    assert_eq!(snapshotter.prepared(&layer.digest).len(), 1);
    let pod = node.pod("managed");
    let output = pod.run_shell("cat /file1 /file2 /file3", |config| {
        config.image = Some(image_spec(&reference));
    });
    assert_eq!(output, "managed1\nmanaged2\nmanaged3");
}
