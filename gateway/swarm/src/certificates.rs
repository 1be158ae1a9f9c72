//! Certificates of a cluster: the bundle of its roots, and the chain of a node.

use std::fmt;
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_cert::Certificate;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, Encode, Reader, SliceReader};
use x509_cert::ext::pkix::BasicConstraints;
use x509_cert::name::Name;

use crate::error::Error;

#[cfg(test)]
mod tests;

/// The largest bundle or chain that is read. One certificate of SwarmKit has some 600 bytes, one of a
/// company's CA some 2,000.
pub const PEM_MAX: usize = 64 << 10;

/// Maximum number of certificates in a bundle or chain. During a rotation there are two.
const COUNT_MAX: usize = 16;

/// `OU` of a worker.
const WORKER: &str = "swarm-worker";

/// `OU` of a manager.
const MANAGER: &str = "swarm-manager";

/// The longest id of a node or cluster that is accepted. They have 25 characters.
const ID_MAX: usize = 64;

/// The root certificates of a cluster: at least one, each of a CA and signed by itself.
#[derive(Clone, PartialEq, Eq)]
pub struct RootBundle {
    pem: Vec<u8>,
    certificates: Vec<CertificateDer<'static>>,
}

/// The certificate of a node and the intermediate ones behind it. It is not verified yet.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeChain {
    pem: Vec<u8>,
    certificates: Vec<CertificateDer<'static>>,
    subject: NodeSubject,
    public_key: Vec<u8>,
    validity: ValidityPeriod,
}

/// The subject of a node's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSubject {
    /// The id of the node, which is the common name.
    pub node: String,
    /// The id of the cluster, which is the organisation.
    pub cluster: String,
    /// True if the node may act as a manager.
    pub is_manager: bool,
}

/// From when until when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidityPeriod {
    /// From when. Managers set it back by an hour.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
}

/// The issuer of a node's certificate, as the chain was verified.
#[derive(Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The name of the issuer, as DER.
    pub subject: Vec<u8>,
    /// Its SubjectPublicKeyInfo, as DER.
    pub public_key: Vec<u8>,
}

/// The reason for which a chain does not verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unverified {
    /// It was valid until now.
    Expired,
    /// It will be valid.
    NotValidYet,
    /// For another reason.
    Invalid(String),
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("it has expired"),
            Self::NotValidYet => f.write_str("it is not valid yet"),
            Self::Invalid(reason) => f.write_str(reason),
        }
    }
}

// === impl RootBundle ===

impl RootBundle {
    /// Reads a bundle as managers send it, of which every byte is kept.
    ///
    /// # Errors
    /// [`Error::InvalidCertificate`]: it is too large or none, or a certificate is not one of a CA and signed
    /// by itself with an algorithm that this program has.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Error> {
        let invalid = |reason: String| Error::InvalidCertificate {
            what: "the swarm's root certificate",
            reason,
        };
        let certificates = certificates(pem).map_err(invalid)?;
        for certificate in &certificates {
            check_root(certificate).map_err(invalid)?;
        }
        Ok(Self {
            pem: pem.to_owned(),
            certificates,
        })
    }

    /// The bundle as it was read.
    #[must_use]
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// The only certificates by which managers are verified.
    pub(crate) fn store(&self) -> RootCertStore {
        let mut store = RootCertStore::empty();
        let (added, ignored) = store.add_parsable_certificates(self.certificates.iter().cloned());
        debug_assert!(added > 0 && ignored == 0, "each was read before");
        store
    }

    fn anchors(&self) -> Vec<TrustAnchor<'_>> {
        self.certificates
            .iter()
            .filter_map(|root| webpki::anchor_from_trusted_cert(root).ok())
            .collect()
    }
}

impl fmt::Debug for RootBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootBundle({} certificates)", self.certificates.len())
    }
}

// === impl NodeChain ===

impl NodeChain {
    /// Reads a chain, the node's own certificate first.
    ///
    /// # Errors
    /// [`Error::InvalidCertificate`]: it is too large or none, or its subject is not that of a node.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Error> {
        let invalid = |reason: String| Error::InvalidCertificate {
            what: "the certificate of this node",
            reason,
        };
        let certificates = certificates(pem).map_err(invalid)?;
        let leaf = parse(&certificates[0]).map_err(invalid)?;
        let subject = NodeSubject::of(leaf.tbs_certificate().subject()).map_err(invalid)?;
        let entity = entity(&certificates[0]).map_err(invalid)?;
        let public_key = entity.subject_public_key_info().to_vec();
        let validity = leaf.tbs_certificate().validity();
        let validity = ValidityPeriod {
            not_before: validity.not_before.to_system_time(),
            not_after: validity.not_after.to_system_time(),
        };
        Ok(Self {
            pem: pem.to_owned(),
            certificates,
            subject,
            public_key,
            validity,
        })
    }

    /// The chain as it was read.
    #[must_use]
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// Returns the node that the certificate was issued to.
    #[must_use]
    pub const fn subject(&self) -> &NodeSubject {
        &self.subject
    }

    /// Returns the validity period of the node's own certificate.
    #[must_use]
    pub const fn validity(&self) -> ValidityPeriod {
        self.validity
    }

    /// The SubjectPublicKeyInfo of the node's own certificate, as DER.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The certificates, for a TLS client.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.certificates.clone()
    }

    /// Verifies the chain up to one of the roots, for a TLS client.
    ///
    /// # Errors
    /// It does not lead to one of the roots, or a certificate is not valid at that time.
    pub fn verify(&self, roots: &RootBundle, now: SystemTime) -> Result<Issuer, Unverified> {
        let invalid = |error: &dyn fmt::Display| Unverified::Invalid(error.to_string());
        let since_1970 = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        let leaf =
            EndEntityCert::try_from(&self.certificates[0]).map_err(|error| invalid(&error))?;
        let anchors = roots.anchors();
        let path = leaf
            .verify_for_usage(
                algorithms().all,
                &anchors,
                &self.certificates[1..],
                UnixTime::since_unix_epoch(since_1970),
                KeyUsage::client_auth(),
                None,
                None,
            )
            .map_err(|error| {
                if matches!(error, webpki::Error::CertExpired { .. }) {
                    Unverified::Expired
                } else if matches!(error, webpki::Error::CertNotValidYet { .. }) {
                    Unverified::NotValidYet
                } else {
                    invalid(&error)
                }
            })?;
        let issuer = match path.intermediate_certificates().next() {
            Some(intermediate) => Issuer::of(&intermediate.der()),
            None => {
                let key = path.anchor().subject_public_key_info.as_ref();
                let root = roots.certificates.iter().find(|root| {
                    // An anchor has the content of the key's sequence alone.
                    entity(root).is_ok_and(|root| root.subject_public_key_info().ends_with(key))
                });
                root.ok_or_else(|| "its root is not in the bundle".to_owned())
                    .and_then(Issuer::of)
            }
        };
        issuer.map_err(Unverified::Invalid)
    }
}

