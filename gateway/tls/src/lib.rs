//! The certificate of a TLS server and the authority of its clients' certificates, read from files and
//! replaceable while the server runs.
//!
//! TLS is rustls with ring, for versions 1.2 and 1.3. A server takes an [`Acceptor`] for each connection, so
//! a replacement is in force for the next one; [`Acceptor::replaced`] notifies a connection that its own has
//! been replaced.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use switchyard_node_files::read;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod trusted;

pub use trusted::TrustedCertificates;

/// The largest file, in bytes: bundles of all public authorities have a quarter of a MiB.
const FILE_MAX: u64 = 4 << 20;

/// The files of a TLS server, all of them PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate chain, the server's own first.
    pub certificates: PathBuf,
    /// The private key of the first certificate.
    pub key: PathBuf,
    /// The certificates of the authorities of which a client must have a certificate, or of clients themselves; `None`:
    /// clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Reason why the files are unusable.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve TLS: {reason}")]
pub struct TlsError {
    /// The file, and its fault.
    reason: String,
}

/// The certificate and client authority of a server, which can be replaced while it runs. Clones share it.
#[derive(Clone)]
pub struct Certificate(Arc<RwLock<Acceptor>>);

/// A certificate that was read and not presented yet.
pub struct NewCertificate(TlsAcceptor);

/// The server's side of handshakes, with one certificate.
#[derive(Clone)]
pub struct Acceptor {
    tls: TlsAcceptor,
    replaced: CancellationToken,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl fmt::Debug for NewCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewCertificate")
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

// === impl Certificate ===

impl Certificate {
    /// Presents a certificate.
    #[must_use]
    pub fn new(first: NewCertificate) -> Self {
        Self(Arc::new(RwLock::new(Acceptor::new(first))))
    }

    /// Presents another certificate, and demands what came with it, in connections from now on.
    pub fn replace(&self, new: NewCertificate) {
        let former = std::mem::replace(&mut *self.0.write(), Acceptor::new(new));
        // After the replacement: a client that connects again because of this gets the new certificate.
        former.replaced.cancel();
    }

    /// The acceptor for a connection that begins now.
    #[must_use]
    pub fn acceptor(&self) -> Acceptor {
        self.0.read().clone()
    }
}

// === impl Acceptor ===

impl Acceptor {
    fn new(NewCertificate(tls): NewCertificate) -> Self {
        Self {
            tls,
            replaced: CancellationToken::new(),
        }
    }

    /// Does the handshake on a new connection. It has no timeout of its own. If dropped, the connection is
    /// closed.
    ///
    /// # Errors
    /// The client broke off, or one side refuses the other.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.tls.accept(stream).await
    }

    /// Completes when the server has another certificate. Cancel-safe.
    pub async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

// === impl TlsConfig ===

impl TlsConfig {
    /// Reads the files. Blocks on the file system.
    ///
    /// # Errors
    /// Which file, and what is wrong with it.
    pub fn read(&self) -> Result<NewCertificate, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&self.certificates)?;
        let key = self.key.display();
        let unreadable = |error: &dyn fmt::Display| {
            fail(format!(
                "the private key cannot be read from {key}: {error}"
            ))
        };
        let private = read(&self.key, FILE_MAX).map_err(|error| unreadable(&error))?;
        let private =
            PrivateKeyDer::from_pem_slice(&private).map_err(|error| unreadable(&error))?;
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(error.to_string()))?;
        let verified = match &self.client_ca {
            None => versions.with_no_client_auth(),
            Some(file) => versions.with_client_cert_verifier(client_verifier(file, provider)?),
        };
        let config = verified.with_single_cert(chain, private).map_err(|error| {
            fail(format!(
                "the key of {key} does not serve {}: {error}",
                self.certificates.display()
            ))
        })?;
        Ok(NewCertificate(TlsAcceptor::from(Arc::new(config))))
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.certificates, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .map(PathBuf::as_path)
    }
}

fn fail(reason: String) -> TlsError {
    TlsError { reason }
}

/// The certificates in a file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error: &dyn fmt::Display| {
        fail(format!(
            "certificates cannot be read from {}: {error}",
            file.display()
        ))
    };
    let content = read(file, FILE_MAX).map_err(|error| unreadable(&error))?;
    let chain = CertificateDer::pem_slice_iter(&content)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(&error))?;
    if chain.is_empty() {
        return Err(fail(format!("no certificate is in {}", file.display())));
    }
    Ok(chain)
}

/// Accepts the clients that an authority vouches for, and those whose certificate is trusted itself.
#[derive(Debug)]
struct TrustedClients {
    authorities: Arc<dyn ClientCertVerifier>,
    certificates: TrustedCertificates,
}

impl ClientCertVerifier for TrustedClients {
    fn offer_client_auth(&self) -> bool {
        self.authorities.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.authorities.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match self
            .authorities
            .verify_client_cert(end_entity, intermediates, now)
        {
            Err(refusal) if self.certificates.accept(end_entity, &refusal) => {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Accepts the clients that have a certificate of an authority in this file, or one of those in it.
fn client_verifier(
    file: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |error: &dyn fmt::Display| {
        fail(format!(
            "the client authorities in {} are unusable: {error}",
            file.display()
        ))
    };
    let trusted = certificates(file)?;
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots
            .add(certificate.clone())
            .map_err(|error| unusable(&error))?;
    }
    let authorities = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| unusable(&error))?;
    Ok(Arc::new(TrustedClients {
        authorities,
        certificates: TrustedCertificates::new(&trusted),
    }))
}
