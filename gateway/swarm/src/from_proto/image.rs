//! The image of a service.

use switchyard_core::image::ImageReference;
use switchyard_core::{Error, Result};
use switchyard_docker_options::auth::registry_auth;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::plan::ServiceImage;

/// The image, and the credentials that the service has for it.
pub(super) fn image(container: &swarm::ContainerSpec) -> Result<ServiceImage> {
    let reference = &container.image;
    if reference.is_empty()
        || reference
            .chars()
            .any(|c| c.is_whitespace() || c.is_control())
    {
        return Err(Error::invalid(
            "container.image",
            format!("{reference:?} names no image"),
        ));
    }
    let encoded = match &container.pull_options {
        Some(swarm::container_spec::PullOptions { registry_auth }) => registry_auth.as_str(),
        None => "",
    };
    let credentials =
        registry_auth("container.pull_options.registry_auth", encoded)?.unwrap_or_default();
    let has_digest = reference
        .parse::<ImageReference>()
        .is_ok_and(|reference| reference.digest().is_some());
    Ok(ServiceImage {
        has_digest,
        reference: reference.clone(),
        credentials,
    })
}
