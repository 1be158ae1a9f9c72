//! The life cycle of images: shared layers, names, removal, imports by other clients, disk space.

use std::{fs, thread};

use serde_json::json;
use switchyard_proto::cri::v1::ImageFsInfoRequest;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Blob, Image};
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::ustar::{self, TarEntry, TarEntryKind};

use crate::images::{downloads, unique, which, with_file};

fn asked(node: &TestNode, words: &[&str]) -> Vec<String> {
    let socket = node.root().containerd_socket().expect("containerd runs");
    ctr(&socket, NAMESPACE, words)
}

#[test]
fn image_removal_by_one_name_removes_all_names_and_content() {
    let node = TestNode::start();
    let image = with_file("names").build();
    let references = ["lives/one:1", "lives/one:2", "lives/two:1"].map(|name| {
        node.registry().push(name, &image);
        let reference = node.registry().reference(name);
        node.cri().pull(&reference, None).expect("it can be pulled");
        reference
    });
    let found = node
        .cri()
        .image(&references[1])
        .expect("it is asked for")
        .expect("it is there");
    let mut tags = found.repo_tags.clone();
    tags.sort();
    let mut wanted = references.to_vec();
    wanted.sort();
    assert_eq!(tags, wanted);
    assert_eq!(found.repo_digests.len(), 2, "{found:?}");
    node.cri()
        .remove_image(&references[1])
        .expect("it can be removed");
    for reference in &references {
        assert_eq!(
            node.cri().image(reference).expect("it is asked for"),
            None,
            "{reference}"
        );
    }
    node.cri()
        .remove_image(&references[0])
        .expect("a removal can be repeated");
    node.cri()
        .remove_image(&node.image())
        .expect("it can be removed");
    assert!(
        node.cri()
            .list_images()
            .expect("they can be listed")
            .is_empty()
    );
    let empty = |words: &[&str]| {
        eventually(std::time::Duration::from_secs(10), || {
            asked(&node, words).len() <= 1
        })
    };
    assert!(
        empty(&["images", "ls"]),
        "{:?}",
        asked(&node, &["images", "ls"])
    );
    assert!(
        empty(&["content", "ls"]),
        "{:?}",
        asked(&node, &["content", "ls"])
    );
    assert!(
        empty(&["snapshots", "ls"]),
        "{:?}",
        asked(&node, &["snapshots", "ls"])
    );
}

#[test]
fn image_of_two_registries_is_one_and_concurrent_removals_succeed() {
    let node = TestNode::shared();
    let other = Registry::start();
    let image = with_file("registries").build();
    let references = [node.registry(), &other].map(|registry| {
        registry.push("lives/both:1", &image);
        let reference = registry.reference("lives/both:1");
        assert_eq!(
            node.cri().pull(&reference, None).expect("it can be pulled"),
            image.config.digest
        );
        reference
    });
    let listed = node.cri().list_images().expect("they can be listed");
    let mut found = listed
        .into_iter()
        .filter(|listed| listed.id == image.config.digest);
    let mut tags = found.next().expect("it is there").repo_tags;
    assert_eq!(found.next(), None, "it is listed twice");
    tags.sort();
    let mut wanted = references.to_vec();
    wanted.sort();
    assert_eq!(tags, wanted);
    let names = [&references[0], &references[1], &image.config.digest];
    thread::scope(|scope| {
        let twice = names.iter().chain(&names);
        let removals: Vec<_> = twice
            .map(|name| scope.spawn(|| node.cri().remove_image(name)))
            .collect();
        for removal in removals {
            removal
                .join()
                .expect("it does not panic")
                .expect("a removal is idempotent");
        }
    });
    for name in names {
        assert_eq!(
            node.cri().image(name).expect("it is asked for"),
            None,
            "{name}"
        );
    }
}

#[test]
fn image_removal_keeps_shared_layers() {
    let node = TestNode::shared();
    let one = unique(21, 1, 50_000);
    let two = {
        let own = switchyard_tests::image::LayerBuilder::default()
            .file("which", "two\n", 0o644)
            .build();
        let shared = switchyard_tests::image::random_layer(50_000, 21_000);
        switchyard_tests::image::busybox()
            .layer(shared)
            .layer(own)
            .build()
    };
    let [one_name, two_name] =
        [("lives/shares:1", &one), ("lives/shares:2", &two)].map(|(name, image)| {
            node.registry().push(name, image);
            node.registry().reference(name)
        });
    assert_eq!(one.layers[1].digest, two.layers[1].digest);
    node.cri().pull(&one_name, None).expect("it can be pulled");
    node.cri().pull(&two_name, None).expect("it can be pulled");
    assert_eq!(downloads(node.registry(), &one.layers[1].digest), 1);
    node.cri()
        .remove_image(&one_name)
        .expect("it can be removed");
    assert_eq!(which(&node, &two_name), "two");
    node.cri()
        .remove_image(&two_name)
        .expect("it can be removed");
}

