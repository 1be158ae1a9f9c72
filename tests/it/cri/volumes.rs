//! Images as volumes, and mounts that are read-only all the way down.

use std::fs;
use std::process::Command;

use switchyard_proto::cri::v1::{ImageSpec, Mount, StatusRequest};
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::random_name;
use switchyard_tests::image::{ImageBuilder, LayerBuilder};
use switchyard_tests::node::TestNode;

/// An image of data alone, in two layers, with links that lead into and out of it. No other test uses it.
fn data(which: &str) -> ImageBuilder {
    let below = LayerBuilder::default()
        .dir("models", 0o755)
        .file("models/weights", format!("{which}\n"), 0o644)
        .dir("models/deep", 0o755)
        .file("models/deep/file", "deep\n", 0o600)
        .build();
    let above = LayerBuilder::default()
        .symlink("current", "/models/deep")
        .symlink("out", "../../../../etc")
        .file("notes", "above\n", 0o644)
        .build();
    ImageBuilder::new().layer(below).layer(above)
}

fn pull(node: &TestNode, which: &str) -> (String, String) {
    let name = format!("volumes/{which}:1");
    node.registry().push(&name, &data(which).build());
    let reference = node.registry().reference(&name);
    let id = node.cri().pull(&reference, None).expect("it can be pulled");
    (reference, id)
}

fn volume(image: &str, sub_path: &str, at: &str) -> Mount {
    Mount {
        container_path: at.to_owned(),
        readonly: true,
        image: Some(ImageSpec {
            image: image.to_owned(),
            ..Default::default()
        }),
        image_sub_path: sub_path.to_owned(),
        ..Default::default()
    }
}

#[test]
fn image_volume_is_read_only_and_survives_untagging() {
    let node = TestNode::start();
    let (reference, image) = pull(&node, "whole");
    let pod = node.pod("volume");
    let mounts = vec![
        volume(&image, "", "/whole"),
        volume(&reference, "models/deep", "/part"),
        volume(&image, "current", "/linked"),
    ];
    let wanted = mounts.clone();
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.mounts = mounts.clone()
    });
    assert_eq!(
        node.cri().status(&id).expect("it has a status").mounts,
        wanted
    );
    let sh = |script: &str| node.cri().sh(&id, script);
    assert_eq!(
        sh("cat /whole/models/weights /whole/notes /part/file /linked/file"),
        "whole\nabove\ndeep\ndeep"
    );
    assert_eq!(
        sh("for d in whole part linked; do touch /$d/new 2>/dev/null && echo wrote; done; true"),
        ""
    );
    assert_eq!(sh("ls /part"), "file");
    // It is mounted on the host only while the container is created.
    let mounted = fs::read_to_string("/proc/self/mountinfo").expect("this process has mounts");
    let stage = node.root().run().join("stage");
    assert!(
        !mounted.contains(stage.to_str().expect("the path is ASCII")),
        "{mounted}"
    );

    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
    assert_eq!(node.cri().image(&image).expect("it is asked for"), None);
    assert_eq!(sh("cat /whole/models/deep/file"), "deep");
    node.daemon().restart();
    assert_eq!(sh("cat /whole/models/weights"), "whole");
    node.cri().remove(&id).expect("it can be removed");
    node.assert_gone(&[&id]);
}

#[test]
fn invalid_image_volume_is_reported_and_leaves_nothing_behind() {
    let node = TestNode::shared();
    let (reference, image) = pull(&node, "refused");
    let pod = node.pod("refused");
    for (mount, why) in [
        (
            volume("registry.example/none:1", "", "/v"),
            "registry.example/none:1",
        ),
        (
            volume(&image, "none", "/v"),
            "none is no directory of the image",
        ),
        (
            volume(&image, "notes", "/v"),
            "notes is no directory of the image",
        ),
        (
            volume(&image, "out", "/v"),
            "out is no directory of the image",
        ),
        (volume(&image, "../x", "/v"), "image_sub_path"),
        (
            Mount {
                readonly: false,
                ..volume(&image, "", "/v")
            },
            "readonly",
        ),
    ] {
        let mut config = node.container("main", &["true"]);
        config.mounts = vec![mount];
        let status = pod.try_create(&config).expect_err(why);
        assert!(
            status.message().starts_with("ImageVolumeMountFailed"),
            "{status}"
        );
        assert!(status.message().contains(why), "{status}");
    }
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn recursive_read_only_mount_is_applied() {
    let node = TestNode::shared();
    let features = node
        .cri()
        .runtime(async |mut client| client.status(StatusRequest::default()).await)
        .expect("it reports its status");
    assert!(
        features
            .features
            .expect("they are reported")
            .supplemental_groups_policy
    );
    let recursive = features
        .runtime_handlers
        .iter()
        .find(|handler| handler.name.is_empty())
        .and_then(|handler| handler.features)
        .is_some_and(|features| features.recursive_read_only_mounts);
    assert!(recursive, "Debian's runc says that it can");
    let dir = node.root().path().join(format!("host-{}", random_name()));
    let below = dir.join("below");
    fs::create_dir_all(&below).expect("the root can be written");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(&below)
        .status();
    assert!(mounted.expect("mount starts").success());
    let pod = node.pod("recursive");
    let script = "for f in /plain /plain/below /all /all/below; do touch $f/x 2>/dev/null && echo wrote $f; done; true";
    let seen = pod.run_shell(script, |config| {
        let mount = |at: &str, recursive_read_only| Mount {
            host_path: dir.to_str().expect("the path is ASCII").to_owned(),
            container_path: at.to_owned(),
            readonly: true,
            recursive_read_only,
            ..Default::default()
        };
        config.mounts = vec![mount("/plain", false), mount("/all", true)];
    });
    assert_eq!(seen, "wrote /plain/below");
    drop(pod);
    assert!(
        Command::new("umount")
            .arg(&below)
            .status()
            .expect("umount starts")
            .success()
    );
}

#[test]
fn mount_options_are_applied_or_rejected_by_name() {
    let node = TestNode::shared();
    let pod = node.pod("options");
    let mount = |option: &str| Mount {
        host_path: node
            .root()
            .log_dir()
            .to_str()
            .expect("the path is ASCII")
            .to_owned(),
        container_path: "/data".to_owned(),
        mount_options: vec![option.to_owned()],
        ..Default::default()
    };
    let seen = pod.run_shell("grep -c ' /data .*noexec' /proc/mounts", |config| {
        config.mounts = vec![mount("noexec")]
    });
    assert_eq!(seen, "1");
    let mut config = node.container("main", &["true"]);
    config.image = config.image.or_else(|| Some(image_spec("none")));
    config.mounts = vec![mount("size=5")];
    let status = pod
        .try_create(&config)
        .expect_err("a bind mount has no size");
    assert!(status.message().contains("size=5"), "{status}");
}
