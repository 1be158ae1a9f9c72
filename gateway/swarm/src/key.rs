//! The private key of a node, and requests for a certificate of it.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_cert::attr::Attributes;
use x509_cert::der::asn1::{Any, BitString};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Encode, Tag};
use x509_cert::name::Name;
use x509_cert::request::{CertReq, CertReqInfo, Version};
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};

use crate::error::Error;

#[cfg(test)]
mod tests;

/// Characters in a line of PEM.
const PEM_LINE: usize = 64;

/// A private key of the curve P-256, which managers of all versions take. Clones share it; `Debug` shows nothing of it.
#[derive(Clone)]
pub struct NodeKey {
    pkcs8: Arc<PrivatePkcs8KeyDer<'static>>,
    pair: Arc<EcdsaKeyPair>,
}

// === impl NodeKey ===

impl NodeKey {
    /// A new key.
    ///
    /// # Errors
    /// [`Error::Cryptography`]: the system gives no random numbers.
    pub fn generate() -> Result<Self, Error> {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
                .map_err(|error| cannot("make a private key", &error))?;
        Self::from_pkcs8(document.as_ref().to_owned())
    }

    /// Reads a key, the first of a text.
    ///
    /// # Errors
    /// [`Error::Cryptography`]: there is none, or it is of another kind.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Error> {
        // The library's error shows the bytes.
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem)
            .map_err(|_| unreadable("there is none in PEM"))?;
        Self::from_pkcs8(key.secret_pkcs8_der().to_owned())
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, Error> {
        let pair = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_ASN1_SIGNING,
            &pkcs8,
            &SystemRandom::new(),
        )
        .map_err(|_| unreadable("it is not one of the curve P-256 in PKCS #8"))?;
        Ok(Self {
            pkcs8: Arc::new(PrivatePkcs8KeyDer::from(pkcs8)),
            pair: Arc::new(pair),
        })
    }

    /// The key as a text, to be stored.
    pub(crate) fn to_pem(&self) -> String {
        pem("PRIVATE KEY", self.pkcs8.secret_pkcs8_der())
    }

    /// The key, for a TLS client.
    pub(crate) fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.pkcs8.clone_key())
    }

    /// Its SubjectPublicKeyInfo as DER.
    ///
    /// # Errors
    /// [`Error::Cryptography`]: it cannot be encoded.
    pub fn public_key(&self) -> Result<Vec<u8>, Error> {
        self.subject_public_key()
            .and_then(|key| key.to_der())
            .map_err(|error| cannot("encode the public key of this node", &error))
    }

    /// A request for a certificate, as PEM. Its subject is empty: managers take nothing but the key from it.
    ///
    /// # Errors
    /// [`Error::Cryptography`]: it cannot be signed or encoded.
    pub fn certificate_request(&self) -> Result<String, Error> {
        const ECDSA_WITH_SHA256: ObjectIdentifier =
            ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
        let failed = |error: &dyn fmt::Display| cannot("request a certificate", error);
        let info = CertReqInfo {
            version: Version::V1,
            subject: Name::default(),
            public_key: self.subject_public_key().map_err(|error| failed(&error))?,
            attributes: Attributes::new(),
        };
        let signed = info.to_der().map_err(|error| failed(&error))?;
        let signature = self
            .pair
            .sign(&SystemRandom::new(), &signed)
            .map_err(|error| failed(&error))?;
        let request = CertReq {
            info,
            algorithm: AlgorithmIdentifierOwned {
                oid: ECDSA_WITH_SHA256,
                parameters: None,
            },
            signature: BitString::from_bytes(signature.as_ref()).map_err(|error| failed(&error))?,
        };
        Ok(pem(
            "CERTIFICATE REQUEST",
            &request.to_der().map_err(|error| failed(&error))?,
        ))
    }

    fn subject_public_key(&self) -> x509_cert::der::Result<SubjectPublicKeyInfoOwned> {
        const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
        const P_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
        let curve = Any::new(Tag::ObjectIdentifier, P_256.as_bytes())?;
        Ok(SubjectPublicKeyInfoOwned {
            algorithm: AlgorithmIdentifierOwned {
                oid: EC_PUBLIC_KEY,
                parameters: Some(curve),
            },
            subject_public_key: BitString::from_bytes(self.pair.public_key().as_ref())?,
        })
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey")
    }
}

fn unreadable(reason: &str) -> Error {
    cannot("read the private key of this node", &reason)
}

fn cannot(verb: &'static str, error: &dyn fmt::Display) -> Error {
    Error::Cryptography {
        verb,
        reason: error.to_string(),
    }
}

/// The text form of DER.
fn pem(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}
