//! A node with a metrics listener, for a Prometheus with the shipped files.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;
use switchyard_tls::testing::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::daemon::binary;
use crate::node::{Containerd, TestNode};
use crate::prometheus::{Prometheus, ScrapedNode, adapt};
use crate::root::PrivateRoot;

/// The token of these nodes.
pub const TOKEN: &str = "token-of-the-tests-0123456789abcdef";

/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A node with a metrics listener that wants a token, by HTTPS.
#[derive(Debug)]
pub struct ScrapedTestNode {
    /// The node.
    pub node: TestNode,
    /// The authority of its certificate.
    pub authority: Authority,
}

/// Writes the token of a node with a mode; the file.
///
/// # Panics
/// When the root cannot be written.
pub fn write_token(root: &PrivateRoot, text: &str, mode: u32) -> PathBuf {
    let file = root.path().join("metrics.token");
    fs::write(&file, text).expect("the root can be written");
    fs::set_permissions(&file, Permissions::from_mode(mode)).expect("it is ours");
    file
}

// === impl ScrapedTestNode ===

impl ScrapedTestNode {
    /// Starts a node with more configuration, which `prepare` gives.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start(prepare: impl FnOnce(&PrivateRoot) -> String) -> Self {
        Self::start_with(None, prepare)
    }

    /// Starts a node beside a managed or an external containerd. Its daemon runs a copy of the binary in its root.
    ///
    /// # Panics
    /// As [`TestNode::start`].
    #[track_caller]
    #[must_use]
    pub fn start_beside(
        containerd: Containerd,
        prepare: impl FnOnce(&PrivateRoot) -> String,
    ) -> Self {
        Self::start_with(Some(containerd), prepare)
    }

    #[track_caller]
    fn start_with(
        containerd: Option<Containerd>,
        prepare: impl FnOnce(&PrivateRoot) -> String,
    ) -> Self {
        let mut made = None;
        let with_listener = |root: &PrivateRoot| {
            let authority = Authority::new(root.path(), "metrics");
            let extra = format!("{}{}", Self::section(root, &authority), prepare(root));
            made = Some(authority);
            extra
        };
        let node = match containerd {
            None => TestNode::start_configured(with_listener),
            Some(containerd) => TestNode::start_version(&binary(), containerd, with_listener),
        };
        Self {
            node,
            authority: made.expect("it was made before the node was started"),
        }
    }

    /// `[admin]` with a new certificate of the authority.
    fn section(root: &PrivateRoot, authority: &Authority) -> String {
        let server = authority.issue("node");
        let token = write_token(root, TOKEN, 0o600);
        format!(
            "[admin]\ncontainer_metrics = \"network\"\n\
             metrics_listen = \"0.0.0.0:0\"\nmetrics_tls_certificate = {:?}\nmetrics_tls_key = {:?}\n\
             metrics_bearer_token_file = {token:?}\n",
            server.certificate, server.key
        )
    }

    /// The address at which a client on this machine reaches the listener.
    ///
    /// # Panics
    /// When the daemon does not run.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let text = fs::read_to_string(self.node.root().run().join("metrics.addr"))
            .expect("it was written");
        let bound: SocketAddr = text.trim().parse().expect("it is an address");
        SocketAddr::from(([127, 0, 0, 1], bound.port()))
    }

    /// Writes the shipped files for the node as it is now; returns their directory.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn adapt(&self) -> PathBuf {
        self.adapt_by(self.address())
    }

    /// Writes them for a Prometheus that reaches the listener at another address.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn adapt_by(&self, address: SocketAddr) -> PathBuf {
        let dir = self.node.root().path().join("prometheus");
        let authority = self.authority.certificate();
        let scraped = ScrapedNode {
            address,
            authority: &authority,
            token: TOKEN,
            kubelet: "none",
        };
        adapt(&dir, &scraped);
        dir
    }

    /// A Prometheus that scrapes the node, with the shipped files.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn prometheus(&self) -> Prometheus {
        Prometheus::start(&self.adapt())
    }

    /// The answer to a request by HTTPS with a token, of a client that trusts this authority.
    ///
    /// # Errors
    /// The connection fails, or TLS.
    ///
    /// # Panics
    /// When the daemon does not run.
    pub fn get(&self, path: &str, token: &str, authority: &Authority) -> io::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let answer = async {
            let stream = TcpStream::connect(self.address()).await?;
            let name = ServerName::try_from("127.0.0.1").expect("it is an address");
            let mut stream = authority.client(None).connect(name, stream).await?;
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        runtime.block_on(async {
            tokio::time::timeout(LIMIT, answer)
                .await
                .map_err(io::Error::from)?
        })
    }
}
