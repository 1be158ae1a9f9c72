//! Connection pools: one per kind of TLS settings, time-out and proxy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Certificate, Identity, redirect};
use url::Url;

use super::guard::Guarded;
use crate::hosts::Tls;
use crate::{BoxError, Error, Result};

/// Time for which an idle connection is kept. The requests of one pull follow each other immediately. The
/// buffers of a connection that is kept for a later pull prevent the allocator from returning memory to the
/// system: 10 MiB after pulls of 200 MB.
const IDLE: Duration = Duration::from_secs(2);

/// The settings of a connection pool. Hosts with equal keys share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClientKey {
    pub(super) tls: Tls,
    pub(super) connect_timeout: Duration,
    pub(super) proxy: Option<Url>,
    pub(super) loopback: bool,
    /// True if a registry has named the URL, so that its host must not resolve to link-local addresses.
    pub(super) guarded: bool,
}

/// Makes a connection pool. Reads the system's trust store, so it blocks.
pub(super) fn build(key: &ClientKey) -> Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("switchyard/", env!("CARGO_PKG_VERSION")))
        // `Transport::send` follows redirects, because it decides what may be sent along.
        .redirect(redirect::Policy::none())
        // This crate retries itself, where it knows what may be repeated.
        .connect_timeout(key.connect_timeout)
        .pool_idle_timeout(IDLE)
        .tcp_keepalive(Duration::from_secs(30))
        .http2_adaptive_window(true);
    for pem in &key.tls.authorities {
        let certificates = Certificate::from_pem_bundle(&pem.content)
            .map_err(|error| unusable(&pem.file, error))?;
        if certificates.is_empty() {
            return Err(unusable_because(
                &pem.file,
                "holds no certificate in PEM format",
                None,
            ));
        }
        for certificate in certificates {
            builder = builder.add_root_certificate(certificate);
        }
    }
    if let Some(pair) = &key.tls.client {
        let mut pem = pair.certificate.content.clone();
        if let Some(key) = &pair.key {
            pem.push(b'\n');
            pem.extend_from_slice(&key.content);
        }
        let identity =
            Identity::from_pem(&pem).map_err(|error| unusable(&pair.certificate.file, error))?;
        builder = builder.identity(identity);
    }
    if key.guarded {
        builder = builder.dns_resolver(Arc::new(Guarded));
    }
    if key.tls.skip_verify == Some(true) {
        builder = builder.danger_accept_invalid_certs(true);
    }
    match &key.proxy {
        Some(proxy) => {
            let proxy = reqwest::Proxy::all(proxy.clone()).map_err(proxy_error)?;
            // Replaces the proxies of the environment.
            builder = builder.no_proxy().proxy(proxy);
        }
        // No proxy can reach this machine's own loopback.
        None if key.loopback => builder = builder.no_proxy(),
        None => {}
    }
    builder.build().map_err(|error| {
        let file = key.tls.authorities.first().or(key
            .tls
            .client
            .as_ref()
            .map(|pair| &pair.certificate));
        match file {
            Some(pem) => unusable(&pem.file, error),
            None => Error::Unavailable {
                what: "TLS set-up".to_owned(),
                host: "the system's trust store".to_owned(),
                source: error.into(),
            },
        }
    })
}

fn proxy_error(error: reqwest::Error) -> Error {
    Error::Unavailable {
        what: "proxy set-up".to_owned(),
        host: "the proxy".to_owned(),
        source: error.without_url().into(),
    }
}

fn unusable(file: &Path, error: reqwest::Error) -> Error {
    unusable_because(
        file,
        "is no usable certificate or key in PEM format",
        Some(error.into()),
    )
}

fn unusable_because(file: &Path, reason: &str, source: Option<BoxError>) -> Error {
    Error::InvalidConfig {
        file: file.to_owned(),
        key: None,
        reason: reason.to_owned(),
        source,
    }
}
