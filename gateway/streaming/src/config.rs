//! What the streaming server is told: where it listens, what its URLs say, and how long it waits for what.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

/// The settings of a [`crate::Server`]. The defaults listen on a free port of the loopback interface, without TLS.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 is a free one. There is no other authentication than the token, so loopback is right.
    pub address: SocketAddr,
    /// What URLs begin with; `None` is the scheme and address that the server listens on.
    pub base_url: Option<Url>,
    /// The certificate to serve; `None` is plain HTTP.
    pub tls: Option<TlsConfig>,
    /// How long a URL can be opened.
    pub token_lifetime: Duration,
    /// How many URLs may wait to be opened at a time; beyond that, [`crate::TooMany`].
    pub max_tokens: usize,
    /// How many sessions are served at a time, but for those whose request was on its way; beyond that, connections wait to be
    /// accepted.
    pub max_connections: usize,
    /// How many connections may be without a session at a time: anybody can open those. Beyond that, the oldest is closed.
    pub max_waiting: usize,
    /// How long a client may take for its request, TLS included.
    pub request_timeout: Duration,
    /// How long a client may take to open the streams that its session needs.
    pub stream_creation_timeout: Duration,
    /// How long a session may pass no byte either way before it is ended.
    pub idle_timeout: Duration,
    /// How long sessions may take to end by themselves once the server is told to stop.
    pub drain_timeout: Duration,
}

/// Files of a certificate chain and its private key, both PEM. They are read once, by [`crate::Server::bind`].
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// The certificate chain, the server's own first.
    pub certificates: PathBuf,
    /// The private key of the first certificate.
    pub key: PathBuf,
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
