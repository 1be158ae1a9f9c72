//! Configuration of the streaming server: its address, its URLs, and its timeouts.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use switchyard_tls::TlsConfig;
use url::Url;

/// The configuration of a [`crate::Server`]. The defaults listen on a free port of the loopback interface,
/// without TLS.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on; port 0 is a free one. The token is the only authentication, so it should be
    /// a loopback address.
    pub address: SocketAddr,
    /// The prefix of the URLs; `None` is the scheme and address that the server listens on.
    pub base_url: Option<Url>,
    /// The certificate to serve; `None` is plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Time after its issue in which a URL can be opened.
    pub token_lifetime: Duration,
    /// The most URLs that are not opened yet; beyond it, [`crate::TooMany`].
    pub max_tokens: usize,
    /// The most sessions that are served at a time, apart from those whose request was already in progress;
    /// beyond it, connections wait to be accepted.
    pub max_connections: usize,
    /// The most connections without a session, since any process can open those. Beyond it, the oldest is
    /// closed.
    pub max_waiting: usize,
    /// Time for a client to send its request, TLS included.
    pub request_timeout: Duration,
    /// Time for a client to open the streams that its session needs.
    pub stream_creation_timeout: Duration,
    /// Time without a byte in either direction after which a session is ended.
    pub idle_timeout: Duration,
    /// Time for sessions to end by themselves when the server is stopped.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            base_url: None,
            tls: None,
            token_lifetime: Duration::from_secs(60),
            max_tokens: 1000,
            max_connections: 1000,
            max_waiting: 100,
            request_timeout: Duration::from_secs(30),
            stream_creation_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(4 * 60 * 60),
            drain_timeout: Duration::from_secs(1),
        }
    }
}
