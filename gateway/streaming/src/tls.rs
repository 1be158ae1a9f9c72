//! Loads the server's certificate.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsConfig;
use crate::server::BindError;

/// Creates the TLS acceptor with the certificate and key in these files.
pub(crate) fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, BindError> {
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
