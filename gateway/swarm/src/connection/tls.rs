//! TLS towards managers: rustls with ring, versions 1.2 and 1.3.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use super::Trust;
use crate::certificates::algorithms;

/// The name of the certificate authority in the certificates of managers.
const AUTHORITY: &str = "swarm-ca";

/// The name of a manager in its certificate. Addresses are in none.
const MANAGER: &str = "swarm-manager";

/// The name that the other side must have.
pub(super) fn server_name(trust: Trust<'_>) -> ServerName<'static> {
    let name = match trust {
        Trust::Anybody | Trust::Authority(_) => AUTHORITY,
        Trust::Manager(_) => MANAGER,
    };
    ServerName::try_from(name).expect("both are host names")
}

/// The settings of one connection.
pub(super) fn config(trust: Trust<'_>) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let mut config = match trust {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAny))
            .with_no_client_auth(),
        Trust::Authority(roots) => builder
            .with_root_certificates(roots.store())
            .with_no_client_auth(),
        Trust::Manager(identity) => builder
            .with_root_certificates(identity.roots().store())
            .with_client_auth_cert(identity.chain().certificates(), identity.key().to_der())?,
    };
    // Managers before Docker 28.0 do not answer ALPN once their certificate was renewed, and speak HTTP/2 all
    // the same.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Accepts every certificate, of which the other side must have the key.
#[derive(Debug)]
struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}
