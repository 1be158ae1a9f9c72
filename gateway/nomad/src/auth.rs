//! Credentials for pulls: the task's own, or those that a configuration of Docker or a helper program has for the registry.

use std::path::PathBuf;

use switchyard_core::image::Credentials;
use switchyard_core::{Error, Result};

use crate::plan::ImageWish;
use crate::plugin_config::AuthConfig;

mod docker_config;
mod helper;

use docker_config::{DockerConfig, Place};

/// How Docker's files and helpers name the registry that images without one come from.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// What to show the registry of this image.
///
/// # Errors
/// Looking for credentials failed, and the task does not want to go on without.
pub(crate) async fn credentials(wish: &ImageWish, config: &AuthConfig) -> Result<Credentials> {
    if let Some(own) = &wish.credentials {
        return Ok(own.clone());
    }
    let registry = registry_of(&wish.reference);
    match look_up(registry, config).await {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(error) if wish.soft_fail => {
            tracing::warn!(
                registry,
                error = error.report(),
                "pulling without credentials, as the task wishes"
            );
            Ok(Credentials::Anonymous)
        }
        Err(error) => Err(error.context(format!("find credentials for {:?}", wish.reference))),
    }
}

async fn look_up(registry: &str, config: &AuthConfig) -> Result<Option<Credentials>> {
    if !config.config.is_empty() {
        let place = read(PathBuf::from(&config.config)).await?.place_of(registry)?;
        let found = match place {
            Some(Place::Here(credentials)) => Some(credentials),
            Some(Place::Helper(name)) => helper::get(&name, registry).await?,
            None => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    if config.helper.is_empty() { Ok(None) } else { helper::get(&config.helper, registry).await }
}

async fn read(path: PathBuf) -> Result<DockerConfig> {
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || std::fs::read(path));
    let bytes = match reading.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(fault)) => {
            return Err(Error::unavailable(format!("read {shown} of auth.config")).with_source(fault));
        }
        Err(fault) => return Err(Error::internal(format!("read {shown} broke off")).with_source(fault)),
    };
    DockerConfig::parse(&bytes).map_err(|error| error.context(format!("read {shown} of auth.config")))
}

/// The registry of an image, as Docker's files name it.
fn registry_of(reference: &str) -> &str {
    match reference.split_once('/') {
        Some(("docker.io" | "index.docker.io", _)) => DOCKER_HUB,
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        Some(_) | None => DOCKER_HUB,
    }
}

#[cfg(test)]
mod tests;
