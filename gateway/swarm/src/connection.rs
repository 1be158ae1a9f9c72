//! Connections to managers: gRPC over one TLS connection, whose certificate is verified by the cluster's roots
//! alone.

use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status};

use crate::certificates::RootBundle;
use crate::error::{BoxedError, Error};
use crate::identity::Identity;

mod dial;
mod tls;

/// Limit for the connection and its handshake: as long as docker's agents wait.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Limit for the connection alone, so that an address that does not answer is named.
const DIAL_LIMIT: Duration = Duration::from_secs(4);

/// Port of a manager whose address has none.
const DEFAULT_PORT: u16 = 2377;

/// The longest address that is looked up.
const ADDRESS_MAX: usize = 260;

/// The most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 32;

/// The headers of an answer: those of gRPC, with the text of an error.
const HEADERS_MAX: u32 = 16 << 10;

/// The identities of both sides of a connection: the one that the peer must have, and the one that this node presents.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// Anybody: what is received is checked by other means.
    Anybody,
    /// A CA of the cluster. This node shows no certificate.
    Authority(&'a RootBundle),
    /// A manager of the cluster. This node shows its certificate.
    Manager(&'a Identity),
}

/// One connection to one manager. It is not opened again when it breaks.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
    manager: String,
}

// === impl Connection ===

impl Connection {
    /// Connects to a manager at `HOST` or `HOST:PORT`. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Unreachable`], also if it takes more than 5 s or shows another certificate.
    pub(crate) async fn open(manager: &str, trust: Trust<'_>) -> Result<Self, Error> {
        let unreachable = |cause: BoxedError| Error::Unreachable {
            manager: manager.to_owned(),
            cause,
        };
        let config = tls::config(trust).map_err(|error| unreachable(error.into()))?;
        let address = host_and_port(manager).map_err(|reason| unreachable(reason.into()))?;
        let channel = timeout(CONNECT_LIMIT, connect(address, trust, config))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(unreachable)?;
        Ok(Self {
            channel,
            manager: manager.to_owned(),
        })
    }

    /// For clients of generated services.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The address.
    pub(crate) fn manager(&self) -> &str {
        &self.manager
    }

    /// Waits for the answer to a call, at most so long. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::NoAnswer`], [`Error::Refused`].
    pub(crate) async fn answer<T>(
        &self,
        call: &'static str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let manager = || self.manager.clone();
        match timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Error::Refused {
                manager: manager(),
                call,
                status: Box::new(status),
            }),
            Err(_) => Err(Error::NoAnswer {
                manager: manager(),
                call,
                limit,
            }),
        }
    }
}

async fn connect(
    address: (&str, u16),
    trust: Trust<'_>,
    config: ClientConfig,
) -> Result<Channel, BoxedError> {
    let addresses: Vec<SocketAddr> = lookup_host(address).await?.take(ADDRESSES_MAX).collect();
    let stream = dial::connect(&addresses, DIAL_LIMIT, TcpStream::connect::<SocketAddr>).await?;
    stream.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(tls::server_name(trust), stream)
        .await?;
    // A broken connection is not replaced: the next call fails.
    let stream = Mutex::new(Some(TokioIo::new(stream)));
    let connector = tower::service_fn(move |_: Uri| {
        ready(
            stream
                .lock()
                .take()
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)),
        )
    });
    // The scheme is that of what tonic sees.
    let endpoint =
        Endpoint::from_static("http://swarm-manager").http2_max_header_list_size(HEADERS_MAX);
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// Checks an address of a manager, `HOST` or `HOST:PORT`.
///
/// # Errors
/// What is wrong with it.
pub fn check_address(manager: &str) -> Result<(), &'static str> {
    host_and_port(manager).map(drop)
}

/// The host of an address, without brackets, and its port, or the default one.
fn host_and_port(manager: &str) -> Result<(&str, u16), &'static str> {
    if manager.is_empty() || manager.len() > ADDRESS_MAX {
        return Err("the address is empty, or longer than any name");
    }
    if !manager.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the address has characters that are in no name");
    }
    if manager.contains("://") || manager.contains('/') {
        return Err("the address is a URL; HOST:PORT is expected");
    }
    let (host, port) = match manager.rsplit_once(':') {
        // `::1` is a host without a port, `[::1]:2377` one with it.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        Some(_) | None => (manager, None),
    };
    // Resolvers take an address of IPv6, also one with a zone, without its brackets.
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if bare.is_empty() || bare.contains(['[', ']']) {
        return Err("the address has no host, or one whose brackets do not match");
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port
            .parse()
            .map_err(|_| "the port of the address is none")?,
        Some(_) => return Err("the port of the address is no number"),
    };
    Ok((bare, port))
}

#[cfg(test)]
mod tests {
    use super::host_and_port;

    #[test]
    fn port_is_2377_unless_it_is_given() {
        for (given, host, port) in [
            ("m", "m", 2377),
            ("m:1", "m", 1),
            ("10.0.0.1", "10.0.0.1", 2377),
            ("10.0.0.1:99", "10.0.0.1", 99),
            ("::1", "::1", 2377),
            ("[::1]", "::1", 2377),
            ("[::1]:99", "::1", 99),
            ("fe80::1%eth0", "fe80::1%eth0", 2377),
            ("[fe80::1%eth0]", "fe80::1%eth0", 2377),
            ("[fe80::1%eth0]:99", "fe80::1%eth0", 99),
        ] {
            assert_eq!(host_and_port(given), Ok((host, port)));
        }
        for wrong in [
            "",
            "tcp://m:2377",
            "m 1",
            "m\n",
            ":1",
            "[]:1",
            "[::1",
            "::1]",
            "[::1]x",
            "m:",
            "m:x",
            "m:65536",
            &"m".repeat(300),
        ] {
            assert!(host_and_port(wrong).is_err(), "{wrong}");
        }
    }

    /// Loopback is the interface with this zone on every Linux.
    #[tokio::test]
    async fn zone_of_an_address_is_resolved() {
        let found = tokio::net::lookup_host(host_and_port("[fe80::1%lo]:99").unwrap()).await;
        let found: Vec<String> = found.unwrap().map(|address| address.to_string()).collect();
        assert_eq!(found, ["[fe80::1%1]:99"]);
    }
}
