//! The certificates that a client has for a server, of which it presents one.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::{Decode as _, Encode as _};

/// Certificates with their keys, in the order of the configuration.
#[derive(Debug)]
pub(super) struct Identities(Vec<Identity>);

#[derive(Debug)]
struct Identity {
    key: Arc<CertifiedKey>,
    /// The names of who has issued the certificate and those above it, as a server names authorities. One that cannot
    /// be interpreted has none.
    issuers: Vec<Vec<u8>>,
}

impl Identities {
    pub(super) fn new(keys: Vec<CertifiedKey>) -> Self {
        let identity = |key: CertifiedKey| {
            let issuer = |der: &[u8]| {
                let parsed = Certificate::from_der(der).ok()?;
                parsed.tbs_certificate().issuer().to_der().ok()
            };
            let chain = key.cert.iter();
            Identity {
                issuers: chain.filter_map(|der| issuer(der.as_ref())).collect(),
                key: Arc::new(key),
            }
        };
        Self(keys.into_iter().map(identity).collect())
    }
}

impl ResolvesClientCert for Identities {
    /// The first certificate of an authority that the server names, or else the first: the server then says what it
    /// thinks of it.
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let mut first = None;
        for identity in &self.0 {
            if identity.key.key.choose_scheme(sigschemes).is_none() {
                continue;
            }
            let is_named = |issuer: &Vec<u8>| root_hint_subjects.contains(&issuer.as_slice());
            if identity.issuers.iter().any(is_named) {
                return Some(Arc::clone(&identity.key));
            }
            first = first.or(Some(identity));
        }
        first.map(|identity| Arc::clone(&identity.key))
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}
