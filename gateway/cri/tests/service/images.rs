//! Images.

use switchyard_contract::specs;
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::{Error, Reason};
use switchyard_fake::{BUSYBOX, FakeImage, Method};
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, code, spec};

async fn find(node: &mut ServiceFixture, reference: &str) -> Option<cri::Image> {
    let request = cri::ImageStatusRequest {
        image: Some(spec(reference)),
        verbose: false,
    };
    node.images
        .image_status(request)
        .await
        .expect("it answers")
        .into_inner()
        .image
}

async fn list(node: &mut ServiceFixture, filter: &str) -> Vec<cri::Image> {
    let filter = Some(cri::ImageFilter {
        image: Some(spec(filter)),
    });
    node.images
        .list_images(cri::ListImagesRequest { filter })
        .await
        .expect("it answers")
        .into_inner()
        .images
}

#[tokio::test]
async fn pulled_image_is_found_by_its_returned_reference() {
    let mut node = ServiceFixture::new().await;
    let image_ref = node.pull().await;
    let image = find(&mut node, &image_ref).await.expect("it was pulled");
    assert_eq!(image.id, image_ref);
    assert_eq!(image.repo_tags, [BUSYBOX]);
    assert_eq!(find(&mut node, BUSYBOX).await, Some(image));
}

#[tokio::test]
async fn status_of_a_missing_image_is_empty() {
    let mut node = ServiceFixture::new().await;
    assert_eq!(find(&mut node, "nowhere.example/nothing").await, None);
    assert_eq!(find(&mut node, "?? no reference ??").await, None);
}

#[tokio::test]
async fn image_filter_selects_one_image() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    assert_eq!(list(&mut node, "").await.len(), 1);
    assert_eq!(list(&mut node, BUSYBOX).await.len(), 1);
    assert_eq!(list(&mut node, "other").await, []);
    let streamed = node
        .images
        .stream_images(cri::StreamImagesRequest { filter: None })
        .await;
    let mut streamed = streamed.expect("it answers").into_inner();
    let batch = streamed
        .message()
        .await
        .expect("it is sent")
        .expect("there is one image");
    assert_eq!(batch.images, list(&mut node, "").await);
    assert_eq!(streamed.message().await.expect("it ends well"), None);
}

#[tokio::test]
async fn removing_an_image_is_idempotent() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    for _ in 0..2 {
        let request = cri::RemoveImageRequest {
            image: Some(spec(BUSYBOX)),
        };
        node.images
            .remove_image(request)
            .await
            .expect("it is removed");
        assert_eq!(find(&mut node, BUSYBOX).await, None);
    }
}

/// An image that this client removes, and others keep in some way.
struct KeptImage {
    image: &'static str,
    /// True if Kubernetes holds it.
    is_own: bool,
    holder: Option<Owner>,
    user: Option<Owner>,
    /// Reason in the answer why it stays; empty if it is removed.
    kept: &'static str,
}

async fn pull_as(node: &ServiceFixture, owner: Owner, image: &str) {
    let request = PullRequest {
        reference: image.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner,
    };
    let pulled = node.gateway.scope(owner).images().pull(&request).await;
    pulled.expect("it is pulled");
}

async fn use_as(node: &ServiceFixture, owner: Owner, image: &str) {
    let scope = node.gateway.scope(owner);
    let sandbox = scope
        .sandboxes()
        .create(specs::sandbox(owner, image))
        .await
        .expect("it is created");
    let spec = specs::task(owner, image, image, &["serve"]);
    let created = scope.tasks().create(&sandbox.id.to_string(), spec).await;
    created.expect("it is created");
}

