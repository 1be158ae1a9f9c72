//! Mounts and volumes of `runtime.v1alpha2`.

use super::*;

#[test]
fn missing_host_path_is_an_error_only_in_v1alpha2() {
    let node = TestNode::shared();
    let pod = node.pod("missing-path");
    let path = node
        .root()
        .path()
        .join(format!("missing-{}", random_name()));
    let host_path = path.to_str().expect("it is UTF-8").to_owned();
    let mut config = shell(&node.image(), "old", "true");
    let container_path = "/there".to_owned();
    config.mounts = vec![old::Mount {
        container_path,
        host_path: host_path.clone(),
        ..Default::default()
    }];
    let refused = create(&node, pod.id(), config).expect_err("nothing is there");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains(&host_path), "{refused}");
    assert!(!path.exists(), "it was made all the same");
    let mut config = node.container("new", &["true"]);
    config.mounts = vec![cri::Mount {
        container_path: "/there".into(),
        host_path,
        ..Default::default()
    }];
    let _ = pod.create(&config);
    assert!(path.exists(), "v1 makes it");
}

/// `tests/guest/quota.rs` shows what comes of one where the kernel has project quotas.
#[test]
fn disk_quota_is_applied_or_rejected_by_mount() {
    let node = TestNode::shared();
    let pod = node.pod("old-quota");
    let quota = |key: &str| {
        let disk_quota = BTreeMap::from([(key.to_owned(), "16m".to_owned())]);
        let resources = old::LinuxContainerResources {
            disk_quota,
            ..Default::default()
        };
        old::ContainerConfig {
            linux: Some(old::LinuxContainerConfig {
                resources: Some(resources),
                ..Default::default()
            }),
            ..shell(&node.image(), "limited", "exec sleep 1000")
        }
    };
    let refused = create(&node, pod.id(), quota("/data")).expect_err("it has no such volume");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    match create(&node, pod.id(), quota("/")) {
        Ok(id) => assert_ne!(status(&node, &id).quota_id, ""),
        Err(refused) => {
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            let message = refused.message();
            assert!(
                message.contains("disk_quota[\"/\"]: ")
                    && message.contains("mount it with prjquota"),
                "{refused}"
            );
            let filter = Some(cri::ContainerFilter {
                pod_sandbox_id: pod.id().to_owned(),
                ..Default::default()
            });
            let request = cri::ListContainersRequest { filter };
            let left = runtime(&node, async |mut client| {
                client.list_containers(request).await
            });
            assert_eq!(left.expect("they can be listed").containers, []);
        }
    }
}

/// Pouch reports the path and the name of a volume, and its clients send both back.
#[test]
fn mount_with_name_and_host_path_uses_the_host_path() {
    let node = TestNode::shared();
    let pod = node.pod("both");
    let dir = node.root().path().join(format!("both-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let host_path = dir.to_str().expect("it is UTF-8").to_owned();
    let mut config = shell(&node.image(), "main", "exec sleep 1000");
    let name = format!("called-{}", random_name());
    config.mounts = vec![old::Mount {
        container_path: "/there".to_owned(),
        host_path: host_path.clone(),
        name: name.clone(),
        ..Default::default()
    }];
    let id = create(&node, pod.id(), config).expect("it is well formed");
    node.cri().start(&id).expect("it starts");
    let _ = node.cri().sh(&id, "echo x > /there/file");
    assert_eq!(
        fs::read_to_string(dir.join("file")).expect("it was written there"),
        "x\n"
    );
    let reported = &status(&node, &id).mounts[0];
    assert_eq!((&reported.host_path, &reported.name), (&host_path, &name));
    node.cri()
        .remove_volume(&name)
        .expect("there is no such volume, and nothing to remove");
    assert!(
        dir.join("file").exists(),
        "the host's path is not the gateway's"
    );
}

#[test]
fn named_volume_is_shared_and_persists_until_removed() {
    let node = TestNode::start();
    node.registry()
        .push("named:1", &busybox().volume("/bin").build());
    let image = node.registry().reference("named:1");
    node.cri().pull(&image, None).expect("it can be pulled");
    let pod = node.pod("named");
    let at = |name: &str, container_path: &str| {
        let mut config = shell(&image, name, "exec sleep 1000");
        let container_path = container_path.to_owned();
        config.mounts = vec![old::Mount {
            container_path,
            name: "data".to_owned(),
            ..Default::default()
        }];
        config
    };
    let run = |name: &str, container_path: &str| {
        let id = create(&node, pod.id(), at(name, container_path)).expect("it is well formed");
        node.cri().start(&id).expect("it starts");
        id
    };
    // The first finds what the image has there, the second what the first has written.
    let first = run("first", "/bin");
    assert_eq!(
        node.cri().sh(
            &first,
            "test -e /bin/sh && echo kept > /bin/note; cat /bin/note"
        ),
        "kept"
    );
    let second = run("second", "/elsewhere");
    assert_eq!(node.cri().sh(&second, "cat /elsewhere/note"), "kept");
    let reported = status(&node, &second).mounts;
    assert_eq!(
        (reported[0].name.as_str(), reported[0].host_path.as_str()),
        ("data", "")
    );

    let refused = |id: &str| {
        let refused = node
            .cri()
            .remove_volume("data")
            .expect_err("a container has it");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains(id), "{refused}");
    };
    node.cri().remove(&first).expect("it can be removed");
    refused(&second);
    node.daemon().restart();
    refused(&second);
    node.cri().remove(&second).expect("it can be removed");
    let third = run("third", "/data");
    assert_eq!(node.cri().sh(&third, "cat /data/note"), "kept");
    node.cri().remove(&third).expect("it can be removed");
    node.cri().remove_volume("data").expect("nothing has it");
    node.cri().remove_volume("data").expect("it is gone");
    let fourth = run("fourth", "/data");
    assert_eq!(node.cri().sh(&fourth, "ls -A /data"), "");
    node.cri().remove(&fourth).expect("it can be removed");
    node.cri().remove_volume("data").expect("nothing has it");
    let code = node
        .cri()
        .remove_volume("../data")
        .expect_err("it is no name")
        .code();
    assert_eq!(code, Code::InvalidArgument);
}
