//! Fields that only `runtime.v1alpha2` has.

use super::*;

#[tokio::test]
async fn additions_are_kept_or_rejected_and_part_of_request_identity() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, _) = node.running().await;
    let mut old = Old::of(&node);
    let ulimits = vec![old::Ulimit {
        name: "nofile".into(),
        hard: 2048,
        soft: 1024,
    }];
    let wanted = limited("limited", |resources| {
        resources.ulimits = ulimits.clone();
        resources.memory_reservation = 16 << 20;
    });
    let made = old
        .create(&sandbox, wanted.clone())
        .await
        .expect("it can be done");
    assert_eq!(
        old.create(&sandbox, wanted).await.expect("it is a retry"),
        made
    );
    let other = limited("limited", |resources| {
        resources.memory_reservation = 16 << 20
    });
    assert_eq!(code(old.create(&sandbox, other).await), Code::AlreadyExists);
    let limits = old
        .status(&made)
        .await
        .pouch_resources
        .expect("they are reported");
    assert_eq!(
        (limits.ulimits, limits.memory_reservation),
        (ulimits, 16 << 20)
    );

    node.is_sound();
}

#[tokio::test]
async fn disk_quota_is_reported_with_project_and_part_of_request_identity() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, _) = node.running().await;
    let mut old = Old::of(&node);
    let quota = |key: &str, id: &str| {
        let disk_quota = BTreeMap::from([(key.to_owned(), "10g".to_owned())]);
        let config = limited("quota", |resources| resources.disk_quota = disk_quota);
        old::ContainerConfig {
            quota_id: id.to_owned(),
            ..config
        }
    };
    let made = old
        .create(&sandbox, quota("/", "16777300"))
        .await
        .expect("it can be done");
    assert_eq!(
        old.create(&sandbox, quota("/", "16777300"))
            .await
            .expect("it is a retry"),
        made
    );
    for other in [quota("/", ""), quota("/", "-1"), quota(".*", "16777300")] {
        assert_eq!(code(old.create(&sandbox, other).await), Code::AlreadyExists);
    }
    let status = old.status(&made).await;
    assert_eq!(status.quota_id, "16777300");
    let limits = status.pouch_resources.expect("they are reported");
    assert_eq!(
        limits.disk_quota,
        BTreeMap::from([("/".to_owned(), "10g".to_owned())])
    );

    let apart = old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "apart".into(),
            attempt: 0,
        }),
        ..quota("/", "-1")
    };
    let made = old.create(&sandbox, apart).await.expect("it can be done");
    let own: u32 = old
        .status(&made)
        .await
        .quota_id
        .parse()
        .expect("it has one of its own");
    assert!(own >= 1 << 24, "{own}");

    let elsewhere = old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "elsewhere".into(),
            attempt: 0,
        }),
        ..quota("/no/volume", "")
    };
    let refused = old
        .create(&sandbox, elsewhere)
        .await
        .expect_err("it has no such volume");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(
        refused
            .message()
            .contains("disk_quota[\"/no/volume\"]: /no/volume is neither"),
        "{refused}"
    );
    node.is_sound();
}

#[tokio::test]
async fn pod_level_additions_are_rejected_everywhere() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, _) = node.running().await;
    let mut old = Old::of(&node);
    let asking = |change: fn(&mut old::LinuxPodSandboxConfig, old::LinuxContainerResources)| {
        let mut config = old_pod("asking");
        let resources = old::LinuxContainerResources {
            memory_reservation: 1 << 20,
            ..Default::default()
        };
        change(config.linux.get_or_insert_default(), resources);
        Some(config)
    };
    let overhead = asking(|linux, resources| linux.overhead = Some(resources));
    let resources = asking(|linux, resources| linux.resources = Some(resources));
    let check = |refused: Status, at: &str| {
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        let expected = format!("{at}.memory_reservation: is not supported: ");
        assert!(refused.message().starts_with(&expected), "{refused}");
    };
    let request = old::RunPodSandboxRequest {
        config: overhead.clone(),
        ..Default::default()
    };
    let refused = old
        .runtime
        .run_pod_sandbox(request)
        .await
        .expect_err("it is for the pod");
    check(refused, "config.linux.overhead");
    let request = old::CreateContainerRequest {
        pod_sandbox_id: sandbox,
        config: Some(container("asking")),
        sandbox_config: resources,
    };
    let refused = old
        .runtime
        .create_container(request)
        .await
        .expect_err("it is for the pod");
    check(refused, "sandbox_config.linux.resources");
    let image = Some(spec(BUSYBOX));
    let request = old::PullImageRequest {
        image,
        sandbox_config: overhead,
        ..Default::default()
    };
    let refused = old
        .images
        .pull_image(request)
        .await
        .expect_err("it is for the pod");
    check(refused, "sandbox_config.linux.overhead");
    node.is_sound();
}

#[tokio::test]
async fn v1alpha2_only_fields_are_reported() {
    let mut node = ServiceFixture::new().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let mut old = Old::of(&node);
    let start = |id: &str| old::StartPodSandboxRequest {
        pod_sandbox_id: id.to_owned(),
    };
    expect_ok(old.runtime.start_pod_sandbox(start(&sandbox)).await);
    assert_eq!(
        code(old.runtime.start_pod_sandbox(start("nothing")).await),
        Code::NotFound
    );
    let network = node
        .pod_status(&sandbox)
        .await
        .expect("it is there")
        .network;
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: sandbox.clone(),
    };
    node.runtime
        .stop_pod_sandbox(request)
        .await
        .expect("it stops");
    assert_eq!(
        node.pod_status(&sandbox)
            .await
            .expect("it is there")
            .network,
        None
    );
    expect_ok(old.runtime.start_pod_sandbox(start(&sandbox)).await);
    let status = node.pod_status(&sandbox).await.expect("it is there");
    assert_eq!(
        (status.state(), status.network),
        (cri::PodSandboxState::SandboxReady, network)
    );
    let remove = |name: &str| old::RemoveVolumeRequest {
        volume_name: name.to_owned(),
    };
    expect_ok(old.volumes.remove_volume(remove("data")).await);
    assert_eq!(
        code(old.volumes.remove_volume(remove("")).await),
        Code::InvalidArgument
    );
}