#[tokio::test]
async fn removal_of_an_image_that_others_keep_says_who_and_fails() {
    let mut node = ServiceFixture::new().await;
    let case = |image, is_own, holder, user, kept| KeptImage {
        image,
        is_own,
        holder,
        user,
        kept,
    };
    let nomad = Some(Owner::Nomad);
    let cases = [
        case("registry.test/own:1", true, None, None, ""),
        case(
            "registry.test/others:1",
            false,
            nomad,
            None,
            "held by nomad",
        ),
        case("registry.test/both:1", true, nomad, None, "held by nomad"),
        case(
            "registry.test/used:1",
            true,
            None,
            Some(Owner::Swarm),
            "used by tasks of swarm",
        ),
        case(
            "registry.test/all:1",
            true,
            nomad,
            nomad,
            "held by nomad, used by tasks of nomad",
        ),
    ];
    for case in &cases {
        node.fake = node
            .fake
            .clone()
            .with_image(case.image, FakeImage::default());
        let own = case.is_own.then_some(Owner::Kubernetes);
        for owner in own.into_iter().chain(case.holder) {
            pull_as(&node, owner, case.image).await;
        }
        if let Some(user) = case.user {
            use_as(&node, user, case.image).await;
        }
    }
    for case in cases {
        // Again: a client that tries once more is told the same.
        for _ in 0..2 {
            let request = cri::RemoveImageRequest {
                image: Some(spec(case.image)),
            };
            let removed = node.images.remove_image(request).await;
            if case.kept.is_empty() {
                removed.expect("nobody else has it");
                assert_eq!(find(&mut node, case.image).await, None);
                continue;
            }
            let refusal = removed.expect_err(case.image);
            assert_eq!(refusal.code(), Code::FailedPrecondition);
            let text = refusal.message();
            assert!(
                text.contains(case.image) && text.contains(&format!("node, {}: ", case.kept)),
                "{text}"
            );
            let store = node.gateway.images().store();
            let image = store.get(case.image).await.expect("it can be read");
            let image = image.expect("it stays");
            assert!(!image.holders.contains_key(&Owner::Kubernetes), "{text}");
        }
    }
}

#[tokio::test]
async fn request_without_an_image_is_rejected() {
    let mut node = ServiceFixture::new().await;
    assert_eq!(
        code(
            node.images
                .pull_image(cri::PullImageRequest::default())
                .await
        ),
        Code::InvalidArgument
    );
    assert_eq!(
        code(
            node.images
                .remove_image(cri::RemoveImageRequest::default())
                .await
        ),
        Code::InvalidArgument
    );
    assert_eq!(
        code(
            node.images
                .image_status(cri::ImageStatusRequest::default())
                .await
        ),
        Code::InvalidArgument
    );
    let image = Some(cri::ImageSpec {
        runtime_handler: "kata".to_owned(),
        ..spec(BUSYBOX)
    });
    let request = cri::PullImageRequest {
        image,
        ..Default::default()
    };
    let refusal = node
        .images
        .pull_image(request)
        .await
        .expect_err("there is no such handler");
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert_eq!(
        refusal.message(),
        "image.runtime_handler: there is no handler \"kata\": this node has runc"
    );
}

#[tokio::test]
async fn only_an_unavailable_registry_has_the_kubelet_error_prefix() {
    let mut node = ServiceFixture::new().await;
    let registry =
        Error::unavailable("connect to 10.0.0.1:443").with_reason(Reason::RegistryUnavailable);
    // containerd died during the pull, and its health check has not found that yet.
    let runtime = Error::unavailable("containerd: create lease a").with_reason(Reason::Runtime);
    for (error, is_of_registry) in [(registry, true), (runtime, false)] {
        node.fake
            .fail_next(Method::Pull, error.context("pull busybox"));
        let request = cri::PullImageRequest {
            image: Some(spec(BUSYBOX)),
            ..Default::default()
        };
        let refusal = node
            .images
            .pull_image(request)
            .await
            .expect_err("something is away");
        assert_eq!(refusal.code(), Code::Unavailable);
        let text = refusal.message();
        assert_eq!(
            text.starts_with("RegistryUnavailable: "),
            is_of_registry,
            "{text}"
        );
    }
}

#[tokio::test]
async fn unknown_image_is_not_found() {
    let mut node = ServiceFixture::new().await;
    let request = cri::PullImageRequest {
        image: Some(spec("nothing")),
        ..Default::default()
    };
    assert_eq!(code(node.images.pull_image(request).await), Code::NotFound);
}

#[tokio::test]
async fn image_fs_info_is_never_empty() {
    let mut node = ServiceFixture::new().await;
    let usage = node
        .images
        .image_fs_info(cri::ImageFsInfoRequest {})
        .await
        .expect("it answers")
        .into_inner();
    assert!(!usage.image_filesystems.is_empty());
    assert_eq!(usage.image_filesystems, usage.container_filesystems);
}

#[tokio::test]
async fn verbose_image_status_has_the_config() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let request = cri::ImageStatusRequest {
        image: Some(spec(BUSYBOX)),
        verbose: true,
    };
    let info = node
        .images
        .image_status(request)
        .await
        .expect("it answers")
        .into_inner()
        .info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    assert_eq!(info["imageSpec"]["os"], "linux");
    assert!(info["imageSpec"]["config"]["User"].is_string(), "{info}");
}
