//! Credentials for pulls: the task's own, or those in a Docker configuration file or from a credential
//! helper.

use std::path::PathBuf;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::image::{Credentials, ImageReference};
use switchyard_core::{Error, Result};

use crate::plan::ImageRequest;
use crate::plugin_config::AuthConfig;

mod docker_config;
mod helper;

use docker_config::{CredentialSource, DockerConfig};

/// The registry of images without a registry in their name, as Docker's files and helpers name it.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The longest Docker configuration that is read, in bytes: the configured path may be that of any file.
const FILE_LIMIT: u64 = 4 << 20;

/// The credentials for the registry of this image. Cancel-safe.
///
/// # Errors
/// The look-up failed or timed out, and the task does not allow a pull without credentials.
pub(crate) async fn credentials(
    wanted: &ImageRequest,
    config: &AuthConfig,
    pool: &BlockingPool,
) -> Result<Credentials> {
    if let Some(own) = &wanted.credentials {
        return Ok(own.clone());
    }
    // The pull of a text that is not a reference is refused: no credentials are sent anywhere.
    let Ok(reference) = wanted.reference.parse() else {
        return Ok(Credentials::Anonymous);
    };
    let registry = registry_of(&reference);
    match look_up(registry, config, pool).await {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(error) if wanted.soft_fail => {
            tracing::warn!(
                registry,
                error = error.report(),
                "no credentials found: pulling without, as auth_soft_fail allows"
            );
            Ok(Credentials::Anonymous)
        }
        Err(error) => Err(error.context(format!("find credentials for {:?}", wanted.reference))),
    }
}

async fn look_up(
    registry: &str,
    config: &AuthConfig,
    pool: &BlockingPool,
) -> Result<Option<Credentials>> {
    if !config.config.is_empty() {
        let source = read(&config.config, pool)
            .await?
            .credential_source(registry)?;
        let found = match source {
            Some(CredentialSource::Here(credentials)) => Some(credentials),
            Some(CredentialSource::Helper(name)) => helper::get(&name, registry).await?,
            None => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    if config.helper.is_empty() {
        Ok(None)
    } else {
        helper::get(&config.helper, registry).await
    }
}

/// Reads the file on the pool for host paths, with its time limit: it may be on a file system that hangs.
async fn read(path: &str, pool: &BlockingPool) -> Result<DockerConfig> {
    let shown = format!("auth.config ({path})");
    let own = PathBuf::from(path);
    let bytes = pool
        .run(shown.clone(), move || {
            Ok(switchyard_node_files::read(&own, FILE_LIMIT))
        })
        .await?;
    let bytes =
        bytes.map_err(|fault| Error::unavailable(format!("read {shown}")).with_source(fault))?;
    DockerConfig::parse(&bytes).map_err(|error| error.context(format!("read {shown}")))
}

/// The registry of an image, as Docker's files name it.
fn registry_of(reference: &ImageReference) -> &str {
    match reference.registry() {
        "docker.io" => DOCKER_HUB,
        host => host,
    }
}

#[cfg(test)]
mod tests;
