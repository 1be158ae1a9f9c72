//! Loads the server's certificate, and replaces it while the server runs.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsConfig;
use crate::server::BindError;

/// The certificate that a server presents, which can be replaced while it runs. Clones share it.
#[derive(Clone)]
pub struct Certificate(Arc<RwLock<TlsAcceptor>>);

/// A certificate that was read and not presented yet.
pub struct NewCertificate(TlsAcceptor);

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

impl Certificate {
    pub(crate) fn new(first: NewCertificate) -> Self {
        Self(Arc::new(RwLock::new(first.0)))
    }

    /// Presents another certificate in connections from now on.
    pub fn replace(&self, new: NewCertificate) {
        *self.0.write() = new.0;
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.read().clone()
    }
}

impl TlsConfig {
    /// Reads the files. Blocks on the file system.
    ///
    /// # Errors
    /// [`BindError::Tls`]: which file, and what is wrong with it.
    pub fn read(&self) -> Result<NewCertificate, BindError> {
        acceptor(self).map(NewCertificate)
    }
}

/// Creates the TLS acceptor with the certificate and key in these files.
fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, BindError> {
    let certificates = tls.certificates.display();
    let key = tls.key.display();
    let fail = |reason| BindError::Tls { reason };
    let chain = CertificateDer::pem_file_iter(&tls.certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fail(format!("certificates cannot be read from {certificates}: {error}")))?;
    if chain.is_empty() {
        return Err(fail(format!("no certificate is in {certificates}")));
    }
    let private = PrivateKeyDer::from_pem_file(&tls.key)
        .map_err(|error| fail(format!("the private key cannot be read from {key}: {error}")))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| fail(format!("the key of {key} does not serve {certificates}: {error}")))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
