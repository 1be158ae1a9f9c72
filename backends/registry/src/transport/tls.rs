//! TLS of connections: which certificates of servers are accepted, and which certificate is presented.
//!
//! What the libraries refuse and containerd accepts, because Go does: a server whose certificate is itself given as
//! `ca`, or is in the system's trust store ([`TrustedCertificates`]); and a certificate of a client in version 1 of
//! X.509, which nobody here has to interpret.

mod identities;

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use switchyard_tls::TrustedCertificates;

use self::identities::Identities;
use crate::hosts::{ClientPair, Pem, Tls};
use crate::{BoxError, Error, Result};

/// Accepts the servers that an authority vouches for, and those whose certificate is trusted itself.
#[derive(Debug)]
struct TrustedServers {
    /// `None` without any authority.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    certificates: TrustedCertificates,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Accepts every server (`skip_verify`).
#[derive(Debug)]
struct AnyServer;

/// The settings of TLS for connections. Reads the system's trust store, so it blocks.
///
/// # Errors
/// [`Error::InvalidConfig`] that names the file which cannot be used.
pub(super) fn client_config(tls: &Tls) -> Result<ClientConfig> {
    let provider = CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(ring::default_provider()));
    let mut trusted = Vec::new();
    for pem in &tls.authorities {
        let certificates = certificates(pem)?;
        let (usable, _) =
            RootCertStore::empty().add_parsable_certificates(certificates.iter().cloned());
        if usable == 0 {
            return Err(unusable(&pem.file, "holds no valid certificate", None));
        }
        trusted.extend(certificates);
    }
    let verifier: Arc<dyn ServerCertVerifier> = if tls.skip_verify == Some(true) {
        Arc::new(AnyServer)
    } else {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::debug!(%error, "a certificate of the system's trust store cannot be read");
        }
        trusted.extend(system.certs);
        Arc::new(TrustedServers::new(&trusted, &provider))
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(set_up_failed)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = if tls.clients.is_empty() {
        builder.with_no_client_auth()
    } else {
        let keys = tls.clients.iter().map(|pair| identity(pair, &provider));
        let identities = Identities::new(keys.collect::<Result<_>>()?);
        builder.with_client_cert_resolver(Arc::new(identities))
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// A certificate that a client may present, and its key.
fn identity(pair: &ClientPair, provider: &CryptoProvider) -> Result<CertifiedKey> {
    let ClientPair { certificate, key } = pair;
    let chain = certificates(certificate)?;
    // The parser of authorities also reads version 1 of X.509.
    let mut own = RootCertStore::empty();
    if let Some(leaf) = chain.first() {
        own.add(leaf.clone()).map_err(|error| {
            let reason = "holds no valid certificate";
            unusable(&certificate.file, reason, Some(error.into()))
        })?;
    }
    let key = key.as_ref().unwrap_or(certificate);
    let unusable_key = |error: BoxError| {
        let reason = "holds no private key that can be used: in PEM format, and not encrypted";
        unusable(&key.file, reason, Some(error))
    };
    let private =
        PrivateKeyDer::from_pem_slice(&key.content).map_err(|error| unusable_key(error.into()))?;
    let signing = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| unusable_key(error.into()))?;
    let own = own.roots.first();
    let public: Option<&[u8]> = own.map(|own| own.subject_public_key_info.as_ref());
    let fits = match (signing.public_key(), public) {
        // That of the certificate comes without its tag and length.
        (Some(signing), Some(public)) => AsRef::<[u8]>::as_ref(&signing).ends_with(public),
        (None, _) | (_, None) => true,
    };
    if !fits {
        let reason = format!(
            "holds a key that is not the one of the certificate in {}",
            certificate.file.display()
        );
        return Err(unusable(&key.file, &reason, None));
    }
    Ok(CertifiedKey::new(chain, signing))
}

/// The certificates in a file, at least one.
fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.content).collect();
    let reason = "holds no usable certificate in PEM format";
    match read {
        Ok(found) if found.is_empty() => Err(unusable(&pem.file, reason, None)),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(&pem.file, reason, Some(error.into()))),
    }
}

fn unusable(file: &Path, reason: &str, source: Option<BoxError>) -> Error {
    Error::InvalidConfig {
        file: file.to_owned(),
        key: None,
        reason: reason.to_owned(),
        source,
    }
}

pub(super) fn set_up_failed(error: impl Into<BoxError>) -> Error {
    Error::Unavailable {
        what: "TLS set-up".to_owned(),
        host: "this process".to_owned(),
        source: error.into(),
    }
}

// === impl TrustedServers ===

impl TrustedServers {
    fn new(trusted: &[CertificateDer<'static>], provider: &Arc<CryptoProvider>) -> Self {
        let mut roots = RootCertStore::empty();
        // A bundle may have old ones that nobody can interpret.
        roots.add_parsable_certificates(trusted.iter().cloned());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        Self {
            // It fails only without any authority.
            authorities: verifier.build().ok(),
            certificates: TrustedCertificates::new(trusted),
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for TrustedServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authorities) = &self.authorities else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let verified = authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            Err(refusal) if self.certificates.accept(end_entity, &refusal) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
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
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

// === impl AnyServer ===

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// All that there are: a server that is not verified may use what this library cannot compute.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        use SignatureScheme as S;
        vec![
            S::ECDSA_NISTP256_SHA256,
            S::ECDSA_NISTP384_SHA384,
            S::ECDSA_NISTP521_SHA512,
            S::ED25519,
            S::ED448,
            S::RSA_PSS_SHA256,
            S::RSA_PSS_SHA384,
            S::RSA_PSS_SHA512,
            S::RSA_PKCS1_SHA256,
            S::RSA_PKCS1_SHA384,
            S::RSA_PKCS1_SHA512,
            S::ECDSA_SHA1_Legacy,
            S::RSA_PKCS1_SHA1,
        ]
    }
}

#[cfg(test)]
mod tests;
