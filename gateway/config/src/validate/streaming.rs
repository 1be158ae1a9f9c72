//! Checks of `[cri.streaming]`: clients have to reach the server by a URL.

use std::net::SocketAddr;

use super::Fault;
use crate::sections::{StreamingConfig, streaming_url};

/// Checks the server of exec, attach and port-forward.
pub(super) fn check(streaming: &StreamingConfig) -> Result<(), Fault> {
    let fault = |key: &str, why: String| Err((key.to_owned(), why));
    if streaming.tls_certificate.is_some() != streaming.tls_key.is_some() {
        let given = if streaming.tls_key.is_some() {
            "tls_key"
        } else {
            "tls_certificate"
        };
        let why =
            "cri.streaming.tls_certificate and cri.streaming.tls_key must be set together".into();
        return fault(&format!("cri.streaming.{given}"), why);
    }
    if streaming.listen.ip().is_unspecified() && streaming.url.is_none() {
        let why = format!(
            "clients cannot be sent to {}: set cri.streaming.url as well",
            streaming.listen.ip()
        );
        return fault("cri.streaming.listen", why);
    }
    if has_zone(streaming.listen) && streaming.url.is_none() {
        let why = format!(
            "clients cannot be sent to {}, an address with a zone, which URLs cannot have: listen on another one, or set cri.streaming.url as well",
            streaming.listen
        );
        return fault("cri.streaming.listen", why);
    }
    if let Some(url) = &streaming.url
        && streaming_url(url).is_none()
    {
        return fault(
            "cri.streaming.url",
            format!("{url:?} is not an http:// or https:// URL with a host"),
        );
    }
    Ok(())
}

/// Returns whether an address counts on one interface alone, which is written behind it.
pub(super) const fn has_zone(address: SocketAddr) -> bool {
    match address {
        SocketAddr::V4(_) => false,
        SocketAddr::V6(address) => address.scope_id() != 0,
    }
}
