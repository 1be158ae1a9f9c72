//! Docker's `config.json`: the credentials for a registry, or the helper program that has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use switchyard_core::image::Credentials;
use switchyard_core::{Error, Result};
use switchyard_docker_options::auth::AuthEntry;

/// The parts of the file that concern credentials. All other keys are ignored.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct DockerConfig {
    auths: BTreeMap<String, AuthEntry>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

/// The place where the credentials for a registry are stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CredentialSource {
    /// In this file.
    Here(Credentials),
    /// In the helper program `docker-credential-…`.
    Helper(String),
}

impl DockerConfig {
    /// # Errors
    /// `InvalidArgument` if it is not such a file. The text contains nothing of its content.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|fault| {
            let line = fault.line();
            let column = fault.column();
            Error::invalid(
                "config.json",
                format!("line {line}, column {column}: it is no configuration of Docker"),
            )
        })
    }

    /// Returns the place of the credentials for this registry: a helper of the registry takes precedence over
    /// the common store, and that over entries in the file.
    ///
    /// # Errors
    /// `InvalidArgument` if the entry of the file is malformed.
    pub(super) fn credential_source(&self, registry: &str) -> Result<Option<CredentialSource>> {
        let host = host_of(registry);
        let helper = self
            .helpers
            .get(registry)
            .or_else(|| self.helpers.get(host));
        let helper = helper.or_else(|| find(&self.helpers, host));
        if let Some(helper) = helper.filter(|name| !name.is_empty()) {
            return Ok(Some(CredentialSource::Helper(helper.clone())));
        }
        if !self.store.is_empty() {
            return Ok(Some(CredentialSource::Helper(self.store.clone())));
        }
        let entry = self.auths.get(registry).or_else(|| find(&self.auths, host));
        match entry {
            Some(entry) => Ok(entry
                .credentials(format_args!("auths[{host:?}]"))?
                .map(CredentialSource::Here)),
            None => Ok(None),
        }
    }
}

/// The entry whose key names this host, with or without scheme and path.
fn find<'a, V>(entries: &'a BTreeMap<String, V>, host: &str) -> Option<&'a V> {
    entries
        .iter()
        .find(|(key, _)| host_of(key) == host)
        .map(|(_, entry)| entry)
}

/// The host of a registry name, which may be an address with scheme and path.
pub(super) fn host_of(name: &str) -> &str {
    let name = name
        .strip_prefix("https://")
        .or_else(|| name.strip_prefix("http://"))
        .unwrap_or(name);
    match name.split('/').next().unwrap_or(name) {
        "docker.io" | "registry-1.docker.io" => "index.docker.io",
        host => host,
    }
}
