//! Connection pools: one per kind of TLS settings, time-out and proxy.

use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect;
use url::Url;

use super::guard::Guarded;
use super::proxy::Proxies;
use super::tls;
use crate::hosts::Tls;
use crate::{Error, Result};

/// Time for which an idle connection is kept. The requests of one pull follow each other immediately. The
/// buffers of a connection that is kept for a later pull prevent the allocator from returning memory to the
/// system: 10 MiB after pulls of 200 MB.
const IDLE: Duration = Duration::from_secs(2);

/// The settings of a connection pool. Hosts with equal keys share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClientKey {
    pub(super) tls: Tls,
    pub(super) connect_timeout: Duration,
    /// `None` for those of the environment.
    pub(super) proxy: Option<Url>,
    /// True if a registry has named the URL, so that its host must not resolve to link-local addresses.
    pub(super) guarded: bool,
    /// True for HTTP/1.1 alone, of which each request in flight has a connection of its own.
    pub(super) own_connections: bool,
}

/// Makes a connection pool. Reads the system's trust store, so it blocks.
pub(super) fn build(key: &ClientKey) -> Result<reqwest::Client> {
    let mut config = tls::client_config(&key.tls)?;
    if key.own_connections {
        // The library offers the protocols of a prepared configuration as they are.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("switchyard/", env!("CARGO_PKG_VERSION")))
        // `Transport::send` follows redirects, because it decides what may be sent along.
        .redirect(redirect::Policy::none())
        // This crate retries itself, where it knows what may be repeated.
        .connect_timeout(key.connect_timeout)
        .pool_idle_timeout(IDLE)
        .tcp_keepalive(Duration::from_secs(30))
        .http2_adaptive_window(true)
        .use_preconfigured_tls(config);
    if key.guarded {
        builder = builder.dns_resolver(Arc::new(Guarded));
    }
    if key.own_connections {
        builder = builder.http1_only();
    }
    // The library reads the environment by other rules.
    builder = builder.no_proxy();
    if let Some(proxy) = proxy(key)? {
        builder = builder.proxy(proxy);
    }
    builder.build().map_err(tls::set_up_failed)
}

fn proxy(key: &ClientKey) -> Result<Option<reqwest::Proxy>> {
    if let Some(proxy) = &key.proxy {
        let all = reqwest::Proxy::all(proxy.clone()).map_err(proxy_error)?;
        return Ok(Some(all));
    }
    let proxies = Proxies::of_environment();
    if proxies.is_empty() {
        return Ok(None);
    }
    let proxy = reqwest::Proxy::custom(move |url| proxies.proxy_for(url));
    Ok(Some(proxy))
}

fn proxy_error(error: reqwest::Error) -> Error {
    Error::Unavailable {
        what: "proxy set-up".to_owned(),
        host: "the proxy".to_owned(),
        source: error.without_url().into(),
    }
}
