//! Connects to a port inside a sandbox.
//!
//! A socket stays in the network namespace in which it was created. So only its creation happens inside, on a
//! short-lived thread; connecting and copying are ordinary asynchronous work, without a thread or a process
//! per connection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use switchyard_core::id::SandboxId;
use switchyard_core::stream::{Dialled, Source};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_namespaces::run_in_netns;
use tokio::net::{TcpSocket, TcpStream};

use crate::base::error::{exhausted_or, from_namespaces};
use crate::base::fs::blocking;
use crate::sandbox::Sandboxes;

/// Limit for connecting. On a loopback interface it is immediate, unless packets are dropped.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Sandboxes {
    /// Connects to a port at the loopback address of a sandbox, IPv4 first, then IPv6. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if neither address accepts the connection; `ResourceExhausted` if too many files are open.
    pub(crate) async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled> {
        let netns = self.table.get(id)?.netns();
        let loopback = [
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            (Ipv6Addr::LOCALHOST, port).into(),
        ];
        let mut refused = None;
        for address in loopback {
            match connect(netns.clone(), address).await? {
                Ok(stream) => return Ok(dialled(stream)),
                Err(fault) => {
                    refused.get_or_insert(fault);
                }
            }
        }
        let refused = refused.unwrap_or_else(|| io::ErrorKind::NotConnected.into());
        let kind = exhausted_or(ErrorKind::Unavailable, &refused);
        let what = format!("connect to port {port} inside sandbox {id}");
        Err(Error::new(kind, what).with_source(refused))
    }
}

/// Connects to one address. The outer error is a failure to create the socket inside the namespace, the inner
/// one that of the connection.
async fn connect(netns: Option<PathBuf>, address: SocketAddr) -> Result<io::Result<TcpStream>> {
    let make = move || {
        if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }
    };
    let socket = match netns {
        None => make(),
        Some(netns) => {
            blocking(move || run_in_netns(&netns, make).map_err(from_namespaces)).await?
        }
    };
    let connected = async { socket?.connect(address).await };
    Ok(tokio::time::timeout(CONNECT_TIMEOUT, connected)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
}

fn dialled(stream: TcpStream) -> Dialled {
    if let Err(fault) = stream.set_nodelay(true) {
        tracing::debug!(error = %fault, "TCP_NODELAY cannot be set on a forwarded connection: small writes may be delayed");
    }
    let (output, input) = stream.into_split();
    Dialled {
        input: Box::new(input),
        output: Source::new(output),
    }
}
