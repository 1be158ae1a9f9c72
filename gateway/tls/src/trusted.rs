//! Certificates that are trusted themselves.
//!
//! The library trusts authorities, and what they have issued. A certificate that its own key has signed says as a rule
//! that it is an authority's (`openssl req -x509` makes it so), and one that an authority has issued can be given without
//! that authority; the library refuses the peers that present these. Programs in Go and with OpenSSL accept them, so
//! that whoever gives such a certificate expects it. Nothing is widened: whoever has the key of a certificate that is
//! given as an authority's could issue others.

use std::collections::HashSet;

use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

/// Certificates that are trusted themselves: the SHA-256 of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedCertificates(HashSet<[u8; 32]>);

impl TrustedCertificates {
    /// Trusts these.
    #[must_use]
    pub fn new(certificates: &[CertificateDer<'_>]) -> Self {
        Self(certificates.iter().map(fingerprint).collect())
    }

    /// Returns whether a peer's certificate, which was refused with this error, is one of these and was refused for
    /// nothing but who has issued it, or because it is an authority's. Its dates are right then. Its name has not been
    /// looked at.
    #[must_use]
    pub fn accept(&self, certificate: &CertificateDer<'_>, refusal: &rustls::Error) -> bool {
        is_about_issuer(refusal) && self.0.contains(&fingerprint(certificate))
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// Returns whether a certificate was refused for nothing but who has issued it, or because it is an authority's: the
/// library looks at the dates first.
fn is_about_issuer(refusal: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(fault) = refusal else {
        return false;
    };
    if let CertificateError::Other(other) = fault {
        let fault = other.0.downcast_ref::<webpki::Error>();
        return fault.is_some_and(|fault| *fault == webpki::Error::CaUsedAsEndEntity);
    }
    *fault == CertificateError::UnknownIssuer
}
