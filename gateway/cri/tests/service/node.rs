//! The node as a whole: its version and status, and unsupported calls.

use switchyard_core::id::Owner;
use switchyard_fake::Fake;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, app, code, pod};

#[tokio::test]
async fn version_fields_are_set_as_kubelets_require() {
    let mut node = ServiceFixture::new().await;
    let version = node
        .runtime
        .version(cri::VersionRequest::default())
        .await
        .expect("it answers")
        .into_inner();
    assert_eq!(
        (version.version.as_str(), version.runtime_name.as_str()),
        ("0.1.0", "switchyard")
    );
    assert_eq!(version.runtime_api_version, "v1");
    assert_eq!(version.runtime_version.split('.').count(), 3);
}

#[tokio::test]
async fn status_has_both_conditions_and_info_on_request() {
    let mut node = ServiceFixture::new().await;
    let plain = node
        .runtime
        .status(cri::StatusRequest { verbose: false })
        .await
        .expect("it answers")
        .into_inner();
    let conditions: Vec<_> = plain
        .status
        .expect("it is set")
        .conditions
        .into_iter()
        .map(|c| (c.r#type, c.status))
        .collect();
    assert_eq!(
        conditions,
        [
            ("RuntimeReady".to_owned(), true),
            ("NetworkReady".to_owned(), true)
        ]
    );
    assert!(plain.info.is_empty());
    assert!(
        plain
            .features
            .expect("it is set")
            .supplemental_groups_policy
    );
    let names: Vec<_> = plain
        .runtime_handlers
        .into_iter()
        .map(|handler| handler.name)
        .collect();
    assert_eq!(names, ["", "runc"]);
    let verbose = node
        .runtime
        .status(cri::StatusRequest { verbose: true })
        .await
        .expect("it answers")
        .into_inner();
    assert!(
        verbose.info["config"].contains("cgroupfs"),
        "{:?}",
        verbose.info
    );
}

#[tokio::test]
async fn cgroup_driver_is_reported_and_pod_cidr_passed_on() {
    let mut node = ServiceFixture::new().await;
    let config = node
        .runtime
        .runtime_config(cri::RuntimeConfigRequest {})
        .await
        .expect("it answers")
        .into_inner();
    assert_eq!(
        config.linux.expect("it is set").cgroup_driver(),
        cri::CgroupDriver::Cgroupfs
    );
    let change = |pod_cidr: &str| {
        let network_config = Some(cri::NetworkConfig {
            pod_cidr: pod_cidr.to_owned(),
        });
        cri::UpdateRuntimeConfigRequest {
            runtime_config: Some(cri::RuntimeConfig { network_config }),
        }
    };
    let named = |node: &ServiceFixture| {
        node.fake
            .ranges(Owner::Kubernetes)
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    for (pod_cidr, expected) in [
        ("10.0.0.0/24", &["10.0.0.0/24"][..]),
        ("10.1.0.0/24,fd00:1::/64", &["10.1.0.0/24", "fd00:1::/64"]),
        ("", &["10.1.0.0/24", "fd00:1::/64"]),
    ] {
        node.runtime
            .update_runtime_config(change(pod_cidr))
            .await
            .expect("it is taken");
        let named: Vec<String> = named(&node);
        assert_eq!(named, expected, "{pod_cidr}");
    }
    for wrong in ["10.0.0.0", "10.0.0.0/24,", "fd00::/200"] {
        let refused = node.runtime.update_runtime_config(change(wrong)).await;
        assert_eq!(code(refused), Code::InvalidArgument, "{wrong}");
    }
}

#[tokio::test]
async fn only_version_and_status_answer_before_recovery() {
    let mut node = ServiceFixture::unrecovered(Fake::with_busybox()).await;
    node.runtime
        .version(cri::VersionRequest::default())
        .await
        .expect("it answers");
    let status = node
        .runtime
        .status(cri::StatusRequest::default())
        .await
        .expect("it answers")
        .into_inner();
    let ready = &status.status.expect("it is set").conditions[0];
    assert_eq!((ready.status, ready.reason.as_str()), (false, "Recovering"));
    assert_eq!(code(node.run(pod("web")).await), Code::Unavailable);
    assert_eq!(code(node.pod_status("00").await), Code::Unavailable);
    assert_eq!(code(node.create("00", app("a")).await), Code::Unavailable);
    let stop = cri::StopPodSandboxRequest {
        pod_sandbox_id: "00".to_owned(),
    };
    assert_eq!(
        code(node.runtime.stop_pod_sandbox(stop).await),
        Code::Unavailable
    );
    assert_eq!(
        code(
            node.runtime
                .list_containers(cri::ListContainersRequest::default())
                .await
        ),
        Code::Unavailable
    );
    assert_eq!(
        code(
            node.images
                .list_images(cri::ListImagesRequest::default())
                .await
        ),
        Code::Unavailable
    );
    node.is_sound();
}

#[tokio::test]
async fn unsupported_calls_are_unimplemented() {
    let mut node = ServiceFixture::new().await;
    macro_rules! absent {
        ($($call:ident($request:ident)),* $(,)?) => {
            $(
                let answer = node.runtime.$call(cri::$request::default()).await;
                let status = answer.err().unwrap_or_else(|| panic!("{} is not served", stringify!($call)));
                assert_eq!(status.code(), Code::Unimplemented, "{}", stringify!($call));
                assert!(status.message().contains("is not served by this runtime: "), "{}", status.message());
            )*
        };
    }
    absent!(
        checkpoint_pod(CheckpointPodRequest),
        restore_pod(RestorePodRequest),
    );
}

#[tokio::test]
async fn invalid_checkpoint_is_rejected_by_field() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, running) = node.running().await;
    let created = node
        .create(&sandbox, app("created"))
        .await
        .expect("it is well formed");
    for (container_id, location, timeout, expected) in [
        ("ff".repeat(32), "/c.tar", 0, Code::NotFound),
        (created, "/c.tar", 0, Code::FailedPrecondition),
        (running.clone(), "", 0, Code::InvalidArgument),
        (running.clone(), "/c.tar", -1, Code::InvalidArgument),
        // The fake has no processes.
        (running, "/c.tar", 1, Code::Unimplemented),
    ] {
        let location = location.to_owned();
        let request = cri::CheckpointContainerRequest {
            container_id,
            location,
            timeout,
        };
        assert_eq!(
            code(node.runtime.checkpoint_container(request).await),
            expected
        );
    }
}
