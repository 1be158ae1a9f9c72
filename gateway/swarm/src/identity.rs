//! The identity of a member of a cluster: its key, its certificate and the roots.

use std::time::SystemTime;

use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::certificates::{Issuer, NodeChain, RootBundle, Unverified, ValidityPeriod};
use crate::error::Error;
use crate::key::NodeKey;

#[cfg(test)]
mod tests;

/// A verified membership as a worker. Clones share it.
#[derive(Debug, Clone)]
pub struct Identity {
    roots: RootBundle,
    chain: NodeChain,
    key: NodeKey,
    issuer: Issuer,
}

// === impl Identity ===

impl Identity {
    /// Puts an identity together.
    ///
    /// # Errors
    /// - [`Error::ManagerRole`], [`Error::CertificateExpired`], [`Error::CertificateNotValidYet`].
    /// - [`Error::InvalidCertificate`]: the certificate is of another key, or does not lead to a root.
    pub fn new(
        roots: RootBundle,
        chain: NodeChain,
        key: NodeKey,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let node = chain.subject().node.clone();
        if chain.subject().is_manager {
            return Err(Error::ManagerRole { node });
        }
        let invalid = |reason| Error::InvalidCertificate {
            what: "the certificate of this node",
            reason,
        };
        if chain.public_key() != key.public_key()? {
            return Err(invalid(
                "it is not of the private key of this node".to_owned(),
            ));
        }
        let issuer = chain.verify(&roots, now).map_err(|error| match error {
            Unverified::Expired => Error::CertificateExpired { node },
            Unverified::NotValidYet => Error::CertificateNotValidYet { node },
            Unverified::Invalid(reason) => invalid(reason),
        })?;
        Ok(Self {
            roots,
            chain,
            key,
            issuer,
        })
    }

    /// The same node with other roots.
    ///
    /// # Errors
    /// The chain does not lead to one of these roots: they must not be used before the certificate is renewed.
    pub fn with_roots(&self, roots: RootBundle, now: SystemTime) -> Result<Self, Unverified> {
        let issuer = self.chain.verify(&roots, now)?;
        Ok(Self {
            roots,
            issuer,
            ..self.clone()
        })
    }

    /// Returns whether `other` has the same certificate and the same roots.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.chain == other.chain && self.roots == other.roots
    }

    /// The id of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.chain.subject().node
    }

    /// The id of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.chain.subject().cluster
    }

    /// Returns the validity period of the certificate.
    #[must_use]
    pub const fn validity(&self) -> ValidityPeriod {
        self.chain.validity()
    }

    /// The roots of the cluster.
    #[must_use]
    pub const fn roots(&self) -> &RootBundle {
        &self.roots
    }

    /// The certificate.
    #[must_use]
    pub const fn chain(&self) -> &NodeChain {
        &self.chain
    }

    /// The private key.
    #[must_use]
    pub const fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Describes the certificates in use to managers. A CA rotation ends when all nodes report the new CA.
    #[must_use]
    pub fn tls_info(&self) -> swarm::NodeTlsInfo {
        swarm::NodeTlsInfo {
            trust_root: self.roots.pem().to_owned(),
            cert_issuer_subject: self.issuer.subject.clone(),
            cert_issuer_public_key: self.issuer.public_key.clone(),
        }
    }
}
