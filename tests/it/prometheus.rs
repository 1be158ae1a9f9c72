//! The metrics listener, and the shipped files for Prometheus and Grafana, on a real node with Debian's
//! Prometheus.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::node::TestNode;
use switchyard_tests::prometheus::{Prometheus, ScrapedNode, adapt};
use switchyard_tests::root::PrivateRoot;
use switchyard_tls::testing::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::nomad::devices::make_device;

mod alerts;
mod dashboard;
mod files;
mod listener;

/// The token of the nodes of these tests.
const TOKEN: &str = "token-of-the-tests-0123456789abcdef";

/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A node with a metrics listener that wants a token, by HTTPS.
struct ScrapedTestNode {
    node: TestNode,
    authority: Authority,
}

/// Writes the token of a node with a mode.
fn write_token(root: &PrivateRoot, text: &str, mode: u32) -> PathBuf {
    let file = root.path().join("metrics.token");
    fs::write(&file, text).expect("the root can be written");
    fs::set_permissions(&file, Permissions::from_mode(mode)).expect("it is ours");
    file
}

/// The configuration of a group of one device.
fn device_group(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    format!(
        "[devices.kubelet]\nenabled = false\n[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\n\
         name = \"v2\"\npaths = [\"{}/acme0\"]\n",
        dir.display()
    )
}

/// A container with the device of that group.
fn container_with_device(node: &TestNode, name: &str) -> cri::ContainerConfig {
    let device = node.root().path().join("dev/acme0").display().to_string();
    let mut container = node.container(name, &["sleep", "1000"]);
    let container_path = device.clone();
    container.devices = vec![cri::Device {
        host_path: device,
        container_path,
        permissions: "rw".to_owned(),
    }];
    container
}

impl ScrapedTestNode {
    /// Starts a node with more configuration, which `prepare` gives.
    fn start(prepare: impl FnOnce(&PrivateRoot) -> String) -> Self {
        let mut made = None;
        let node = TestNode::start_configured(|root| {
            let authority = Authority::new(root.path(), "metrics");
            let extra = format!("{}{}", Self::section(root, &authority), prepare(root));
            made = Some(authority);
            extra
        });
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
    fn address(&self) -> SocketAddr {
        let text = fs::read_to_string(self.node.root().run().join("metrics.addr"))
            .expect("it was written");
        let bound: SocketAddr = text.trim().parse().expect("it is an address");
        SocketAddr::from(([127, 0, 0, 1], bound.port()))
    }

    /// Writes the shipped files for the node as it is now; returns their directory.
    fn adapt(&self) -> PathBuf {
        let dir = self.node.root().path().join("prometheus");
        let authority = self.authority.certificate();
        let scraped = ScrapedNode {
            address: self.address(),
            authority: &authority,
            token: TOKEN,
            kubelet: "none",
        };
        adapt(&dir, &scraped);
        dir
    }

    /// A Prometheus that scrapes the node, with the shipped files.
    fn prometheus(&self) -> Prometheus {
        Prometheus::start(&self.adapt())
    }

    /// The answer to a request by HTTPS with a token, of a client that trusts this authority.
    ///
    /// # Errors
    /// The connection fails, or TLS.
    fn get(&self, path: &str, token: &str, authority: &Authority) -> io::Result<String> {
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