impl fmt::Debug for NodeChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeChain")
            .field("subject", &self.subject)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

// === impl NodeSubject ===

impl NodeSubject {
    fn of(name: &Name) -> Result<Self, String> {
        const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
        const ORGANISATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
        const UNIT: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.11");
        let node = attribute(name, COMMON_NAME, "common name")?;
        let cluster = attribute(name, ORGANISATION, "organisation")?;
        for id in [&node, &cluster] {
            let is_plain = id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if id.is_empty() || id.len() > ID_MAX || !is_plain {
                return Err(format!(
                    "its subject has an id that is none: {}",
                    id.escape_debug()
                ));
            }
        }
        match attribute(name, UNIT, "organisational unit")?.as_str() {
            WORKER => Ok(Self {
                node,
                cluster,
                is_manager: false,
            }),
            MANAGER => Ok(Self {
                node,
                cluster,
                is_manager: true,
            }),
            other => Err(format!(
                "its organisational unit is not a role: {}",
                other.escape_debug()
            )),
        }
    }
}

/// The one attribute of this kind.
fn attribute(name: &Name, kind: ObjectIdentifier, what: &str) -> Result<String, String> {
    let mut values = name.iter().filter(|attribute| attribute.oid == kind);
    let Some(first) = values.next() else {
        return Err(format!("its subject has no {what}"));
    };
    if values.next().is_some() {
        return Err(format!("its subject has more than one {what}"));
    }
    let text = std::str::from_utf8(first.value.value());
    text.map(str::to_owned)
        .map_err(|_| format!("the {what} of its subject is no text"))
}

// === impl Issuer ===

impl Issuer {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = parse(certificate)?;
        let subject = parsed
            .tbs_certificate()
            .subject()
            .to_der()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            subject,
            public_key: entity(certificate)?.subject_public_key_info().to_vec(),
        })
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Issuer")
    }
}

// === reading ===

/// The algorithms of signatures in certificates.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// The certificates in a text, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    if pem.len() > PEM_MAX {
        return Err(format!("it has more than {PEM_MAX} bytes"));
    }
    let read = CertificateDer::pem_slice_iter(pem).take(COUNT_MAX + 1);
    // The library's error shows the bytes.
    let certificates = read
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "it is no valid PEM".to_owned())?;
    match certificates.len() {
        0 => Err("there is none".to_owned()),
        1..=COUNT_MAX => Ok(certificates),
        _ => Err(format!("there are more than {COUNT_MAX}")),
    }
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, String> {
    Certificate::from_der(certificate).map_err(|error| error.to_string())
}

fn entity<'a>(certificate: &'a CertificateDer<'a>) -> Result<EndEntityCert<'a>, String> {
    EndEntityCert::try_from(certificate).map_err(|error| error.to_string())
}

/// Checks that a certificate is self-signed and belongs to a CA.
fn check_root(certificate: &CertificateDer<'_>) -> Result<(), String> {
    let parsed = parse(certificate)?;
    let fields = parsed.tbs_certificate();
    let constraints = fields
        .get_extension::<BasicConstraints>()
        .map_err(|error| error.to_string())?;
    if !constraints.is_some_and(|(_, constraints)| constraints.ca) {
        return Err("it is not one of a certificate authority".to_owned());
    }
    if fields.subject() != fields.issuer() {
        return Err("it is issued by another authority".to_owned());
    }
    let signed = signed_part(certificate).map_err(|error| error.to_string())?;
    let algorithm = parsed
        .signature_algorithm()
        .to_der()
        .map_err(|error| error.to_string())?;
    let root = entity(certificate)?;
    let is_signed = algorithms().all.iter().any(|known| {
        algorithm.ends_with(known.signature_alg_id().as_ref())
            && root
                .verify_signature(*known, signed, parsed.signature().raw_bytes())
                .is_ok()
    });
    if !is_signed {
        return Err(
            "it is not signed by itself with SHA-2 and a key of P-256, P-384, Ed25519 or RSA"
                .to_owned(),
        );
    }
    webpki::anchor_from_trusted_cert(certificate)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// The bytes of a certificate that its signature is of.
fn signed_part<'a>(certificate: &'a CertificateDer<'_>) -> x509_cert::der::Result<&'a [u8]> {
    let mut reader = SliceReader::new(certificate)?;
    reader.sequence(|fields| {
        let signed = fields.tlv_bytes()?;
        fields.drain(fields.remaining_len())?;
        Ok(signed)
    })
}
