//! Transports to the streaming server: SPDY or WebSocket, with or without TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use switchyard_streaming::client::{
    Spdy, UpgradeRefused, UpgradedStream, WebSocket, connect, websocket_over,
};
use switchyard_tls::TlsConfig;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::prereq;

/// A transport to the server. The default is SPDY without a trusted certificate, as kubelets use it.
#[derive(Debug, Clone, Default)]
pub struct Transport {
    /// The protocol that carries the streams.
    pub protocol: StreamProtocol,
    /// The certificate that an HTTPS server must have, as a PEM file.
    pub trusted_certificate: Option<PathBuf>,
}

/// The protocol that carries the streams of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamProtocol {
    /// SPDY/3.1.
    #[default]
    Spdy,
    /// WebSocket: `v5.channel.k8s.io` for exec and attach; SPDY inside of its messages for forwarded ports.
    WebSocket,
}

impl Transport {
    /// Opens a URL over SPDY.
    pub(super) async fn spdy(&self, url: &Url, protocol: &str) -> io::Result<Spdy> {
        upgraded(Spdy::over(self.connect(url).await?, url, &[protocol]).await?)
    }

    /// Opens a URL over WebSocket.
    pub(super) async fn websocket(&self, url: &Url, protocol: &str) -> io::Result<WebSocket> {
        upgraded(websocket_over(self.connect(url).await?, url, protocol).await?)
    }

    async fn connect(&self, url: &Url) -> io::Result<Box<dyn UpgradedStream>> {
        let socket = connect(url).await?;
        if url.scheme() == "http" {
            return Ok(Box::new(socket));
        }
        let trusted = self
            .trusted_certificate
            .as_ref()
            .ok_or_else(|| io::Error::other("no certificate is trusted"))?;
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(trusted).map_err(io::Error::other)?;
        roots.add(certificate).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = url.host_str().unwrap_or_default().to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(
            TlsConnector::from(Arc::new(config))
                .connect(name, socket)
                .await?,
        ))
    }
}

fn upgraded<T>(answer: Result<T, UpgradeRefused>) -> io::Result<T> {
    answer.map_err(|refused| io::Error::other(refused.head))
}

/// Makes a certificate for 127.0.0.1, and its key, in a directory.
///
/// # Panics
/// When `openssl` is not installed, or fails.
#[must_use]
pub fn certificate(dir: &Path) -> TlsConfig {
    let tls = TlsConfig {
        certificates: dir.join("certificate.pem"),
        key: dir.join("key.pem"),
        client_ca: None,
    };
    let made = Command::new(prereq::require("openssl", "openssl"))
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args([
            "-days",
            "2",
            "-subj",
            "/CN=streaming",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-out"])
        .arg(&tls.certificates)
        .arg("-keyout")
        .arg(&tls.key)
        .output()
        .expect("openssl was found, so it starts");
    assert!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    tls
}