#[test]
fn container_survives_removal_of_its_image() {
    let node = TestNode::shared();
    node.registry()
        .push("lives/outlived:1", &with_file("outlived").build());
    let reference = node.registry().reference("lives/outlived:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("outlived");
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.image = Some(switchyard_tests::cri::image_spec(&reference));
    });
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
    assert_eq!(node.cri().sh(&id, "cat /which"), "outlived");
    assert_eq!(
        node.cri()
            .status(&id)
            .expect("it has a status")
            .image
            .expect("it has one")
            .image,
        reference
    );
}

#[test]
fn external_image_changes_affect_the_next_container() {
    let node = TestNode::shared();
    let [one, other] = ["one", "other"].map(|name| {
        node.registry()
            .push(&format!("lives/moves-{name}:1"), &with_file(name).build());
        let reference = node.registry().reference(&format!("lives/moves-{name}:1"));
        node.cri().pull(&reference, None).expect("it can be pulled");
        reference
    });
    // Twice, so that it is known when others come.
    assert_eq!([which(&node, &one), which(&node, &one)], ["one", "one"]);
    asked(&node, &["images", "tag", "--force", &other, &one]);
    assert_eq!(which(&node, &one), "other");
    asked(&node, &["images", "rm", &one]);
    let pod = node.pod("moved");
    let mut config = node.container("main", &["true"]);
    config.image = Some(switchyard_tests::cri::image_spec(&one));
    let refused = pod.try_create(&config).expect_err("the image is gone");
    assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
    node.cri().remove_image(&other).expect("it can be removed");
}

#[test]
fn externally_imported_images_are_listed_and_run() {
    let node = TestNode::start();
    for (name, extra) in [("unpacked", &[][..]), ("packed", &["--no-unpack"])] {
        let image = with_file(name).build();
        let file = node.root().path().join(format!("{name}.tar"));
        let reference = format!("imported.example/{name}:1");
        fs::write(&file, layout(&image, &reference)).expect("the root can be written");
        let mut words = vec!["images", "import"];
        words.extend(extra);
        words.push(file.to_str().expect("the path is ASCII"));
        let printed = asked(&node, &words);
        let found = node.cri().image(&reference).expect("it is asked for");
        let found = found.unwrap_or_else(|| panic!("it is not there: {printed:?}"));
        assert_eq!(
            (found.id.as_str(), found.repo_tags.as_slice()),
            (image.config.digest.as_str(), &[reference.clone()][..])
        );
        let listed = node.cri().list_images().expect("they can be listed");
        assert!(
            listed.iter().any(|image| image.id == found.id),
            "{listed:?}"
        );
        assert_eq!(which(&node, &reference), name);
        assert_eq!(which(&node, &found.id), name);
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
        assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
    }
}

/// An archive of the image in the OCI layout, named as containerd reads it.
fn layout(image: &Image, reference: &str) -> Vec<u8> {
    let mut manifest = image.manifest.descriptor();
    manifest["annotations"] = json!({ "io.containerd.image.name": reference });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    let entry = |path: String, kind: TarEntryKind| TarEntry {
        path,
        mode: 0o644,
        uid: 0,
        gid: 0,
        kind,
    };
    let file = |path: &str, bytes: Vec<u8>| entry(path.to_owned(), TarEntryKind::File(bytes));
    let blob = |blob: &Blob| {
        let hex = blob
            .digest
            .strip_prefix("sha256:")
            .expect("digests are of sha256");
        file(&format!("blobs/sha256/{hex}"), blob.bytes.clone())
    };
    let mut entries = vec![
        file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        file("index.json", index.to_string().into_bytes()),
        blob(&image.manifest),
        blob(&image.config),
    ];
    entries.extend(image.layers.iter().map(blob));
    ustar::archive(&entries)
}

#[test]
fn image_fs_usage_grows_with_images() {
    let node = TestNode::start();
    let used = || {
        let answer = node
            .cri()
            .images(async |mut client| client.image_fs_info(ImageFsInfoRequest {}).await);
        let systems = answer.expect("it is reported").image_filesystems;
        assert_eq!(systems.len(), 1, "{systems:?}");
        let mountpoint = systems[0]
            .fs_id
            .clone()
            .expect("it lies somewhere")
            .mountpoint;
        assert!(
            fs::metadata(&mountpoint).is_ok_and(|meta| meta.is_dir()),
            "{mountpoint}"
        );
        assert!(systems[0].timestamp > 0);
        let inodes = systems[0].inodes_used.expect("inodes are counted").value;
        (
            systems[0].used_bytes.expect("bytes are counted").value,
            inodes,
        )
    };
    let (bytes, inodes) = used();
    assert!(
        bytes > 1_000_000 && inodes > 10,
        "{bytes} bytes, {inodes} inodes"
    );
    node.registry()
        .push("lives/large:1", &unique(31, 2, 2_000_000));
    node.cri()
        .pull(&node.registry().reference("lives/large:1"), None)
        .expect("it can be pulled");
    let mut now = used();
    let grown = eventually(std::time::Duration::from_secs(20), || {
        now = used();
        now.0 >= bytes + 4_000_000
    });
    assert!(
        grown && now.1 > inodes,
        "from {bytes} bytes, {inodes} inodes to {now:?}"
    );
}
