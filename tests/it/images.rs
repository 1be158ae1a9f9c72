//! Images: pulls from real registries through the real daemon, and the life cycle of images.

mod access;
mod damage;
mod formats;
mod lifecycle;
mod loading;
mod ownership;
mod prune;
mod remote_snapshotters;
mod shared_layers;
mod transfers;

pub(crate) use loading::save;
use switchyard_proto::cri::v1::AuthConfig;
use switchyard_tests::cri::image_spec;
use switchyard_tests::image::{Image, ImageBuilder, LayerBuilder, busybox, random_layer};
use switchyard_tests::node::TestNode;

/// Busybox with a unique file, so that no other test uses the image.
pub(crate) fn with_file(name: &str) -> ImageBuilder {
    busybox().layer(
        LayerBuilder::default()
            .file("which", format!("{name}\n"), 0o644)
            .build(),
    )
}

/// An image of layers that no other test has.
fn unique(seed: u64, layers: u64, size: usize) -> Image {
    (0..layers)
        .fold(busybox(), |image, layer| {
            image.layer(random_layer(size, seed * 1000 + layer))
        })
        .build()
}

pub(crate) fn auth(user: &str, password: &str) -> Option<AuthConfig> {
    Some(AuthConfig {
        username: user.into(),
        password: password.into(),
        ..Default::default()
    })
}

/// The output of `cat /which` in a container of the image.
#[track_caller]
fn which(node: &TestNode, reference: &str) -> String {
    let pod = node.pod("which");
    pod.run_shell("cat /which", |config| {
        config.image = Some(image_spec(reference))
    })
}

/// Number of requests for a layer.
fn downloads(registry: &switchyard_tests::registry::Registry, digest: &str) -> usize {
    registry
        .proxy()
        .requests()
        .iter()
        .filter(|request| {
            request.starts_with("GET ") && request.contains(&format!("/blobs/{digest}"))
        })
        .count()
}
